// Decoder: validation and scheduling here, arithmetic in LayerRunner and ops.
//
// A Forward is one function on the decoder's stream, so it is ordered after the
// loading of the weights and before every fence recorded on that stream. The
// caller waits for it: sampling needs the logits anyway.

#include "quire/model/decoder.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "model/adapters/apply_adapter.h"
#include "model/decoder/layer_runner.h"
#include "quire/alloc/status_macros.h"

namespace quire {

class Decoder::Impl {
 public:
  Impl(Runtime* runtime, const ModelConfig& config, const ModelWeights* weights,
       ThreadPool* pool, const DecoderOptions& options)
      : runtime_(runtime),
        config_(config),
        weights_(weights),
        pool_(pool),
        options_(options),
        workspace_(runtime) {}

  ~Impl() {
    // Forward waits for its work, so nothing is queued.
    if (stream_ != StreamId())
      runtime_->driver()->DestroyStream(stream_).IgnoreError();
  }

  absl::Status Initialize();
  absl::StatusOr<std::span<const float>> Forward(
      std::span<const BatchItem> batch, const SequenceCache& cache);

  const ModelConfig& config() const { return config_; }
  const DecoderOptions& options() const { return options_; }
  StreamId stream() const { return stream_; }

 private:
  absl::Status Check(std::span<const BatchItem> batch) const;
  absl::Status CheckAdapter(const Adapter& adapter) const;
  // Finds every token's place before the launch: the function on the stream
  // must not take the cache's locks.
  absl::Status CheckLayout(const KvLayout& layout) const;
  absl::Status Place(std::span<const BatchItem> batch,
                     const SequenceCache& cache);
  // Fills runs_ with the rows of a batch of which each item has `rows_of` many;
  // none where all of them are the base model's.
  template <typename RowsOf>
  void FindRuns(std::span<const BatchItem> batch, const RowsOf& rows_of);
  void Run(std::span<const BatchItem> batch);
  void RunHead(std::span<const BatchItem> batch);

  Runtime* const runtime_;
  const ModelConfig config_;
  const ModelWeights* const weights_;
  ThreadPool* const pool_;
  const DecoderOptions options_;
  StreamId stream_;
  Workspace workspace_;
  std::unique_ptr<LayerRunner> layers_;
  ActivationBuffer residual_, selected_, logits_;

