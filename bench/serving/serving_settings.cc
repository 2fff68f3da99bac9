#include "bench/serving/serving_settings.h"

namespace quire {

nlohmann::json ServingSettingsToJson(const ServingArguments& arguments,
                                     const SimulationOptions& simulation,
                                     const CostModel& costs) {
  const BatchLimitOptions& levels = simulation.scheduler.batch_limit;
  const StressModel& model = simulation.model;
  return {{"model", arguments.model},
          {"layers", model.layers()},
          {"kv_heads", model.kv_heads()},
          {"head_dim", model.head_dim()},
          {"card", costs.card()},
          {"device_memory", arguments.device_memory},
          {"gpu_memory_utilization", arguments.memory_utilization},
          {"page_size", arguments.page_size},
          {"headroom", arguments.headroom},
          {"dtype", arguments.dtype},
          {"waste_limit", arguments.waste_limit},
          {"page_ahead", simulation.cache.page_ahead},
          {"map_ahead", arguments.map_ahead},
          {"park", arguments.park},
          {"max_parked", arguments.park ? arguments.max_parked.value_or(1) : 0},
          {"swap_space", arguments.swap_space},
          {"requests", arguments.requests},
          {"saturate", arguments.saturate},
          {"arrivals_per_second", arguments.arrivals_per_second},
          {"arrivals_per_step", arguments.random.arrivals_per_step},
          {"max_model_len", simulation.cache.max_sequence_length},
          {"max_num_seqs", arguments.max_sequences},
          {"max_num_batched_tokens", arguments.max_batched_tokens},
          {"halve_above", levels.halve_above},
          {"grow_below", levels.grow_below},
          {"victims", arguments.policy},
          {"prompt_mean", arguments.random.prompt_mean},
          {"output_mean", arguments.random.output_mean},
          {"seed", arguments.random.seed}};
}

}  // namespace quire
