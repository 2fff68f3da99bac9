#include "bench/model_switching/switch_strategy.h"

#include <algorithm>
#include <iterator>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace quire {

const char* SwitchStrategyName(SwitchStrategy strategy) {
  switch (strategy) {
    case SwitchStrategy::kReload:
      return "reload";
    case SwitchStrategy::kKeep:
      return "keep";
    case SwitchStrategy::kSleep:
      return "sleep";
    case SwitchStrategy::kShared:
      return "shared";
    case SwitchStrategy::kRestart:
      return "restart";
  }
  return "?";
}

std::string KnownSwitchStrategies() {
  std::string names;
  for (const SwitchStrategy strategy : kSwitchStrategies) {
    absl::StrAppend(&names, names.empty() ? "" : ", ",
                    SwitchStrategyName(strategy));
  }
  return names;
}

absl::StatusOr<std::vector<SwitchStrategy>> ParseSwitchStrategies(
    std::string_view text) {
  std::vector<SwitchStrategy> strategies;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    const std::string_view name = text.substr(begin, end - begin);
    const auto known = std::find_if(
        std::begin(kSwitchStrategies), std::end(kSwitchStrategies),
        [&](SwitchStrategy s) { return name == SwitchStrategyName(s); });
    if (known == std::end(kSwitchStrategies)) {
      return absl::InvalidArgumentError(
          absl::StrCat("there is no strategy \"", std::string(name),
                       "\"; there are ", KnownSwitchStrategies()));
    }
    strategies.push_back(*known);
    begin = end + 1;
  }
  return strategies;
}

}  // namespace quire
