#include "bench/serving/cost_model.h"

#include <algorithm>
#include <cmath>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"
#include "quire/alloc/status_macros.h"
#include "quire/loader/json_text.h"
#include "quire/loader/regular_file.h"

namespace quire {
namespace {

using nlohmann::json;

// Reads numbers of one object, and says which one is not there.
class Entries {
 public:
  Entries(const json& parent, const char* section, const std::string& name)
      : section_(section), name_(name) {
    const auto it = parent.find(section);
    if (it != parent.end()) object_ = &*it;
  }

  absl::Status Error(const char* key, const char* what) const {
    return absl::InvalidArgumentError(
        absl::StrCat(name_, ": ", section_, ".", key, " ", what));
  }
  const json* Find(const char* key) const {
    if (object_ == nullptr || !object_->is_object()) return nullptr;
    const auto it = object_->find(key);
    return it == object_->end() ? nullptr : &*it;
  }
  absl::StatusOr<double> Number(const char* key) const {
    const json* const value = Find(key);
    if (value == nullptr || !value->is_number())
      return Error(key, "is not there as a number");
    return Checked(key, value->get<double>());
  }
  absl::StatusOr<double> Positive(const char* key) const {
    QUIRE_ASSIGN_OR_RETURN(const double number, Number(key));
    if (number == 0) return Error(key, "is 0");
    return number;
  }
  absl::StatusOr<double> Checked(const char* key, double number) const {
    // Also keeps sums of nanoseconds far from 2^64.
    if (!(number >= 0 && number <= 1e9))
      return Error(key, "is not from 0 to 1e9");
    return number;
  }

 private:
  const char* const section_;
  const std::string& name_;
  const json* object_ = nullptr;
};

uint64_t Nanoseconds(double microseconds) {
  return static_cast<uint64_t>(std::llround(microseconds * 1e3));
}

}  // namespace

absl::StatusOr<CostModel> CostModel::Read(const std::string& path) {
  QUIRE_ASSIGN_OR_RETURN(const std::string text, ReadRegularFile(path));
  return Parse(text, path);
}

absl::StatusOr<CostModel> CostModel::Parse(const std::string& text,
                                           const std::string& name) {
  const absl::StatusOr<json> parsed = ParseJsonText(text, name);
  if (!parsed.ok() || !parsed->is_object())
    return absl::InvalidArgumentError(
        absl::StrCat(name, ": is no JSON object"));
  const json& root = *parsed;
  CostModel model;
  const auto card = root.find("card");
  if (card == root.end() || !card->is_string())
    return absl::InvalidArgumentError(
        absl::StrCat(name, ": card is not there as a text"));
  model.card_ = card->get<std::string>();

  const Entries calls(root, "driver_calls_us", name);
  const struct {
    const char* key;
    uint64_t* nanoseconds;
  } fields[] = {{"reserve_address", &model.calls_.reserve_address},
                {"release_address", &model.calls_.release_address},
                {"release_page", &model.calls_.release_page},
                {"map_page", &model.calls_.map_page},
                {"set_access", &model.calls_.set_access},
                {"unmap_page", &model.calls_.unmap_page},
                {"other", &model.calls_.other}};
  for (const auto& field : fields) {
    QUIRE_ASSIGN_OR_RETURN(const double cost, calls.Number(field.key));
    *field.nanoseconds = Nanoseconds(cost);
  }
  const json* const create = calls.Find("create_page");
  if (create == nullptr || !create->is_array() || create->empty())
    return calls.Error("create_page", "is not there as a list of numbers");
  for (const json& value : *create) {
    if (!value.is_number())
      return calls.Error("create_page", "is not there as a list of numbers");
    QUIRE_ASSIGN_OR_RETURN(const double cost,
                           calls.Checked("create_page", value.get<double>()));
    model.create_page_us_.push_back(cost);
  }

  const Entries roofline(root, "roofline", name);
  QUIRE_ASSIGN_OR_RETURN(const double tflops, roofline.Positive("peak_tflops"));
  QUIRE_ASSIGN_OR_RETURN(const double compute,
                         roofline.Positive("compute_efficiency"));
  QUIRE_ASSIGN_OR_RETURN(const double bandwidth,
                         roofline.Positive("bandwidth_gb_per_s"));
  QUIRE_ASSIGN_OR_RETURN(const double memory,
                         roofline.Positive("bandwidth_efficiency"));
  QUIRE_ASSIGN_OR_RETURN(const double overhead,
                         roofline.Number("step_overhead_us"));
  model.flops_per_ns_ = tflops * 1e3 * compute;
  model.bytes_per_ns_ = bandwidth * memory;
  model.step_overhead_ns_ = overhead * 1e3;
  if (roofline.Find("host_copy_gb_per_s") != nullptr) {
    QUIRE_ASSIGN_OR_RETURN(model.host_bytes_per_ns_,
                           roofline.Positive("host_copy_gb_per_s"));
  }
  return model;
}

DriverCostTable CostModel::DriverCosts(double create_page_us) const {
  DriverCostTable costs = calls_;
  costs.create_page = Nanoseconds(create_page_us);
  return costs;
}

std::optional<uint64_t> CostModel::HostCopyNanoseconds(Bytes bytes) const {
  if (host_bytes_per_ns_ == 0) return std::nullopt;
  return static_cast<uint64_t>(static_cast<double>(bytes.value()) /
                               host_bytes_per_ns_);
}

uint64_t CostModel::StepNanoseconds(const StressModel& model,
                                    const StepWork& work) const {
  const double flops =
      2 * model.active_parameters * static_cast<double>(work.tokens) +
      work.attention_flops;
  const double bytes =
      static_cast<double>(model.weights.value()) + work.kv_bytes;
  const double busy = std::max(flops / flops_per_ns_, bytes / bytes_per_ns_);
  return static_cast<uint64_t>(busy + step_overhead_ns_);
}

}  // namespace quire
