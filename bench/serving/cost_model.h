// What driver calls and steps of a model would take on a card: the virtual
// clock of simulations, from one file of figures.

#ifndef QUIRE_BENCH_SERVING_COST_MODEL_H_
#define QUIRE_BENCH_SERVING_COST_MODEL_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "bench/serving/model_table.h"
#include "quire/alloc/virtual_clock.h"

namespace quire {

// What a step has to compute.
struct StepWork {
  uint64_t tokens = 0;
  double attention_flops = 0;
  double kv_bytes = 0;  // read and written
};

class CostModel {
 public:
  // Errors name the file and the entry at fault.
  static absl::StatusOr<CostModel> Read(const std::string& path);
  static absl::StatusOr<CostModel> Parse(const std::string& text,
                                         const std::string& name);

  const std::string& card() const { return card_; }
  // The published costs of creating a page, in microseconds.
  const std::vector<double>& create_page_us() const { return create_page_us_; }
  DriverCostTable DriverCosts(double create_page_us) const;

  // A roofline: the products at the rate of the card, or all weights and the
  // rows of the cache at that of its memory, whichever takes longer.
  uint64_t StepNanoseconds(const StressModel& model,
                           const StepWork& work) const;
  // Of a copy to or from pinned host memory; nullopt where the file does not
  // say.
  std::optional<uint64_t> HostCopyNanoseconds(Bytes bytes) const;

 private:
  std::string card_;
  DriverCostTable calls_{};
  std::vector<double> create_page_us_;
  double flops_per_ns_ = 0;
  double bytes_per_ns_ = 0;
  double step_overhead_ns_ = 0;
  double host_bytes_per_ns_ = 0;  // 0: unknown
};

}  // namespace quire

#endif  // QUIRE_BENCH_SERVING_COST_MODEL_H_
