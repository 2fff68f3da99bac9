// Quantises a model to a GPTQ checkpoint, layer by layer.
//
// The calibration tokens pass through the model one layer at a time: a layer
// sees them with its own weights to learn the curvature of its error, is
// quantised, and passes on what the *quantised* layer gives, so that later
// layers make up for earlier errors.
//
// Host memory is bounded whatever the model and the text: the weights that the
// session keeps on the host, the hidden states of the calibration tokens
// (QuantizeOptions::activation_cache), and what one layer takes.

#ifndef QUIRE_MODEL_QUANTIZER_H_
#define QUIRE_MODEL_QUANTIZER_H_

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "quire/model/session.h"
#include "quire/model/tokenizer.h"

namespace quire {

enum class QuantizeMethod : uint8_t { kGptq, kRoundToNearest };

struct QuantizeProgress {
  uint32_t layer;  // layers done
  uint32_t layers;
  double seconds;  // so far
};

struct QuantizeOptions {
  QuantizeMethod method = QuantizeMethod::kGptq;
  int bits = 4;              // 2, 3, 4 or 8
  int64_t group_size = 128;  // inputs; -1: one group
  bool sym = true;
  // Inputs with the largest activations are rounded first (desc_act).
  bool act_order = false;
  // Keeps groups sequential under act_order.
  bool static_groups = false;
  bool mse = true;  // fit grids by squared error, not by the largest weight
  double damping = 0.01;
  // Host memory for the hidden states of the calibration tokens, pinned buffers
  // included.
  Bytes activation_cache = GiB(1);
  std::function<void(const QuantizeProgress&)> progress;

  // kInvalidArgument that names the option at fault.
  absl::Status Validate() const;
};

struct QuantizeReport {
  uint32_t modules = 0;
  uint64_t calibration_tokens = 0;
  Bytes bytes;             // of the weights written
  Bytes activation_cache;  // taken of it
  Bytes layer;             // host memory that one layer took at most
  double seconds = 0;
};

// Whether QuantizeModel can read `source` and write `out`, for who wants to
// know before the work: plain weights, in the files or as a session holds them;
// a new folder or an empty one.
absl::Status CheckQuantizeSource(const Checkpoint& source);
absl::Status CheckQuantizeSource(const Session& source);
absl::Status CheckQuantizeOutput(const std::string& out);

// Writes a Hugging Face folder `out` that transformers with gptqmodel loads:
// config.json, quantize_config.json, model.safetensors and the tokenizer. It
// appears when it is whole; until then, and after a process that was killed,
// there is "OUT.partial", which the next run replaces.
// `source` runs plain or GGUF weights, wherever they are kept; its sequences
// must have been released. `tokenizer`: null where it has none.
// `calibration`: sequences of at least one token each; unused by
// kRoundToNearest. Errors: `out` exists and is not empty; a source that is
// quantised already; an activation cache that is too small; what the disk says.
absl::StatusOr<QuantizeReport> QuantizeModel(
    Session& source, const Tokenizer* tokenizer, const std::string& out,
    std::span<const std::vector<TokenId>> calibration,
    const QuantizeOptions& options);

// `count` sequences of `length` tokens that the model writes itself, each begun
// with a random token and sampled at temperature 1: text of the kind that it
// was trained on, without any file (as in LLM-QAT, Liu et al. 2023,
// https://arxiv.org/abs/2305.17888).
absl::StatusOr<std::vector<std::vector<TokenId>>> SampleCalibration(
    Session& session, uint32_t count, uint32_t length, uint64_t seed,
    const std::function<void(uint32_t done, uint32_t total)>& progress);

// `tokens` cut into `count` pieces of `length` at most, spread evenly.
std::vector<std::vector<TokenId>> CutCalibration(
    std::span<const TokenId> tokens, uint32_t count, uint32_t length);

// exp of the mean negative log-likelihood of tokens 2, 3, ... of each window of
// `window` tokens; windows do not overlap, and what is left over is not used.
// kInvalidArgument where there is no whole window.
absl::StatusOr<double> ComputePerplexity(
    Session& session, std::span<const TokenId> tokens, uint32_t window,
    const std::function<void(uint64_t done, uint64_t total)>& progress);

}  // namespace quire

#endif  // QUIRE_MODEL_QUANTIZER_H_
