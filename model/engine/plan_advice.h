// What to change where a model does not fit.

#ifndef QUIRE_MODEL_ENGINE_PLAN_ADVICE_H_
#define QUIRE_MODEL_ENGINE_PLAN_ADVICE_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "model/engine/cache_factory.h"
#include "quire/alloc/units.h"
#include "quire/loader/checkpoint.h"
#include "quire/model/plan.h"
#include "quire/model/session.h"

namespace quire {

// One sentence each; nothing that would not help. `layers` are those of the
// plan's devices.
absl::StatusOr<std::vector<std::string>> AdviseOn(
    const ModelPlan& plan, const std::vector<DeviceLayers>& layers,
    const Checkpoint& checkpoint, const SessionOptions& options);

// What the weights of the plan take after `quire quantize --bits 4`: the
// linears of the layers in GPTQ's tensors, with groups as they are by default,
// and all others as it writes them, which may be larger than they were.
Bytes FourBitWeights(const ModelPlan& plan);

}  // namespace quire

#endif  // QUIRE_MODEL_ENGINE_PLAN_ADVICE_H_
