// Decoder: validation and scheduling here, arithmetic in LayerRunner and ops.
//
// A Forward is a chain of functions on streams of devices, one stream each, so
// it is ordered after the loading of the weights and before every fence
// recorded on these streams. Parts that stay on a device and follow each other
// are one function. Before a part that is kept elsewhere, the stream waits
// until its store has brought it; where the next part runs on another device,
// the activations are copied there. All of it is queued at once, and the caller
// waits for the end: sampling needs the logits anyway.

#include "quire/model/decoder.h"

#include <cstring>
#include <functional>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "model/adapters/apply_adapter.h"
#include "model/decoder/layer_runner.h"
#include "quire/alloc/status_macros.h"
#include "quire/alloc/try_twice.h"

namespace quire {

class Decoder::Impl {
 public:
  Impl(Runtime* runtime, const ModelConfig& config, const ModelWeights* weights,
       ThreadPool* pool, const DecoderOptions& options)
      : runtime_(runtime),
        config_(config),
        weights_(weights),
        pool_(pool),
        options_(options) {}
  ~Impl();

  absl::Status Initialize();
  absl::StatusOr<std::span<const float>> Forward(
      std::span<const BatchItem> batch, const SequenceCache& cache,
      const std::function<void()>& meanwhile);

  const ModelConfig& config() const { return config_; }
  const DecoderOptions& options() const { return options_; }
  StreamId stream(DeviceId device) const;
  const Driver& driver() const { return *runtime_->driver(); }

 private:
  // A device that parts run on.
  struct Stage {
    Stage(Runtime* runtime, DeviceId id) : device(id), workspace(runtime, id) {}

    const DeviceId device;
    StreamId stream;
    // Recorded where activations leave for another device.
    std::optional<EventId> left;
    Workspace workspace;
    std::unique_ptr<LayerRunner> layers;
    ActivationBuffer residual;
  };
  // Parts as ModelWeights has them: the embedding, the layers, the norm, the
  // head.
  size_t part_count() const { return size_t{config_.layers} + 3; }
  size_t norm_part() const { return size_t{config_.layers} + 1; }

  absl::StatusOr<Stage*> MakeStage(DeviceId device);
  absl::Status Check(std::span<const BatchItem> batch) const;
  absl::Status CheckAdapter(const Adapter& adapter) const;
  // Finds every token's place before the launch: the functions on the streams
  // must not take the cache's locks.
  absl::Status CheckLayout(const KvLayout& layout) const;
  absl::Status Place(std::span<const BatchItem> batch,
                     const SequenceCache& cache);
  // The runs of rows of a batch of which each item has `rows_of` many; none
  // where all of them are the base model's.
  template <typename RowsOf>
  static void FindRuns(std::span<const BatchItem> batch, const RowsOf& rows_of,
                       std::vector<AdapterRun>* runs);

  // Of an embedding on disk, those of the batch: before anything is queued, so
  // that a read that fails is an error of the pass alone.
  absl::Status ReadEmbeddingRows(std::span<const BatchItem> batch);
  absl::Status Queue(std::span<const BatchItem> batch);
  // The parts from `first` on that one function may run.
  size_t EndOfRun(size_t first) const;
  absl::Status QueueParts(size_t first, size_t end,
                          std::span<const BatchItem> batch);
  // Residual activations of all tokens, after what `from` has queued.
  absl::Status MoveActivations(Stage* from, Stage* to, size_t tokens);
  absl::Status Synchronize() const;

  // On a stream.
  void Run(size_t part, std::span<const BatchItem> batch);
  void RunEmbedding(std::span<const BatchItem> batch);
  void RunNorm(std::span<const BatchItem> batch);
  void RunHead();

  Runtime* const runtime_;
  const ModelConfig config_;
  const ModelWeights* const weights_;
  ThreadPool* const pool_;
  const DecoderOptions options_;
  std::vector<std::unique_ptr<Stage>> stages_;
  std::vector<Stage*> stage_of_part_;
  Stage* head_ = nullptr;  // of the head
  ActivationBuffer logits_;
  std::vector<std::byte> embedding_rows_;  // by token; of one on disk

