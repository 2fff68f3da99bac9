#include "quire/alloc/owner.h"

#include <algorithm>

namespace quire {

OwnerRegistry::OwnerRegistry() : names_({"unnamed"}) {}

OwnerId OwnerRegistry::Register(const std::string& name) {
  MutexLock lock(&mutex_);
  // Owners are few (a model has about five), so a scan is the simplest index.
  const auto found = std::find(names_.begin(), names_.end(), name);
  const auto index = static_cast<uint32_t>(found - names_.begin());
  if (found == names_.end()) names_.push_back(name);
  return OwnerId(index);
}

std::string OwnerRegistry::Name(OwnerId owner) const {
  MutexLock lock(&mutex_);
  if (owner.value() < names_.size()) return names_[owner.value()];
  return "owner " + std::to_string(owner.value());
}

std::vector<std::string> OwnerRegistry::Names() const {
  MutexLock lock(&mutex_);
  return names_;
}

}  // namespace quire
