// What a MemoryHooks may be as well: who raises the limit of a device memory
// when more than that is asked for.

#ifndef QUIRE_ALLOC_LIMIT_RAISER_H_
#define QUIRE_ALLOC_LIMIT_RAISER_H_

#include "quire/alloc/units.h"

namespace quire {

class LimitRaiser {
 public:
  virtual ~LimitRaiser() = default;

  // How far OnOutOfMemory could raise the limit. A request that is larger than
  // the limit, and no larger than this, asks these hooks before it is refused;
  // others, which give up memory in vain for it, are not asked. Called without
  // a lock, and often: it must be cheap.
  virtual Bytes HighestLimit() const = 0;
};

}  // namespace quire

#endif  // QUIRE_ALLOC_LIMIT_RAISER_H_