  // Of the current batch; kept to avoid allocations per step.
  size_t tokens_ = 0;
  size_t selected_rows_ = 0;
  KvElements kv_elements_ = KvDType::kF32;
  std::vector<KvLayerView> views_;  // [layer][item]
  std::vector<TokenPlace> places_;  // [layer][token]
  std::vector<AdapterRun> token_runs_, logit_runs_;
};

Decoder::Impl::~Impl() {
  // Forward waits for its work, so nothing is queued.
  for (const std::unique_ptr<Stage>& stage : stages_) {
    if (stage->left.has_value())
      TryTwice([&] {
        return runtime_->driver()->DestroyEvent(*stage->left);
      }).IgnoreError();
    if (stage->stream != StreamId())
      TryTwice([&] {
        return runtime_->driver()->DestroyStream(stage->stream);
      }).IgnoreError();
  }
}

absl::Status Decoder::Impl::Initialize() {
  if (options_.max_batch_tokens == 0 || options_.max_logit_rows == 0)
    return absl::InvalidArgumentError(
        "max_batch_tokens and max_logit_rows must be at least 1");
  for (size_t part = 0; part < part_count(); ++part) {
    QUIRE_ASSIGN_OR_RETURN(Stage* const stage,
                           MakeStage(weights_->residences()[part].device));
    stage_of_part_.push_back(stage);
  }
  if (weights_->embedding_on_disk()) {
    const DenseMatrix& embedding = weights_->embedding();
    embedding_rows_.resize(
        BytesOf(embedding.dtype, embedding.in_features)->value() *
        options_.max_batch_tokens);
  }
  head_ = stage_of_part_.back();
  QUIRE_ASSIGN_OR_RETURN(
      logits_,
      head_->workspace.Allocate(options_.max_logit_rows, config_.vocab_size));
  return absl::OkStatus();
}

absl::StatusOr<Decoder::Impl::Stage*> Decoder::Impl::MakeStage(
    DeviceId device) {
  for (const std::unique_ptr<Stage>& stage : stages_) {
    if (stage->device == device) return stage.get();
  }
  stages_.push_back(std::make_unique<Stage>(runtime_, device));
  Stage* const stage = stages_.back().get();
  QUIRE_ASSIGN_OR_RETURN(stage->stream,
                         runtime_->driver()->CreateStream(device));
  QUIRE_ASSIGN_OR_RETURN(stage->left, runtime_->driver()->CreateEvent(device));
  QUIRE_ASSIGN_OR_RETURN(
      stage->layers,
      LayerRunner::Create(runtime_, &config_, weights_->inverse_frequencies(),
                          options_.max_batch_tokens, pool_, device));
  QUIRE_ASSIGN_OR_RETURN(stage->residual,
                         stage->workspace.Allocate(options_.max_batch_tokens,
                                                   config_.hidden_size));
  return stage;
}

StreamId Decoder::Impl::stream(DeviceId device) const {
  for (const std::unique_ptr<Stage>& stage : stages_) {
    if (stage->device == device) return stage->stream;
  }
  return StreamId();
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
    const KvLayerKind& first = layout.KindOf(0);
    if (!HasAttention(kind) || kind.kv_heads != config_.kv_heads ||
        kind.key_dim != config_.head_dim ||
        kind.value_dim != config_.head_dim || kind.dtype != first.dtype ||
        kind.scale != first.scale)
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
  const KvLayerKind& kind = cache.layout().KindOf(0);
  kv_elements_ = {kind.dtype, kind.scale};
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
    std::span<const BatchItem> batch, const SequenceCache& cache,
    const std::function<void()>& meanwhile) {
  if (batch.empty()) return std::span<const float>();
  if (!weights_->resident())
    return absl::FailedPreconditionError(
        "the weights were dropped: reload them first");
  QUIRE_RETURN_IF_ERROR(Check(batch));
  QUIRE_RETURN_IF_ERROR(Place(batch, cache));
  tokens_ = 0;
  selected_rows_ = 0;
  for (const BatchItem& item : batch) {
    tokens_ += item.tokens.size();
    selected_rows_ += item.logit_rows;
  }
  FindRuns(
      batch, [](const BatchItem& item) { return item.tokens.size(); },
      &token_runs_);
  FindRuns(
      batch, [](const BatchItem& item) { return size_t{item.logit_rows}; },
      &logit_runs_);
  QUIRE_RETURN_IF_ERROR(ReadEmbeddingRows(batch));
  absl::Status status = Queue(batch);
  const bool queued = status.ok();
  if (queued && meanwhile != nullptr) meanwhile();
  // What was queued before an error still uses the batch.
  status.Update(Synchronize());
  for (OffloadStore* const store : weights_->stores())
    status.Update(store->EndPass(queued));
  if (!status.ok()) return status;
  return std::span<const float>(logits_.data, selected_rows_ * logits_.columns);
}

template <typename RowsOf>
void Decoder::Impl::FindRuns(std::span<const BatchItem> batch,
                             const RowsOf& rows_of,
                             std::vector<AdapterRun>* runs) {
  runs->clear();
  size_t first = 0;
  bool any = false;
  for (const BatchItem& item : batch) {
    const size_t rows = rows_of(item);
    if (rows == 0) continue;
    any |= item.adapter != nullptr;
    if (runs->empty() || runs->back().adapter != item.adapter)
      runs->push_back({first, 0, item.adapter});
    runs->back().count += rows;
    first += rows;
  }
  if (!any) runs->clear();
}

absl::Status Decoder::Impl::Synchronize() const {
  absl::Status status;
  for (const std::unique_ptr<Stage>& stage : stages_)
    status.Update(TryTwice(
        [&] { return runtime_->driver()->SynchronizeStream(stage->stream); }));
  return status;
}

absl::Status Decoder::Impl::Queue(std::span<const BatchItem> batch) {
  for (size_t part = 0; part < part_count();) {
    if (part > 0 && stage_of_part_[part] != stage_of_part_[part - 1])
      QUIRE_RETURN_IF_ERROR(MoveActivations(stage_of_part_[part - 1],
                                            stage_of_part_[part], tokens_));
    const size_t end = EndOfRun(part);
    QUIRE_RETURN_IF_ERROR(QueueParts(part, end, batch));
    part = end;
  }
  return absl::OkStatus();
}

size_t Decoder::Impl::EndOfRun(size_t first) const {
  const std::vector<PartResidence>& residences = weights_->residences();
  if (residences[first].store != nullptr) return first + 1;
  size_t end = first + 1;
  while (end < part_count() && residences[end].store == nullptr &&
         stage_of_part_[end] == stage_of_part_[first])
    ++end;
  return end;
}

absl::Status Decoder::Impl::QueueParts(size_t first, size_t end,
                                       std::span<const BatchItem> batch) {
  const StreamId stream = stage_of_part_[first]->stream;
  const PartResidence& residence = weights_->residences()[first];
  if (residence.store != nullptr)
    QUIRE_RETURN_IF_ERROR(residence.store->Acquire(residence.visit, stream));
  QUIRE_RETURN_IF_ERROR(
      runtime_->driver()->LaunchHostFunction(stream, [this, first, end, batch] {
        for (size_t part = first; part < end; ++part) Run(part, batch);
      }));
  return residence.store == nullptr
             ? absl::OkStatus()
             : residence.store->Release(residence.visit, stream);
}

absl::Status Decoder::Impl::MoveActivations(Stage* from, Stage* to,
                                            size_t tokens) {
  Driver* const driver = runtime_->driver();
  QUIRE_RETURN_IF_ERROR(driver->RecordEvent(*from->left, from->stream));
  QUIRE_RETURN_IF_ERROR(driver->WaitEvent(to->stream, *from->left));
  return driver->CopyOnDevice(
      DeviceAddress(reinterpret_cast<uint64_t>(to->residual.data)),
      DeviceAddress(reinterpret_cast<uint64_t>(from->residual.data)),
      Bytes(tokens * from->residual.columns * sizeof(float)), to->stream);
}

void Decoder::Impl::Run(size_t part, std::span<const BatchItem> batch) {
  if (part == 0) return RunEmbedding(batch);
  if (part == norm_part()) return RunNorm(batch);
  if (part > norm_part()) return RunHead();
  const size_t layer = part - 1;
  Stage* const stage = stage_of_part_[part];
  stage->layers->Run(
      weights_->layers()[layer],
      std::span<const TokenPlace>(places_).subspan(layer * tokens_, tokens_),
      kv_elements_, stage->residual.data,
      {static_cast<uint32_t>(layer), token_runs_});
}

void Decoder::Impl::RunEmbedding(std::span<const BatchItem> batch) {
  const ActivationBuffer& residual = stage_of_part_.front()->residual;
  DenseMatrix embedding = weights_->embedding();
  const bool on_disk = weights_->embedding_on_disk();
  if (on_disk) embedding.data = embedding_rows_.data();
  size_t row = 0;
  for (const BatchItem& item : batch) {
    for (const TokenId id : item.tokens) {
      const auto token = static_cast<size_t>(id);
      EmbedToken(embedding, on_disk ? row : token, item.adapter, token,
                 residual.row(row), pool_);
      ++row;
    }
  }
}

absl::Status Decoder::Impl::ReadEmbeddingRows(
    std::span<const BatchItem> batch) {
  if (!weights_->embedding_on_disk()) return absl::OkStatus();
  const size_t row_bytes = embedding_rows_.size() / options_.max_batch_tokens;
  size_t row = 0;
  for (const BatchItem& item : batch) {
    for (const TokenId token : item.tokens)
      QUIRE_RETURN_IF_ERROR(weights_->ReadEmbeddingRow(
          static_cast<size_t>(token),
          std::span(embedding_rows_).subspan(row++ * row_bytes, row_bytes)));
  }
  return absl::OkStatus();
}

// Leaves the rows whose logits are wanted, normalised, at the beginning of the
// residual: the head, which may be on another device, takes them from there.
void Decoder::Impl::RunNorm(std::span<const BatchItem> batch) {
  const ActivationBuffer& residual = stage_of_part_[norm_part()]->residual;
  size_t end = 0;
  size_t selected = 0;
  for (const BatchItem& item : batch) {
    end += item.tokens.size();
    std::memmove(residual.row(selected), residual.row(end - item.logit_rows),
                 residual.columns * item.logit_rows * sizeof(float));
    selected += item.logit_rows;
  }
  if (selected == 0) return;
  const NormShape shape = {.epsilon = config_.norm_epsilon,
                           .features = residual.columns};
  ApplyAdaptedNorm(
      weights_->output_norm(), logit_runs_,
      [](const AdapterWeights& adapter) -> const ParameterVector& {
        return adapter.output_norm;
      },
      shape, residual.data, selected, residual.data, pool_);
}

// The largest matrix of most models: for no more rows than are wanted.
void Decoder::Impl::RunHead() {
  if (selected_rows_ == 0) return;
  ApplyAdaptedLinear(
      weights_->output(), logit_runs_,
      [](const AdapterWeights& adapter) -> const LinearAdapter& {
        return adapter.output;
      },
      head_->residual.data, selected_rows_, logits_.data, pool_);
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
StreamId Decoder::stream(DeviceId device) const {
  return impl_->stream(device);
}

const Driver& Decoder::driver() const { return impl_->driver(); }

absl::StatusOr<std::span<const float>> Decoder::Forward(
    std::span<const BatchItem> batch, const SequenceCache& cache,
    const std::function<void()>& meanwhile) {
  return impl_->Forward(batch, cache, meanwhile);
}

}  // namespace quire
