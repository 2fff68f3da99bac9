#include "model/tokenizer/decoder.h"

#include <cctype>
#include <optional>
#include <utility>

#include "model/tokenizer/byte_level.h"
#include "model/tokenizer/pattern.h"
#include "model/tokenizer/unicode.h"
#include "quire/alloc/status_macros.h"

namespace quire {
namespace {

class StringSink : public TextSink {
 public:
  explicit StringSink(std::string* out) : out_(out) {}
  void Push(std::string_view text) override { *out_ += text; }
  void Finish() override {}

 private:
  std::string* const out_;
};

class Stage : public TextSink {
 public:
  explicit Stage(std::unique_ptr<TextSink> next) : next_(std::move(next)) {}
  void Finish() override { next_->Finish(); }

 protected:
  const std::unique_ptr<TextSink> next_;
};

// A file without a decoder.
class JoinStage : public Stage {
 public:
  using Stage::Stage;
  void Push(std::string_view token) override {
    if (!std::exchange(first_, false)) next_->Push(" ");
    next_->Push(token);
  }

 private:
  bool first_ = true;
};

// Makes the next stage see one token, where fusing comes before one that
// cannot work on parts.
class BufferStage : public Stage {
 public:
  using Stage::Stage;
  void Push(std::string_view text) override { buffer_ += text; }
  void Finish() override {
    next_->Push(buffer_);
    next_->Finish();
  }

 private:
  std::string buffer_;
};

class ReplaceStage : public Stage {
 public:
  ReplaceStage(std::unique_ptr<TextSink> next, TextPattern pattern,
               std::string content)
      : Stage(std::move(next)),
        pattern_(std::move(pattern)),
        content_(std::move(content)) {}

  void Push(std::string_view token) override {
    std::string result;
    for (const PatternSpan& span : pattern_.Find(token)) {
      if (span.is_match) {
        result += content_;
      } else {
        result += token.substr(span.begin, span.end - span.begin);
      }
    }
    next_->Push(result);
  }

 private:
  const TextPattern pattern_;
  const std::string content_;
};

// Passes whole characters on and keeps the start of one.
class ByteLevelStage : public Stage {
 public:
  using Stage::Stage;

  void Push(std::string_view token) override {
    const std::optional<std::string> bytes = ByteLevelToBytes(token);
    pending_ += bytes ? std::string_view(*bytes) : token;
    size_t certain = 0;
    while (certain < pending_.size()) {
      const Utf8Step step = NextUtf8(pending_, certain);
      if (step.kind == Utf8Step::kCut) break;
      certain += step.length;
    }
    if (certain == 0) return;
    next_->Push(RepairUtf8(std::string_view(pending_).substr(0, certain)));
    pending_.erase(0, certain);
  }

  void Finish() override {
    if (!pending_.empty()) next_->Push(RepairUtf8(pending_));
    next_->Finish();
  }

 private:
  std::string pending_;
};

// The byte of a token like "<0x1F>", read as Rust reads it: "<0x+F>" is one.
std::optional<char> ByteOfToken(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') {
    return std::nullopt;
  }
  std::string_view digits = token.substr(3, 2);
  if (digits[0] == '+') digits.remove_prefix(1);
  int value = 0;
  for (const char digit : digits) {
    const unsigned char c = static_cast<unsigned char>(digit);
    if (!std::isxdigit(c)) return std::nullopt;
    value =
        value * 16 + (std::isdigit(c) ? c - '0' : std::tolower(c) - 'a' + 10);
  }
  return static_cast<char>(value);
}

// A run of byte tokens is text if all of it is UTF-8, and one U+FFFD per byte
// if not: so it waits until the run ends.
class ByteFallbackStage : public Stage {
 public:
  using Stage::Stage;

  void Push(std::string_view token) override {
    if (const std::optional<char> byte = ByteOfToken(token)) {
      run_ += *byte;
      return;
    }
    EndRun();
    next_->Push(token);
  }

