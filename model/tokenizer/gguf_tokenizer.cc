// Tokenizer::FromGguf: GGUF's metadata, written as the tokenizer.json it was
// made from.
//
// GGUF keeps vocabulary and merges, but of normalizer and pre-tokenizer only a
// name (`tokenizer.ggml.pre`) that llama.cpp's converter gave the original.
// The table below says what that original is.

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "model/tokenizer/bpe.h"
#include "model/tokenizer/json_reader.h"
#include "quire/alloc/quote.h"
#include "quire/alloc/status_macros.h"
#include "quire/model/tokenizer.h"

namespace quire {
namespace {

using Json = nlohmann::json;

// tokenizer.ggml.token_type
enum TokenType : int64_t {
  kNormal = 1,
  kUnknown = 2,
  kControl = 3,
  kUserDefined = 4,
  kUnused = 5,
  kByte = 6,
};

constexpr std::string_view kGpt2 =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|"
    "\\s+(?!\\S)|\\s+";
constexpr std::string_view kLlama3 =
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}|"
    " ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
constexpr std::string_view kQwen2 =
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}|"
    " ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
constexpr std::string_view kO200k =
    "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*"
    "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
    "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]+"
    "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
    "\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|"
    "\\s+(?!\\S)|\\s+";
constexpr std::string_view kTekken =
    "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*"
    "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]+|"
    "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]+"
    "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]*|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|"
    "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
constexpr std::string_view kDeepSeekV3Han =
    "[\\u4E00-\\u9FA5\\u3040-\\u309F\\u30A0-\\u30FF]+";
constexpr std::string_view kDeepSeekV3 =
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|"
    "[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\\r\\n]*|"
    "\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";

struct PreTokenizerRecipe {
  std::vector<std::string_view> names;
  // Splits, isolated, one after the other.
  std::vector<std::string_view> patterns;
  bool individual_digits_first = false;
  bool nfc = false;
  bool ignore_merges = false;
  // Where the file does not say.
  bool add_bos = false;
};

const std::vector<PreTokenizerRecipe>& Recipes() {
  static const auto& recipes = *new std::vector<PreTokenizerRecipe>{
      {.names = {"gpt-2", "phi-2", "olmo", "mpt", "jais", "exaone4"},
       .patterns = {kGpt2}},
      {.names = {"smollm", "starcoder", "refact", "command-r", "codeshell",
                 "exaone", "minerva-7b"},
       .patterns = {kGpt2},
       .individual_digits_first = true},
      {.names = {"llama-bpe", "llama3", "llama-v3", "falcon3", "pixtral"},
       .patterns = {kLlama3},
       .ignore_merges = true,
       .add_bos = true},
      {.names = {"dbrx", "smaug-bpe", "glm4", "chatglm-bpe"},
       .patterns = {kLlama3}},
      {.names = {"qwen2", "deepseek-r1-qwen", "megrez"},
       .patterns = {kQwen2},
       .nfc = true},
      {.names = {"stablelm2", "hunyuan"}, .patterns = {kQwen2}},
      {.names = {"gpt-4o", "llama4"}, .patterns = {kO200k}},
      {.names = {"tekken"},
       .patterns = {kTekken},
       .ignore_merges = true,
       .add_bos = true},
      {.names = {"deepseek-v3"},
       .patterns = {"\\p{N}{1,3}", kDeepSeekV3Han, kDeepSeekV3}},
      // What llama.cpp does where it knows no better.
      {.names = {"default", ""},
       .patterns = {"[\\p{P}\\$\\+<=>\\^~\\|]+", kGpt2, "\\p{N}+",
                    "[0-9][0-9][0-9]"}},
  };
  return recipes;
}

Json PreTokenizerJson(const PreTokenizerRecipe& recipe) {
  Json parts = Json::array();
  if (recipe.individual_digits_first) {
    parts.push_back({{"type", "Digits"}, {"individual_digits", true}});
  }
  for (const std::string_view pattern : recipe.patterns) {
    parts.push_back({{"type", "Split"},
                     {"pattern", {{"Regex", pattern}}},
                     {"behavior", "Isolated"},
                     {"invert", false}});
  }
  parts.push_back({{"type", "ByteLevel"},
                   {"add_prefix_space", false},
                   {"trim_offsets", true},
                   {"use_regex", false}});
  return {{"type", "Sequence"}, {"pretokenizers", std::move(parts)}};
}

class Converter {
 public:
  Converter(const Json& metadata, const std::string& origin)
      : metadata_(metadata, origin) {}

  absl::StatusOr<Json> Run() {
    if (!metadata_.Has("tokenizer.ggml.model"))
      return absl::NotFoundError(absl::StrCat(
          Printable(metadata_.where()),
          ": tokenizer.ggml.model is missing: the file has no tokenizer"));
    QUIRE_ASSIGN_OR_RETURN(const std::string model,
                           metadata_.String("tokenizer.ggml.model"));
    if (model != "gpt2") {
      return metadata_.Unsupported("tokenizer.ggml.model " + model);
    }
    QUIRE_RETURN_IF_ERROR(FindRecipe());
    QUIRE_RETURN_IF_ERROR(ReadTokens());
    QUIRE_ASSIGN_OR_RETURN(Json post_processor, PostProcessorJson());
    if (!metadata_.Has("tokenizer.ggml.merges")) {
      return metadata_.Error("tokenizer.ggml.merges is missing");
    }
    Json model_json = {
        {"type", "BPE"},
        {"ignore_merges", recipe_->ignore_merges},
        {"vocab", std::move(vocab_)},
        {"merges", metadata_.Field("tokenizer.ggml.merges").value()}};
    return Json{{"version", "1.0"},
                {"added_tokens", std::move(added_tokens_)},
                {"normalizer", recipe_->nfc ? Json{{"type", "NFC"}} : Json()},
                {"pre_tokenizer", PreTokenizerJson(*recipe_)},
                {"post_processor", std::move(post_processor)},
                {"decoder",
                 {{"type", "ByteLevel"},
                  {"add_prefix_space", false},
                  {"trim_offsets", true},
                  {"use_regex", true}}},
                {"model", std::move(model_json)}};
  }

