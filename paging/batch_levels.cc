#include "quire/paging/batch_levels.h"

#include <algorithm>

namespace quire {

BatchLimitOptions CompleteBatchLevels(std::optional<double> halve_above,
                                      std::optional<double> grow_below) {
  constexpr BatchLimitOptions kDefault;
  BatchLimitOptions levels;
  levels.halve_above = halve_above.value_or(kDefault.halve_above);
  levels.grow_below = grow_below.value_or(kDefault.grow_below);
  if (halve_above && !grow_below) {
    levels.grow_below =
        std::min(kDefault.grow_below,
                 *halve_above / kDefault.halve_above * kDefault.grow_below);
  } else if (grow_below && !halve_above) {
    levels.halve_above =
        std::max(kDefault.halve_above, 1 - (1 - *grow_below) /
                                               (1 - kDefault.grow_below) *
                                               (1 - kDefault.halve_above));
  }
  return levels;
}

}  // namespace quire
