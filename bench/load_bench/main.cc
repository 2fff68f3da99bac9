// load_bench: how fast a checkpoint streams, beside what its disk gives and
// what memory takes, in one run.
//
// Rulers of the disk: direct reads by threads, io_uring, and reads through the
// page cache with the pages dropped behind; the best of them is what a load
// onto a device without memory is compared with. Ruler of memory: one thread
// that copies from a small buffer into memory of a file that nobody has
// touched, which is what the pages of the software device are; a load into such
// pages is compared with the slower of disk and copy. All take turns, each from
// a cold cache, in another order in each round.

#include <algorithm>
#include <chrono>
#include <cstring>
#include <functional>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "bench/load_bench/raw_file.h"
#include "bench/load_bench/raw_reads.h"
#include "bench/option_checks.h"
#include "bench/program.h"
#include "quire/alloc/host_driver.h"
#include "quire/alloc/runtime.h"
#include "quire/alloc/status_macros.h"
#include "quire/loader/checkpoint.h"
#include "quire/loader/streaming_loader.h"

namespace quire {
namespace {

struct Options {
  std::string model;
  int rounds = 5;
  bool json = false;
};

using Clock = std::chrono::steady_clock;

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// What takes turns.
struct Contender {
  std::string name;
  bool of_disk;  // a ruler of it
  std::function<absl::Status()> run;
  std::vector<double> seconds = {};
  std::string why_not = {};  // it was left out
};

class Bench {
 public:
  static absl::StatusOr<std::unique_ptr<Bench>> Create(const Options& options) {
    auto bench = std::unique_ptr<Bench>(new Bench);
    QUIRE_ASSIGN_OR_RETURN(bench->checkpoint_, Checkpoint::Open(options.model));
    for (const CheckpointFile& file : bench->checkpoint_->files()) {
      bench->files_.push_back(file.path);
      bench->bytes_ += file.size.value();
    }
    return bench;
  }

  absl::Status Run(int rounds) {
    for (int round = 0; round < rounds; ++round) {
      for (size_t i = 0; i < contenders_.size(); ++i) {
        Contender& contender =
            contenders_[(i + static_cast<size_t>(round)) % contenders_.size()];
        if (!contender.why_not.empty()) continue;
        DropFromCache(files_);
        const Clock::time_point start = Clock::now();
        const absl::Status status = contender.run();
        const double seconds =
            std::chrono::duration<double>(Clock::now() - start).count();
        if (absl::IsUnimplemented(status)) {
          contender.why_not = std::string(status.message());
          continue;
        }
        QUIRE_RETURN_IF_ERROR(status);
        contender.seconds.push_back(seconds);
      }
    }
    return absl::OkStatus();
  }

  // Bytes a second, of the median; 0 where it was left out.
  double Rate(const Contender& contender) const {
    return contender.seconds.empty()
               ? 0
               : static_cast<double>(bytes_) / Median(contender.seconds);
  }
  double BestOfDisk() const {
    double best = 0;
    for (const Contender& contender : contenders_)
      if (contender.of_disk) best = std::max(best, Rate(contender));
    return best;
  }
  const Contender& load() const { return contenders_[kLoad]; }
  const Contender& direct_load() const { return contenders_[kDirectLoad]; }
  const Contender& real_load() const { return contenders_[kRealLoad]; }
  const Contender& copy() const { return contenders_[kCopy]; }
  const std::vector<Contender>& contenders() const { return contenders_; }
  uint64_t bytes() const { return bytes_; }

 private:
  enum { kLoad = 3, kDirectLoad, kRealLoad, kCopy };

  absl::Status Stream(bool backed, bool direct) const {
    HostDriverOptions driver;
    // Room for tails of pages.
    const uint64_t room = bytes_ + bytes_ / 8 + MiB(64).value();
    driver.memory_per_device =
        Bytes(room / driver.granularity.value() * driver.granularity.value());
    driver.backing = backed ? HostDriverOptions::Backing::kMemory
                            : HostDriverOptions::Backing::kNone;
    QUIRE_ASSIGN_OR_RETURN(std::unique_ptr<HostDriver> host,
                           HostDriver::Create(driver));
    QUIRE_ASSIGN_OR_RETURN(const std::unique_ptr<Runtime> runtime,
                           Runtime::Create(std::move(host), {}));
    std::vector<TensorPlacement> placements;
    for (const TensorInfo& tensor : checkpoint_->tensors()) {
      QUIRE_ASSIGN_OR_RETURN(const DeviceAddress address,
                             runtime->allocator()->Allocate(tensor.size));
      placements.push_back({&tensor, address});
    }
    StreamingOptions streaming;
    streaming.direct = direct;
    QUIRE_ASSIGN_OR_RETURN(const LoadReport report,
                           StreamTensors(runtime->driver(), DeviceId(0),
                                         *checkpoint_, placements, streaming));
    if (direct && !report.direct)
      return absl::UnimplementedError("the file system has no direct reads");
    for (const TensorPlacement& placement : placements)
      QUIRE_RETURN_IF_ERROR(runtime->allocator()->Free(placement.destination));
    return absl::OkStatus();
  }

