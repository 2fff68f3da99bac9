// What one call of the allocator and of the layer below it costs the host.
//
// The device is HostDriver without memory, so no page is ever touched: the
// times are those of Quire's own bookkeeping and of HostDriver's, which stands
// where CUDA's driver would. What a driver call would cost on a GPU is in the
// counters instead:
//   driver_calls  per operation; 0 on the hit paths
//   gpu_us        what these calls cost on an A100 (virtual_clock.h)

#include <benchmark/benchmark.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bench/bench_device.h"
#include "bench/benchmark_program.h"

namespace quire {
namespace {

// Counts driver calls and their cost from its construction on.
class DriverCounter {
 public:
  explicit DriverCounter(HostDriver* driver)
      : driver_(driver),
        calls_(driver->GetCallStatistics().total_count()),
        nanoseconds_(driver->clock()->nanoseconds()) {}

  void Report(benchmark::State* state, double operations) const {
    state->counters["driver_calls"] =
        static_cast<double>(driver_->GetCallStatistics().total_count() -
                            calls_) /
        operations;
    state->counters["gpu_us"] =
        static_cast<double>(driver_->clock()->nanoseconds() - nanoseconds_) /
        1000.0 / operations;
  }

 private:
  HostDriver* const driver_;
  const uint64_t calls_;
  const uint64_t nanoseconds_;
};

std::unique_ptr<BenchDevice> MakeDevice(benchmark::State* state) {
  auto device = BenchDevice::Create(GiB(64));
  if (device.ok()) return *std::move(device);
  state->SkipWithError(std::string(device.status().message()).c_str());
  return nullptr;
}

enum Stream { kNoStream, kOwnStream };

// One allocation that comes and goes: everything is a hit. An operation is both
// calls.
void BM_AllocateFree(benchmark::State& state) {
  const Bytes size(static_cast<uint64_t>(state.range(0)));
  const auto device = MakeDevice(&state);
  if (device == nullptr) return;
  DeviceAllocator* const allocator = device->allocator();
  AllocateOptions options;
  if (state.range(1) == kOwnStream) {
    const auto stream = device->CreateStream();
    if (!stream.ok()) {
      state.SkipWithError("no stream");
      return;
    }
    options.stream = *stream;
  }
  // The slab, or the range, is made here.
  for (int warm_up = 0; warm_up < 2; ++warm_up) {
    const auto address = allocator->Allocate(size, options);
    if (!address.ok() || !allocator->Free(*address, options.stream).ok()) {
      state.SkipWithError("warming up failed");
      return;
    }
  }
  const DriverCounter counter(device->driver());
  for (auto _ : state) {
    const auto address = allocator->Allocate(size, options);
    benchmark::DoNotOptimize(address);
    if (!address.ok() || !allocator->Free(*address, options.stream).ok()) {
      state.SkipWithError("an allocation or a free failed");
      return;
    }
  }
  counter.Report(&state, static_cast<double>(state.iterations()));
}
BENCHMARK(BM_AllocateFree)
    ->ArgNames({"bytes", "stream"})
    ->ArgsProduct({{256, 4096, 65536, 1 << 20, 2 << 20, 64 << 20},
                   {kNoStream, kOwnStream}});

// A thousand live allocations of mixed sizes, freed in another order: caches
// and lists are at work. An operation is one allocation and its free.
void BM_AllocateFreeMixed(benchmark::State& state) {
  constexpr int kLive = 1000;
  const auto device = MakeDevice(&state);
  if (device == nullptr) return;
  DeviceAllocator* const allocator = device->allocator();
  const auto round = [allocator] {
    std::vector<DeviceAddress> live(kLive);
    for (int i = 0; i < kLive; ++i) {
      // 256 bytes to 512 KiB, in an order without a pattern.
      const Bytes size(uint64_t{256} << (i * 7919 % 12));
      const auto address = allocator->Allocate(size);
      if (!address.ok()) return false;
      live[i] = *address;
    }
    for (int i = 0; i < kLive; ++i) {
      if (!allocator->Free(live[i * 383 % kLive]).ok()) return false;
    }
    return true;
  };
  if (!round()) {
    state.SkipWithError("warming up failed");
    return;
  }
  const DriverCounter counter(device->driver());
  for (auto _ : state) {
    if (!round()) {
      state.SkipWithError("an allocation or a free failed");
      return;
    }
  }
  const double operations = static_cast<double>(state.iterations()) * kLive;
  state.SetItemsProcessed(state.iterations() * kLive);
  counter.Report(&state, operations);
}
BENCHMARK(BM_AllocateFreeMixed);

// A range that gets its pages and loses them. `prepared`: the handles exist, as
// in a steady state; otherwise each is created and given back to the driver.
void BM_CommitDecommit(benchmark::State& state) {
  const PageCount pages(static_cast<uint64_t>(state.range(0)));
  const bool prepared = state.range(1) != 0;
  const auto device = MakeDevice(&state);
  if (device == nullptr) return;
  DeviceMemory* const memory = device->memory();
  const auto range = memory->ReserveRange(pages, kUnnamedOwner);
  if (!range.ok() || (prepared && !memory->Prepare(pages).ok())) {
    state.SkipWithError("no range or no pages");
    return;
  }
  const DriverCounter counter(device->driver());
  for (auto _ : state) {
    if (!memory->Commit(*range, PageCount(0), pages).ok() ||
        !memory->Decommit(*range, PageCount(0), pages, Fence()).ok()) {
      state.SkipWithError("a commit or decommit failed");
      return;
    }
    if (!prepared) memory->Trim(PageCount(0));
  }
  counter.Report(&state, static_cast<double>(state.iterations()));
  memory->ReleaseRange(*range, Fence());
}
BENCHMARK(BM_CommitDecommit)
    ->ArgNames({"pages", "prepared"})
    ->ArgsProduct({{1, 16, 256}, {1, 0}});

// Addresses alone.
void BM_ReserveReleaseRange(benchmark::State& state) {
  const PageCount pages(static_cast<uint64_t>(state.range(0)));
  const auto device = MakeDevice(&state);
  if (device == nullptr) return;
  const DriverCounter counter(device->driver());
  for (auto _ : state) {
    const auto range = device->memory()->ReserveRange(pages, kUnnamedOwner);
    if (!range.ok()) {
      state.SkipWithError("no range");
      return;
    }
    device->memory()->ReleaseRange(*range, Fence());
  }
  counter.Report(&state, static_cast<double>(state.iterations()));
}
BENCHMARK(BM_ReserveReleaseRange)->ArgName("pages")->Arg(1)->Arg(256);

}  // namespace
}  // namespace quire

int main(int argc, char** argv) {
  return quire::RunBenchmarks("micro_bench", argc, argv);
}