  void Finish() override {
    EndRun();
    next_->Finish();
  }

 private:
  void EndRun() {
    if (run_.empty()) return;
    if (IsUtf8(run_)) {
      next_->Push(run_);
    } else {
      for (size_t i = 0; i < run_.size(); ++i) {
        next_->Push(kReplacementCharacter);
      }
    }
    run_.clear();
  }

  std::string run_;
};

// Strips up to `start` and `stop` characters `content` off every token.
class StripStage : public Stage {
 public:
  StripStage(std::unique_ptr<TextSink> next, std::string content,
             uint64_t start, uint64_t stop)
      : Stage(std::move(next)),
        content_(std::move(content)),
        start_(start),
        stop_(stop) {}

  void Push(std::string_view token) override {
    for (uint64_t i = 0; i < start_ && token.starts_with(content_); ++i) {
      token.remove_prefix(content_.size());
    }
    for (uint64_t i = 0; i < stop_ && token.ends_with(content_); ++i) {
      token.remove_suffix(content_.size());
    }
    next_->Push(token);
  }

 private:
  const std::string content_;
  const uint64_t start_;
  const uint64_t stop_;
};

// The same at the start of the one token that comes in parts.
class StripStartStage : public Stage {
 public:
  StripStartStage(std::unique_ptr<TextSink> next, std::string content,
                  uint64_t start)
      : Stage(std::move(next)), content_(std::move(content)), left_(start) {}

  void Push(std::string_view part) override {
    while (left_ > 0 && part.starts_with(content_)) {
      part.remove_prefix(content_.size());
      --left_;
    }
    if (part.empty()) return;
    left_ = 0;
    next_->Push(part);
  }

 private:
  const std::string content_;
  uint64_t left_;
};

// The replacement character becomes a space, in the first token nothing
// (where it was put in front).
class MetaspaceStage : public Stage {
 public:
  MetaspaceStage(std::unique_ptr<TextSink> next, TextPattern replacement,
                 bool drops_in_first, bool fused)
      : Stage(std::move(next)),
        replacement_(std::move(replacement)),
        drops_(drops_in_first),
        fused_(fused) {}

  void Push(std::string_view token) override {
    std::string result;
    for (const PatternSpan& span : replacement_.Find(token)) {
      if (!span.is_match) {
        result += token.substr(span.begin, span.end - span.begin);
      } else if (!drops_) {
        result += ' ';
      }
    }
    drops_ = drops_ && fused_;
    next_->Push(result);
  }

 private:
  const TextPattern replacement_;
  bool drops_;
  // All of it is one token, the first.
  const bool fused_;
};

class DecoderParser {
 public:
  absl::Status Parse(const JsonReader& json, int depth) {
    QUIRE_ASSIGN_OR_RETURN(const std::string type, json.String("type"));
    if (type == "Sequence") {
      if (depth == kMaxSequenceDepth)
        return json.Unsupported("such deep nesting");
      QUIRE_ASSIGN_OR_RETURN(const std::vector<JsonReader> elements,
                             json.Array("decoders"));
      for (const JsonReader& element : elements) {
        QUIRE_RETURN_IF_ERROR(Parse(element, depth + 1));
      }
      return absl::OkStatus();
    }
    if (type == "ByteLevel") {
      NeedWholeTokens();
      Add<ByteLevelStage>();
      fused_ = true;
      return absl::OkStatus();
    }
    if (type == "ByteFallback") {
      NeedWholeTokens();
      Add<ByteFallbackStage>();
      return absl::OkStatus();
    }
    if (type == "Fuse") {
      fused_ = true;
      return absl::OkStatus();
    }
    if (type == "Replace") return ParseReplace(json);
    if (type == "Strip") return ParseStrip(json);
    if (type == "Metaspace") return ParseMetaspace(json);
    return json.Unsupported("the decoder " + type);
  }

