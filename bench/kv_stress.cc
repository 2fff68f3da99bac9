// kv_stress: random sequences through a KV cache on a software device.
//
// Requests arrive at random, wait for admission in order, get one token per
// step and leave. Pages carry no memory, so that any device fits on any
// machine; what the driver calls would cost on a GPU is added up on a virtual
// clock. Each layout sees the same requests.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <deque>
#include <iostream>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"
#include "quire/alloc/device_memory.h"
#include "quire/alloc/fence.h"
#include "quire/alloc/host_driver.h"
#include "quire/alloc/owner.h"
#include "quire/alloc/status_macros.h"
#include "quire/paging/kv_cache.h"

namespace quire {
namespace {

struct Options {
  std::string device_memory = "8GiB";
  std::string page_size = "2MiB";
  std::string headroom = "256MiB";
  KvShape shape = {36, 8, 128, KvDType::kF16};
  std::vector<uint32_t> layers_per_row = {1, 4, 36};
  uint64_t map_ahead = 0;
  uint64_t requests = 2000;
  double arrivals_per_step = 0.15;
  double prompt_mean = 1155;
  double output_mean = 211;
  uint64_t max_sequence_length = 8192;
  uint32_t max_sequences = 256;
  uint64_t seed = 1;
  std::string costs = "a100";
  bool json = false;
};

struct Request {
  uint64_t arrival;  // step
  uint64_t prompt;
  uint64_t output;
  uint64_t generated = 0;

  uint64_t length() const { return prompt + generated; }
};

// Exponential lengths and gaps, computed here rather than by the standard
// library's distributions, which differ between libraries for one seed.
class RequestSource {
 public:
  explicit RequestSource(const Options& options)
      : options_(options), random_(options.seed) {}

  std::vector<Request> Generate() {
    std::vector<Request> requests(options_.requests);
    double arrival = 0;
    for (Request& request : requests) {
      arrival += Exponential(1 / options_.arrivals_per_step);
      request.arrival = static_cast<uint64_t>(arrival);
      request.output = Length(options_.output_mean, 1);
      request.prompt = Length(options_.prompt_mean, request.output + 1);
    }
    return requests;
  }

 private:
  double Exponential(double mean) {
    const double uniform = static_cast<double>(random_() >> 11) * 0x1p-53;
    return -mean * std::log1p(-uniform);
  }
  // At least 1, and `rest` tokens below the longest sequence.
  uint64_t Length(double mean, uint64_t rest) {
    const uint64_t longest =
        CheckedSubtract(options_.max_sequence_length, rest).value_or(0);
    return std::clamp(static_cast<uint64_t>(std::min(Exponential(mean), 1e15)),
                      uint64_t{1}, std::max(longest, uint64_t{1}));
  }

  const Options& options_;
  std::mt19937_64 random_;
};

struct Result {
  uint32_t layers_per_row = 0;
  Bytes row;
  uint64_t steps = 0;
  uint64_t steps_without_mapping = 0;
  uint64_t refusals = 0;     // steps that began with a request refused
  uint64_t preemptions = 0;  // sequences put back because a step lacked pages
  uint64_t adoptions = 0;
  uint64_t admissions = 0;
  // Means over the steps.
  double sequences = 0;
  double used = 0;
  double committed = 0;
  double spare = 0;  // of committed: what pressure elsewhere could take
  double parked = 0;
  uint64_t peak_committed = 0;
  uint64_t pages_created = 0;
  uint64_t map_calls = 0;
  uint64_t unmap_calls = 0;
  // Of the calls that change pages and addresses, on the virtual clock.
  double mapping_ms = 0;
  double longest_step_ms = 0;

  // Of the pages under admitted sequences, the part that holds no token.
  double waste() const { return committed > 0 ? 1 - used / committed : 0; }
};

class Simulation {
 public:
  Simulation(const Options& options, uint32_t layers_per_row)
      : options_(options), layers_per_row_(layers_per_row) {}

  absl::StatusOr<Result> Run(const std::vector<Request>& requests) {
    QUIRE_RETURN_IF_ERROR(Start());
    size_t arrived = 0;
    while (arrived < requests.size() || !waiting_.empty() ||
           !running_.empty()) {
      for (; arrived < requests.size() &&
             requests[arrived].arrival <= result_.steps;
           ++arrived)
        waiting_.push_back(requests[arrived]);
      const uint64_t before = driver_->clock()->nanoseconds();
      QUIRE_RETURN_IF_ERROR(AdmitWaiting());
      QUIRE_RETURN_IF_ERROR(StepRunning());
      result_.longest_step_ms = std::max(
          result_.longest_step_ms,
          static_cast<double>(driver_->clock()->nanoseconds() - before) / 1e6);
      Sample();
      QUIRE_RETURN_IF_ERROR(ReleaseFinished());
    }
    return Finish();
  }

