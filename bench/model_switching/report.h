// What model_switching says of its runs: JSON, and a table.

#ifndef QUIRE_BENCH_MODEL_SWITCHING_REPORT_H_
#define QUIRE_BENCH_MODEL_SWITCHING_REPORT_H_

#include <optional>
#include <string>
#include <vector>

#include "bench/model_switching/player.h"
#include "bench/model_switching/scenario.h"
#include "bench/policies/policy_registry.h"
#include "nlohmann/json_fwd.hpp"

namespace quire {

// What bytes are moved at, in a second.
struct SwitchRates {
  Bytes disk;
  Bytes host;  // to and from host memory
};

// One policy on one scenario with one strategy.
struct SwitchingRun {
  const Scenario* scenario = nullptr;
  std::string policy;
  const PolicyKind* kind = nullptr;
  SwitchStrategy strategy = SwitchStrategy::kKeep;
  double pool_minimum = 0;
  SwitchRates rates;
  std::vector<Bytes> minima;  // CountMinima
  ScenarioResult result;

  double Seconds(const SwitchCost& cost) const;
  Bytes minimum_peak() const;
  // Where the device is too small, at the earliest.
  std::optional<size_t> first_step_over() const;
  // No failure where the scenario fits; where it does not, none but for
  // capacity, and none before it cannot fit.
  bool AsGoodAsCanBe() const;
  // Speed of waking up to that of the copies alone; none where nothing woke.
  std::optional<double> WakeToCopy() const;
};

// An object on one line, with `settings` in it.
std::string ToJson(const SwitchingRun& run, const nlohmann::json& settings);
std::string ToTable(const std::vector<SwitchingRun>& runs);

}  // namespace quire

#endif  // QUIRE_BENCH_MODEL_SWITCHING_REPORT_H_
