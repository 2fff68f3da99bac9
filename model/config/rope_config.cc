#include "model/config/rope_config.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numbers>
#include <optional>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "quire/alloc/quote.h"
#include "quire/alloc/status_macros.h"

namespace quire {
namespace {

absl::Status CheckRotatedPart(const JsonFields& fields) {
  QUIRE_ASSIGN_OR_RETURN(const double rotated_part,
                         fields.GetDoubleOr("partial_rotary_factor", 1));
  if (rotated_part == 1) return absl::OkStatus();
  return absl::UnimplementedError(
      absl::StrCat(fields.where(), ": rotation of ", rotated_part,
                   " of each head is not supported for this family"));
}

// A context that is lengthened by a factor is as long as that, whatever the
// file says of the one that was trained with.
void Lengthen(ModelConfig* config) {
  const double positions =
      config->rope.original_max_positions * config->rope.factor;
  constexpr double kMost = 1e12;  // exact as a double, and more than is read
  config->max_positions = std::max(
      config->max_positions, static_cast<uint64_t>(std::min(positions, kMost)));
}

absl::Status ReadLlama3(const JsonFields& scaling, RopeConfig* rope) {
  rope->scaling = RopeScaling::kLlama3;
  QUIRE_ASSIGN_OR_RETURN(rope->low_frequency_factor,
                         scaling.GetPositive("low_freq_factor"));
  QUIRE_ASSIGN_OR_RETURN(rope->high_frequency_factor,
                         scaling.GetPositive("high_freq_factor"));
  QUIRE_ASSIGN_OR_RETURN(
      rope->original_max_positions,
      scaling.GetPositive("original_max_position_embeddings"));
  if (!(rope->high_frequency_factor > rope->low_frequency_factor))
    return scaling.Error("high_freq_factor",
                         "must be larger than low_freq_factor");
  return absl::OkStatus();
}

// What a longer context does to the attention's temperature; the paper's 0.1
// ln(s) + 1, of which a part is taken where there is a multiplier.
double YarnMagnitude(double factor, double multiplier = 1) {
  return factor <= 1 ? 1 : 0.1 * multiplier * std::log(factor) + 1;
}

// 0 stands for a field that is absent, as in transformers.
absl::StatusOr<double> NonZeroOr(const JsonFields& fields,
                                 std::string_view field, double otherwise) {
  QUIRE_ASSIGN_OR_RETURN(const double value,
                         fields.GetDoubleOr(field, otherwise));
  return value == 0 ? otherwise : value;
}

absl::Status ReadYarnMagnitude(const JsonFields& scaling, RopeConfig* rope) {
  if (scaling.Has("attention_factor")) {
    QUIRE_ASSIGN_OR_RETURN(rope->magnitude,
                           scaling.GetPositive("attention_factor"));
    return absl::OkStatus();
  }
  QUIRE_ASSIGN_OR_RETURN(const double part, scaling.GetDoubleOr("mscale", 0));
  QUIRE_ASSIGN_OR_RETURN(const double of_all,
                         scaling.GetDoubleOr("mscale_all_dim", 0));
  rope->magnitude = part != 0 && of_all != 0
                        ? YarnMagnitude(rope->factor, part) /
                              YarnMagnitude(rope->factor, of_all)
                        : YarnMagnitude(rope->factor);
  if (!(rope->magnitude > 0))
    return scaling.Error("mscale", absl::StrCat("and mscale_all_dim scale by ",
                                                rope->magnitude));
  return absl::OkStatus();
}

absl::Status CheckBetas(const JsonFields& scaling, const RopeConfig& rope) {
  if (rope.beta_slow > 0 && rope.beta_fast > 0 && rope.theta > 1)
    return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      scaling.where(), ": YaRN with a base of ", rope.theta, ", and ",
      rope.beta_fast, " and ", rope.beta_slow,
      " turns as its bounds: it takes a base above 1, and bounds above 0"));
}

absl::Status ReadYarn(const JsonFields& fields, const JsonFields& scaling,
                      ModelConfig* config) {
  RopeConfig& rope = config->rope;
  rope.scaling = RopeScaling::kYarn;
  const double longest = static_cast<double>(config->max_positions);
  constexpr char kOriginal[] = "original_max_position_embeddings";
  QUIRE_ASSIGN_OR_RETURN(rope.original_max_positions,
                         (fields.Has(kOriginal) ? fields : scaling)
                             .GetPositiveOr(kOriginal, longest));
  // A null says that the lengths tell it.
  if (!scaling.Has("factor") && scaling.object().contains("factor")) {
    rope.factor = longest / rope.original_max_positions;
  } else {
    QUIRE_ASSIGN_OR_RETURN(rope.factor, scaling.GetPositive("factor"));
  }
  QUIRE_ASSIGN_OR_RETURN(rope.beta_fast, NonZeroOr(scaling, "beta_fast", 32));
  QUIRE_ASSIGN_OR_RETURN(rope.beta_slow, NonZeroOr(scaling, "beta_slow", 1));
  QUIRE_RETURN_IF_ERROR(CheckBetas(scaling, rope));
  QUIRE_ASSIGN_OR_RETURN(rope.truncate, scaling.GetBoolOr("truncate", true));
  QUIRE_RETURN_IF_ERROR(ReadYarnMagnitude(scaling, &rope));
  Lengthen(config);
  return absl::OkStatus();
}

