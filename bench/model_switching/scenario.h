// Days of switching between models on one device, as a file describes them:
// which traces to play, in which order, beside which, and what the least memory
// is that the day needs.
//
// The file is JSON with a list "scenarios"; docs/experiments.md has its fields.
// The traces it names are CSV files in the folder beside it, in Quire's format,
// with marks that begin the phases load, warmup, run1, ..., unload.

#ifndef QUIRE_BENCH_MODEL_SWITCHING_SCENARIO_H_
#define QUIRE_BENCH_MODEL_SWITCHING_SCENARIO_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "quire/alloc/allocation_trace.h"
#include "quire/alloc/units.h"

namespace quire {

// A phase of a workload that is played.
struct ScenarioPart {
  std::string workload;
  std::string phase;
};

struct ScenarioStep {
  enum class Kind {
    kLoad,
    kRun,
    kUnload,
    kSleep,  // to host memory
    kWake,
    kReserve,
    kRelease,
    kParallel
  };
  Kind kind = Kind::kRun;
  // One, except of kParallel. Of kReserve and kRelease the workload is the name
  // of what is reserved. Only kRun and kParallel have phases.
  std::vector<ScenarioPart> parts;
  uint64_t count = 0;  // of kReserve: tensors
  Bytes bytes_each;
  uint64_t chunk = 1;  // of kParallel: rows of one part before the next's turn
};
const char* ScenarioStepName(ScenarioStep::Kind kind);  // "load", ...

struct Scenario {
  std::string name;
  std::string category;  // "relaxed", "tight", "infeasible"
  Bytes usable;          // of the device: whole pages of 2 MiB
  // The most that is live at one time, in each step: no policy can do with less
  // where all that is loaded stays. Empty where the file does not say.
  std::vector<Bytes> minimum_peak_of_steps;
  // Of infeasible ones: where memory must run out, at the earliest.
  std::optional<uint64_t> first_step_over;
  std::vector<ScenarioStep> steps;
};

// Errors: kInvalidArgument, with the scenario, the step and the field. Steps
// are in an order that can be: what is run was loaded, and is loaded once.
absl::StatusOr<std::vector<Scenario>> ReadScenarios(std::string_view contents);
// A file that ReadScenarios reads.
std::string WriteScenarios(const std::vector<Scenario>& scenarios);

// Names of the workloads that it plays; what is reserved is none.
std::vector<std::string> WorkloadsOf(const Scenario& scenario);

struct WorkloadPhase {
  std::vector<AllocationEvent> events;  // the marks included
  // So many of them until its first result is there: the first token. All, in a
  // phase of one step.
  size_t first_result = 0;
};
// What one model does, phase by phase.
struct Workload {
  std::map<std::string, WorkloadPhase> phases;
};
// Phases begin at marks with a new name; marks of steps within a phase
// ("run1 3") belong to it, and the first result is there when the second step
// begins. Errors: those of ReadQuireCsv; kInvalidArgument
// where events come before the first mark.
absl::StatusOr<Workload> ReadWorkload(std::string_view contents);

}  // namespace quire

#endif  // QUIRE_BENCH_MODEL_SWITCHING_SCENARIO_H_
