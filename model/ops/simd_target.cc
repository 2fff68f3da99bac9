#include <hwy/highway.h>

#include "quire/model/ops.h"

namespace quire {

const char* SimdTargetName() {
  // The best target that was compiled and that this machine has: what
  // HWY_DYNAMIC_DISPATCH takes.
  const int64_t usable = HWY_SUPPORTED_TARGETS & HWY_TARGETS;
  return hwy::TargetName(usable & -usable);
}

}  // namespace quire