  absl::Status Copy() const {
    const UntouchedMemory to(bytes_);
    const ReadBuffer from(kReadBlock);
    if (!to.ok() || !from.ok())
      return absl::ResourceExhaustedError("no memory to copy to");
    for (uint64_t at = 0; at < bytes_; at += kReadBlock)
      std::memcpy(to.data() + at, from.data(),
                  std::min(kReadBlock, bytes_ - at));
    return absl::OkStatus();
  }

  std::unique_ptr<Checkpoint> checkpoint_;
  std::vector<std::string> files_;
  uint64_t bytes_ = 0;
  std::vector<Contender> contenders_ = {
      {"direct reads, 4 threads", true,
       [this] { return ReadDirectly(files_); }},
      {"io_uring, 4 direct reads", true,
       [this] { return ReadByUring(files_); }},
      {"reads, pages dropped behind", true,
       [this] { return ReadAndDrop(files_); }},
      {"load, no device memory", false,
       [this] { return Stream(/*backed=*/false, /*direct=*/false); }},
      {"load, no device memory, direct", false,
       [this] { return Stream(/*backed=*/false, /*direct=*/true); }},
      {"load into device memory", false,
       [this] { return Stream(/*backed=*/true, /*direct=*/false); }},
      {"copy into fresh memory", false, [this] { return Copy(); }}};
};

double Ratio(double part, double whole) { return whole > 0 ? part / whole : 0; }

void Print(const Bench& bench, bool as_json) {
  const double disk = bench.BestOfDisk();
  const double load = Ratio(bench.Rate(bench.load()), disk);
  const double direct = Ratio(bench.Rate(bench.direct_load()), disk);
  const double real = Ratio(bench.Rate(bench.real_load()),
                            std::min(disk, bench.Rate(bench.copy())));
  if (as_json) {
    nlohmann::json rates = nlohmann::json::object();
    for (const Contender& contender : bench.contenders())
      rates[contender.name] = {{"bytes_per_second", bench.Rate(contender)},
                               {"seconds", contender.seconds},
                               {"left_out", contender.why_not}};
    std::cout << nlohmann::json({{"bytes", bench.bytes()},
                                 {"rates", std::move(rates)},
                                 {"load_of_disk", load},
                                 {"direct_load_of_disk", direct},
                                 {"real_load_of_slower", real}})
                     .dump(2)
              << "\n";
    return;
  }
  for (const Contender& contender : bench.contenders())
    std::cout << absl::StreamFormat(
        "%-32s %s\n", contender.name,
        contender.seconds.empty()
            ? absl::StrCat("left out: ", contender.why_not)
            : absl::StrFormat("%6.2f GB/s", bench.Rate(contender) / 1e9));
  std::cout << absl::StreamFormat(
      "\nload / best of the disk             %.2f, direct %.2f\n"
      "load into memory / slower of disk and copy %.2f\n",
      load, direct, real);
}

int Main(int argc, char** argv) {
  Options options;
  CLI::App app(
      "How fast a checkpoint streams, beside its disk and a copy, in turns");
  app.add_option("MODEL", options.model,
                 "Folder, .safetensors or .gguf file, on the disk to measure; "
                 "as much memory must be free")
      ->required()
      ->check(NotEmpty());
  app.add_option("--rounds", options.rounds, "Each takes so many turns")
      ->check(WholeNumber())
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  app.add_flag("--json", options.json, "Machine-readable");
  if (const auto ended = ParseOptions(&app, argc, argv)) return *ended;
  absl::StatusOr<std::unique_ptr<Bench>> bench = Bench::Create(options);
  const absl::Status status =
      bench.ok() ? (*bench)->Run(options.rounds) : bench.status();
  if (!status.ok()) {
    std::cerr << "load_bench: " << status.message() << "\n";
    return kFailed;
  }
  Print(**bench, options.json);
  return 0;
}

}  // namespace
}  // namespace quire

int main(int argc, char** argv) {
  return quire::FinishOutput("load_bench", quire::Main(argc, argv));
}
