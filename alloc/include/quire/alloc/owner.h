// Whom memory is accounted to: weights, KV, workspace, a model, a user's own.

#ifndef QUIRE_ALLOC_OWNER_H_
#define QUIRE_ALLOC_OWNER_H_

#include <string>
#include <vector>

#include "quire/alloc/mutex.h"
#include "quire/alloc/units.h"

namespace quire {

// The owner of everything that names none.
inline constexpr OwnerId kUnnamedOwner{0};

// Ids are below this: accounts of owners are vectors.
inline constexpr uint32_t kMaxOwners = 65536;

// The names of the owners of one runtime. Thread-safe. Names are never removed:
// an owner id stays valid in traces and reports.
class OwnerRegistry {
 public:
  OwnerRegistry();

  // The id of `name`, registered at first use. Ids are small and dense.
  OwnerId Register(const std::string& name);
  // "unnamed" for kUnnamedOwner, "owner N" for ids never registered.
  std::string Name(OwnerId owner) const;
  std::vector<std::string> Names() const;

 private:
  mutable Mutex mutex_;
  std::vector<std::string> names_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace quire

#endif  // QUIRE_ALLOC_OWNER_H_
