#include "model/decoder/weight_builder.h"

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "quire/alloc/quote.h"
#include "quire/alloc/status_macros.h"

namespace quire {
namespace {

std::string ShapeText(const std::vector<uint64_t>& shape) {
  return absl::StrCat("[", absl::StrJoin(shape, ", "), "]");
}

bool IsFloat(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kF16 || dtype == DType::kBF16;
}

bool IsMatrixType(DType dtype) {
  return IsFloat(dtype) || IsBlockQuantized(dtype);
}

// Tensors that a checkpoint may carry and no forward pass reads.
bool IsKnownUnused(std::string_view name) {
  return name.ends_with(".rotary_emb.inv_freq") || name.ends_with(".g_idx") ||
         name.ends_with(".perm");
}

}  // namespace

WeightBuilder::WeightBuilder(Runtime* runtime, const Checkpoint& checkpoint,
                             const ModelConfig& config,
                             const WeightOptions& options,
                             ModelWeights* weights,
                             const QuantizedModules* quantized)
    : runtime_(runtime),
      checkpoint_(checkpoint),
      config_(config),
      options_(options),
      weights_(weights),
      names_(NamesOf(checkpoint)),
      known_quantized_(quantized) {}

absl::Status WeightBuilder::Build(const WeightPlacement& placement,
                                  const StreamingOptions& options,
                                  ThreadPool* pool) {
  if (!runtime_->driver()->device_memory_is_host_memory())
    return absl::FailedPreconditionError(
        absl::StrCat("the host operations cannot run on the memory of driver '",
                     runtime_->driver()->name(), "'"));
  owner_ = runtime_->RegisterOwner("weights");
  QUIRE_RETURN_IF_ERROR(Describe());
  QUIRE_RETURN_IF_ERROR(PlaceParts(placement));
  QUIRE_RETURN_IF_ERROR(
      ForEachInHand([&] { return BuildInHand(options, pool); }));
  QUIRE_RETURN_IF_ERROR(ConnectParts(/*loaded=*/true));
  defects_.AppendTo(&weights_->warnings_);
  ReportUnused();
  return absl::OkStatus();
}

absl::Status WeightBuilder::BuildInHand(const StreamingOptions& options,
                                        ThreadPool* pool) {
  QUIRE_ASSIGN_OR_RETURN(const std::vector<TensorPlacement> tensors,
                         AllocateTensors());
  QUIRE_RETURN_IF_ERROR(AllocateAtLoad());
  QUIRE_RETURN_IF_ERROR(Stream(tensors, options));
  QUIRE_RETURN_IF_ERROR(StreamAtLoad(options, pool));
  QUIRE_RETURN_IF_ERROR(FinishQuantized(pool));
  CheckBiases();
  return in_hand_ == kResidentParts ? absl::OkStatus() : Keep(tensors);
}

absl::Status WeightBuilder::Refill(const ModelWeights& dropped,
                                   const StreamingOptions& options,
                                   ThreadPool* pool) {
  owner_ = dropped.owner_;
  dropped_ = &dropped;
  QUIRE_RETURN_IF_ERROR(Describe());
  if (weights_->parts_.size() != dropped.parts_.size())
    return AllocationsDiffer();
  weights_->parts_ = dropped.parts_;
  weights_->residences_ = dropped.residences_;
  in_hand_ = kResidentParts;
  QUIRE_RETURN_IF_ERROR(BuildInHand(options, pool));
  return next_allocation_ == dropped.allocations_.size() ? absl::OkStatus()
                                                         : AllocationsDiffer();
}

absl::Status WeightBuilder::Reserve(const WeightPlacement& placement,
                                    const StreamingOptions& options) {
  owner_ = runtime_->RegisterOwner("weights");
  QUIRE_RETURN_IF_ERROR(Describe());
  QUIRE_RETURN_IF_ERROR(PlaceParts(placement));
  weights_->staging_.parts.resize(weights_->parts_.size());
  QUIRE_RETURN_IF_ERROR(ForEachInHand([&] { return ReserveInHand(options); }));
  QUIRE_RETURN_IF_ERROR(ConnectParts(/*loaded=*/false));
  ListTensors();
  defects_.AppendTo(&weights_->warnings_);
  ReportUnused();
  return absl::OkStatus();
}

absl::Status WeightBuilder::ReserveInHand(const StreamingOptions& options) {
  QUIRE_ASSIGN_OR_RETURN(const std::vector<TensorPlacement> tensors,
                         AllocateTensors());
  QUIRE_RETURN_IF_ERROR(ReserveStaging(tensors, options));
  QUIRE_RETURN_IF_ERROR(AllocateAtLoad());
  QUIRE_RETURN_IF_ERROR(ReserveLanding(options));
  std::vector<WeightPart>& parts = weights_->parts_;
  for (size_t part = 0; part < parts.size(); ++part) {
    if (IsInHand(part))
      parts[part].size = SaturatingAdd(parts[part].size, TensorBytes(part));
  }
  for (const PendingGptq& pending : pending_gptq_) {
    if (!IsInHand(pending.part)) continue;
    part_ = pending.part;
    GroupIndexOddity oddity;
    QUIRE_ASSIGN_OR_RETURN(const GroupedRows rows,
                           RowsOf(*pending.module, &oddity));
    defects_.AddGroupIndex(*pending.module, oddity);
    for (const std::vector<uint32_t>* const table : {&rows.begin, &rows.order})
      QUIRE_RETURN_IF_ERROR(ReserveIndex(*pending.module->qweight, *table));
  }
  for (const PendingScaled& pending : pending_scaled_) {
    if (!IsInHand(pending.part)) continue;
    part_ = pending.part;
    QUIRE_ASSIGN_OR_RETURN(const std::vector<uint32_t> columns,
                           ReadScaleColumns(checkpoint_, *pending.module));
    QUIRE_RETURN_IF_ERROR(ReserveIndex(*pending.module->codes, columns));
  }
  return absl::OkStatus();
}

absl::Status WeightBuilder::Check() {
  QUIRE_RETURN_IF_ERROR(Describe());
  for (const PendingBias& pending : pending_biases_) {
    std::vector<std::byte> bytes;
    QUIRE_RETURN_IF_ERROR(checkpoint_.ReadSmallTensor(
        *checkpoint_.Find(absl::StrCat(pending.module, ".bias")), &bytes));
    CheckBias(pending, bytes.data());
  }
  defects_.AppendTo(&weights_->warnings_);
  ReportUnused();
  return absl::OkStatus();
}

void WeightBuilder::BeginPart(std::string name) {
  weights_->parts_.push_back({std::move(name), Bytes(0), DevicePlace(0)});
}

void WeightBuilder::Place(const TensorInfo& tensor,
                          std::function<void(DeviceAddress)> assign) {
  placements_.push_back(
      {&tensor, weights_->parts_.size() - 1, std::move(assign)});
}

// llama.cpp stores the frequency changes of Llama 3.1 as a tensor of divisors.
absl::Status WeightBuilder::ReadRopeFactors() {
  if (checkpoint_.format() != CheckpointFormat::kGguf) return absl::OkStatus();
  const TensorInfo* tensor = checkpoint_.Find("rope_freqs.weight");
  if (tensor == nullptr) return absl::OkStatus();
  used_.insert(tensor);
  std::vector<float>& frequencies = weights_->inverse_frequencies_;
  if (tensor->dtype != DType::kF32 || tensor->elements() != frequencies.size())
    return absl::InvalidArgumentError(absl::StrCat(
        checkpoint_.files()[tensor->file].path, ": ", Printable(tensor->name),
        " is ", DTypeName(tensor->dtype), " ", ShapeText(tensor->shape),
        ", expected ", frequencies.size(), " F32 elements"));
  std::vector<std::byte> bytes;
  QUIRE_RETURN_IF_ERROR(checkpoint_.ReadSmallTensor(*tensor, &bytes));
  std::vector<float> factors(frequencies.size());
  std::memcpy(factors.data(), bytes.data(), bytes.size());
  const absl::Status status = DivideFrequencies(factors, &frequencies);
  return status.ok()
             ? status
             : absl::InvalidArgumentError(absl::StrCat(
                   Printable(checkpoint_.files()[tensor->file].path), ": ",
                   Printable(tensor->name), ": ", status.message()));
}

absl::Status WeightBuilder::Describe() {
  weights_->warnings_ = checkpoint_.warnings();
  QUIRE_RETURN_IF_ERROR(ReadQuantization());
  weights_->inverse_frequencies_ =
      InverseFrequencies(config_.rope, config_.head_dim);
  QUIRE_RETURN_IF_ERROR(ReadRopeFactors());
  BeginPart(names_.embedding);
  QUIRE_RETURN_IF_ERROR(DescribeEmbedding());
  weights_->layers_.resize(config_.layers);
  for (uint32_t i = 0; i < config_.layers; ++i) {
    BeginPart(names_.Layer(i));
    QUIRE_RETURN_IF_ERROR(DescribeLayer(i, &weights_->layers_[i]));
  }
  BeginPart(names_.output_norm);
  QUIRE_RETURN_IF_ERROR(DescribeVector(names_.output_norm, config_.hidden_size,
                                       &weights_->output_norm_));
  BeginPart(names_.output);
  return DescribeOutput();
}

absl::Status WeightBuilder::DescribeLayer(uint32_t index, DecoderLayer* layer) {
  const auto name = [&](const char* module) {
    return names_.InLayer(index, module);
  };
  const uint64_t hidden = config_.hidden_size;
  const uint64_t ffn = config_.intermediate_size;
  QUIRE_RETURN_IF_ERROR(DescribeVector(name(names_.attention_norm), hidden,
                                       &layer->attention_norm));
  QUIRE_RETURN_IF_ERROR(DescribeLinear(name(names_.query), config_.query_size(),
                                       hidden, config_.qkv_bias,
                                       &layer->query));
  QUIRE_RETURN_IF_ERROR(DescribeLinear(name(names_.key), config_.kv_size(),
                                       hidden, config_.qkv_bias, &layer->key));
  QUIRE_RETURN_IF_ERROR(DescribeLinear(name(names_.value), config_.kv_size(),
                                       hidden, config_.qkv_bias,
                                       &layer->value));
  QUIRE_RETURN_IF_ERROR(DescribeLinear(
      name(names_.attention_output), hidden, config_.query_size(),
      config_.attention_output_bias, &layer->attention_output));
  if (config_.head_norms) {
    QUIRE_RETURN_IF_ERROR(DescribeVector(name(names_.query_norm),
                                         config_.head_dim, &layer->query_norm));
    QUIRE_RETURN_IF_ERROR(DescribeVector(name(names_.key_norm),
                                         config_.head_dim, &layer->key_norm));
  }
  QUIRE_RETURN_IF_ERROR(
      DescribeVector(name(names_.ffn_norm), hidden, &layer->ffn_norm));
  QUIRE_RETURN_IF_ERROR(DescribeLinear(name(names_.gate), ffn, hidden,
                                       config_.ffn_bias, &layer->gate));
  QUIRE_RETURN_IF_ERROR(DescribeLinear(name(names_.up), ffn, hidden,
                                       config_.ffn_bias, &layer->up));
  return DescribeLinear(name(names_.down), hidden, ffn, config_.ffn_bias,
                        &layer->down);
}

absl::Status WeightBuilder::DescribeEmbedding() {
  QUIRE_ASSIGN_OR_RETURN(const TensorInfo* const tensor,
                         Require(absl::StrCat(names_.embedding, ".weight")));
  return DescribeDense(*tensor, config_.vocab_size, config_.hidden_size,
                       &weights_->embedding_);
}

absl::Status WeightBuilder::DescribeOutput() {
  const std::string module = names_.output;
  const bool present =
      checkpoint_.Find(absl::StrCat(module, ".weight")) != nullptr ||
      module_by_name_.contains(module);
  if (present) {
    // The file knows better than the configuration: a head that is there was
    // trained, or quantised, apart from the embedding.
    if (config_.tied_embeddings)
      weights_->warnings_.push_back(
          absl::StrCat(module,
                       ": the configuration ties it to the embedding, but the "
                       "checkpoint has its own; the checkpoint's is used"));
    return DescribeLinear(module, config_.vocab_size, config_.hidden_size,
                          /*needs_bias=*/false, &weights_->output_);
  }
  // Tying the head to the embedding would give fluent nonsense where a shard is
  // missing.
  if (config_.has_own_head)
    return Require(absl::StrCat(module, ".weight")).status();
  // The embedding's address is known after allocation only.
  weights_->tied_head_ = true;
  weights_->output_.matrix = weights_->embedding_;
  return absl::OkStatus();
}

absl::StatusOr<const TensorInfo*> WeightBuilder::Require(
    const std::string& name) {
  const TensorInfo* tensor = checkpoint_.Find(name);
  if (tensor == nullptr)
    return absl::NotFoundError(
        absl::StrCat(checkpoint_.folder(), ": the checkpoint has no tensor ",
                     name, ", which a ", config_.family, " model of ",
                     config_.layers, " layers needs"));
  used_.insert(tensor);
  return tensor;
}

absl::Status WeightBuilder::DescribeVector(const std::string& module,
                                           uint64_t size,
                                           ParameterVector* vector) {
  QUIRE_ASSIGN_OR_RETURN(const TensorInfo* const tensor,
                         Require(absl::StrCat(module, ".weight")));
  return DescribeBias(module, tensor, size, vector);
}

absl::Status WeightBuilder::DescribeBias(const std::string& module,
                                         const TensorInfo* tensor,
                                         uint64_t size, ParameterVector* bias) {
  if (tensor == nullptr) return absl::OkStatus();
  used_.insert(tensor);
  if (!IsFloat(tensor->dtype) || tensor->shape != std::vector<uint64_t>{size})
    return absl::InvalidArgumentError(absl::StrCat(
        checkpoint_.files()[tensor->file].path, ": ", Printable(tensor->name),
        " is ", DTypeName(tensor->dtype), " ", ShapeText(tensor->shape),
        ", expected F32, F16 or BF16 [", size, "] for ", module));
  bias->dtype = tensor->dtype;
  Place(*tensor, [bias](DeviceAddress address) {
    bias->data = address.host_pointer<void>();
  });
  return absl::OkStatus();
}

absl::Status WeightBuilder::CheckShape(
    const TensorInfo& tensor, const std::vector<uint64_t>& expected) const {
  if (tensor.shape == expected) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      checkpoint_.files()[tensor.file].path, ": ", Printable(tensor.name),
      " has shape ", ShapeText(tensor.shape), ", the configuration says ",
      ShapeText(expected)));
}

