// sleep_bench: how fast an owner's memory sleeps and wakes up, on a software
// device, beside what plain copies of as much memory take in the same run.
//
// The rulers: memcpy by one thread, from device pages that have been written to
// host memory of the kind that sleep uses and nobody has touched, and back to
// device pages that nobody has touched. So both pay for the same page faults.
// Sleep is timed until its pages are free on the device, and wake from there.

#include <algorithm>
#include <chrono>
#include <cstring>
#include <ctime>
#include <fstream>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_format.h"
#include "bench/option_checks.h"
#include "bench/program.h"
#include "bench/progress.h"
#include "quire/alloc/device_memory.h"
#include "quire/alloc/host_driver.h"
#include "quire/alloc/owner.h"
#include "quire/alloc/quiescent.h"
#include "quire/alloc/sleep.h"
#include "quire/alloc/status_macros.h"

namespace quire {
namespace {

struct Options {
  std::string size = "4GiB";
  std::string folder;
  int rounds = 3;
};

using Clock = std::chrono::steady_clock;

double SecondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

std::string ProcessorName() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);) {
    const size_t colon = line.find(": ");
    if (line.rfind("model name", 0) == 0 && colon != std::string::npos) {
      return line.substr(colon + 2);
    }
  }
  return "unknown processor";
}

std::string Today() {
  const std::time_t now = std::time(nullptr);
  std::tm date{};
  gmtime_r(&now, &date);
  char text[sizeof("2026-01-31")] = "";
  std::strftime(text, sizeof(text), "%F", &date);
  return text;
}

// Seconds.
struct Round {
  double copy_out = 0;
  double copy_in = 0;
  double sleep = 0;
  double wake = 0;
};

class Bench {
 public:
  static absl::StatusOr<std::unique_ptr<Bench>> Create(const Options& options) {
    auto bench = std::unique_ptr<Bench>(new Bench);
    const std::optional<Bytes> size = ParseBytes(options.size);
    if (!size || size->zero()) {
      return absl::InvalidArgumentError(
          absl::StrFormat("--size %s is not a size", options.size));
    }
    // In whole pages.
    bench->pages_ = PagesFor(*size, kPage);
    HostDriverOptions driver;
    driver.memory_per_device = Bytes(bench->pages_.value() * kPage.value());
    QUIRE_ASSIGN_OR_RETURN(bench->driver_, HostDriver::Create(driver));
    DeviceMemoryOptions memory;
    memory.page_size = kPage;
    QUIRE_ASSIGN_OR_RETURN(
        bench->memory_,
        DeviceMemory::Create(bench->driver_.get(), &bench->owners_, memory));
    bench->owner_ = bench->owners_.Register("weights");
    bench->target_.folder = options.folder;
    if (!options.folder.empty()) bench->target_.target = SleepTarget::kDisk;
    return bench;
  }

  absl::StatusOr<Round> Run() {
    QUIRE_ASSIGN_OR_RETURN(AddressRange* const range,
                           memory_->ReserveRange(pages_, owner_));
    Round round;
    QUIRE_RETURN_IF_ERROR(MeasureCopies(range, &round));
    QUIRE_RETURN_IF_ERROR(MeasureSleep(range, &round));
    memory_->ReleaseRange(range, Fence());
    memory_->Trim(PageCount(0));
    return round;
  }

 private:
  static constexpr Bytes kPage = MiB(2);
  // Host memory comes in such pieces.
  static constexpr uint64_t kPiece = MiB(32).value();

  uint64_t bytes(const AddressRange* range) const {
    return range->pages().value() * kPage.value();
  }
  absl::Status MakeFresh(AddressRange* range) {
    QUIRE_RETURN_IF_ERROR(
        memory_->Decommit(range, PageCount(0), range->pages(), Fence()));
    memory_->Trim(PageCount(0));
    return memory_->Commit(range, PageCount(0), range->pages());
  }
  void Write(AddressRange* range) {
    auto* const words = range->address().host_pointer<uint64_t>();
    for (uint64_t i = 0; i < bytes(range) / 8; ++i) words[i] = i * 0x9e3779b97f;
  }
  absl::Status CheckContents(AddressRange* range) const {
    const auto* const words = range->address().host_pointer<uint64_t>();
    for (uint64_t i = 0; i < bytes(range) / 8; ++i) {
      if (words[i] == i * 0x9e3779b97f) continue;
      return absl::DataLossError(
          absl::StrFormat("word %d is not what it was", i));
    }
    return absl::OkStatus();
  }

