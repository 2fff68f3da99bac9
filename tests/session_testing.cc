#include "tests/session_testing.h"

#include <stdexcept>

#include "quire/loader/checkpoint.h"
#include "quire/model/model_config.h"

namespace quire {

SessionOptions SmallSessionOptions() {
  SessionOptions options;
  options.device.device_memory = GiB(1);
  options.device.page_size = KiB(64);
  options.kv_dtype = KvDType::kF32;
  options.threads = 1;
  options.max_model_len = 256;
  options.decoder = {.max_batch_tokens = 16, .max_logit_rows = 16};
  return options;
}

ModelPlan PlanOf(const std::filesystem::path& model,
                 const SessionOptions& options) {
  const auto checkpoint = Checkpoint::Open(model);
  if (!checkpoint.ok())
    throw std::runtime_error(checkpoint.status().ToString());
  const auto config = ParseModelConfig(**checkpoint);
  if (!config.ok()) throw std::runtime_error(config.status().ToString());
  auto plan = PlanModel(**checkpoint, *config, options);
  if (!plan.ok()) throw std::runtime_error(plan.status().ToString());
  return *std::move(plan);
}

}  // namespace quire
