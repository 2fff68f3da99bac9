// The example of docs/compaction.md: compare_examples.py sees to it that they
// are the same.

#include <gtest/gtest.h>
#include <quire/alloc/allocator.h>
#include <quire/alloc/host_driver.h>
#include <quire/alloc/quiescent.h>
#include <quire/alloc/runtime.h>
#include <quire/alloc/status_macros.h>

#include <cstring>
#include <functional>
#include <memory>
#include <span>
#include <utility>

namespace quire {
namespace {

absl::Status LendTheDevice(DeviceAllocator* allocator,
                           std::span<const StreamId> streams, OwnerId llama,
                           OwnerId llama_weights,
                           const std::function<absl::Status()>& others_turn) {
  {
    QUIRE_ASSIGN_OR_RETURN(  // waits for what is queued on the streams
        const QuiescentSection section,
        QuiescentSection::Begin(allocator->memory(), streams));
    // Weights, KV and workspace.
    QUIRE_RETURN_IF_ERROR(allocator->Sleep(section, llama).status());
  }
  QUIRE_RETURN_IF_ERROR(others_turn());
  // A part, by its tag, and then the rest.
  QUIRE_RETURN_IF_ERROR(allocator->Wake(llama_weights).status());
  return allocator->Wake(llama).status();
}
// The end of the example.

TEST(CompactionExampleTest, GivesTheDeviceAwayAndHasItBack) {
  auto driver = HostDriver::Create({.memory_per_device = MiB(16)});
  ASSERT_TRUE(driver.ok());
  auto runtime = Runtime::Create(*std::move(driver), {});
  ASSERT_TRUE(runtime.ok());
  DeviceAllocator* const allocator = (*runtime)->allocator();
  const OwnerId llama = (*runtime)->owners()->Register("llama");
  const OwnerId weights = (*runtime)->owners()->Register("llama/weights");
  const auto stream = (*runtime)->driver()->CreateStream(DeviceId(0));
  ASSERT_TRUE(stream.ok());
  AllocateOptions options;
  options.owner = weights;
  const auto held = allocator->Allocate(MiB(12), options);
  ASSERT_TRUE(held.ok());
  std::memset(held->host_pointer<char>(), 0x5a, MiB(12).value());

  const absl::Status lent =
      LendTheDevice(allocator, {&*stream, 1}, llama, weights, [&] {
        const auto all = allocator->Allocate(MiB(16));
        if (!all.ok()) return all.status();
        return allocator->Free(*all);
      });
  EXPECT_TRUE(lent.ok()) << lent;
  EXPECT_EQ(held->host_pointer<char>()[MiB(12).value() - 1], 0x5a);
  EXPECT_EQ(allocator->Free(*held), absl::OkStatus());
  EXPECT_EQ((*runtime)->driver()->DestroyStream(*stream), absl::OkStatus());
}

}  // namespace
}  // namespace quire