  absl::Status MeasureCopies(AddressRange* range, Round* round) {
    QUIRE_RETURN_IF_ERROR(MakeFresh(range));
    Write(range);
    char* const device = range->address().host_pointer<char>();
    std::vector<void*> host;
    for (uint64_t at = 0; at < bytes(range); at += kPiece) {
      QUIRE_ASSIGN_OR_RETURN(
          void* const piece,
          driver_->AllocatePinned(Bytes(std::min(kPiece, bytes(range) - at))));
      host.push_back(piece);
    }
    const auto copy = [&](bool out) {
      const auto start = Clock::now();
      for (size_t i = 0; i < host.size(); ++i) {
        char* const there = device + i * kPiece;
        const uint64_t size = std::min(kPiece, bytes(range) - i * kPiece);
        std::memcpy(out ? host[i] : there, out ? there : host[i], size);
      }
      return SecondsSince(start);
    };
    round->copy_out = copy(true);
    QUIRE_RETURN_IF_ERROR(MakeFresh(range));
    round->copy_in = copy(false);
    for (void* const piece : host) {
      QUIRE_RETURN_IF_ERROR(driver_->FreePinned(piece));
    }
    return CheckContents(range);
  }

  absl::Status MeasureSleep(AddressRange* range, Round* round) {
    QUIRE_ASSIGN_OR_RETURN(QuiescentSection section,
                           QuiescentSection::Begin(memory_.get(), {}));
    auto start = Clock::now();
    QUIRE_RETURN_IF_ERROR(memory_->Sleep(section, owner_, target_).status());
    memory_->Trim(PageCount(0));
    round->sleep = SecondsSince(start);
    section.End();
    QUIRE_ASSIGN_OR_RETURN(const DeviceMemoryInfo device,
                           driver_->GetMemoryInfo(memory_->device()));
    if (device.free != device.total) {
      return absl::InternalError("sleep has not freed the device");
    }
    start = Clock::now();
    QUIRE_RETURN_IF_ERROR(memory_->Wake(owner_).status());
    round->wake = SecondsSince(start);
    return CheckContents(range);
  }

  Bench() = default;

  PageCount pages_;
  OwnerRegistry owners_;
  OwnerId owner_;
  SleepOptions target_;
  std::unique_ptr<HostDriver> driver_;
  std::unique_ptr<DeviceMemory> memory_;
};

absl::Status Run(const Options& options) {
  QUIRE_ASSIGN_OR_RETURN(const std::unique_ptr<Bench> bench,
                         Bench::Create(options));
  std::vector<double> copy_out, copy_in, sleep, wake, sleep_ratio, wake_ratio;
  ProgressLine progress;
  for (int i = 0; i < options.rounds; ++i) {
    progress.Update("round", i, options.rounds);
    QUIRE_ASSIGN_OR_RETURN(const Round round, bench->Run());
    copy_out.push_back(round.copy_out);
    copy_in.push_back(round.copy_in);
    sleep.push_back(round.sleep);
    wake.push_back(round.wake);
    sleep_ratio.push_back(round.copy_out / round.sleep);
    wake_ratio.push_back(round.copy_in / round.wake);
  }
  progress.Clear();
  std::cout << absl::StrFormat(
      "%s, %d processors, %s; %s to %s, medians of %d\n"
      "              seconds   memcpy   speed to memcpy's\n"
      "sleep         %7.3f  %7.3f   %.2f (%.2f to %.2f)\n"
      "wake          %7.3f  %7.3f   %.2f (%.2f to %.2f)\n",
      ProcessorName(), std::thread::hardware_concurrency(), Today(),
      options.size, options.folder.empty() ? "host memory" : options.folder,
      options.rounds, Median(sleep), Median(copy_out), Median(sleep_ratio),
      *std::min_element(sleep_ratio.begin(), sleep_ratio.end()),
      *std::max_element(sleep_ratio.begin(), sleep_ratio.end()), Median(wake),
      Median(copy_in), Median(wake_ratio),
      *std::min_element(wake_ratio.begin(), wake_ratio.end()),
      *std::max_element(wake_ratio.begin(), wake_ratio.end()));
  return absl::OkStatus();
}

int Main(int argc, char** argv) {
  Options options;
  CLI::App app("Speed of sleep and wake, to that of memcpy.");
  app.add_option("--size", options.size, "Memory that sleeps")
      ->capture_default_str();
  app.add_option("--folder", options.folder,
                 "Sleep to a file in this folder; default: to host memory")
      ->check(NotEmpty());
  app.add_option("--rounds", options.rounds, "Medians are of so many")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  if (const auto ended = ParseOptions(&app, argc, argv)) return *ended;
  const absl::Status status = Run(options);
  if (status.ok()) return 0;
  std::cerr << "sleep_bench: " << status.message() << "\n";
  return absl::IsInvalidArgument(status) ? kWrongUsage : kFailed;
}

}  // namespace
}  // namespace quire

int main(int argc, char** argv) {
  return quire::FinishOutput("sleep_bench", quire::Main(argc, argv));
}
