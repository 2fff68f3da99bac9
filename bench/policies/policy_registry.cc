#include "bench/policies/policy_registry.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "bench/policies/bfc_policy.h"
#include "bench/policies/cuda_malloc_policy.h"
#include "bench/policies/cuda_pool_policy.h"
#include "bench/policies/gmlake_policy.h"
#include "bench/policies/pytorch_divisions.h"
#include "bench/policies/pytorch_policy.h"
#include "bench/policies/quire_policy.h"
#include "bench/policies/rmm_pool_policy.h"
#include "quire/alloc/status_macros.h"

namespace quire {
namespace {

using Created = absl::StatusOr<std::unique_ptr<AllocatorPolicy>>;

Created CreateQuire(SimulatedDevice* device, PolicySettings* settings) {
  Bytes page_size = MiB(2);
  settings->Read("page_size", &page_size);
  QUIRE_RETURN_IF_ERROR(settings->Finish());
  return QuirePolicy::Create(device, page_size);
}

Created CreatePyTorch(SimulatedDevice* device, PolicySettings* settings,
                      PyTorchOptions options) {
  settings->Read("expandable_segments", &options.expandable_segments);
  settings->ReadMebibytes("max_split_size_mb", &options.max_split_size);
  std::string divisions = "0";
  settings->Read("roundup_power2_divisions", &divisions);
  settings->ReadFraction("garbage_collection_threshold",
                         &options.garbage_collection_threshold);
  QUIRE_RETURN_IF_ERROR(settings->Finish());
  // What PyTorch itself refuses is no policy of it.
  if (options.max_split_size <= MiB(20)) {
    return absl::InvalidArgumentError(
        "max_split_size_mb is to be more than 20");
  }
  QUIRE_ASSIGN_OR_RETURN(options.roundup_power2_divisions,
                         ParsePyTorchDivisions(divisions));
  return std::make_unique<PyTorchPolicy>(device, options);
}

Created CreateStockPyTorch(SimulatedDevice* device, PolicySettings* settings) {
  return CreatePyTorch(device, settings, PyTorchOptions());
}

Created CreateExpandablePyTorch(SimulatedDevice* device,
                                PolicySettings* settings) {
  PyTorchOptions options;
  options.expandable_segments = true;
  return CreatePyTorch(device, settings, options);
}

Created CreateCudaMalloc(SimulatedDevice* device, PolicySettings* settings) {
  QUIRE_RETURN_IF_ERROR(settings->Finish());
  return std::make_unique<CudaMallocPolicy>(device);
}

Created CreateCudaPool(SimulatedDevice* device, PolicySettings* settings) {
  Bytes release_threshold(UINT64_MAX);
  settings->Read("release_threshold", &release_threshold);
  QUIRE_RETURN_IF_ERROR(settings->Finish());
  return std::make_unique<CudaPoolPolicy>(device, release_threshold);
}

Created CreateRmmPool(SimulatedDevice* device, PolicySettings* settings) {
  RmmPoolOptions options;
  settings->Read("initial_pool_size", &options.initial_pool_size);
  settings->Read("maximum_pool_size", &options.maximum_pool_size);
  QUIRE_RETURN_IF_ERROR(settings->Finish());
  return std::make_unique<RmmPoolPolicy>(device, options);
}

Created CreateBfc(SimulatedDevice* device, PolicySettings* settings) {
  BfcOptions options;
  settings->ReadFraction("preallocate", &options.preallocate);
  QUIRE_RETURN_IF_ERROR(settings->Finish());
  return std::make_unique<BfcPolicy>(device, options);
}

Created CreateGmlake(SimulatedDevice* device, PolicySettings* settings) {
  QUIRE_RETURN_IF_ERROR(settings->Finish());
  return std::make_unique<GmlakePolicy>(device);
}

}  // namespace

std::span<const PolicyKind> PolicyKinds() {
  static const std::vector<PolicyKind>& kinds = *new std::vector<PolicyKind>{
      {"quire", "Quire's device allocator", true, "it is no model",
       CreateQuire},
      {"pytorch", "PyTorch's caching allocator", true,
       "recorded reserves of six memory snapshots, within 1 %",
       CreateStockPyTorch},
      {"pytorch-expandable", "PyTorch with expandable segments", true,
       "reserves of pytorch#193400, 220 to 14,060 MiB",
       CreateExpandablePyTorch},
      {"rmm-pool", "RMM's pool with free lists per stream", true,
       "rmm#1957: which requests a pool of 256 to 1,024 bytes can serve",
       CreateRmmPool},
      {"bfc", "TensorFlow's and XLA's best fit with coalescing", true,
       "peaks and first region of TensorFlow's own gpu_bfc_allocator_test",
       CreateBfc},
      {"gmlake", "GMLake's stitching", false,
       "its training runs were not published as traces", CreateGmlake},
      {"cuda-pool", "CUDA's stream-ordered pool", true,
       "reserves that CUDA.jl's documentation shows, and the log of "
       "CUDA.jl#1540",
       CreateCudaPool},
      {"cudamalloc", "cudaMalloc and cudaFree", true,
       "footprints of 19 sizes, measured by cudaMemGetInfo (colibri#1244)",
       CreateCudaMalloc},
  };
  return kinds;
}

std::string KnownPolicies() {
  std::string names;
  for (const PolicyKind& kind : PolicyKinds()) {
    absl::StrAppend(&names, names.empty() ? "" : ", ", kind.name);
  }
  return names;
}

absl::StatusOr<std::unique_ptr<AllocatorPolicy>> PolicySpec::Create(
    SimulatedDevice* device) const {
  PolicySettings copy = settings;
  return kind->create(device, &copy);
}

absl::StatusOr<PolicySpec> ParsePolicySpec(std::string_view text) {
  const std::string_view name = text.substr(0, text.find(':'));
  const std::span<const PolicyKind> kinds = PolicyKinds();
  const auto kind =
      std::find_if(kinds.begin(), kinds.end(),
                   [&](const PolicyKind& known) { return name == known.name; });
  if (kind == kinds.end()) {
    return absl::InvalidArgumentError(
        absl::StrCat("there is no policy \"", std::string(name),
                     "\"; there are ", KnownPolicies()));
  }
  const auto parse = [&]() -> absl::StatusOr<PolicySpec> {
    QUIRE_ASSIGN_OR_RETURN(const PolicySettings settings,
                           PolicySettings::Parse(text.substr(
                               std::min(name.size() + 1, text.size()))));
    PolicySpec spec{std::string(text), &*kind, settings};
    // Settings are read when a policy is made: on a device like any other.
    QUIRE_ASSIGN_OR_RETURN(const std::unique_ptr<SimulatedDevice> device,
                           SimulatedDevice::Create(GiB(1)));
    QUIRE_RETURN_IF_ERROR(spec.Create(device.get()).status());
    return spec;
  };
  absl::StatusOr<PolicySpec> spec = parse();
  if (spec.ok()) return spec;
  return absl::InvalidArgumentError(
      absl::StrCat(kind->name, ": ", std::string(spec.status().message())));
}

absl::StatusOr<std::vector<PolicySpec>> ParsePolicySpecs(
    std::string_view text) {
  std::vector<PolicySpec> specs;
  for (size_t begin = 0; begin <= text.size();) {
    const std::string_view left = text.substr(begin);
    const size_t end = FindOutsideBrackets(left, ',');
    QUIRE_ASSIGN_OR_RETURN(PolicySpec spec,
                           ParsePolicySpec(left.substr(0, end)));
    specs.push_back(std::move(spec));
    begin += end + 1;
  }
  return specs;
}

}  // namespace quire
