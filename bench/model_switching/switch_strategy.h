// Ways to share a device between models that are used in turns.

#ifndef QUIRE_BENCH_MODEL_SWITCHING_SWITCH_STRATEGY_H_
#define QUIRE_BENCH_MODEL_SWITCHING_SWITCH_STRATEGY_H_

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace quire {

// What becomes of models that others follow. Pools that were reserved stay,
// unless it is said otherwise.
enum class SwitchStrategy {
  // Only the models of a step are on the device: others are unloaded before it,
  // and read from disk again for the next step of theirs.
  kReload,
  // The day as it is written, in one process: what is loaded stays until it is
  // unloaded.
  kKeep,
  // As kReload, but what is not needed, unloaded models included, sleeps in
  // host memory and comes back from there.
  kSleep,
  // As kKeep, and pools are balloons: they take what is left of the device
  // after
  // each step, and give it up tensor by tensor when a model needs it.
  kShared,
  // As kKeep, but a new process is started at every switch, and loads what is
  // to
  // be there: the folk remedy.
  kRestart,
};
inline constexpr SwitchStrategy kSwitchStrategies[] = {
    SwitchStrategy::kReload, SwitchStrategy::kKeep, SwitchStrategy::kSleep,
    SwitchStrategy::kShared, SwitchStrategy::kRestart};
const char* SwitchStrategyName(SwitchStrategy strategy);  // "reload", ...
// "reload, keep, ...".
std::string KnownSwitchStrategies();
// Names separated by commas. Error: kInvalidArgument with those known.
absl::StatusOr<std::vector<SwitchStrategy>> ParseSwitchStrategies(
    std::string_view text);

}  // namespace quire

#endif  // QUIRE_BENCH_MODEL_SWITCHING_SWITCH_STRATEGY_H_
