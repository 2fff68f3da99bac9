#include "quire/model/plan.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "quire/alloc/runtime.h"
#include "quire/alloc/status_macros.h"
#include "quire/model/decoder.h"
#include "quire/model/thread_pool.h"
#include "quire/paging/kv_layout.h"

namespace quire {
namespace {

// What a 4-bit GPTQ checkpoint with groups of 128 takes for each parameter: the
// code, and a 16-bit scale and a zero point a group.
constexpr double kBitsOfFourBitWeights = 4 + (16 + 4) / 128.0;
// Room for workspaces, whatever the batch, on the device that the plan is made
// on: it carries no memory.
constexpr Bytes kRoomForWorkspace = GiB(1024);

// What a session has allocated before its first sequence.
struct Reservation {
  std::unique_ptr<ModelWeights> weights;
  Bytes workspace;
  std::vector<AdapterInfo> adapters;
  Bytes mapped;
};

Bytes RequestedBytes(const Runtime& runtime) {
  return Bytes(runtime.allocator()->GetStatistics().requested_bytes);
}

absl::StatusOr<Reservation> Reserve(Runtime* runtime,
                                    const Checkpoint& checkpoint,
                                    const ModelConfig& config,
                                    const SessionOptions& options) {
  Reservation made;
  QUIRE_ASSIGN_OR_RETURN(made.weights,
                         ModelWeights::Reserve(runtime, checkpoint, config));
  const Bytes before = RequestedBytes(*runtime);
  ThreadPool pool(1);
  QUIRE_ASSIGN_OR_RETURN(const std::unique_ptr<Decoder> decoder,
                         Decoder::Create(runtime, config, made.weights.get(),
                                         &pool, options.decoder));
  made.workspace = SaturatingSubtract(RequestedBytes(*runtime), before);
  AdapterSet adapters(runtime, config, made.weights->tied_head(),
                      options.decoder.max_batch_tokens);
  for (const AdapterSource& adapter : options.adapters)
    QUIRE_RETURN_IF_ERROR(
        adapters.Reserve(adapter.name, adapter.folder).status());
  made.adapters = adapters.List();
  made.mapped = Bytes(runtime->allocator()->GetStatistics().mapped_bytes);
  return made;
}

// The device that is planned for.
absl::Status LookAtDevice(DeviceOptions options, ModelPlan* plan) {
  options.backing = false;
  QUIRE_ASSIGN_OR_RETURN(const std::unique_ptr<Runtime> runtime,
                         CreateRuntime(options));
  QUIRE_ASSIGN_OR_RETURN(const DeviceMemoryInfo memory,
                         runtime->driver()->GetMemoryInfo(DeviceId(0)));
  const DeviceMemoryStatistics pool = runtime->memory()->GetStatistics();
  plan->device_memory = memory.total;
  plan->usable = pool.limit;
  plan->page_size = pool.page_size;
  return absl::OkStatus();
}

// The pages that are left, and what of sequences they hold.
class KvRoom {
 public:
  KvRoom(const KvLayout& layout, Bytes room, Bytes page_size)
      : layout_(layout),
        pages_(room.value() / page_size.value()),
        page_size_(page_size) {}

  uint64_t SequencesOf(uint64_t tokens) const {
    const auto each = layout_.PagesForTokens(tokens, page_size_);
    return !each || each->zero() ? 0 : pages_ / each->value();
  }
  // Alone; at most `limit`.
  uint64_t LongestSequence(uint64_t limit) const {
    uint64_t fits = 0;
    uint64_t too_long = SaturatingAdd(limit, 1);
    while (too_long - fits > 1) {
      const uint64_t middle = fits + (too_long - fits) / 2;
      (SequencesOf(middle) > 0 ? fits : too_long) = middle;
    }
    return fits;
  }

