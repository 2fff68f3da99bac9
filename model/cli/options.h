// Options that several verbs share, and the types that the command line reads.

#ifndef QUIRE_MODEL_CLI_OPTIONS_H_
#define QUIRE_MODEL_CLI_OPTIONS_H_

#include <CLI/App.hpp>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "quire/model/session.h"

namespace quire {

// A size as "8GiB": parsed and checked by CLI11 before a verb runs.
CLI::Option* AddBytesOption(CLI::App* app, const std::string& name,
                            Bytes* target, const std::string& help);

// "1,2,3" to token ids: CLI11 keeps the text, this reads it.
absl::StatusOr<std::vector<TokenId>> ParseTokens(const std::string& text);
// A CLI11 check that the text is a list of token ids.
extern const CLI::Validator kTokenList;

// Wrong usage, where the status of a Validate is not OK.
void RejectBadOptions(const absl::Status& status);

// What is wrong with `text` as a whole number, or as one from 0 on; empty:
// nothing.
std::string DescribeBadInteger(const std::string& text);
std::string DescribeBadCount(const std::string& text);
// Every option of the verbs below `app` that takes a number refuses what is no
// plain decimal number, or none that its type can hold. CLI11 takes what is
// beyond 64 bits for the largest number, 010 for 8, and NaN for any number that
// has bounds.
void CheckNumbers(CLI::App* app);

// What a verb can have under it.
enum class DriverChoice : uint8_t { kHost, kHostOrCuda };
// --driver, --device-memory, --gpu-memory-utilization, --page-unit.
void AddDeviceOptions(CLI::App* app, DriverChoice drivers,
                      DeviceOptions* options);
// --kv-dtype, --layers-per-row, --mean-tokens, --waste-limit, --max-cache-len,
// --attention-sinks.
void AddKvLayoutOptions(CLI::App* app, SessionOptions* options);
// --kv-cache, --block-size, --swap-space, --page-ahead, --max-parked: of verbs
// that run a model and need no memory beside what the session has, since a
// paged cache takes all.
void AddKvCacheOptions(CLI::App* app, SessionOptions* options);
// Who runs when the cache is full, --victims, --halve-above, --grow-below: of
// verbs that run several sequences at once.
void AddBatchOptions(CLI::App* app, SessionOptions* options);
// --adapter: folders of LoRA adapters.
CLI::Option* AddAdapterOption(CLI::App* app, std::vector<std::string>* folders,
                              const std::string& help);
// In place of an adapter's folder: the base model.
inline constexpr char kNoAdapter[] = "none";
// Where none is chosen, chooses the adapter that belongs to `model`, and says
// so. OneComp leaves such a one in lora_adapter/, or beside the weights, since
// nothing can be merged into the codes of GPTQ, and its own loader applies it.
// Errors: those of reading the model's index.
absl::Status ChooseOwnAdapter(const std::string& model,
                              std::vector<std::string>* folders);
// The distinct adapters among `folders`, each under a name of its own: the last
// part of its folder, with a number where another one has that.
std::vector<AdapterSource> NameAdapters(
    const std::vector<std::string>& folders);
// The resident adapter that was loaded from `folder`.
absl::StatusOr<AdapterId> FindAdapter(const AdapterSet& adapters,
                                      const std::string& folder);
// What the opened model and its adapters have to say.
void PrintModelWarnings(const Session& session);
// --device-map, --max-memory, --offload-folder, --pinned-memory.
void AddPlacementOptions(CLI::App* app, PlacementOptions* options);
// --progress: "auto", "json" or "none", for LoadProgressIn.
void AddProgressOption(CLI::App* app, std::string* mode);
// --verify and --direct-io.
void AddReadOptions(CLI::App* app, StreamingOptions* options);
// The options of every verb that runs a model: the device's,
// AddKvLayoutOptions, --threads, --activations, --max-num-seqs,
// --max-model-len, --max-num-batched-tokens. The decoder computes on the host;
// a plan can be for a GPU.
void AddSessionOptions(CLI::App* app, SessionOptions* options,
                       DriverChoice drivers = DriverChoice::kHost);

}  // namespace quire

#endif  // QUIRE_MODEL_CLI_OPTIONS_H_
