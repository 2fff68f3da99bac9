#include "model/cli/kv_plan_output.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace quire {
namespace {

using nlohmann::json;

json KindsJson(const std::vector<KvKindSize>& kinds) {
  json list = json::array();
  for (const KvKindSize& size : kinds)
    list.push_back({{"layers", size.layers},
                    {"kv_heads", size.kind.kv_heads},
                    {"key_dim", size.kind.key_dim},
                    {"value_dim", size.kind.value_dim},
                    {"window", size.kind.window},
                    {"sinks", size.kind.sinks},
                    {"bytes_per_token", size.token.value()},
                    {"formula", size.formula}});
  return list;
}

json LayoutsJson(const KvLayoutChoice& layouts) {
  json list = json::array();
  for (const KvLayoutChoice::Candidate& layout : layouts.candidates)
    list.push_back({{"layers_per_row", layout.layers_per_row},
                    {"groups", layout.groups},
                    {"row_bytes", layout.row.value()},
                    {"tail_waste", layout.tail_waste},
                    {"waste", layout.waste}});
  return list;
}

// ", of the last 128 tokens and the first 4".
std::string KeptText(const KvLayerKind& kind) {
  if (kind.window == 0) return "";
  std::string text = absl::StrCat(", of the last ", kind.window, " tokens");
  if (kind.sinks > 0) absl::StrAppend(&text, " and the first ", kind.sinks);
  return text;
}

}  // namespace

json KvJson(const SessionOptions& options, const std::vector<KvKindSize>& kinds,
            Bytes token, uint32_t layers_per_row, Bytes bytes,
            const KvLayoutChoice& layouts) {
  return {{"dtype", KvDTypeName(options.kv_dtype)},
          {"bytes_per_token", token.value()},
          {"kinds", KindsJson(kinds)},
          {"layers_per_row", layers_per_row},
          {"bytes", bytes.value()},
          {"layouts", LayoutsJson(layouts)},
          {"auto_layers_per_row", layouts.options.layers_per_row},
          {"auto_reason", layouts.reason}};
}

std::string KvFormulaText(const std::vector<KvKindSize>& kinds) {
  std::string text;
  for (const KvKindSize& size : kinds)
    absl::StrAppendFormat(&text, "%-18s %s = %u bytes%s\n", "bytes of a token",
                          size.formula, size.token.value(),
                          KeptText(size.kind));
  return text;
}

std::string KvLayoutsText(const KvLayoutChoice& layouts) {
  return absl::StrCat("\n", FormatLayoutChoice(layouts),
                      "* --layers-per-row auto takes ", layouts.reason, "\n");
}

json BatchesJson(const std::vector<KvLengthPlan>& lengths) {
  json list = json::array();
  for (const KvLengthPlan& length : lengths)
    list.push_back({{"tokens", length.tokens},
                    {"kept", length.kept.value()},
                    {"mapped", length.mapped.value()},
                    {"room", length.room},
                    {"sequences", length.sequences}});
  return list;
}

std::string BatchesText(const std::vector<KvLengthPlan>& lengths,
                        uint32_t max_sequences) {
  std::string text =
      "\n  tokens each   bytes of keys and values   bytes in pages   sequences "
      "in memory   at once\n";
  for (const KvLengthPlan& length : lengths)
    absl::StrAppendFormat(&text, "%13u   %24u   %14u   %19u   %7u\n",
                          length.tokens, length.kept.value(),
                          length.mapped.value(), length.room, length.sequences);
  absl::StrAppendFormat(&text, "at once: with --max-num-seqs %u\n",
                        max_sequences);
  return text;
}

json KvPlanJson(const KvPlan& plan, const SessionOptions& options) {
  return {{"decodes", false},
          {"why_not_decoded", plan.why_not_decoded},
          {"fits", plan.fits ? json(*plan.fits) : json()},
          {"model_type", plan.model_type},
          {"device_memory", plan.device_memory.value()},
          {"usable", plan.usable.value()},
          {"page_size", plan.page_size.value()},
          {"weights", plan.weights ? json(plan.weights->value()) : json()},
          {"kv", KvJson(options, plan.kinds, plan.token, plan.layers_per_row,
                        plan.kv, plan.layouts)},
          {"max_model_len", plan.max_model_len},
          {"batches", BatchesJson(plan.lengths)}};
}

std::string KvPlanText(const KvPlan& plan, const SessionOptions& options) {
  std::string text;
  const auto line = [&text](const char* title, const std::string& value) {
    absl::StrAppendFormat(&text, "%-18s %s\n", title, value);
  };
  line("model",
       absl::StrCat(plan.model_type, ", planned only: ", plan.why_not_decoded));
  line("device",
       absl::StrFormat("%s, %s of it usable in pages of %s",
                       FormatBytes(plan.device_memory),
                       FormatBytes(plan.usable), FormatBytes(plan.page_size)));
  line("weights", plan.weights ? FormatBytes(*plan.weights)
                               : "not known from a configuration alone, and "
                                 "not taken off");
  line("keys and values",
       absl::StrFormat("%s left, %s a token, %u layers to a row",
                       FormatBytes(plan.kv), FormatBytes(plan.token),
                       plan.layers_per_row));
  absl::StrAppend(&text, KvFormulaText(plan.kinds));
  absl::StrAppend(&text, BatchesText(plan.lengths, options.max_sequences));
  absl::StrAppend(&text, KvLayoutsText(plan.layouts));
  if (plan.fits) text += *plan.fits ? "\nIt fits.\n" : "\nIt does not fit.\n";
  return text;
}

}  // namespace quire
