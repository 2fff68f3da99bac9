#include "model/cli/runnable.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "model/cli/options.h"
#include "quire/alloc/status_macros.h"
#include "quire/model/model_config.h"
#include "quire/model/model_weights.h"
#include "quire/model/plan.h"

namespace quire {

absl::StatusOr<std::unique_ptr<Checkpoint>> OpenRunnable(
    const std::string& model) {
  QUIRE_ASSIGN_OR_RETURN(std::unique_ptr<Checkpoint> checkpoint,
                         Checkpoint::Open(model));
  QUIRE_ASSIGN_OR_RETURN(const ModelConfig config,
                         ParseModelConfig(*checkpoint));
  QUIRE_RETURN_IF_ERROR(ModelWeights::Check(*checkpoint, config).status());
  return checkpoint;
}

absl::Status WithAllThatIsMissing(const absl::Status& status,
                                  const std::string& model,
                                  SessionOptions options,
                                  const std::vector<std::string>& adapters) {
  if (!absl::IsResourceExhausted(status)) return status;
  const auto checkpoint = Checkpoint::Open(model);
  if (!checkpoint.ok()) return status;
  const auto config = ParseModelConfig(**checkpoint);
  if (!config.ok()) return status;
  options.adapters = NameAdapters(adapters);
  const auto plan = PlanModel(**checkpoint, *config, options);
  if (!plan.ok() || plan->fits) return status;
  return absl::ResourceExhaustedError(absl::StrCat(
      status.message(), "; as planned: ", absl::StrJoin(plan->advice, "; ")));
}

}  // namespace quire