  // Of the current batch; kept to avoid allocations per step.
  KvDType kv_dtype_ = KvDType::kF32;
  std::vector<KvLayerView> views_;  // [layer][item]
  std::vector<TokenPlace> places_;  // [layer][token]
  std::vector<AdapterRun> runs_;
};

absl::Status Decoder::Impl::Initialize() {
  if (options_.max_batch_tokens == 0 || options_.max_logit_rows == 0)
    return absl::InvalidArgumentError(
        "max_batch_tokens and max_logit_rows must be at least 1");
  QUIRE_ASSIGN_OR_RETURN(stream_,
                         runtime_->driver()->CreateStream(DeviceId(0)));
  QUIRE_ASSIGN_OR_RETURN(
      layers_,
      LayerRunner::Create(runtime_, &config_, weights_->inverse_frequencies(),
                          options_.max_batch_tokens, pool_));
  QUIRE_ASSIGN_OR_RETURN(
      residual_,
      workspace_.Allocate(options_.max_batch_tokens, config_.hidden_size));
  QUIRE_ASSIGN_OR_RETURN(selected_, workspace_.Allocate(options_.max_logit_rows,
                                                        config_.hidden_size));
  QUIRE_ASSIGN_OR_RETURN(logits_, workspace_.Allocate(options_.max_logit_rows,
                                                      config_.vocab_size));
  return absl::OkStatus();
}

absl::Status Decoder::Impl::Check(std::span<const BatchItem> batch) const {
  uint64_t tokens = 0;
  uint64_t logit_rows = 0;
  for (const BatchItem& item : batch) {
    tokens += item.tokens.size();
    logit_rows += item.logit_rows;
    if (item.tokens.empty() || item.logit_rows > item.tokens.size())
      return absl::InvalidArgumentError(absl::StrCat(
          "a batch item of ", item.tokens.size(), " tokens cannot have ",
          item.logit_rows, " rows of logits"));
    QUIRE_RETURN_IF_ERROR(CheckTokens(item.tokens, config_.vocab_size));
    if (item.adapter != nullptr)
      QUIRE_RETURN_IF_ERROR(CheckAdapter(*item.adapter));
  }
  if (tokens > options_.max_batch_tokens)
    return absl::InvalidArgumentError(
        absl::StrCat("a batch of ", tokens, " tokens, at most ",
                     options_.max_batch_tokens, " fit"));
  if (logit_rows > options_.max_logit_rows)
    return absl::InvalidArgumentError(
        absl::StrCat("logits of ", logit_rows, " tokens, at most ",
                     options_.max_logit_rows, " fit"));
  return absl::OkStatus();
}

absl::Status Decoder::Impl::CheckAdapter(const Adapter& adapter) const {
  if (adapter.weights().layers.size() != config_.layers)
    return absl::InvalidArgumentError(absl::StrCat(
        "adapter ", adapter.name(), " is for a model of ",
        adapter.weights().layers.size(), " layers, not ", config_.layers));
  if (adapter.max_tokens() < options_.max_batch_tokens)
    return absl::InvalidArgumentError(absl::StrCat(
        "adapter ", adapter.name(), " was loaded for batches of ",
        adapter.max_tokens(), " tokens, not ", options_.max_batch_tokens));
  return absl::OkStatus();
}

absl::Status Decoder::Impl::CheckLayout(const KvLayout& layout) const {
  if (layout.layers() != config_.layers)
    return absl::InvalidArgumentError(
        absl::StrCat("a KV cache of ", layout.layers(),
                     " layers for a model of ", config_.layers));
  for (const KvLayerKind& kind : layout.kinds()) {
    if (!HasAttention(kind) || kind.dtype != layout.KindOf(0).dtype)
      return absl::InvalidArgumentError(absl::StrCat(
          "there is no attention over KV rows of ", kind.kv_heads, " x ",
          kind.key_dim, " and ", kind.value_dim, " elements of ",
          KvDTypeName(kind.dtype), ", window ", kind.window));
  }
  return absl::OkStatus();
}

absl::Status Decoder::Impl::Place(std::span<const BatchItem> batch,
                                  const SequenceCache& cache) {
  QUIRE_RETURN_IF_ERROR(CheckLayout(cache.layout()));
  kv_dtype_ = cache.layout().KindOf(0).dtype;
  views_.clear();
  views_.reserve(batch.size() * config_.layers);  // places_ point into it
  places_.clear();
  for (const BatchItem& item : batch) {
    QUIRE_ASSIGN_OR_RETURN(const uint64_t length, cache.Length(item.sequence));
    const uint64_t needed = item.position + item.tokens.size();
    if (needed > length)
      return absl::FailedPreconditionError(
          absl::StrCat("sequence ", item.sequence.value(), " is backed for ",
                       length, " tokens, the batch needs ", needed));
  }
  for (uint32_t layer = 0; layer < config_.layers; ++layer) {
    for (const BatchItem& item : batch) {
      QUIRE_ASSIGN_OR_RETURN(const KvLayerView view,
                             cache.View(item.sequence, layer));
      views_.push_back(view);
      for (size_t t = 0; t < item.tokens.size(); ++t)
        places_.push_back({item.position + t, &views_.back()});
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::span<const float>> Decoder::Impl::Forward(
    std::span<const BatchItem> batch, const SequenceCache& cache) {
  if (batch.empty()) return std::span<const float>();
  QUIRE_RETURN_IF_ERROR(Check(batch));
  QUIRE_RETURN_IF_ERROR(Place(batch, cache));
  QUIRE_RETURN_IF_ERROR(runtime_->driver()->LaunchHostFunction(
      stream_, [this, batch] { Run(batch); }));
  QUIRE_RETURN_IF_ERROR(runtime_->driver()->SynchronizeStream(stream_));
  size_t rows = 0;
  for (const BatchItem& item : batch) rows += item.logit_rows;
  return std::span<const float>(logits_.data, rows * logits_.columns);
}

template <typename RowsOf>
void Decoder::Impl::FindRuns(std::span<const BatchItem> batch,
                             const RowsOf& rows_of) {
  runs_.clear();
  size_t first = 0;
  bool any = false;
  for (const BatchItem& item : batch) {
    const size_t rows = rows_of(item);
    if (rows == 0) continue;
    any |= item.adapter != nullptr;
    if (runs_.empty() || runs_.back().adapter != item.adapter)
      runs_.push_back({first, 0, item.adapter});
    runs_.back().count += rows;
    first += rows;
  }
  if (!any) runs_.clear();
}

void Decoder::Impl::Run(std::span<const BatchItem> batch) {
  size_t tokens = 0;
  for (const BatchItem& item : batch) {
    for (const TokenId token : item.tokens)
      EmbedToken(weights_->embedding(), item.adapter,
                 static_cast<size_t>(token), residual_.row(tokens++), pool_);
  }
  FindRuns(batch, [](const BatchItem& item) { return item.tokens.size(); });
  std::span<const TokenPlace> places = places_;
  for (uint32_t i = 0; i < config_.layers; ++i) {
    layers_->Run(weights_->layers()[i], places.first(tokens), kv_dtype_,
                 residual_.data, {i, runs_});
    places = places.subspan(tokens);
  }
  RunHead(batch);
}

// Only the rows whose logits are wanted go through the head, the largest matrix
// of most models.
void Decoder::Impl::RunHead(std::span<const BatchItem> batch) {
  size_t selected = 0;
  size_t end = 0;
  for (const BatchItem& item : batch) {
    end += item.tokens.size();
    std::copy_n(residual_.row(end - item.logit_rows),
                residual_.columns * item.logit_rows, selected_.row(selected));
    selected += item.logit_rows;
  }
  if (selected == 0) return;
  FindRuns(batch, [](const BatchItem& item) { return item.logit_rows; });
  const NormShape shape = {.epsilon = config_.norm_epsilon,
                           .features = selected_.columns};
  ApplyAdaptedNorm(
      weights_->output_norm(), runs_,
      [](const AdapterWeights& adapter) -> const ParameterVector& {
        return adapter.output_norm;
      },
      shape, selected_.data, selected, selected_.data, pool_);
  ApplyAdaptedLinear(
      weights_->output(), runs_,
      [](const AdapterWeights& adapter) -> const LinearAdapter& {
        return adapter.output;
      },
      selected_.data, selected, logits_.data, pool_);
}

absl::Status CheckTokens(std::span<const TokenId> tokens, uint32_t vocab_size) {
  for (const TokenId token : tokens) {
    if (token < 0 || static_cast<uint32_t>(token) >= vocab_size)
      return absl::InvalidArgumentError(absl::StrCat(
          "token ", token, " is outside the vocabulary of ", vocab_size));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Decoder>> Decoder::Create(
    Runtime* runtime, const ModelConfig& config, const ModelWeights* weights,
    ThreadPool* pool, const DecoderOptions& options) {
  auto impl = std::make_unique<Impl>(runtime, config, weights, pool, options);
  QUIRE_RETURN_IF_ERROR(impl->Initialize());
  return std::unique_ptr<Decoder>(new Decoder(std::move(impl)));
}

Decoder::Decoder(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Decoder::~Decoder() = default;

const ModelConfig& Decoder::config() const { return impl_->config(); }
const DecoderOptions& Decoder::options() const { return impl_->options(); }
StreamId Decoder::stream() const { return impl_->stream(); }

absl::StatusOr<std::span<const float>> Decoder::Forward(
    std::span<const BatchItem> batch, const SequenceCache& cache) {
  return impl_->Forward(batch, cache);
}

}  // namespace quire