 private:
  absl::Status FindRecipe() {
    std::string name;
    if (metadata_.Has("tokenizer.ggml.pre")) {
      QUIRE_ASSIGN_OR_RETURN(name, metadata_.String("tokenizer.ggml.pre"));
    }
    for (const PreTokenizerRecipe& recipe : Recipes()) {
      for (const std::string_view known : recipe.names) {
        if (known == name) recipe_ = &recipe;
      }
    }
    if (recipe_ == nullptr) {
      return metadata_.Unsupported("tokenizer.ggml.pre " + name);
    }
    return absl::OkStatus();
  }

  absl::Status ReadTokens() {
    if (!metadata_.Has("tokenizer.ggml.tokens") ||
        !metadata_.Field("tokenizer.ggml.tokens").value().is_array()) {
      return metadata_.Error("tokenizer.ggml.tokens is not an array");
    }
    tokens_ = &metadata_.Field("tokenizer.ggml.tokens").value();
    const Json* types = nullptr;
    if (metadata_.Has("tokenizer.ggml.token_type")) {
      types = &metadata_.Field("tokenizer.ggml.token_type").value();
      if (!types->is_array() || types->size() != tokens_->size()) {
        return metadata_.Error(
            "tokenizer.ggml.token_type is not one number per token");
      }
    }
    for (size_t id = 0; id < tokens_->size(); ++id) {
      const Json& token = (*tokens_)[id];
      if (!token.is_string()) {
        return metadata_.Error(
            absl::StrCat("tokenizer.ggml.tokens[", id, "] is not a string"));
      }
      const std::string& text = token.get_ref<const std::string&>();
      const auto [it, inserted] = vocab_.emplace(text, id);
      if (!inserted) {
        return metadata_.Error(absl::StrCat("tokenizer.ggml.tokens[", id,
                                            "] is ", Quoted(text), ", as is [",
                                            it.value().get<size_t>(), "]"));
      }
      if (types == nullptr) continue;
      const Json& type = (*types)[id];
      if (!type.is_number_integer()) {
        return metadata_.Error(absl::StrCat("tokenizer.ggml.token_type[", id,
                                            "] is not a number"));
      }
      AddToken(id, text, type.get<int64_t>());
    }
    return absl::OkStatus();
  }

  void AddToken(size_t id, const std::string& text, int64_t type) {
    if (type != kControl && type != kUserDefined) return;
    added_tokens_.push_back({{"id", id},
                             {"content", text},
                             {"single_word", false},
                             {"lstrip", false},
                             {"rstrip", false},
                             {"normalized", false},
                             {"special", type == kControl}});
  }

  // BOS and EOS around the text, where asked for.
  absl::StatusOr<Json> PostProcessorJson() {
    QUIRE_ASSIGN_OR_RETURN(
        const bool add_bos,
        metadata_.BoolOr(
            "tokenizer.ggml.add_bos_token",
            recipe_->add_bos && metadata_.Has("tokenizer.ggml.bos_token_id")));
    QUIRE_ASSIGN_OR_RETURN(
        const bool add_eos,
        metadata_.BoolOr("tokenizer.ggml.add_eos_token", false));
    if (!add_bos && !add_eos) return Json();
    Json single = Json::array();
    Json pair = Json::array();
    Json special_tokens = Json::object();
    const auto add_token = [&](std::string_view key) -> absl::Status {
      QUIRE_ASSIGN_OR_RETURN(
          const int64_t id,
          metadata_.Integer(key, 0, static_cast<int64_t>(tokens_->size()) - 1));
      const Json& text = (*tokens_)[static_cast<size_t>(id)];
      single.push_back({{"SpecialToken", {{"id", text}, {"type_id", 0}}}});
      pair.push_back({{"SpecialToken", {{"id", text}, {"type_id", 0}}}});
      special_tokens[text.get<std::string>()] = {
          {"id", text}, {"ids", {id}}, {"tokens", {text}}};
      return absl::OkStatus();
    };
    if (add_bos) {
      QUIRE_RETURN_IF_ERROR(add_token("tokenizer.ggml.bos_token_id"));
    }
    single.push_back({{"Sequence", {{"id", "A"}, {"type_id", 0}}}});
    pair.push_back({{"Sequence", {{"id", "A"}, {"type_id", 0}}}});
    pair.push_back({{"Sequence", {{"id", "B"}, {"type_id", 1}}}});
    if (add_eos) {
      QUIRE_RETURN_IF_ERROR(add_token("tokenizer.ggml.eos_token_id"));
    }
    return Json{{"type", "TemplateProcessing"},
                {"single", std::move(single)},
                {"pair", std::move(pair)},
                {"special_tokens", std::move(special_tokens)}};
  }

  const JsonReader metadata_;
  const PreTokenizerRecipe* recipe_ = nullptr;
  const Json* tokens_ = nullptr;
  Json vocab_ = Json::object();
  Json added_tokens_ = Json::array();
};

}  // namespace

absl::StatusOr<std::unique_ptr<Tokenizer>> Tokenizer::FromGguf(
    const nlohmann::json& metadata, const std::string& origin) {
  QUIRE_ASSIGN_OR_RETURN(const Json tokenizer,
                         Converter(metadata, origin).Run());
  return FromTokenizerJson(tokenizer, origin);
}

}  // namespace quire
