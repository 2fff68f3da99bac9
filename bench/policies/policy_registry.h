// The policies that there are, by name.

#ifndef QUIRE_BENCH_POLICIES_POLICY_REGISTRY_H_
#define QUIRE_BENCH_POLICIES_POLICY_REGISTRY_H_

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "bench/policies/policy.h"
#include "bench/policies/policy_settings.h"
#include "bench/policies/simulated_device.h"

namespace quire {

struct PolicyKind {
  const char* name;
  const char* title;
  // Reproduces a figure that was published of its system; only then is it
  // ranked beside others.
  bool validated;
  // The figure, or what is missing.
  const char* evidence;
  std::function<absl::StatusOr<std::unique_ptr<AllocatorPolicy>>(
      SimulatedDevice* device, PolicySettings* settings)>
      create;
};

std::span<const PolicyKind> PolicyKinds();
// "quire, pytorch, ...".
std::string KnownPolicies();

// A policy as given on a command line: a name, or a name with settings.
struct PolicySpec {
  std::string text;
  const PolicyKind* kind;
  PolicySettings settings;

  // `device` outlives the policy.
  absl::StatusOr<std::unique_ptr<AllocatorPolicy>> Create(
      SimulatedDevice* device) const;
};
// Errors: kInvalidArgument for unknown names, with those known, and for
// settings that the policy does not have or cannot read.
absl::StatusOr<PolicySpec> ParsePolicySpec(std::string_view text);
// Several, separated by commas; those in brackets are of a setting's value.
absl::StatusOr<std::vector<PolicySpec>> ParsePolicySpecs(std::string_view text);

}  // namespace quire

#endif  // QUIRE_BENCH_POLICIES_POLICY_REGISTRY_H_
