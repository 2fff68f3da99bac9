#include "quire/model/generation_config.h"

#include <limits>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "quire/alloc/quote.h"
#include "quire/alloc/status_macros.h"
#include "quire/loader/json_fields.h"

namespace quire {
namespace {

// GenerationConfig._get_default_generation_params of transformers.
constexpr double kDefaultTemperature = 1;
constexpr uint64_t kDefaultTopK = 50;

absl::Status ReadSampling(const JsonFields& fields, SamplingOptions* sampling) {
  QUIRE_ASSIGN_OR_RETURN(const bool sampled,
                         fields.GetBoolOr("do_sample", false));
  // These two also change what is likeliest.
  QUIRE_ASSIGN_OR_RETURN(sampling->repetition_penalty,
                         fields.GetDoubleOr("repetition_penalty", 1));
  if (fields.Has("suppress_tokens")) {
    QUIRE_ASSIGN_OR_RETURN(const std::vector<uint64_t> tokens,
                           fields.GetUints("suppress_tokens"));
    for (const uint64_t token : tokens) {
      if (token > std::numeric_limits<TokenId>::max())
        return fields.Error("suppress_tokens",
                            absl::StrCat("has ", token, ", which is no token"));
      sampling->suppressed_tokens.push_back(static_cast<TokenId>(token));
    }
  }
  if (!sampled) return absl::OkStatus();
  QUIRE_ASSIGN_OR_RETURN(
      sampling->temperature,
      fields.GetDoubleOr("temperature", kDefaultTemperature));
  QUIRE_ASSIGN_OR_RETURN(const uint64_t top_k,
                         fields.GetUintOr("top_k", kDefaultTopK, 0,
                                          std::numeric_limits<int32_t>::max()));
  sampling->top_k = static_cast<int64_t>(top_k);
  QUIRE_ASSIGN_OR_RETURN(sampling->top_p, fields.GetDoubleOr("top_p", 1));
  QUIRE_ASSIGN_OR_RETURN(sampling->min_p, fields.GetDoubleOr("min_p", 0));
  return absl::OkStatus();
}

absl::Status ReadCount(const JsonFields& fields, const char* field,
                       std::optional<uint64_t>* count) {
  if (!fields.Has(field)) return absl::OkStatus();
  QUIRE_ASSIGN_OR_RETURN(*count, fields.GetUint(field));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<GenerationConfig> ParseGenerationConfig(
    const Checkpoint& checkpoint) {
  const JsonFields fields(
      checkpoint.generation_config(),
      Printable(checkpoint.folder() + "/generation_config.json"));
  GenerationConfig config;
  QUIRE_RETURN_IF_ERROR(ReadSampling(fields, &config.sampling));
  if (const absl::Status valid = config.sampling.Validate(); !valid.ok())
    return absl::InvalidArgumentError(
        absl::StrCat(fields.where(), ": ", valid.message()));
  QUIRE_RETURN_IF_ERROR(
      ReadCount(fields, "max_new_tokens", &config.max_new_tokens));
  QUIRE_RETURN_IF_ERROR(ReadCount(fields, "max_length", &config.max_length));
  return config;
}

}  // namespace quire