 private:
  struct Running {
    SequenceId sequence;
    Request request;
  };

  absl::Status Start() {
    HostDriverOptions driver;
    driver.memory_per_device = *ParseBytes(options_.device_memory);
    driver.backing = HostDriverOptions::Backing::kNone;
    driver.costs = options_.costs == "vattention"
                       ? DriverCostTable::VAttentionPaper()
                       : DriverCostTable::A100();
    QUIRE_ASSIGN_OR_RETURN(driver_, HostDriver::Create(driver));
    QUIRE_ASSIGN_OR_RETURN(stream_, driver_->CreateStream(DeviceId(0)));

    QUIRE_ASSIGN_OR_RETURN(const KvLayout layout,
                           KvLayout::Create(options_.shape, layers_per_row_));
    DeviceMemoryOptions memory;
    memory.page_size = *ParseBytes(options_.page_size);
    // A region for each sequence, and for each that was just released.
    const auto pages =
        layout.PagesForTokens(options_.max_sequence_length, memory.page_size);
    const auto region =
        pages ? CheckedBytes(*pages, memory.page_size) : std::nullopt;
    const auto addresses =
        region ? CheckedMultiply(*region, 2 * uint64_t{options_.max_sequences})
               : std::nullopt;
    if (!addresses)
      return absl::InvalidArgumentError(
          "the addresses of all sequences exceed 2^64 bytes");
    memory.address_space = *addresses;
    QUIRE_ASSIGN_OR_RETURN(
        memory_, DeviceMemory::Create(driver_.get(), &owners_, memory));

    KvCacheOptions cache;
    cache.max_sequence_length = options_.max_sequence_length;
    cache.max_sequences = options_.max_sequences;
    cache.owner = owners_.Register("kv");
    cache.headroom = PagesFor(*ParseBytes(options_.headroom), memory.page_size);
    cache.map_ahead = PageCount(options_.map_ahead);
    QUIRE_ASSIGN_OR_RETURN(cache_,
                           KvCache::Create(memory_.get(), layout, cache));
    result_.layers_per_row = layers_per_row_;
    result_.row = layout.RowBytes(0);
    return absl::OkStatus();
  }

  absl::Status AdmitWaiting() {
    while (!waiting_.empty()) {
      const auto sequence = cache_->Admit(waiting_.front().length());
      if (absl::IsResourceExhausted(sequence.status()) && !running_.empty()) {
        ++result_.refusals;
        return absl::OkStatus();
      }
      if (!sequence.ok()) return sequence.status();
      running_.push_back({*sequence, waiting_.front()});
      waiting_.pop_front();
      ++result_.admissions;
    }
    return absl::OkStatus();
  }

  // One token more for each. Where pages are short, the sequence that was
  // admitted last goes back to the head of the queue.
  absl::Status StepRunning() {
    for (;;) {
      std::vector<SequenceStep> steps;
      steps.reserve(running_.size());
      for (const Running& each : running_)
        steps.push_back({each.sequence, each.request.length() + 1});
      const absl::Status status = cache_->Step(steps);
      if (status.ok()) break;
      if (!absl::IsResourceExhausted(status) || running_.size() <= 1)
        return status;
      // The stream was synchronised after the last step.
      QUIRE_RETURN_IF_ERROR(cache_->Release(running_.back().sequence, Fence()));
      waiting_.push_front(running_.back().request);
      running_.pop_back();
      ++result_.preemptions;
    }
    for (Running& each : running_) ++each.request.generated;
    ++result_.steps;
    return absl::OkStatus();
  }

  // The step's kernels are on the stream: what ends is parked behind them, and
  // the next step begins when they are done.
  absl::Status ReleaseFinished() {
    QUIRE_ASSIGN_OR_RETURN(
        const Fence fence,
        Fence::Record(driver_.get(), DeviceId(0), std::span(&stream_, 1)));
    std::vector<Running> rest;
    for (Running& each : running_) {
      if (each.request.generated < each.request.output) {
        rest.push_back(each);
      } else {
        QUIRE_RETURN_IF_ERROR(cache_->Release(each.sequence, fence));
      }
    }
    running_ = std::move(rest);
    return driver_->SynchronizeStream(stream_);
  }

  void Sample() {
    const KvCacheStatistics statistics = cache_->GetStatistics();
    result_.sequences += statistics.sequences;
    result_.used += static_cast<double>(statistics.used.value());
    result_.committed += static_cast<double>(statistics.committed.value());
    result_.parked += static_cast<double>(statistics.parked.value());
    result_.spare += static_cast<double>(statistics.reclaimable.value() -
                                         statistics.parked.value());
    result_.peak_committed =
        std::max(result_.peak_committed, statistics.committed.value());
  }