absl::Status ReadScaling(const JsonFields& fields, const JsonFields& scaling,
                         const std::string& kind, ModelConfig* config) {
  if (kind == "default") return absl::OkStatus();
  if (kind != "linear" && kind != "llama3" && kind != "yarn" &&
      kind != "dynamic")
    return absl::UnimplementedError(absl::StrCat(
        scaling.where(), ": rope type ", Quoted(kind),
        " is not supported; \"default\", \"linear\", \"dynamic\", \"yarn\" and "
        "\"llama3\" are"));
  if (kind == "yarn") return ReadYarn(fields, scaling, config);
  // Without the factor the angles would silently be others than trained with.
  QUIRE_ASSIGN_OR_RETURN(config->rope.factor, scaling.GetPositive("factor"));
  if (kind == "llama3") return ReadLlama3(scaling, &config->rope);
  config->rope.scaling =
      kind == "linear" ? RopeScaling::kLinear : RopeScaling::kDynamic;
  return absl::OkStatus();
}

// The pairs, of `head_dim` elements, that turn `turns` times within the context
// trained on.
double PairThatTurns(const RopeConfig& rope, uint32_t head_dim, double turns) {
  return head_dim *
         std::log(rope.original_max_positions /
                  (turns * 2 * std::numbers::pi)) /
         (2 * std::log(rope.theta));
}

// Part of its frequency that pair `pair` keeps: all of it where it turns at
// least beta_fast times within the context trained on, nothing where it turns
// at most beta_slow times.
class YarnRamp {
 public:
  YarnRamp(const RopeConfig& rope, uint32_t head_dim) {
    low_ = PairThatTurns(rope, head_dim, rope.beta_fast);
    high_ = PairThatTurns(rope, head_dim, rope.beta_slow);
    if (rope.truncate) {
      low_ = std::floor(low_);
      high_ = std::ceil(high_);
    }
    low_ = std::max(low_, 0.0);
    high_ = std::min(high_, head_dim - 1.0);
    if (low_ == high_) high_ += 0.001;
  }
  double Kept(uint32_t pair) const {
    return 1 - std::clamp((pair - low_) / (high_ - low_), 0.0, 1.0);
  }

 private:
  double low_;
  double high_;
};

}  // namespace

// transformers 4 has rope_theta and rope_scaling (its kind under "type" or
// "rope_type"); transformers 5 has both in rope_parameters, and takes
// rope_scaling in its place where that is there and not empty.
absl::Status ReadRope(const JsonFields& fields, ModelConfig* config) {
  RopeConfig& rope = config->rope;
  QUIRE_ASSIGN_OR_RETURN(rope.theta,
                         fields.GetPositiveOr("rope_theta", rope.theta));
  const nlohmann::json* const old_field = fields.Find("rope_scaling");
  const char* const name = old_field != nullptr && !old_field->empty()
                               ? "rope_scaling"
                               : "rope_parameters";
  if (!fields.Has(name)) return CheckRotatedPart(fields);
  QUIRE_ASSIGN_OR_RETURN(const JsonFields scaling, fields.GetObject(name));
  QUIRE_ASSIGN_OR_RETURN(rope.theta,
                         scaling.GetPositiveOr("rope_theta", rope.theta));
  QUIRE_RETURN_IF_ERROR(CheckRotatedPart(
      scaling.Has("partial_rotary_factor") ? scaling : fields));
  const char* const kind_field =
      scaling.Has("rope_type") ? "rope_type" : "type";
  QUIRE_ASSIGN_OR_RETURN(const std::string kind,
                         scaling.GetStringOr(kind_field, "default"));
  return ReadScaling(fields, scaling, kind, config);
}