absl::Status WeightBuilder::DescribeDense(const TensorInfo& tensor,
                                          uint64_t out_features,
                                          uint64_t in_features,
                                          DenseMatrix* matrix) {
  if (!IsMatrixType(tensor.dtype))
    return absl::UnimplementedError(absl::StrCat(
        checkpoint_.files()[tensor.file].path, ": ", Printable(tensor.name),
        " has elements of type ", DTypeName(tensor.dtype),
        "; F32, F16, BF16, GGUF's blocks and quantised modules that the "
        "configuration describes can be computed with"));
  QUIRE_RETURN_IF_ERROR(CheckShape(tensor, {out_features, in_features}));
  *matrix = {.data = nullptr,
             .dtype = tensor.dtype,
             .out_features = out_features,
             .in_features = in_features};
  Place(tensor, [matrix](DeviceAddress address) {
    matrix->data = address.host_pointer<void>();
  });
  return absl::OkStatus();
}

absl::Status WeightBuilder::DescribeLinear(const std::string& module,
                                           uint64_t out_features,
                                           uint64_t in_features,
                                           bool needs_bias, Linear* linear) {
  const std::string bias = absl::StrCat(module, ".bias");
  if (needs_bias) {
    QUIRE_RETURN_IF_ERROR(Require(bias).status());
  } else if (checkpoint_.Find(bias) != nullptr) {
    pending_biases_.push_back(
        {module, &linear->bias, out_features, weights_->parts_.size() - 1});
  }
  const auto quantised = module_by_name_.find(module);
  if (quantised != module_by_name_.end())
    return std::visit(
        [&](auto* quantized) {
          return DescribeQuantized(quantized, out_features, in_features,
                                   linear);
        },
        quantised->second);
  QUIRE_ASSIGN_OR_RETURN(const TensorInfo* const tensor,
                         Require(absl::StrCat(module, ".weight")));
  if (options_.quantization != LoadQuantization::kNone &&
      module != names_.output) {
    QUIRE_RETURN_IF_ERROR(
        DescribeAtLoad(*tensor, out_features, in_features, linear));
  } else {
    linear->matrix = DenseMatrix();
    QUIRE_RETURN_IF_ERROR(
        DescribeDense(*tensor, out_features, in_features,
                      &std::get<DenseMatrix>(linear->matrix)));
  }
  return DescribeBias(module, checkpoint_.Find(bias), out_features,
                      &linear->bias);
}