  absl::StatusOr<Result> Finish() {
    QUIRE_RETURN_IF_ERROR(cache_->CheckInvariants());
    QUIRE_RETURN_IF_ERROR(memory_->CheckInvariants());
    const KvCacheStatistics statistics = cache_->GetStatistics();
    result_.steps_without_mapping = statistics.steps_without_mapping;
    result_.adoptions = statistics.adoptions;
    const double steps = static_cast<double>(result_.steps);
    for (double* mean : {&result_.sequences, &result_.used, &result_.committed,
                         &result_.spare, &result_.parked})
      *mean /= std::max(steps, 1.0);
    const DriverCallStatistics calls = driver_->GetCallStatistics();
    result_.pages_created = calls.CountOf("CreatePage");
    result_.map_calls = calls.CountOf("Map");
    result_.unmap_calls = calls.CountOf("Unmap");
    for (const DriverCallStatistics::Call& call : calls.calls) {
      for (const std::string_view name :
           {"ReserveAddress", "CreatePage", "ReleasePage", "Map", "Unmap"}) {
        if (call.name == name)
          result_.mapping_ms += static_cast<double>(call.nanoseconds) / 1e6;
      }
    }
    cache_.reset();
    memory_.reset();
    QUIRE_RETURN_IF_ERROR(driver_->DestroyStream(stream_));
    for (const std::string& leak : driver_->Leaks())
      return absl::InternalError(absl::StrCat("not given back: ", leak));
    return result_;
  }

