// The `decoder` of tokenizer.json: tokens to text, as they come.
//
// A decoder is a chain of stages. Each takes tokens and passes on what is
// certain; what depends on later tokens (the start of a character, a run of
// byte tokens) waits. Whole texts are decoded through the same chain, so what
// a stream puts out is by construction what decoding at once gives.

#ifndef QUIRE_MODEL_TOKENIZER_DECODER_H_
#define QUIRE_MODEL_TOKENIZER_DECODER_H_

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "model/tokenizer/json_reader.h"

namespace quire {

// Where a stage puts its output.
class TextSink {
 public:
  virtual ~TextSink() = default;
  virtual void Push(std::string_view text) = 0;
  // No more comes. Called once.
  virtual void Finish() = 0;
};

// The decoding of one text.
class DecodeRun {
 public:
  DecodeRun(DecodeRun&&) = default;
  DecodeRun& operator=(DecodeRun&&) = default;

  // Takes the next token; returns what became certain.
  std::string Push(std::string_view token);
  // Returns the rest. Called once, last.
  std::string Finish();

 private:
  friend class TokenDecoder;
  DecodeRun() = default;

  // The end of the chain; on the heap, so that the chain can be moved.
  std::unique_ptr<std::string> output_;
  std::unique_ptr<TextSink> chain_;
};

// Immutable, thread-safe. A default one is that of a file without a decoder:
// tokens with spaces between.
class TokenDecoder {
 public:
  // kUnimplemented, naming it, for one that is not supported.
  static absl::StatusOr<TokenDecoder> Parse(const JsonReader& json);

  DecodeRun Start() const;

  // Makes a stage in front of `next`.
  using StageFactory =
      std::function<std::unique_ptr<TextSink>(std::unique_ptr<TextSink> next)>;

 private:
  std::vector<StageFactory> stages_;
  bool joins_with_spaces_ = true;
};

}  // namespace quire

#endif  // QUIRE_MODEL_TOKENIZER_DECODER_H_
