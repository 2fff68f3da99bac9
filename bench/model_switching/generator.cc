#include "bench/model_switching/generator.h"

#include <algorithm>
#include <iterator>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "bench/model_switching/player.h"
#include "bench/stress_random.h"
#include "quire/alloc/status_macros.h"

namespace quire {
namespace {

using Kind = ScenarioStep::Kind;

// Rows of one part of a parallel step before the next one's turn.
constexpr uint64_t kChunk = 64;

struct ModelRequest {
  double arrival = 0;  // seconds
  std::string model;
};

class Arrivals {
 public:
  Arrivals(const GeneratorOptions& options, StressRandom* random)
      : options_(options), random_(random) {}

  std::vector<ModelRequest> Draw() {
    std::vector<ModelRequest> requests;
    const double seconds_between = 3600 / options_.requests_per_hour;
    double now = 0;
    while (requests.size() < options_.requests) {
      if (options_.arrivals == ArrivalProcess::kPoisson) {
        now += random_->Exponential(seconds_between);
        requests.push_back({now, DrawModel()});
        continue;
      }
      now += random_->Exponential(seconds_between * options_.burst_size);
      DrawBurst(now, &requests);
    }
    // Bursts overlap.
    std::stable_sort(requests.begin(), requests.end(),
                     [](const ModelRequest& a, const ModelRequest& b) {
                       return a.arrival < b.arrival;
                     });
    return requests;
  }

 private:
  // One request after the other, each about when the one before is served.
  void DrawBurst(double start, std::vector<ModelRequest>* requests) {
    const std::string model = DrawModel();
    double arrival = start;
    do {
      requests->push_back({arrival, model});
      arrival += random_->Exponential(options_.service_seconds);
    } while (requests->size() < options_.requests &&
             random_->Uniform() < 1 - 1 / options_.burst_size);
  }

  std::string DrawModel() {
    double sum = 0;
    for (const auto& [name, weight] : options_.mix) sum += weight;
    double draw = random_->Uniform() * sum;
    for (const auto& [name, weight] : options_.mix) {
      draw -= weight;
      if (draw < 0) return name;
    }
    return options_.mix.rbegin()->first;  // what rounding has left
  }

  const GeneratorOptions& options_;
  StressRandom* const random_;
};

// What a model takes, as asked for.
struct ModelSizes {
  Bytes loading;  // the most while it is loaded and warmed up
  Bytes loaded;   // then
  std::map<std::string, Bytes> running;  // phases: the most beyond `loaded`
};

class Sizer {
 public:
  explicit Sizer(const Workload& workload) : workload_(workload) {}

  ModelSizes Measure() {
    Play("load");
    Play("warmup");
    ModelSizes sizes;
    sizes.loading = Bytes(peak_);
    sizes.loaded = Bytes(live_);
    for (const auto& [name, phase] : workload_.phases) {
      if (name == "load" || name == "warmup" || name == "unload") continue;
      const uint64_t before = live_;
      peak_ = before;
      Play(name);
      sizes.running[name] = Bytes(peak_ - before);
    }
    return sizes;
  }

 private:
  void Play(const std::string& phase) {
    const auto found = workload_.phases.find(phase);
    if (found == workload_.phases.end()) return;
    for (const AllocationEvent& event : found->second.events) {
      if (event.action == AllocationAction::kAllocate) {
        sizes_[event.allocation] = event.size.value();
        live_ = SaturatingAdd(live_, event.size.value());
        peak_ = std::max(peak_, live_);
      } else if (event.action == AllocationAction::kFree) {
        live_ -= std::min(live_, std::exchange(sizes_[event.allocation], 0));
      }
    }
  }

  const Workload& workload_;
  absl::flat_hash_map<uint64_t, uint64_t> sizes_;  // of what is live
  uint64_t live_ = 0;
  uint64_t peak_ = 0;
};

class Generator {
 public:
  Generator(const GeneratorOptions& options,
            const std::map<std::string, Workload>& workloads)
      : options_(options), workloads_(workloads), random_(options.seed) {}

  absl::StatusOr<Scenario> Run() {
    QUIRE_RETURN_IF_ERROR(MeasureModels());
    const std::vector<ModelRequest> requests =
        Arrivals(options_, &random_).Draw();
    for (size_t i = 0; i < requests.size(); ++i) {
      const double start = std::max(requests[i].arrival, free_at_);
      free_at_ = start + random_.Exponential(options_.service_seconds);
      UnloadIdle(start);
      const std::string& model = requests[i].model;
      const std::string phase = DrawPhase(model);
      MakeRoom(model, phase);
      if (i + 1 < requests.size() && requests[i + 1].arrival < free_at_ &&
          RunBoth(model, phase, requests[i + 1].model)) {
        ++i;
      } else {
        AddStep(Kind::kRun, {{model, phase}});
      }
      last_use_[model] = free_at_;
    }
    while (!last_use_.empty()) Unload(last_use_.begin()->first);
    return Finish();
  }

 private:
  absl::Status MeasureModels() {
    double sum = 0;
    for (const auto& [name, weight] : options_.mix) {
      sum += weight;
      ModelSizes& sizes = sizes_[name] = Sizer(workloads_.at(name)).Measure();
      if (sizes.running.empty()) {
        return absl::InvalidArgumentError(
            absl::StrCat(name, " has no phase to run"));
      }
    }
    return sum > 0 ? absl::OkStatus()
                   : absl::InvalidArgumentError("the mix has no weight");
  }

