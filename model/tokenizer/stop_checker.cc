#include "model/tokenizer/stop_checker.h"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "model/tokenizer/json_reader.h"
#include "quire/alloc/status_macros.h"

namespace quire {
namespace {

constexpr int64_t kMaxId = std::numeric_limits<TokenId>::max();

// The number or numbers in json[key], if any.
absl::Status AddIds(const JsonReader& json, std::string_view key,
                    std::set<TokenId>* ids) {
  if (!json.Has(key)) return absl::OkStatus();
  if (!json.Field(key).value().is_array()) {
    QUIRE_ASSIGN_OR_RETURN(const int64_t id, json.Integer(key, 0, kMaxId));
    ids->insert(static_cast<TokenId>(id));
    return absl::OkStatus();
  }
  QUIRE_ASSIGN_OR_RETURN(const std::vector<JsonReader> elements,
                         json.Array(key));
  for (const JsonReader& element : elements) {
    QUIRE_ASSIGN_OR_RETURN(const int64_t id, element.AsInteger(0, kMaxId));
    ids->insert(static_cast<TokenId>(id));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status StopConditions::Validate() const {
  if (max_new_tokens < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("max_new_tokens is ", max_new_tokens, ", below 0"));
  }
  for (size_t i = 0; i < stop_strings.size(); ++i) {
    if (stop_strings[i].empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat("stop string ", i, " is empty"));
    }
  }
  return absl::OkStatus();
}

StopChecker::StopChecker(const StopConditions& conditions)
    : conditions_(conditions),
      eos_ids_(conditions.eos_ids.begin(), conditions.eos_ids.end()) {}

StopChecker::Step StopChecker::Push(TokenId token, std::string_view text) {
  ++tokens_;
  if (eos_ids_.contains(token)) {
    return {std::exchange(held_, std::string()), StopReason::kEos};
  }
  Step step = Advance(text);
  if (step.reason == StopReason::kNone &&
      tokens_ >= conditions_.max_new_tokens) {
    step.reason = StopReason::kLength;
  }
  return step;
}

StopChecker::Step StopChecker::Finish(std::string_view text) {
  Step step = Advance(text);
  step.text += std::exchange(held_, std::string());
  return step;
}

StopChecker::Step StopChecker::Advance(std::string_view text) {
  held_ += text;
  // What was held back before has no whole stop string in it, so the search
  // may look at all of it without finding an old one.
  size_t begin = std::string::npos, end = std::string::npos;
  for (const std::string& stop : conditions_.stop_strings) {
    const size_t found = held_.find(stop);
    if (found == std::string::npos) continue;
    const size_t found_end = found + stop.size();
    if (found_end < end || (found_end == end && found < begin)) {
      begin = found;
      end = found_end;
    }
  }
  if (end != std::string::npos) {
    std::string shown = held_.substr(0, begin);
    held_.clear();
    return {std::move(shown), StopReason::kStopString};
  }
  // Keep the longest end that a stop string may continue.
  size_t keep = 0;
  for (const std::string& stop : conditions_.stop_strings) {
    size_t length = std::min(stop.size() - 1, held_.size());
    while (length > keep &&
           std::string_view(stop).substr(0, length) !=
               std::string_view(held_).substr(held_.size() - length)) {
      --length;
    }
    keep = std::max(keep, length);
  }
  std::string shown = held_.substr(0, held_.size() - keep);
  held_.erase(0, held_.size() - keep);
  return {std::move(shown), StopReason::kNone};
}

absl::StatusOr<std::vector<TokenId>> EosTokenIds(
    const std::string& origin, const nlohmann::json& config,
    const nlohmann::json& generation_config,
    const nlohmann::json& tokenizer_config, const nlohmann::json& gguf_metadata,
    const Tokenizer* tokenizer) {
  std::set<TokenId> ids;
  QUIRE_RETURN_IF_ERROR(AddIds(JsonReader(config, origin + "/config.json"),
                               "eos_token_id", &ids));
  QUIRE_RETURN_IF_ERROR(
      AddIds(JsonReader(generation_config, origin + "/generation_config.json"),
             "eos_token_id", &ids));
  const JsonReader gguf(gguf_metadata, origin);
  QUIRE_RETURN_IF_ERROR(AddIds(gguf, "tokenizer.ggml.eos_token_id", &ids));
  QUIRE_RETURN_IF_ERROR(AddIds(gguf, "tokenizer.ggml.eot_token_id", &ids));
  const JsonReader reader(tokenizer_config, origin + "/tokenizer_config.json");
  if (tokenizer != nullptr && reader.Has("eos_token")) {
    const bool is_object = reader.Field("eos_token").value().is_object();
    QUIRE_ASSIGN_OR_RETURN(const std::string token,
                           is_object
                               ? reader.Field("eos_token").String("content")
                               : reader.String("eos_token"));
    if (const std::optional<TokenId> id = tokenizer->Find(token)) {
      ids.insert(*id);
    }
  }
  return std::vector<TokenId>(ids.begin(), ids.end());
}

}  // namespace quire
