// What `quire plan` prints of keys and values.

#ifndef QUIRE_MODEL_CLI_KV_PLAN_OUTPUT_H_
#define QUIRE_MODEL_CLI_KV_PLAN_OUTPUT_H_

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "quire/alloc/units.h"
#include "quire/model/kv_plan.h"
#include "quire/model/session.h"
#include "quire/paging/kv_layout_choice.h"

namespace quire {

// The "kv" of a plan. `bytes` is what is left for keys and values.
nlohmann::json KvJson(const SessionOptions& options,
                      const std::vector<KvKindSize>& kinds, Bytes token,
                      uint32_t layers_per_row, Bytes bytes,
                      const KvLayoutChoice& layouts);
// How many bytes a token takes, and why: a line for each kind of layer.
std::string KvFormulaText(const std::vector<KvKindSize>& kinds);
// "batches", and the table of the same: sequences of several lengths.
nlohmann::json BatchesJson(const std::vector<KvLengthPlan>& lengths);
std::string BatchesText(const std::vector<KvLengthPlan>& lengths,
                        uint32_t max_sequences);
// The table of layouts and their waste.
std::string KvLayoutsText(const KvLayoutChoice& layouts);

// A plan of keys and values alone.
nlohmann::json KvPlanJson(const KvPlan& plan, const SessionOptions& options);
std::string KvPlanText(const KvPlan& plan, const SessionOptions& options);

}  // namespace quire

#endif  // QUIRE_MODEL_CLI_KV_PLAN_OUTPUT_H_