  std::vector<TokenDecoder::StageFactory> TakeStages() {
    return std::move(stages_);
  }

 private:
  template <typename StageType, typename... Args>
  void Add(Args... args) {
    stages_.push_back([args...](std::unique_ptr<TextSink> next) {
      return std::make_unique<StageType>(std::move(next), args...);
    });
  }

  void NeedWholeTokens() {
    if (fused_) Add<BufferStage>();
  }

  absl::Status ParseReplace(const JsonReader& json) {
    QUIRE_ASSIGN_OR_RETURN(const TextPattern pattern,
                           TextPattern::FromJson(json, "pattern"));
    QUIRE_ASSIGN_OR_RETURN(const std::string content, json.String("content"));
    // Parts end between characters, so one character is never cut.
    const std::string& text = pattern.text();
    const bool is_character =
        !text.empty() && DecodeUtf8(text, 0).length == text.size();
    if (!is_character) NeedWholeTokens();
    Add<ReplaceStage>(pattern, content);
    return absl::OkStatus();
  }

  absl::Status ParseStrip(const JsonReader& json) {
    QUIRE_ASSIGN_OR_RETURN(const char32_t character, json.Character("content"));
    constexpr int64_t kMax = 1 << 20;
    QUIRE_ASSIGN_OR_RETURN(const int64_t start, json.Integer("start", 0, kMax));
    QUIRE_ASSIGN_OR_RETURN(const int64_t stop, json.Integer("stop", 0, kMax));
    std::string content;
    AppendUtf8(character, &content);
    if (fused_ && stop == 0) {
      Add<StripStartStage>(content, static_cast<uint64_t>(start));
    } else {
      NeedWholeTokens();
      Add<StripStage>(content, static_cast<uint64_t>(start),
                      static_cast<uint64_t>(stop));
    }
    return absl::OkStatus();
  }

  absl::Status ParseMetaspace(const JsonReader& json) {
    QUIRE_ASSIGN_OR_RETURN(const char32_t character,
                           json.Character("replacement"));
    std::string scheme = "always";
    if (json.Has("prepend_scheme")) {
      QUIRE_ASSIGN_OR_RETURN(scheme, json.String("prepend_scheme"));
    }
    if (scheme != "always" && scheme != "first" && scheme != "never") {
      return json.Unsupported("the prepend_scheme " + scheme);
    }
    std::string replacement;
    AppendUtf8(character, &replacement);
    Add<MetaspaceStage>(TextPattern::FromText(replacement), scheme != "never",
                        fused_);
    return absl::OkStatus();
  }

  std::vector<TokenDecoder::StageFactory> stages_;
  // What follows sees one token, in parts.
  bool fused_ = false;
};

}  // namespace

std::string DecodeRun::Push(std::string_view token) {
  chain_->Push(token);
  return std::exchange(*output_, std::string());
}

std::string DecodeRun::Finish() {
  chain_->Finish();
  return std::exchange(*output_, std::string());
}

absl::StatusOr<TokenDecoder> TokenDecoder::Parse(const JsonReader& json) {
  DecoderParser parser;
  QUIRE_RETURN_IF_ERROR(parser.Parse(json, 0));
  TokenDecoder decoder;
  decoder.joins_with_spaces_ = false;
  decoder.stages_ = parser.TakeStages();
  return decoder;
}

DecodeRun TokenDecoder::Start() const {
  DecodeRun run;
  run.output_ = std::make_unique<std::string>();
  run.chain_ = std::make_unique<StringSink>(run.output_.get());
  if (joins_with_spaces_) {
    run.chain_ = std::make_unique<JoinStage>(std::move(run.chain_));
  }
  for (auto stage = stages_.rbegin(); stage != stages_.rend(); ++stage) {
    run.chain_ = (*stage)(std::move(run.chain_));
  }
  return run;
}

}  // namespace quire
