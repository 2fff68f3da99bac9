#include "bench/serving/simulation.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <map>
#include <memory>
#include <span>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "bench/serving/prompt_tokens.h"
#include "quire/alloc/device_memory.h"
#include "quire/alloc/host_driver.h"
#include "quire/alloc/owner.h"
#include "quire/alloc/status_macros.h"
#include "quire/paging/kv_cache.h"
#include "quire/paging/mapping_calls.h"

namespace quire {
namespace {

using HostClock = std::chrono::steady_clock;

double MicrosecondsSince(HostClock::time_point start) {
  return std::chrono::duration<double, std::micro>(HostClock::now() - start)
      .count();
}

double Median(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle =
      values.begin() + static_cast<ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

class Simulation {
 public:
  Simulation(const SimulationOptions& options, const CostModel& costs)
      : options_(options), costs_(costs) {}

  absl::Status Start(const CacheKind& kind, double create_page_us);
  absl::Status Run(const std::vector<StressRequest>& requests);
  absl::StatusOr<SimulationResult> Finish();

 private:
  // Of a request that was computed, and may have been preempted since.
  struct Progress {
    SequenceId sequence;
    uint64_t computed = 0;
  };

  double seconds() const { return static_cast<double>(now_ns_) / 1e9; }
  double now() const {
    return options_.clock_is_steps ? static_cast<double>(result_.steps)
                                   : seconds();
  }
  const StressRequest& RequestOf(RequestId id) const {
    return *requests_[id.value() - 1];
  }
  // Until then, with nothing to do.
  void Idle(double arrival);
  absl::Status Add(const StressRequest& request);
  absl::Status Step();
  StepWork WorkOf(std::span<const ScheduledTokens> step);
  // Nanoseconds of the calls since the last one, which are added to the sums.
  uint64_t CountDriverCalls(uint64_t* calls, double* ms);
  // The same for what was copied to the host and back since the last time.
  uint64_t CountCopies();
  void Sample(double weight);
  // There is such a sequence, and it is not swapped out.
  bool IsOnDevice(SequenceId sequence) const;
  double LiveBytes() const;
  Bytes Held() const {
    const CacheUse use = cache_->Use();
    return blocks_ ? use.needed : use.held;
  }
  void WeighIdle();
  absl::Status MeasureCacheStep();

  const SimulationOptions& options_;
  const CostModel& costs_;
  SimulationResult result_;
  uint64_t now_ns_ = 0;
  double weight_ = 0;  // of all samples
  std::vector<double> host_us_;
  uint64_t driver_calls_ = 0;  // that were counted
  uint64_t driver_ns_ = 0;     // and the clock of the driver then
  bool all_arrived_ = false;
  bool idle_weighed_ = false;
  bool blocks_ = false;
  std::vector<const StressRequest*> requests_;  // by id, from 1 on
  std::map<RequestId, Progress> progress_;
  PromptTokens tokens_;

  // Destroyed from the bottom up.
  std::unique_ptr<HostDriver> driver_;
  StreamId stream_;
  OwnerRegistry owners_;
  std::unique_ptr<DeviceMemory> memory_;
  std::unique_ptr<SequenceCache> cache_;
  KvCache* contiguous_ = nullptr;  // cache_, where it is one
  std::unique_ptr<Scheduler> scheduler_;
};

absl::Status Simulation::Start(const CacheKind& kind, double create_page_us) {
  result_.cache = kind.name;
  blocks_ = kind.family == CacheKind::Family::kBlocks;
  result_.create_page_us = create_page_us;
  if (!options_.cache.swap_space.zero() &&
      !costs_.HostCopyNanoseconds(Bytes(1)))
    return absl::InvalidArgumentError(
        "swap space, and the file of costs does not say what copies to the "
        "host take: roofline.host_copy_gb_per_s");
  CacheSettings settings = options_.cache;
  settings.owner = owners_.Register("kv");
  HostDriverOptions driver;
  driver.memory_per_device =
      Bytes(options_.kv_memory.value() / settings.page_size.value() *
            settings.page_size.value());
  driver.backing = HostDriverOptions::Backing::kNone;
  driver.costs = costs_.DriverCosts(create_page_us);
  QUIRE_ASSIGN_OR_RETURN(driver_, HostDriver::Create(driver));
  QUIRE_ASSIGN_OR_RETURN(stream_, driver_->CreateStream(DeviceId(0)));
  settings.stream = stream_;
  settings.clock = [this] {
    return now_ns_ + driver_->clock()->nanoseconds() - driver_ns_;
  };
  DeviceMemoryOptions memory;
  memory.page_size = settings.page_size;
  QUIRE_ASSIGN_OR_RETURN(memory.address_space, AddressesOf(kind, settings));
  QUIRE_ASSIGN_OR_RETURN(memory_,
                         DeviceMemory::Create(driver_.get(), &owners_, memory));
  QUIRE_ASSIGN_OR_RETURN(cache_,
                         MakeStressCache(kind, settings, memory_.get()));
  if (options_.prepare_pages)
    QUIRE_RETURN_IF_ERROR(memory_->Prepare(
        PagesFor(driver.memory_per_device, settings.page_size)));
  contiguous_ = dynamic_cast<KvCache*>(cache_.get());
  TokenSource source;
  if (options_.prefixes)
    source = [this](RequestId id) { return tokens_.Of(id); };
  QUIRE_ASSIGN_OR_RETURN(scheduler_,
                         Scheduler::Create(cache_.get(), options_.scheduler,
                                           MakeVictimPolicy(options_.policy),
                                           cache_->swap(), std::move(source)));
  // What a start costs, no step waits for.
  driver_calls_ = CountMappingCalls(*driver_);
  driver_ns_ = driver_->clock()->nanoseconds();
  return absl::OkStatus();
}

absl::Status Simulation::Run(const std::vector<StressRequest>& requests) {
  size_t arrived = 0;
  while (arrived < requests.size() || scheduler_->has_work()) {
    // With nothing to do the clock stands at the next arrival.
    if (!scheduler_->has_work() && requests[arrived].arrival > now()) {
      Idle(requests[arrived].arrival);
      // In the far future its time is rounded, and perhaps up.
      QUIRE_RETURN_IF_ERROR(Add(requests[arrived++]));
    }
    for (; arrived < requests.size() && requests[arrived].arrival <= now();
         ++arrived)
      QUIRE_RETURN_IF_ERROR(Add(requests[arrived]));
    all_arrived_ = arrived == requests.size();
    QUIRE_RETURN_IF_ERROR(Step());
    if (options_.progress) {
      options_.progress(static_cast<double>(result_.served) /
                        static_cast<double>(requests.size()));
    }
  }
  return absl::OkStatus();
}

void Simulation::Idle(double arrival) {
  if (!options_.clock_is_steps) {
    now_ns_ = static_cast<uint64_t>(arrival * 1e9) + 1;
    return;
  }
  // All at once: nothing changes in steps that compute nothing.
  const double steps = std::ceil(arrival - now());
  result_.steps += static_cast<uint64_t>(steps);
  Sample(steps);
}

absl::Status Simulation::Add(const StressRequest& request) {
  QUIRE_ASSIGN_OR_RETURN(const RequestId id,
                         scheduler_->Add(request.prompt, request.output));
  requests_.push_back(&request);
  result_.timings.push_back(
      {.arrival = options_.clock_is_steps ? seconds() : request.arrival,
       .output = request.output});
  if (options_.prefixes) tokens_.Add(id, &request);
  return absl::OkStatus();
}

absl::Status Simulation::Step() {
  HostClock::time_point start = HostClock::now();
  QUIRE_ASSIGN_OR_RETURN(const auto step, scheduler_->Schedule());
  double host_us = MicrosecondsSince(start);
  const uint64_t waited_ns =
      CountDriverCalls(&result_.driver_calls, &result_.driver_ms);
  const uint64_t copied_before_ns = CountCopies();
  now_ns_ += waited_ns + copied_before_ns;

  QUIRE_RETURN_IF_ERROR(scheduler_->PrepareNext());
  if (contiguous_ != nullptr)
    QUIRE_RETURN_IF_ERROR(contiguous_->PrepareAhead().status());
  const uint64_t meanwhile_ns = CountDriverCalls(
      &result_.driver_calls_meanwhile, &result_.driver_ms_meanwhile);

  const uint64_t compute_ns =
      costs_.StepNanoseconds(options_.model, WorkOf(step));
  const uint64_t called_ns = std::max(meanwhile_ns, compute_ns);
  const uint64_t busy_ns = std::max(called_ns, CountCopies());
  // The device has done, and the next step waits for what is still called.
  const uint64_t overrun_ns = called_ns - compute_ns;
  now_ns_ += busy_ns;
  bool decodes = false;
  std::vector<RequestId> last;
  for (const ScheduledTokens& item : step) {
    const StressRequest& request = RequestOf(item.request);
    const bool decode = item.first >= request.prompt && item.count == 1;
    decodes |= decode;
    (decode ? result_.decoded_tokens : result_.prompt_tokens) += item.count;
    const uint64_t end = item.first + item.count;
    RequestTiming& timing = result_.timings[item.request.value() - 1];
    // A request that was preempted has had its first token before.
    if (end >= request.prompt && timing.first_token == 0)
      timing.first_token = seconds();
    if (end + 1 == request.tokens()) {
      timing.last_token = seconds();
      last.push_back(item.request);
    }
  }
  Sample(options_.clock_is_steps
             ? 1
             : static_cast<double>(waited_ns + copied_before_ns + busy_ns));
  ++result_.steps;
  WeighIdle();

  start = HostClock::now();
  QUIRE_RETURN_IF_ERROR(scheduler_->Complete({}, Fence()));
  host_us += MicrosecondsSince(start);
  // The next step waits for this as well.
  const uint64_t ended_ns =
      CountDriverCalls(&result_.driver_calls, &result_.driver_ms);
  now_ns_ += ended_ns;
  const uint64_t waits_ns = waited_ns + overrun_ns + ended_ns;
  result_.longest_wait_ms =
      std::max(result_.longest_wait_ms, static_cast<double>(waits_ns) / 1e6);
  result_.overrun_ms += static_cast<double>(overrun_ns) / 1e6;
  result_.decode_steps += decodes ? 1 : 0;
  result_.decode_steps_waiting += decodes && waits_ns > 0 ? 1 : 0;
  result_.decode_steps_overrun += decodes && overrun_ns > 0 ? 1 : 0;
  if (waited_ns + ended_ns == 0) host_us_.push_back(host_us);
  for (const RequestId id : last) {
    progress_.erase(id);
    tokens_.Remove(id);
    ++result_.served;
  }
  return absl::OkStatus();
}

StepWork Simulation::WorkOf(std::span<const ScheduledTokens> step) {
  StepWork work;
  for (const ScheduledTokens& item : step) {
    const uint64_t end = item.first + item.count;
    progress_[item.request] = {item.sequence, end};
    work.tokens += item.count;
    // Every token of a chunk sees half of the chunk, on average.
    work.attention_flops += item.count * options_.model.AttentionFlops(
                                             item.first + (item.count + 1) / 2);
    work.kv_bytes += static_cast<double>(
        options_.model.KvBytes(end, options_.dtype).value());
  }
  return work;
}

uint64_t Simulation::CountDriverCalls(uint64_t* calls, double* ms) {
  const uint64_t now = driver_->clock()->nanoseconds();
  const uint64_t nanoseconds = now - std::exchange(driver_ns_, now);
  if (nanoseconds == 0) return 0;
  const uint64_t all = CountMappingCalls(*driver_);
  *calls += all - std::exchange(driver_calls_, all);
  *ms += static_cast<double>(nanoseconds) / 1e6;
  return nanoseconds;
}

uint64_t Simulation::CountCopies() {
  if (contiguous_ == nullptr) return 0;
  const KvCacheStatistics statistics = contiguous_->GetStatistics();
  const uint64_t before =
      result_.swapped_out.value() + result_.swapped_in.value();
  result_.swapped_out = statistics.bytes_swapped_out;
  result_.swapped_in = statistics.bytes_swapped_in;
  const Bytes copied(result_.swapped_out.value() + result_.swapped_in.value() -
                     before);
  const uint64_t nanoseconds = costs_.HostCopyNanoseconds(copied).value_or(0);
  result_.copy_ms += static_cast<double>(nanoseconds) / 1e6;
  return nanoseconds;
}

bool Simulation::IsOnDevice(SequenceId sequence) const {
  return options_.cache.swap_space.zero() ? cache_->Length(sequence).ok()
                                          : cache_->View(sequence, 0).ok();
}

// Requests that were preempted have no sequence any more, or another one once
// they are computed again.
double Simulation::LiveBytes() const {
  double live = 0;
  for (const auto& [id, progress] : progress_) {
    if (IsOnDevice(progress.sequence))
      live += static_cast<double>(
          options_.model.KvBytes(progress.computed, options_.dtype).value());
  }
  return live;
}

void Simulation::Sample(double weight) {
  const CacheUse use = cache_->Use();
  weight_ += weight;
  result_.running += weight * scheduler_->GetStatistics().running;
  result_.live_bytes += weight * LiveBytes();
  result_.needed_bytes += weight * static_cast<double>(use.needed.value());
  result_.held_bytes += weight * static_cast<double>(Held().value());
  result_.peak_held = std::max(result_.peak_held, Held());
}

void Simulation::WeighIdle() {
  const SchedulerStatistics statistics = scheduler_->GetStatistics();
  if (idle_weighed_ || !all_arrived_ || statistics.waiting > 0 ||
      statistics.running > options_.idle_sequences)
    return;
  idle_weighed_ = true;
  memory_->Trim();
  // What that costs belongs to no step.
  uint64_t calls = 0;
  double ms = 0;
  CountDriverCalls(&calls, &ms);
  result_.idle_held = Held();
  result_.idle_needed = cache_->Use().needed;
  result_.idle_live = Bytes(static_cast<uint64_t>(LiveBytes()));
}

absl::Status Simulation::MeasureCacheStep() {
  constexpr uint32_t kSequences = 256;
  constexpr int kSteps = 200;
  constexpr uint64_t kGrowth = 8;  // within the pages that are there
  const uint64_t tokens =
      std::min<uint64_t>(100, options_.cache.max_sequence_length);
  std::vector<SequenceStep> steps;
  absl::Status status;
  while (steps.size() < kSequences) {
    const auto sequence = cache_->Admit(tokens);
    if (!sequence.ok()) break;  // a small device: there is nothing to measure
    steps.push_back({*sequence, tokens});
  }
  uint64_t length = tokens;
  if (steps.size() == kSequences) {
    std::vector<double> host_us;
    for (int i = 0; i < kSteps; ++i) {
      // Each one token further, and from time to time back.
      length =
          length < tokens ? length + 1 : tokens - std::min(tokens - 1, kGrowth);
      for (SequenceStep& step : steps) step.length = length;
      const auto start = HostClock::now();
      status.Update(cache_->Step(steps));
      host_us.push_back(MicrosecondsSince(start));
    }
    result_.host_us_per_cache_step = Median(std::move(host_us));
  }
  for (const SequenceStep& step : steps)
    status.Update(cache_->Release(step.sequence, Fence()));
  return status;
}

absl::StatusOr<SimulationResult> Simulation::Finish() {
  QUIRE_RETURN_IF_ERROR(scheduler_->CheckInvariants());
  QUIRE_RETURN_IF_ERROR(cache_->CheckInvariants());
  QUIRE_RETURN_IF_ERROR(memory_->CheckInvariants());
  result_.scheduler = scheduler_->GetStatistics();
  result_.virtual_seconds = seconds();
  result_.host_us_per_step = Median(std::move(host_us_));
  for (double* mean : {&result_.running, &result_.live_bytes,
                       &result_.needed_bytes, &result_.held_bytes})
    *mean /= std::max(weight_, 1.0);
  result_.peak_pages = PagesFor(result_.peak_held, memory_->page_size());
  QUIRE_RETURN_IF_ERROR(MeasureCacheStep());
  scheduler_.reset();
  cache_.reset();
  memory_.reset();
  QUIRE_RETURN_IF_ERROR(driver_->DestroyStream(stream_));
  for (const std::string& leak : driver_->Leaks())
    return absl::InternalError(absl::StrCat("not given back: ", leak));
  return result_;
}

}  // namespace

absl::StatusOr<SimulationResult> Simulate(
    const SimulationOptions& options, const CostModel& costs,
    double create_page_us, const CacheKind& kind,
    const std::vector<StressRequest>& requests) {
  Simulation simulation(options, costs);
  QUIRE_RETURN_IF_ERROR(simulation.Start(kind, create_page_us));
  QUIRE_RETURN_IF_ERROR(simulation.Run(requests));
  return simulation.Finish();
}

}  // namespace quire
