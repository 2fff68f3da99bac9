// Text to token ids and back: BPE, byte-level or of SentencePiece's kind, as
// Hugging Face's `tokenizers` does it, from tokenizer.json or from a GGUF's
// metadata.

#ifndef QUIRE_MODEL_TOKENIZER_H_
#define QUIRE_MODEL_TOKENIZER_H_

#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace quire {

using TokenId = int32_t;

class DecodeRun;

// Immutable after creation, so thread-safe.
class Tokenizer {
 public:
  // `json`: a parsed tokenizer.json; `origin` names it in errors. Models,
  // pre-tokenizers, ... that are not supported are refused by name.
  static absl::StatusOr<std::unique_ptr<Tokenizer>> FromTokenizerJson(
      const nlohmann::json& json, const std::string& origin);
  // `metadata`: Checkpoint::gguf_metadata(). Splits, merges and adds BOS as the
  // model's own tokenizer.json does, which the names in it stand for.
  static absl::StatusOr<std::unique_ptr<Tokenizer>> FromGguf(
      const nlohmann::json& metadata, const std::string& origin);
  // From the folder's tokenizer.json (that beside a .safetensors file), or the
  // metadata of a .gguf file.
  static absl::StatusOr<std::unique_ptr<Tokenizer>> Load(
      const std::string& model_path);
  ~Tokenizer();

  // Special tokens in the text are recognised, and what the post-processor adds
  // (BOS) is added where `add_special_tokens`. Invalid UTF-8 becomes U+FFFD.
  std::vector<TokenId> Encode(std::string_view text,
                              bool add_special_tokens = true) const;
  // The bytes of the tokens, cut characters replaced by U+FFFD as `tokenizers`
  // does. Ids that do not exist are an error that names them.
  absl::StatusOr<std::string> Decode(std::span<const TokenId> tokens,
                                     bool skip_special_tokens = false) const;

  size_t vocab_size() const;
  std::optional<TokenId> Find(std::string_view token) const;
  bool IsSpecial(TokenId token) const;
  // A tokenizer.json that makes the same tokenizer: for checkpoints that are
  // written from GGUF.
  nlohmann::json ToTokenizerJson() const;

 private:
  class Impl;
  friend class TextStream;

  explicit Tokenizer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// Turns tokens into text as they come: holds back the bytes of a character
// until it is whole. All it returns, joined, is what Decode gives for all
// tokens at once.
class TextStream {
 public:
  // `tokenizer` must outlive the stream.
  explicit TextStream(const Tokenizer* tokenizer,
                      bool skip_special_tokens = false);
  ~TextStream();
  TextStream(TextStream&&) noexcept;
  TextStream& operator=(TextStream&&) noexcept;

  // What can be printed after this token; may be empty. An id that does not
  // exist adds nothing.
  std::string Push(TokenId token);
  // What is left: cut characters as U+FFFD. Called once, last.
  std::string Finish();

 private:
  const Tokenizer* tokenizer_;
  bool skip_special_tokens_;
  std::unique_ptr<DecodeRun> run_;
};

}  // namespace quire

#endif  // QUIRE_MODEL_TOKENIZER_H_