  std::string DrawPhase(const std::string& model) {
    const std::map<std::string, Bytes>& phases = sizes_.at(model).running;
    auto phase = phases.begin();
    std::advance(phase,
                 static_cast<size_t>(random_.Uniform() *
                                     static_cast<double>(phases.size())));
    return phase->first;
  }

  void AddStep(Kind kind, std::vector<ScenarioPart> parts) {
    ScenarioStep step;
    step.kind = kind;
    step.parts = std::move(parts);
    if (kind == Kind::kParallel) step.chunk = kChunk;
    scenario_.steps.push_back(std::move(step));
  }

  void Unload(const std::string& name) {
    AddStep(Kind::kUnload, {{name, ""}});
    last_use_.erase(name);
  }

  void UnloadIdle(double now) {
    std::vector<std::string> idle;
    for (const auto& [name, last_use] : last_use_) {
      if (now - last_use > options_.keep_alive_seconds) idle.push_back(name);
    }
    for (const std::string& name : idle) Unload(name);
  }

  // What all have and `more` beyond is within bounds.
  bool Fits(Bytes more) const {
    Bytes sum = more;
    for (const auto& [name, last_use] : last_use_) {
      sum = SaturatingAdd(sum, sizes_.at(name).loaded);
    }
    return static_cast<double>(sum.value()) <=
           options_.fill * static_cast<double>(options_.usable.value());
  }

  // Unloads what was used longest ago, as far as it takes for `model` to be
  // loaded, where it is not, and to run.
  void MakeRoom(const std::string& model, const std::string& phase) {
    const ModelSizes& sizes = sizes_.at(model);
    const bool there = last_use_.contains(model);
    const Bytes run = sizes.running.at(phase);
    const Bytes more =
        there ? run : std::max(sizes.loading, SaturatingAdd(sizes.loaded, run));
    while (!Fits(more)) {
      std::string oldest;
      for (const auto& [name, last_use] : last_use_) {
        if (name != model &&
            (oldest.empty() || last_use < last_use_.at(oldest))) {
          oldest = name;
        }
      }
      if (oldest.empty()) break;
      Unload(oldest);
    }
    if (there) return;
    AddStep(Kind::kLoad, {{model, ""}});
    last_use_[model] = free_at_;
  }

  // Whether `other` can run beside `model`, and does.
  bool RunBoth(const std::string& model, const std::string& phase,
               const std::string& other) {
    if (other == model || !last_use_.contains(other)) return false;
    const std::string other_phase = DrawPhase(other);
    if (!Fits(SaturatingAdd(sizes_.at(model).running.at(phase),
                            sizes_.at(other).running.at(other_phase)))) {
      return false;
    }
    AddStep(Kind::kParallel, {{model, phase}, {other, other_phase}});
    last_use_[other] = free_at_;
    return true;
  }

  absl::StatusOr<Scenario> Finish() {
    scenario_.name = absl::StrCat(
        "generated-",
        options_.arrivals == ArrivalProcess::kPoisson ? "poisson" : "bursts",
        "-", options_.seed);
    scenario_.usable = options_.usable;
    QUIRE_ASSIGN_OR_RETURN(
        scenario_.minimum_peak_of_steps,
        CountMinima(scenario_, workloads_, SwitchStrategy::kKeep,
                    /*pool_minimum=*/0));
    scenario_.category = "relaxed";
    const std::vector<Bytes>& minima = scenario_.minimum_peak_of_steps;
    for (size_t i = 0; i < minima.size(); ++i) {
      const double part = static_cast<double>(minima[i].value()) /
                          static_cast<double>(options_.usable.value());
      if (part > 1) {
        scenario_.category = "infeasible";
        scenario_.first_step_over = i;
        break;
      }
      if (part > 0.8 && scenario_.category == "relaxed") {
        scenario_.category = "moderate";
      }
      if (part > 0.95) scenario_.category = "tight";
    }
    return std::move(scenario_);
  }

  const GeneratorOptions& options_;
  const std::map<std::string, Workload>& workloads_;
  StressRandom random_;
  std::map<std::string, ModelSizes> sizes_;
  double free_at_ = 0;                      // when the request before is served
  std::map<std::string, double> last_use_;  // of what is there
  Scenario scenario_;
};

}  // namespace

absl::StatusOr<std::map<std::string, double>> ParseModelMix(
    std::string_view text) {
  std::map<std::string, double> mix;
  for (const absl::string_view item :
       absl::StrSplit(absl::string_view(text.data(), text.size()), ',')) {
    const std::pair<absl::string_view, absl::string_view> parts =
        absl::StrSplit(item, absl::MaxSplits('=', 1));
    double weight = 1;
    const bool has_weight = parts.first.size() != item.size();
    if (parts.first.empty() ||
        (has_weight && (!absl::SimpleAtod(parts.second, &weight) ||
                        !(weight >= 0 && weight <= 1e9)))) {
      return absl::InvalidArgumentError(
          absl::StrCat("\"", item, "\" is no model with a weight, as a=2 is"));
    }
    mix[std::string(parts.first)] = weight;
  }
  return mix;
}

absl::StatusOr<Scenario> GenerateScenario(
    const GeneratorOptions& options,
    const std::map<std::string, Workload>& workloads) {
  return Generator(options, workloads).Run();
}

}  // namespace quire