// As llama.cpp reads them (llama_model::load_hparams and llama_context): a
// factor without a kind is linear, as in the first files, and 0 is none.
absl::Status ReadGgufRope(const JsonFields& fields,
                          const std::string& architecture,
                          ModelConfig* config) {
  const auto key = [&](std::string_view name) {
    return absl::StrCat(architecture, ".rope.", std::string(name));
  };
  RopeConfig& rope = config->rope;
  QUIRE_ASSIGN_OR_RETURN(rope.theta,
                         fields.GetPositiveOr(key("freq_base"), rope.theta));
  QUIRE_ASSIGN_OR_RETURN(const std::string kind,
                         fields.GetStringOr(key("scaling.type"), "linear"));
  if (kind == "none") return absl::OkStatus();
  if (kind != "linear" && kind != "yarn")
    return absl::UnimplementedError(
        absl::StrCat(fields.where(), ": rope scaling ", Quoted(kind),
                     " is not supported; \"none\", \"linear\" and \"yarn\" "
                     "are"));
  const std::string factor_key = key(
      fields.Has(key("scaling.factor")) ? "scaling.factor" : "scale_linear");
  QUIRE_ASSIGN_OR_RETURN(const double factor, NonZeroOr(fields, factor_key, 1));
  if (!(factor > 0))
    return fields.Error(factor_key,
                        absl::StrCat("is ", factor, ", not above 0"));
  rope.factor = factor;
  if (kind == "linear") {
    if (factor != 1) rope.scaling = RopeScaling::kLinear;
    return absl::OkStatus();
  }
  rope.scaling = RopeScaling::kYarn;
  QUIRE_ASSIGN_OR_RETURN(
      rope.original_max_positions,
      fields.GetPositiveOr(key("scaling.original_context_length"),
                           static_cast<double>(config->max_positions)));
  const struct {
    const char* name;
    double known;
  } fixed[] = {{"scaling.yarn_log_multiplier", 0},
               {"scaling.yarn_ext_factor", 1},
               {"scaling.yarn_attn_factor", 1}};
  for (const auto& [name, known] : fixed) {
    QUIRE_ASSIGN_OR_RETURN(const double value,
                           fields.GetDoubleOr(key(name), known));
    if (value != known)
      return absl::UnimplementedError(
          absl::StrCat(fields.where(), ": ", key(name), " ", value,
                       " is not supported; ", known, " is"));
  }
  QUIRE_ASSIGN_OR_RETURN(rope.beta_fast,
                         fields.GetDoubleOr(key("scaling.yarn_beta_fast"), 32));
  QUIRE_ASSIGN_OR_RETURN(rope.beta_slow,
                         fields.GetDoubleOr(key("scaling.yarn_beta_slow"), 1));
  QUIRE_RETURN_IF_ERROR(CheckBetas(fields, rope));
  QUIRE_ASSIGN_OR_RETURN(const double attention,
                         fields.GetPositiveOr(key("scaling.attn_factor"), 1));
  rope.magnitude = attention * YarnMagnitude(factor);
  Lengthen(config);
  return absl::OkStatus();
}

absl::Status DivideFrequencies(std::span<const float> factors,
                               std::vector<float>* frequencies) {
  for (size_t i = 0; i < factors.size(); ++i) {
    if (!(factors[i] > 0) || std::isinf(factors[i]))
      return absl::InvalidArgumentError(absl::StrCat(
          "factor ", i, " is ", factors[i], ", not above 0 and finite"));
    (*frequencies)[i] /= factors[i];
  }
  return absl::OkStatus();
}

std::vector<float> InverseFrequencies(const RopeConfig& rope,
                                      uint32_t head_dim) {
  std::vector<float> frequencies(head_dim / 2);
  std::optional<YarnRamp> ramp;
  if (rope.scaling == RopeScaling::kYarn) ramp.emplace(rope, head_dim);
  for (uint32_t i = 0; i < head_dim / 2; ++i) {
    double frequency = std::pow(rope.theta, -2.0 * i / head_dim);
    // Divides all but this part of it.
    const auto keep = [&](double part) {
      frequency = (1 - part) * frequency / rope.factor + part * frequency;
    };
    switch (rope.scaling) {
      case RopeScaling::kNone:
      case RopeScaling::kDynamic:
        break;
      case RopeScaling::kLinear:
        frequency /= rope.factor;
        break;
      case RopeScaling::kLlama3: {
        // How often the pair turns within the context trained on, on the scale
        // from low_frequency_factor (0: divide) to high_frequency_factor
        // (1: keep).
        const double turns =
            rope.original_max_positions * frequency / (2 * std::numbers::pi);
        keep(std::clamp(
            (turns - rope.low_frequency_factor) /
                (rope.high_frequency_factor - rope.low_frequency_factor),
            0.0, 1.0));
        break;
      }
      case RopeScaling::kYarn:
        keep(ramp->Kept(i));
        break;
    }
    frequencies[i] = static_cast<float>(frequency);
  }
  return frequencies;
}

}  // namespace quire
