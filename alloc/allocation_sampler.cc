#include "quire/alloc/allocation_sampler.h"

#include <cxxabi.h>
#include <dlfcn.h>
#include <execinfo.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <iterator>
#include <limits>
#include <memory>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"

namespace quire {
namespace {

// Of the library itself, between the stack walk and its caller: so many at
// most, in builds that inline nothing.
constexpr size_t kMostInnerFrames = 32;

std::atomic<uint64_t> next_serial{1};

// Seeded by the thread: samples need not be the same from run to run, and the
// streams of threads must differ.
std::minstd_rand& Random() {
  static std::atomic<uint32_t> next_seed{1};
  thread_local std::minstd_rand random(
      next_seed.fetch_add(1, std::memory_order_relaxed) * 2654435761u);
  return random;
}

std::string Demangled(const char* name) {
  struct Free {
    void operator()(char* text) const { std::free(text); }
  };
  int status = 0;
  const std::unique_ptr<char, Free> text(
      abi::__cxa_demangle(name, nullptr, nullptr, &status));
  return status == 0 ? text.get() : name;
}

}  // namespace

thread_local constinit AllocationSampler::Countdown
    AllocationSampler::this_thread_;

AllocationSampler::AllocationSampler(const AllocationSamplerOptions& options)
    : options_(options),
      serial_(next_serial.fetch_add(1, std::memory_order_relaxed)) {
  // The first walk of a stack loads a library: not on the way of an allocation.
  void* frame = nullptr;
  (void)backtrace(&frame, 1);
}

uint64_t AllocationSampler::DrawInterval() const {
  // Exponential: each byte is as likely as any other to be the next.
  const double uniform =
      (static_cast<double>(Random()() - Random().min()) + 0.5) /
      (static_cast<double>(Random().max() - Random().min()) + 1);
  const double bytes =
      -std::log(uniform) * static_cast<double>(options_.interval.value());
  return bytes < 1e18 ? static_cast<uint64_t>(bytes) + 1
                      : std::numeric_limits<int64_t>::max();
}

std::vector<const void*> AllocationSampler::Callers(const void* first) const {
  const size_t wanted = std::min(options_.frames, kMostFrames);
  void* frames[kMostFrames + kMostInnerFrames];
  const auto found = static_cast<size_t>(
      std::max(0, backtrace(frames, static_cast<int>(std::size(frames)))));
  const auto end = frames + found;
  auto begin = std::find(frames, end, first);
  // This function and Consider; whether OnAllocate was inlined, the compiler
  // decides.
  if (begin == end) begin = frames + std::min<size_t>(found, 2);
  const auto kept = std::min(wanted, static_cast<size_t>(end - begin));
  return std::vector<const void*>(begin, begin + kept);
}

bool AllocationSampler::Consider(DeviceAddress address, Bytes size,
                                 uint64_t weight, const void* caller) {
  Countdown& countdown = this_thread_;
  if (!options_.interval.zero()) {
    if (countdown.sampler != serial_) {
      countdown = {serial_, DrawInterval()};
      if (countdown.left > weight) {
        countdown.left -= weight;
        return false;
      }
    }
    countdown.left = DrawInterval();
  }

  Sample sample;
  sample.address = address;
  sample.size = size;
  sample.callers = Callers(caller);
  // An allocation is met with probability 1 - exp(-bytes / interval).
  const double bytes = static_cast<double>(size.value());
  const double interval = static_cast<double>(options_.interval.value());
  sample.weight = options_.interval.zero() || size.zero()
                      ? bytes
                      : bytes / -std::expm1(-bytes / interval);

  MutexLock lock(&mutex_);
  return Keep(std::move(sample));
}

bool AllocationSampler::Keep(Sample sample) {
  if (live_.size() >= options_.most_samples) {
    ++dropped_;
    return false;
  }
  const DeviceAddress address = sample.address;
  const auto [place, added] =
      live_.insert_or_assign(address.value(), std::move(sample));
  if (added) {
    filter_[FilterIndex(address)].fetch_add(1, std::memory_order_relaxed);
  }
  return true;
}

std::optional<AllocationSampler::Sample> AllocationSampler::Take(
    DeviceAddress address) {
  const auto found = live_.find(address.value());
  if (found == live_.end()) return std::nullopt;
  Sample sample = std::move(found->second);
  live_.erase(found);
  filter_[FilterIndex(address)].fetch_sub(1, std::memory_order_relaxed);
  return sample;
}

void AllocationSampler::Forget(DeviceAddress address) {
  MutexLock lock(&mutex_);
  (void)Take(address);
}

void AllocationSampler::OnMove(DeviceAddress from, DeviceAddress to) {
  MutexLock lock(&mutex_);
  std::optional<Sample> sample = Take(from);
  if (!sample) return;
  sample->address = to;
  (void)Keep(*std::move(sample));
}

std::vector<AllocationSampler::Sample> AllocationSampler::Live() const {
  std::vector<Sample> samples;
  {
    MutexLock lock(&mutex_);
    for (const auto& [address, sample] : live_) samples.push_back(sample);
  }
  std::sort(
      samples.begin(), samples.end(),
      [](const Sample& a, const Sample& b) { return a.address < b.address; });
  return samples;
}

std::optional<AllocationSampler::Sample> AllocationSampler::Find(
    DeviceAddress address) const {
  MutexLock lock(&mutex_);
  const auto found = live_.find(address.value());
  if (found == live_.end()) return std::nullopt;
  return found->second;
}

uint64_t AllocationSampler::dropped() const {
  MutexLock lock(&mutex_);
  return dropped_;
}

std::string DescribeCaller(const void* caller) {
  // A caller is the address that a call returns to: the call is before it.
  const auto address = reinterpret_cast<uintptr_t>(caller);
  const uintptr_t call = address == 0 ? 0 : address - 1;
  Dl_info info = {};
  if (dladdr(reinterpret_cast<const void*>(call), &info) == 0 ||
      info.dli_fname == nullptr) {
    return absl::StrCat("0x", absl::Hex(call));
  }
  const std::string path = info.dli_fname;
  const std::string place = absl::StrCat(
      path.substr(path.find_last_of('/') + 1), "+0x",
      absl::Hex(call - reinterpret_cast<uintptr_t>(info.dli_fbase)));
  if (info.dli_sname == nullptr) return place;
  return absl::StrCat(Demangled(info.dli_sname), " (", place, ")");
}

}  // namespace quire
