// Loads: sound traces, the same from the same seed, about as large as asked,
// and bad for whom they are to be bad for.

#include "bench/fragmentation_stress/loads.h"

#include <string>
#include <vector>

#include "absl/strings/str_split.h"
#include "bench/policies/policy_registry.h"
#include "bench/policies/policy_replay.h"
#include "gtest/gtest.h"
#include "quire/alloc/trace_formats.h"

namespace quire {
namespace {

std::vector<std::string> Names() { return absl::StrSplit(KnownLoads(), ", "); }

AllocationTrace Make(const std::string& name, const LoadOptions& options) {
  const auto trace = MakeLoad(name, options);
  EXPECT_TRUE(trace.ok()) << trace.status();
  return trace.value_or(AllocationTrace());
}

TEST(LoadsTest, AreSoundAndAboutAsLargeAsAsked) {
  LoadOptions options;
  options.events = 20000;
  options.live = GiB(2);
  for (const std::string& name : Names()) {
    SCOPED_TRACE(name);
    const AllocationTrace trace = Make(name, options);
    EXPECT_TRUE(CheckAllocationTrace(trace).ok());
    EXPECT_GE(trace.events.size(), options.events);
    const AllocationTraceSummary summary = SummarizeAllocationTrace(trace);
    EXPECT_LE(summary.peak_requested, GiB(3));
    EXPECT_GE(summary.peak_requested, MiB(128));
  }
}

TEST(LoadsTest, FollowTheirSeeds) {
  LoadOptions options;
  options.events = 2000;
  const std::string first = WriteQuireCsv(Make("churn", options));
  EXPECT_EQ(WriteQuireCsv(Make("churn", options)), first);
  options.seed = 2;
  EXPECT_NE(WriteQuireCsv(Make("churn", options)), first);
}

TEST(LoadsTest, NameWhatIsKnown) {
  const auto unknown = MakeLoad("chrun", LoadOptions());
  EXPECT_EQ(unknown.status().message(),
            "there is no load \"chrun\"; there are " + KnownLoads());
}

double Ratio(const std::string& policy, const AllocationTrace& trace) {
  const auto device = *SimulatedDevice::Create(GiB(64));
  const auto model = *ParsePolicySpec(policy)->Create(device.get());
  const auto result = ReplayOnPolicy(trace, device.get(), model.get());
  EXPECT_TRUE(result.ok()) << result.status();
  return result.ok() ? result->ratio() : 0;
}

// Each costs its policy at least a quarter more than what is asked for.
TEST(LoadsTest, AdversariesAreBadForTheirPolicies) {
  LoadOptions options;
  options.events = 20000;
  options.live = GiB(2);
  for (const auto& [load, policy] :
       std::vector<std::pair<std::string, std::string>>{
           {"against-quire", "quire"},
           {"against-pytorch", "pytorch"},
           {"against-pytorch-expandable",
            "pytorch-expandable:max_split_size_mb=128"},
           {"against-rmm-pool", "rmm-pool"},
           {"against-bfc", "bfc"},
           {"against-cuda-pool", "cuda-pool"},
           {"against-gmlake", "gmlake"},
           {"against-cudamalloc", "cudamalloc"}}) {
    EXPECT_GT(Ratio(policy, Make(load, options)), 1.25) << load;
  }
}

}  // namespace
}  // namespace quire