 private:
  const KvLayout& layout_;
  const uint64_t pages_;
  const Bytes page_size_;
};

std::vector<PlannedBatch> Batches(const KvRoom& room, uint64_t max_model_len) {
  constexpr uint64_t kShortest = 256;
  std::vector<PlannedBatch> batches;
  for (uint64_t tokens = kShortest; tokens < max_model_len; tokens *= 2) {
    batches.push_back({tokens, room.SequencesOf(tokens)});
    if (tokens > max_model_len / 2) break;
  }
  batches.push_back({max_model_len, room.SequencesOf(max_model_len)});
  return batches;
}

std::vector<std::string> Advise(const ModelPlan& plan, const KvLayout& layout,
                                const SessionOptions& options) {
  std::vector<std::string> advice;
  const auto one_sequence =
      layout.PagesForTokens(plan.max_model_len, plan.page_size);
  const Bytes needed = SaturatingAdd(
      plan.fixed, one_sequence ? CheckedBytes(*one_sequence, plan.page_size)
                                     .value_or(Bytes(UINT64_MAX))
                               : Bytes(UINT64_MAX));
  advice.push_back(absl::StrFormat(
      "%s are missing: %s needed, %s usable of the device's %s",
      FormatBytes(SaturatingSubtract(needed, plan.usable)), FormatBytes(needed),
      FormatBytes(plan.usable), FormatBytes(plan.device_memory)));
  if (plan.longest_sequence > 0) {
    advice.push_back(absl::StrCat("--max-model-len ", plan.longest_sequence,
                                  " is the longest that fits"));
  }
  if (options.kv_dtype == KvDType::kF32) {
    advice.emplace_back("--kv-dtype f16 halves the keys and values");
  }
  const Bytes four_bits(static_cast<uint64_t>(
      static_cast<double>(plan.parameters) * kBitsOfFourBitWeights / 8));
  if (four_bits < plan.weights) {
    advice.push_back(absl::StrFormat(
        "quire quantize --bits 4 takes the weights from %s to about %s",
        FormatBytes(plan.weights), FormatBytes(four_bits)));
  }
  if (plan.workspace.value() > plan.usable.value() / 16) {
    advice.push_back(absl::StrFormat(
        "fewer --max-num-batched-tokens than %u: the workspace takes %s",
        options.decoder.max_batch_tokens, FormatBytes(plan.workspace)));
  }
  return advice;
}

}  // namespace

absl::StatusOr<ModelPlan> PlanModel(const Checkpoint& checkpoint,
                                    const ModelConfig& config,
                                    const SessionOptions& options,
                                    uint64_t mean_tokens) {
  ModelPlan plan;
  QUIRE_ASSIGN_OR_RETURN(const KvLayout layout, MakeKvLayout(config, options));
  QUIRE_ASSIGN_OR_RETURN(plan.max_model_len, LongestSequence(config, options));

  QUIRE_RETURN_IF_ERROR(LookAtDevice(options.device, &plan));
  // One that everything fits on.
  DeviceOptions large = options.device;
  large.driver = "host";
  large.backing = false;
  large.memory_utilization = 1;
  large.device_memory = SaturatingAdd(
      SaturatingAdd(checkpoint.total_size(), checkpoint.total_size()),
      kRoomForWorkspace);
  QUIRE_ASSIGN_OR_RETURN(const std::unique_ptr<Runtime> runtime,
                         CreateRuntime(large));
  QUIRE_ASSIGN_OR_RETURN(const Reservation reservation,
                         Reserve(runtime.get(), checkpoint, config, options));

  plan.parts = reservation.weights->parts();
  plan.warnings = reservation.weights->warnings();
  for (const WeightPart& part : plan.parts) {
    plan.weights = SaturatingAdd(plan.weights, part.size);
  }
  plan.workspace = reservation.workspace;
  for (const AdapterInfo& adapter : reservation.adapters) {
    plan.adapters.push_back({adapter.name, adapter.bytes});
    plan.warnings.insert(plan.warnings.end(), adapter.warnings.begin(),
                         adapter.warnings.end());
  }
  plan.fixed = reservation.mapped;
  plan.parameters = reservation.weights->Parameters();
  plan.rule_of_thumb = Bytes(plan.weights.value() / 5 * 6);

  plan.layers_per_row = layout.options().layers_per_row;
  plan.kv_token = layout.TokenBytes();
  plan.kv = SaturatingSubtract(plan.usable, plan.fixed);
  plan.kv_tokens = plan.kv.value() / plan.kv_token.value();
  QUIRE_ASSIGN_OR_RETURN(
      plan.layouts,
      ChooseLayout(
          MakeKvShape(config, options),
          {.mean_tokens = mean_tokens == 0
                              ? std::max<uint64_t>(plan.max_model_len / 2, 1)
                              : mean_tokens},
          plan.page_size));
  const KvRoom room(layout, plan.kv, plan.page_size);
  plan.longest_sequence = room.LongestSequence(plan.max_model_len);
  plan.batches = Batches(room, plan.max_model_len);
  plan.fits =
      plan.fixed <= plan.usable && plan.longest_sequence == plan.max_model_len;
  if (!plan.fits) plan.advice = Advise(plan, layout, options);
  return plan;
}

}  // namespace quire