  const Options& options_;
  const uint32_t layers_per_row_;
  Result result_;
  // Destroyed from the bottom up.
  std::unique_ptr<HostDriver> driver_;
  OwnerRegistry owners_;
  std::unique_ptr<DeviceMemory> memory_;
  std::unique_ptr<KvCache> cache_;
  StreamId stream_;
  std::deque<Request> waiting_;
  std::vector<Running> running_;
};

std::string Format(Bytes bytes) { return FormatBytes(bytes); }
std::string Format(double bytes) {
  return FormatBytes(Bytes(static_cast<uint64_t>(bytes)));
}

void PrintTable(const std::vector<Result>& results) {
  const auto line = [&](const char* name, auto value) {
    std::printf("%-28s", name);
    for (const Result& result : results)
      std::printf("%14s", std::string(value(result)).c_str());
    std::printf("\n");
  };
  const auto number = [&](const char* name, auto value) {
    line(name, [&](const Result& r) { return std::to_string(value(r)); });
  };
  const auto decimal = [&](const char* name, auto value) {
    line(name, [&](const Result& r) {
      char text[32];
      std::snprintf(text, sizeof(text), "%.1f", value(r));
      return std::string(text);
    });
  };
  number("layers per row", [](const Result& r) { return r.layers_per_row; });
  line("row", [](const Result& r) { return Format(r.row); });
  number("steps", [](const Result& r) { return r.steps; });
  number("steps without mapping",
         [](const Result& r) { return r.steps_without_mapping; });
  number("admissions", [](const Result& r) { return r.admissions; });
  number("  into a parked region", [](const Result& r) { return r.adoptions; });
  number("steps with a refusal", [](const Result& r) { return r.refusals; });
  number("preemptions", [](const Result& r) { return r.preemptions; });
  decimal("sequences, mean", [](const Result& r) { return r.sequences; });
  line("used, mean", [](const Result& r) { return Format(r.used); });
  line("committed, mean", [](const Result& r) { return Format(r.committed); });
  line("  of it spare", [](const Result& r) { return Format(r.spare); });
  line("parked, mean", [](const Result& r) { return Format(r.parked); });
  decimal("waste of committed, %",
          [](const Result& r) { return 100 * r.waste(); });
  number("pages created", [](const Result& r) { return r.pages_created; });
  number("map calls", [](const Result& r) { return r.map_calls; });
  number("unmap calls", [](const Result& r) { return r.unmap_calls; });
  decimal("mapping, virtual ms", [](const Result& r) { return r.mapping_ms; });
  decimal("longest step, virtual ms",
          [](const Result& r) { return r.longest_step_ms; });
}

nlohmann::json ToJson(const Result& result) {
  return {{"layers_per_row", result.layers_per_row},
          {"row_bytes", result.row.value()},
          {"steps", result.steps},
          {"steps_without_mapping", result.steps_without_mapping},
          {"admissions", result.admissions},
          {"adoptions", result.adoptions},
          {"refusals", result.refusals},
          {"preemptions", result.preemptions},
          {"mean_sequences", result.sequences},
          {"mean_used_bytes", result.used},
          {"mean_committed_bytes", result.committed},
          {"mean_spare_bytes", result.spare},
          {"mean_parked_bytes", result.parked},
          {"peak_committed_bytes", result.peak_committed},
          {"waste", result.waste()},
          {"pages_created", result.pages_created},
          {"map_calls", result.map_calls},
          {"unmap_calls", result.unmap_calls},
          {"mapping_virtual_ms", result.mapping_ms},
          {"longest_step_virtual_ms", result.longest_step_ms}};
}

int Main(int argc, char** argv) {
  Options options;
  std::string dtype = "f16";
  CLI::App app(
      "Random sequences through a contiguous KV cache on a software device,\n"
      "once for each layout. The default shape is Qwen3-8B's, the default "
      "lengths have\nthe means of a public trace of conversations.\n"
      "Example: kv_stress --device-memory 24GiB --layers-per-row 1,36 --json");
  const CLI::Validator is_size(
      [](std::string& text) {
        const auto bytes = ParseBytes(text);
        return bytes ? std::string() : "'" + text + "' is no size, as 8GiB is";
      },
      "SIZE");
  app.add_option("--device-memory", options.device_memory,
                 "Physical memory of the device")
      ->check(is_size)
      ->capture_default_str();
  app.add_option("--page-size", options.page_size, "A multiple of 2MiB")
      ->check(is_size)
      ->capture_default_str();
  app.add_option("--layers-per-row", options.layers_per_row,
                 "Layouts to run: layers whose K and V stand side by side")
      ->delimiter(',')
      ->capture_default_str();
  app.add_option("--layers", options.shape.layers)->capture_default_str();
  app.add_option("--kv-heads", options.shape.kv_heads)->capture_default_str();
  app.add_option("--head-dim", options.shape.head_dim)->capture_default_str();
  app.add_option("--dtype", dtype, "Of the cache")
      ->check(CLI::IsMember({"f32", "f16", "bf16"}))
      ->capture_default_str();
  app.add_option("--requests", options.requests)->capture_default_str();
  app.add_option("--arrivals-per-step", options.arrivals_per_step,
                 "Mean number of requests that arrive in a step")
      ->check(CLI::Range(1e-6, 1e6))
      ->capture_default_str();
  app.add_option("--prompt-mean", options.prompt_mean,
                 "Tokens; lengths are exponential")
      ->check(CLI::Range(1.0, 1e9))
      ->capture_default_str();
  app.add_option("--output-mean", options.output_mean, "Tokens")
      ->check(CLI::Range(1.0, 1e9))
      ->capture_default_str();
  app.add_option("--max-sequence-length", options.max_sequence_length,
                 "Tokens; longer requests are cut")
      ->check(CLI::Range(uint64_t{2}, uint64_t{1} << 32))
      ->capture_default_str();
  app.add_option("--max-sequences", options.max_sequences)
      ->check(CLI::Range(1u, 65536u))
      ->capture_default_str();
  app.add_option("--headroom", options.headroom,
                 "Memory that admissions leave free")
      ->check(is_size)
      ->capture_default_str();
  app.add_option("--map-ahead", options.map_ahead,
                 "Pages mapped beyond the need, per group of layers")
      ->capture_default_str();
  app.add_option("--costs", options.costs,
                 "Costs of driver calls on the virtual clock")
      ->check(CLI::IsMember({"a100", "vattention"}))
      ->capture_default_str();
  app.add_option("--seed", options.seed)->capture_default_str();
  app.add_flag("--json", options.json, "Print JSON");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  options.shape.dtype = dtype == "f32"    ? KvDType::kF32
                        : dtype == "bf16" ? KvDType::kBF16
                                          : KvDType::kF16;

  const std::vector<Request> requests = RequestSource(options).Generate();
  std::vector<Result> results;
  for (const uint32_t layers_per_row : options.layers_per_row) {
    auto result = Simulation(options, layers_per_row).Run(requests);
    if (!result.ok()) {
      std::cerr << "kv_stress: " << layers_per_row
                << " layers per row: " << result.status().message() << "\n";
      return 1;
    }
    results.push_back(*result);
  }
  if (!options.json) {
    PrintTable(results);
    return 0;
  }
  nlohmann::json json;
  json["device_memory_bytes"] = ParseBytes(options.device_memory)->value();
  json["page_bytes"] = ParseBytes(options.page_size)->value();
  json["requests"] = options.requests;
  json["seed"] = options.seed;
  json["costs"] = options.costs;
  for (const Result& result : results)
    json["layouts"].push_back(ToJson(result));
  std::cout << json.dump(2) << "\n";
  return 0;
}

}  // namespace
}  // namespace quire

int main(int argc, char** argv) { return quire::Main(argc, argv); }
