#include <CLI/Option.hpp>
#include <CLI/Validators.hpp>
#include <charconv>
#include <map>
#include <string>
#include <system_error>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "model/cli/options.h"

namespace quire {
namespace {

// "all", "auto" or a number; CLI11 keeps the text.
std::string DescribeBadLayersPerRow(const std::string& text) {
  if (text == "all" || text == "auto") return "";
  uint32_t layers = 0;
  return DescribeBadCount(text).empty() && absl::SimpleAtoi(text, &layers) &&
                 layers > 0
             ? ""
             : absl::StrCat("'", text,
                            "' is neither a number of layers from 1 on, nor "
                            "all, nor auto");
}

uint32_t ParseLayersPerRow(const std::string& text) {
  if (text == "auto") return kAutoLayersPerRow;
  uint32_t layers = 0;
  if (text != "all" && !absl::SimpleAtoi(text, &layers)) return 0;
  return layers;
}

}  // namespace

void AddKvLayoutOptions(CLI::App* app, SessionOptions* options) {
  static const std::map<std::string, KvDType> kKvDTypes = {
      {"f32", KvDType::kF32},
      {"f16", KvDType::kF16},
      {"bf16", KvDType::kBF16},
      {"fp8", KvDType::kF8E4M3},
      {"int8", KvDType::kInt8}};
  app->add_option_function<std::string>(
         "--kv-dtype",
         [options](const std::string& name) {
           options->kv_dtype = kKvDTypes.at(name);
         },
         "Elements of the KV cache: f32, f16, bf16, fp8 (E4M3) or int8, these "
         "with a scale for each token and head [f16]")
      ->check(CLI::IsMember(&kKvDTypes));
  app->add_option_function<std::string>(
         "--layers-per-row",
         [options](const std::string& text) {
           options->layers_per_row = ParseLayersPerRow(text);
         },
         "Layers whose keys and values share a row of the KV cache: a number; "
         "all, which wastes least; or auto, the fewest whose waste is within "
         "--waste-limit [all]")
      ->check(CLI::Validator(DescribeBadLayersPerRow, "NUMBER,all,auto"));
  app->add_option("--mean-tokens", options->kv_workload.mean_tokens,
                  "Of a sequence, for --layers-per-row auto; 0: half of the "
                  "longest")
      ->capture_default_str();
  app->add_option("--waste-limit", options->kv_workload.waste_limit,
                  "Of keys and values, the part that --layers-per-row auto "
                  "may lose to pages that are partly used")
      ->check(CLI::Range(0.0, 1000.0))
      ->capture_default_str();
  app->add_option("--max-cache-len", options->kv_limit.max_tokens,
                  "Tokens of a sequence that are kept, at most: the oldest go "
                  "first; 0: no limit")
      ->capture_default_str();
  app->add_option("--attention-sinks", options->kv_limit.sinks,
                  "The first so many tokens, which --max-cache-len keeps")
      ->capture_default_str();
}

void AddKvCacheOptions(CLI::App* app, SessionOptions* options) {
  static const std::map<std::string, KvCacheKind> kKinds = [] {
    std::map<std::string, KvCacheKind> kinds;
    for (const KvCacheKind kind :
         {KvCacheKind::kContiguous, KvCacheKind::kPaged, KvCacheKind::kStatic})
      kinds[KvCacheKindName(kind)] = kind;
    return kinds;
  }();
  app->add_option_function<std::string>(
         "--kv-cache",
         [options](const std::string& name) {
           options->kv_cache = kKinds.at(name);
         },
         "contiguous: pages under each sequence as it grows; paged: tables of "
         "blocks in a pool of all memory that is left; static: the longest "
         "length for each sequence [contiguous]")
      ->check(CLI::IsMember(&kKinds));
  app->add_option("--block-size", options->block_size,
                  "Tokens of a block, with --kv-cache paged")
      ->check(CLI::Validator(
          [](const std::string& text) {
            uint32_t size = 0;
            const auto [end, error] =
                std::from_chars(text.data(), text.data() + text.size(), size);
            return error == std::errc() && *end == 0 && IsPowerOfTwo(size)
                       ? std::string()
                       : absl::StrCat("'", text, "' is no power of two");
          },
          "POWER OF TWO"))
      ->capture_default_str();
  app->add_option("--page-ahead", options->page_ahead,
                  "Steps that pages are mapped ahead at most, while the device "
                  "computes, with --kv-cache contiguous: who comes next is "
                  "then admitted meanwhile too; 0: a step does all of that [8, "
                  "and 0 with other caches]")
      ->check(CLI::Range(0, 1024));
  app->add_option("--max-parked", options->max_parked,
                  "The part of the memory for keys and values that stays "
                  "mapped behind sequences that have ended, beside what is "
                  "kept for prompts, with --kv-cache contiguous [0, and 1 with "
                  "--page-ahead 0]")
      ->check(CLI::Range(0.0, 1.0));
  AddBytesOption(app, "--swap-space", &options->swap_space,
                 "Pinned host memory for sequences that have to give way, with "
                 "--kv-cache contiguous; 0: they are computed again [0]");
}

void AddBatchOptions(CLI::App* app, SessionOptions* options) {
  app->add_option("--victims", options->victim_policy,
                  "Who gives way where memory is short: the youngest, also "
                  "called fifo; lru, who "
                  "was computed least recently; or page-aware, who frees what "
                  "is missing and loses least")
      ->check(CLI::IsMember({"youngest", "fifo", "lru", "page-aware"}))
      ->capture_default_str();
  app->add_option("--halve-above", options->batch_limit.halve_above,
                  "Use of the cache above which half as many sequences run; "
                  "with this option or --grow-below alone, the other follows")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
  app->add_option("--grow-below", options->batch_limit.grow_below,
                  "Use of the cache below which twice as many may run again")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
}

}  // namespace quire
