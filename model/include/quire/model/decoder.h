// The forward pass: tokens of several sequences in, logits out.
//
// One code path for prompts and for decoding: a batch is any number of tokens
// of any number of sequences, whose keys and values go to a SequenceCache.
// Results for a sequence are bit for bit the same whatever else is in the batch
// (ops.h), adapters of other sequences included.

#ifndef QUIRE_MODEL_DECODER_H_
#define QUIRE_MODEL_DECODER_H_

#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "quire/alloc/runtime.h"
#include "quire/model/adapters.h"
#include "quire/model/model_config.h"
#include "quire/model/model_weights.h"
#include "quire/paging/sequence_cache.h"

namespace quire {

struct DecoderOptions {
  // Tokens of one Forward at most: sizes the workspace.
  uint32_t max_batch_tokens = 256;
  // Rows of logits of one Forward at most.
  uint32_t max_logit_rows = 64;
};

// Consecutive tokens of one sequence.
struct BatchItem {
  SequenceId sequence;
  std::span<const TokenId> tokens;
  uint64_t position = 0;    // of tokens[0]; earlier ones are in the cache
  uint32_t logit_rows = 1;  // logits are computed for the last so many tokens
  // Of an AdapterSet for this model and decoder; null: the base model. Adapters
  // are computed over runs of neighbours that share one, so it pays to have
  // them side by side.
  const Adapter* adapter = nullptr;
};

// kInvalidArgument that names the first token outside the vocabulary.
absl::Status CheckTokens(std::span<const TokenId> tokens, uint32_t vocab_size);

// Not thread-safe: one Forward at a time. Owns its workspace (owner
// "workspace") and a stream, on each device that parts of the model run on.
class Decoder {
 public:
  // `runtime`, `weights` and `pool` must outlive the decoder.
  static absl::StatusOr<std::unique_ptr<Decoder>> Create(
      Runtime* runtime, const ModelConfig& config, const ModelWeights* weights,
      ThreadPool* pool, const DecoderOptions& options);
  ~Decoder();

  const ModelConfig& config() const;
  const DecoderOptions& options() const;
  // The stream that Forward runs on there: the one to record fences on.
  // StreamId() where no part of the model runs on the device.
  StreamId stream(DeviceId device = DeviceId(0)) const;
  // Of all of its devices.
  const Driver& driver() const;

  // Runs the batch and waits for it. REQUIRES: `cache` backs position +
  // tokens.size() tokens of every sequence (SequenceCache::Step). Returns
  // [sum of logit_rows, vocab_size], in the order of the batch, valid until the
  // next call.
  // `meanwhile`, unless null, is called once, on the calling thread, when all
  // of the batch is queued, and before it is waited for: what it does, it does
  // while the device computes, and what it queues comes behind the batch. The
  // decoder has taken all addresses from the cache by then and calls it no
  // more. So `meanwhile` may call the cache, also to map and to unmap pages,
  // but may not change the sequences of the batch, whose rows are in use.
  // Errors: kInvalidArgument for a token outside the vocabulary, a
  // batch beyond the options, or an adapter that is none of this model; those
  // of bringing weights that are kept elsewhere, after which the same batch may
  // be tried again.
  absl::StatusOr<std::span<const float>> Forward(
      std::span<const BatchItem> batch, const SequenceCache& cache,
      const std::function<void()>& meanwhile = nullptr);

 private:
  class Impl;
  explicit Decoder(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace quire

#endif  // QUIRE_MODEL_DECODER_H_
