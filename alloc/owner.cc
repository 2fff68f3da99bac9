#include "quire/alloc/owner.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace quire {
namespace {

constexpr char kSeparator = '/';

}  // namespace

absl::Status CheckOwner(OwnerId owner) {
  if (owner.value() < kMaxOwners) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("owner ", owner.value(), " is not below ", kMaxOwners));
}

OwnerRegistry::OwnerRegistry() : entries_({{"unnamed", std::nullopt}}) {}

OwnerId OwnerRegistry::Register(const std::string& name) {
  MutexLock lock(&mutex_);
  return RegisterPath(name);
}

OwnerId OwnerRegistry::Register(const std::string& name, OwnerId parent) {
  MutexLock lock(&mutex_);
  if (parent.value() >= entries_.size()) return RegisterPath(name);
  return RegisterPath(entries_[parent.value()].path + kSeparator + name);
}

OwnerId OwnerRegistry::RegisterPath(const std::string& path) {
  std::optional<OwnerId> parent;
  for (size_t end = 0; end != std::string::npos;) {
    end = path.find(kSeparator, parent ? end + 1 : 0);
    const std::string part = path.substr(0, end);
    // Owners are few (a model has about five), so a scan is the simplest index.
    const auto found =
        std::find_if(entries_.begin(), entries_.end(),
                     [&](const Entry& entry) { return entry.path == part; });
    const auto index = static_cast<uint32_t>(found - entries_.begin());
    if (found == entries_.end()) entries_.push_back({part, parent});
    parent = OwnerId(index);
  }
  return *parent;
}

std::optional<OwnerId> OwnerRegistry::Parent(OwnerId owner) const {
  MutexLock lock(&mutex_);
  if (owner.value() >= entries_.size()) return std::nullopt;
  return entries_[owner.value()].parent;
}

bool OwnerRegistry::IsWithin(OwnerId owner, OwnerId ancestor) const {
  MutexLock lock(&mutex_);
  while (owner != ancestor) {
    if (owner.value() >= entries_.size()) return false;
    const std::optional<OwnerId> parent = entries_[owner.value()].parent;
    if (!parent) return false;
    owner = *parent;
  }
  return true;
}

std::string OwnerRegistry::Name(OwnerId owner) const {
  MutexLock lock(&mutex_);
  if (owner.value() < entries_.size()) return entries_[owner.value()].path;
  return "owner " + std::to_string(owner.value());
}

std::vector<std::string> OwnerRegistry::Names() const {
  MutexLock lock(&mutex_);
  std::vector<std::string> names;
  names.reserve(entries_.size());
  for (const Entry& entry : entries_) names.push_back(entry.path);
  return names;
}

}  // namespace quire
