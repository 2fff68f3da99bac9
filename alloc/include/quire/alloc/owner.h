// Whom memory is accounted to: weights, KV, workspace, a model, a user's own.
//
// Owners nest: a model's weights, KV and workspace belong to the model, and the
// models to a process. What an owner uses, its parents use as well, so that a
// limit on a model bounds the sum of its parts.

#ifndef QUIRE_ALLOC_OWNER_H_
#define QUIRE_ALLOC_OWNER_H_

#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "quire/alloc/mutex.h"
#include "quire/alloc/units.h"

namespace quire {

// The owner of everything that names none.
inline constexpr OwnerId kUnnamedOwner{0};

// Ids are below this: accounts of owners are vectors.
inline constexpr uint32_t kMaxOwners = 65536;

// kInvalidArgument for an id that is not below that.
absl::Status CheckOwner(OwnerId owner);

// The names of the owners of one runtime. Thread-safe. Names are never removed
// and parents never change: an owner id stays valid in traces and reports.
class OwnerRegistry {
 public:
  OwnerRegistry();

  // The id of `name`, registered at first use. Ids are small and dense. A name
  // is a path: "server/llama/kv" is "kv" in "llama" in "server", which are
  // registered as well. O(owners * levels).
  OwnerId Register(const std::string& name);
  // The same below `parent`; the top, where no such owner is registered.
  OwnerId Register(const std::string& name, OwnerId parent);

  // Of owners at the top, and of ids never registered: none.
  std::optional<OwnerId> Parent(OwnerId owner) const;
  // Whether `owner` is `ancestor`, or below it on any level.
  bool IsWithin(OwnerId owner, OwnerId ancestor) const;
  // The whole path: "server/llama/kv"; Register gives the id of it back.
  // "unnamed" for kUnnamedOwner, "owner N" for ids never registered.
  std::string Name(OwnerId owner) const;
  std::vector<std::string> Names() const;

 private:
  struct Entry {
    std::string path;
    std::optional<OwnerId> parent;
  };
  OwnerId RegisterPath(const std::string& path)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  mutable Mutex mutex_;
  std::vector<Entry> entries_ ABSL_GUARDED_BY(mutex_);  // by id
};

}  // namespace quire

#endif  // QUIRE_ALLOC_OWNER_H_
