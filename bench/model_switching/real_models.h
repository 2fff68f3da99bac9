// Real models in turns on one small device: each decodes some tokens of its
// sequence, makes way for the next one, and goes on where it was.
//
// Checkpoints are opened with Session, decoded with Engine, put to sleep with
// their sequences in mid-flight, or closed and read again. Every token is
// compared with a run of the model alone on a device of its own.

#ifndef QUIRE_BENCH_MODEL_SWITCHING_REAL_MODELS_H_
#define QUIRE_BENCH_MODEL_SWITCHING_REAL_MODELS_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "bench/model_switching/switch_strategy.h"
#include "quire/alloc/units.h"
#include "quire/alloc/verdict.h"
#include "quire/model/tokenizer.h"

namespace quire {

// Those that mean something here, where nobody reserves a pool. kRestart ends
// everything that a process has of its models and its device, and starts anew
// in the same process.
inline constexpr SwitchStrategy kRealStrategies[] = {
    SwitchStrategy::kReload, SwitchStrategy::kKeep, SwitchStrategy::kSleep,
    SwitchStrategy::kRestart};

struct RealOptions {
  // Paths of checkpoints; with a LoRA adapter, PATH:adapter=FOLDER.
  std::vector<std::string> models;
  // Of the device that they share; 0: what the largest takes alone, and a
  // sixteenth, so that models without room beside it have to make way.
  Bytes device_memory;
  Bytes page_size = MiB(2);
  uint64_t prompt_tokens = 8;
  uint64_t tokens_per_turn = 8;
  uint64_t turns = 3;  // of each model
  uint64_t seed = 1;   // of the prompts
  int threads = 0;     // 0: one per core
  // Told of the turns done, of all; may be null.
  std::function<void(const std::string& what, double done, double total)>
      progress;
};

// A model alone.
struct RealModel {
  std::string path;                // as RealOptions has it
  std::vector<std::string> files;  // with its weights
  std::vector<TokenId> prompt;
  std::vector<TokenId> tokens;  // that follow it, greedily
  Bytes peak;                   // what its device held
};
// Errors name the model: those of Session::Open, and kInvalidArgument where the
// sequence is longer than the model allows.
absl::StatusOr<std::vector<RealModel>> RunAlone(const RealOptions& options);

// A switch to a model. Seconds are from the decision on.
struct RealSwitch {
  size_t model = 0;
  double seconds_to_switch = 0;  // ready to decode
  double seconds_to_first_token = 0;
  // When its turn is over: of the device, and in host memory, by those asleep.
  Bytes reserved;
  Bytes host_memory;
};

struct RealResult {
  SwitchStrategy strategy = SwitchStrategy::kSleep;
  Bytes device_memory;
  Bytes peak_reserved;
  Bytes peak_host_memory;
  std::vector<std::vector<TokenId>> tokens;  // of each model
  std::vector<RealSwitch> switches;          // that went well, in order
  uint64_t planned_switches = 0;             // of the whole day
  Bytes read;                                // from disk
  double load_seconds = 0;                   // of opening models, all of them
  // Reading the files of what was opened, as often, by plain calls.
  double read_seconds = 0;
  // The same, or memcpy of as much into pages that nobody has touched, where
  // that takes longer, model by model: nobody loads faster.
  double bound_seconds = 0;
  Bytes copied_out;  // to host memory
  Bytes copied_in;
  double wake_seconds = 0;  // all of them
  // Copying as much as woke up, with memcpy by one thread from host memory into
  // device pages that nobody has touched: what those were that woke up.
  double copy_seconds = 0;
  // Where memory ran out, and the day ended: what was said.
  std::optional<std::string> failure;
  // kCapacity where what was there and the model that failed, each as much as
  // it held alone, are more than the device; else kFragmentation.
  std::optional<ShortageKind> failure_kind;
};
// `models` are those of RunAlone with the same options. Lack of memory is part
// of the result.
absl::StatusOr<RealResult> RunInTurns(const RealOptions& options,
                                      const std::vector<RealModel>& models,
                                      SwitchStrategy strategy);

// The first token that is not what the model says alone; none where they are
// equal, in number too.
std::optional<size_t> FirstDifference(const std::vector<TokenId>& alone,
                                      const std::vector<TokenId>& tokens);

}  // namespace quire

#endif  // QUIRE_BENCH_MODEL_SWITCHING_REAL_MODELS_H_
