#include "model/cli/options.h"

#include <CLI/Option.hpp>
#include <CLI/Validators.hpp>
#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <map>
#include <memory>
#include <string_view>
#include <system_error>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "model/cli/memory_output.h"
#include "model/cli/output.h"
#include "quire/alloc/status_macros.h"
#include "quire/loader/quantization.h"

namespace quire {
namespace {

std::string DescribeBadReal(const std::string& text) {
  double number = 0;
  return absl::SimpleAtod(text, &number) && std::isfinite(number)
             ? std::string()
             : absl::StrCat("'", text, "' is no finite number");
}

}  // namespace

std::string DescribeBadInteger(const std::string& text) {
  std::string_view digits = text;
  const bool negative = digits.starts_with('-');
  if (negative) digits.remove_prefix(1);
  const bool plain =
      !digits.empty() &&
      digits.find_first_not_of("0123456789") == std::string_view::npos &&
      (digits.size() == 1 || digits.front() != '0');
  if (!plain)
    return absl::StrCat("'", text, "' is no whole number in decimal digits");
  int64_t low = 0;
  uint64_t high = 0;
  const bool fits =
      negative ? absl::SimpleAtoi(text, &low) : absl::SimpleAtoi(text, &high);
  return fits ? std::string()
              : absl::StrCat("'", text, "' does not fit into 64 bits");
}

std::string DescribeBadCount(const std::string& text) {
  const std::string problem = DescribeBadInteger(text);
  if (!problem.empty() || !text.starts_with('-')) return problem;
  return absl::StrCat("'", text, "' is below 0");
}

CLI::Option* AddBytesOption(CLI::App* app, const std::string& name,
                            Bytes* target, const std::string& help) {
  return app
      ->add_option_function<std::string>(
          name,
          [target](const std::string& text) {
            *target = ParseBytes(text).value_or(Bytes(0));
          },
          help)
      ->check(CLI::Validator(
          [](const std::string& text) {
            return ParseBytes(text)
                       ? std::string()
                       : absl::StrCat("'", text,
                                      "' is no size such as 8GiB, below 16EiB");
          },
          "BYTES"));
}

absl::StatusOr<std::vector<TokenId>> ParseTokens(const std::string& text) {
  std::vector<TokenId> tokens;
  const char* at = text.data();
  const char* const end = at + text.size();
  while (at != end) {
    TokenId token = 0;
    const auto [next, error] = std::from_chars(at, end, token);
    const bool separated = next == end || (*next == ',' && next + 1 != end);
    if (error != std::errc() || token < 0 || !separated)
      return absl::InvalidArgumentError(
          absl::StrCat("'", text, "' is no list of token ids such as 1,2,3 (",
                       "wrong from character ", at - text.data() + 1, " on)"));
    tokens.push_back(token);
    at = next == end ? end : next + 1;
  }
  return tokens;
}

const CLI::Validator kTokenList(
    [](const std::string& text) {
      const auto tokens = ParseTokens(text);
      return tokens.ok() ? std::string()
                         : std::string(tokens.status().message());
    },
    "IDS");

void RejectBadOptions(const absl::Status& status) {
  if (!status.ok()) throw CLI::ValidationError(std::string(status.message()));
}

void CheckNumbers(CLI::App* app) {
  for (CLI::App* const verb : app->get_subcommands({})) CheckNumbers(verb);
  for (CLI::Option* const option : app->get_options()) {
    // "UINT:NONNEGATIVE": the type, and what else is checked.
    const std::string type = option->get_type_name();
    if (type.starts_with("FLOAT"))
      option->check(CLI::Validator(DescribeBadReal, ""));
    else if (type.starts_with("UINT"))
      option->check(CLI::Validator(DescribeBadCount, ""));
    else if (type.starts_with("INT"))
      option->check(CLI::Validator(DescribeBadInteger, ""));
  }
}

void AddDeviceOptions(CLI::App* app, DriverChoice drivers,
                      DeviceOptions* options) {
  const bool cuda = drivers == DriverChoice::kHostOrCuda;
  app->add_option("--driver", options->driver,
                  cuda ? "host: a software device in this machine's memory; "
                         "cuda: a GPU"
                       : "host: a software device in this machine's memory; "
                         "nothing here computes on a GPU yet")
      ->check(cuda ? CLI::IsMember({"host", "cuda"}) : CLI::IsMember({"host"}))
      ->capture_default_str();
  AddBytesOption(app, "--device-memory", &options->device_memory,
                 "Memory of the software device; 0: this machine's [0]");
  app->add_option("--gpu-memory-utilization", options->memory_utilization,
                  "Part of the device's memory that may be used")
      ->check(CLI::Range(0.01, 1.0))
      ->capture_default_str();
  AddBytesOption(app, "--page-unit", &options->page_size,
                 "Bytes of a physical page [2MiB]")
      ->check(CLI::Validator(
          [](const std::string& text) {
            const Bytes size = ParseBytes(text).value_or(Bytes(0));
            return IsPowerOfTwo(size.value()) && size >= KiB(4)
                       ? std::string()
                       : absl::StrCat("'", text,
                                      "' is no power of two from 4KiB on");
          },
          "POWER OF TWO"));
}

CLI::Option* AddAdapterOption(CLI::App* app, std::vector<std::string>* folders,
                              const std::string& help) {
  return app->add_option("--adapter", *folders, help)->allow_extra_args(false);
}

absl::Status ChooseOwnAdapter(const std::string& model,
                              std::vector<std::string>* folders) {
  if (!folders->empty()) return absl::OkStatus();
  std::error_code ignored;
  for (const std::string& folder : {model + "/lora_adapter", model}) {
    if (!std::filesystem::exists(folder + "/adapter_config.json", ignored))
      continue;
    QUIRE_ASSIGN_OR_RETURN(const std::unique_ptr<Checkpoint> checkpoint,
                           Checkpoint::Open(model));
    QUIRE_ASSIGN_OR_RETURN(const QuantizedModules quantized,
                           FindQuantizedModules(*checkpoint));
    if (quantized.method != QuantizationMethod::kGptq) break;
    folders->push_back(folder);
    PrintWarning(absl::StrCat("the adapter in ", folder,
                              " belongs to the model and is applied; "
                              "--adapter ",
                              kNoAdapter, " runs the model without it"));
    break;
  }
  return absl::OkStatus();
}

std::vector<AdapterSource> NameAdapters(
    const std::vector<std::string>& folders) {
  std::vector<AdapterSource> sources;
  const auto has = [&](std::string AdapterSource::*field,
                       const std::string& value) {
    return std::any_of(
        sources.begin(), sources.end(),
        [&](const AdapterSource& source) { return source.*field == value; });
  };
  for (const std::string& folder : folders) {
    if (folder == kNoAdapter || has(&AdapterSource::folder, folder)) continue;
    std::filesystem::path path(folder);
    if (path.filename().empty()) path = path.parent_path();
    std::string last = path.filename().string();
    if (last.empty()) last = "adapter";
    std::string name = last;
    for (int number = 2; has(&AdapterSource::name, name); ++number)
      name = absl::StrCat(last, "-", number);
    sources.push_back({name, folder});
  }
  return sources;
}

absl::StatusOr<AdapterId> FindAdapter(const AdapterSet& adapters,
                                      const std::string& folder) {
  for (const AdapterInfo& adapter : adapters.List())
    if (adapter.folder == folder) return adapter.id;
  return absl::NotFoundError(
      absl::StrCat(folder, ": no adapter was loaded from there"));
}

void PrintModelWarnings(const Session& session) {
  // Where OneComp leaves an adapter that belongs to the model.
  const std::string beside = session.checkpoint().folder() + "/lora_adapter";
  std::error_code ignored;
  if (session.adapters().List().empty() &&
      std::filesystem::exists(beside + "/adapter_config.json", ignored))
    PrintWarning(absl::StrCat("the adapter in ", beside,
                              " is not applied; --adapter applies it"));
  for (const std::string& warning : session.weights().warnings())
    PrintWarning(warning);
  for (const std::string& reason : session.empty_devices())
    PrintWarning(reason);
  for (const AdapterInfo& adapter : session.adapters().List())
    for (const std::string& warning : adapter.warnings) PrintWarning(warning);
}

void AddPlacementOptions(CLI::App* app, PlacementOptions* options) {
  app->add_option("--device-map", options->device_map,
                  "Where the parts of the model go: auto, balanced, "
                  "balanced_low_0, sequential, or a JSON file of modules and "
                  "devices, \"cpu\" or \"disk\" [all on device 0]")
      ->check(CLI::Validator(
          [](const std::string& text) {
            std::error_code ignored;
            return ParsePlacementPolicy(text) ||
                           std::filesystem::exists(text, ignored)
                       ? std::string()
                       : absl::StrCat("'", text,
                                      "' is no file, and none of auto, "
                                      "balanced, balanced_low_0 and "
                                      "sequential");
          },
          "POLICY or FILE"));
  app->add_option_function<std::string>(
         "--max-memory",
         [options](const std::string& text) {
           options->max_memory = *ParseMaxMemory(text);
         },
         "What each place may hold, 0:8GiB,1:8GiB,cpu:20GiB,disk:100GiB; "
         "others are not used")
      ->check(CLI::Validator(
          [](const std::string& text) {
            return std::string(ParseMaxMemory(text).status().message());
          },
          "PLACE:SIZE,..."));
  app->add_option("--offload-folder", options->offload.folder,
                  "Folder for weights on disk that do not run as they are in "
                  "the checkpoint")
      ->check(CLI::ExistingDirectory);
  AddBytesOption(app, "--pinned-memory", &options->offload.pinned_limit,
                 "Pinned memory for weights on the host at most [no limit]");
}

void AddProgressOption(CLI::App* app, std::string* mode) {
  app->add_option("--progress", *mode,
                  "Of the load, on stderr: auto (a line where somebody "
                  "watches), json (one event a line) or none")
      ->check(CLI::IsMember({"auto", "json", "none"}))
      ->capture_default_str();
}

void AddReadOptions(CLI::App* app, StreamingOptions* options) {
  app->add_flag("--verify", options->checksum,
                "Compare the CRC-32 of every tensor with manifest.json, or, "
                "where there is none, with that of a second pass");
  app->add_flag("--direct-io", options->direct,
                "Read past the page cache, where the file system allows it");
}

void AddSessionOptions(CLI::App* app, SessionOptions* options,
                       DriverChoice drivers) {
  AddDeviceOptions(app, drivers, &options->device);
  AddPlacementOptions(app, &options->placement);
  options->on_leaks = WarnOfLeaks;
  app->add_option("--threads", options->threads,
                  "Threads that compute; 0: one per core, and one less where "
                  "weights come from the host or from disk")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str();
  static const std::map<std::string, LoadQuantization> kQuantizations = [] {
    std::map<std::string, LoadQuantization> quantizations;
    for (const LoadQuantization quantization :
         {LoadQuantization::kNone, LoadQuantization::kInt8,
          LoadQuantization::kNf4})
      quantizations[LoadQuantizationName(quantization)] = quantization;
    return quantizations;
  }();
  app->add_option_function<std::string>(
         "--quantization",
         [options](const std::string& name) {
           options->weights.quantization = kQuantizations.at(name);
         },
         "Round the linears of a 16-bit checkpoint as they are loaded: none, "
         "int8 or nf4 [none]")
      ->check(CLI::IsMember(&kQuantizations));
  app->add_option_function<std::string>(
         "--activations", [](const std::string&) {},
         "Activations: f32 is what this version computes with")
      ->check(CLI::IsMember({"f32"}));
  app->add_option_function<std::string>(
         "--dtype", [](const std::string&) {},
         "Weights as they run: auto, which is as they are stored; "
         "--quantization rounds them")
      ->check(CLI::IsMember({"auto"}));
  app->add_option_function<std::string>(
         "--tensor-parallel-size", [](const std::string&) {},
         "Devices that share each layer: 1 is what this version has; "
         "--device-map puts layers on several")
      ->check(CLI::IsMember({"1"}));
  app->add_option("--ledger", options->sharing.ledger,
                  "Share the device with other processes through the memory "
                  "ledger of this name; 'default': the one of this user and "
                  "device")
      ->envname("QUIRE_LEDGER");
  AddBytesOption(app, "--ledger-min", &options->sharing.min,
                 "Memory that the others leave to this process");
  app->add_option("--max-num-seqs", options->max_sequences,
                  "Sequences that run at once")
      ->check(CLI::Range(1, 65536))
      ->capture_default_str();
  app->add_option("--max-model-len", options->max_model_len,
                  "Tokens of a sequence at most; 0: what the model allows")
      ->capture_default_str();
  app->add_option("--max-num-batched-tokens", options->decoder.max_batch_tokens,
                  "Tokens of one forward pass at most")
      ->check(CLI::Range(1, 65536))
      ->capture_default_str();
  AddKvLayoutOptions(app, options);
}

}  // namespace quire