void WeightBuilder::CheckBiases() {
  for (const PendingBias& pending : pending_biases_) {
    if (IsInHand(pending.part)) CheckBias(pending, pending.bias->data);
  }
}

void WeightBuilder::CheckBias(const PendingBias& pending, const void* data) {
  std::vector<float> values(pending.size);
  DequantizeRow({.data = data,
                 .dtype = pending.bias->dtype,
                 .out_features = 1,
                 .in_features = pending.size},
                0, values.data());
  if (std::any_of(values.begin(), values.end(),
                  [](float value) { return value != 0; }))
    defects_.AddBias(pending.module);
}

absl::StatusOr<const uint32_t*> WeightBuilder::Upload(
    std::span<const uint32_t> values) {
  QUIRE_ASSIGN_OR_RETURN(const DeviceAddress address,
                         AllocateBytes(Bytes(values.size_bytes())));
  // No stream uses the allocation yet, and it is host memory here.
  std::memcpy(address.host_pointer<void>(), values.data(), values.size_bytes());
  return address.host_pointer<const uint32_t>();
}

void WeightBuilder::ReportUnused() {
  uint64_t unused = 0;
  const TensorInfo* first = nullptr;
  for (const TensorInfo& tensor : checkpoint_.tensors()) {
    if (used_.contains(&tensor) || IsKnownUnused(tensor.name)) continue;
    if (first == nullptr) first = &tensor;
    ++unused;
  }
  if (unused > 0)
    weights_->warnings_.push_back(absl::StrCat(
        unused, " tensor(s) of the checkpoint are not used by a ",
        config_.family, " model, the first is ", Printable(first->name)));
}

}  // namespace quire
