#include "bench/model_switching/real_models.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "bench/model_switching/plain_rates.h"
#include "bench/stress_random.h"
#include "quire/alloc/quiescent.h"
#include "quire/alloc/status_macros.h"
#include "quire/model/engine.h"
#include "quire/model/session.h"

namespace quire {
namespace {

using Clock = std::chrono::steady_clock;

double SecondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

absl::Status OfModel(const std::string& path, const absl::Status& status) {
  if (status.ok()) return status;
  return absl::Status(status.code(),
                      absl::StrCat(path, ": ", std::string(status.message())));
}

// "MODEL" or "MODEL:adapter=FOLDER".
struct Source {
  std::string model;
  std::string adapter;  // empty: none
};

Source ParseSource(const std::string& text) {
  constexpr std::string_view kAdapter = ":adapter=";
  const size_t end = text.find(kAdapter);
  if (end == text.npos) return {text, ""};
  return {text.substr(0, end), text.substr(end + kAdapter.size())};
}

SessionOptions MakeSessionOptions(const RealOptions& options,
                                  const Source& source) {
  SessionOptions session;
  if (!source.adapter.empty()) {
    session.adapters.push_back({"adapter", source.adapter});
  }
  session.device.page_size = options.page_size;
  session.device.memory_utilization = 1;
  session.threads = options.threads;
  return session;
}

std::vector<TokenId> DrawPrompt(uint64_t length, uint32_t vocab_size,
                                StressRandom* random) {
  std::vector<TokenId> prompt(length);
  for (TokenId& token : prompt) {
    token = static_cast<TokenId>(random->Uniform() * vocab_size);
  }
  return prompt;
}

// One model on a device, with one sequence that it goes on with.
class Decoding {
 public:
  // Goes on behind `prompt` with up to `new_tokens`, which are appended to
  // `tokens`.
  static absl::StatusOr<std::unique_ptr<Decoding>> Open(
      const std::string& path, const SessionOptions& options,
      std::vector<TokenId> prompt, uint64_t new_tokens,
      std::vector<TokenId>* tokens) {
    auto decoding = std::unique_ptr<Decoding>(new Decoding());
    QUIRE_ASSIGN_OR_RETURN(decoding->session_, Session::Open(path, options));
    Session& session = *decoding->session_;
    decoding->engine_ =
        std::make_unique<Engine>(&session.decoder(), &session.cache(),
                                 /*max_sequences=*/1, &session.adapters());
    Request request;
    for (const AdapterInfo& adapter : session.adapters().List()) {
      request.adapter = adapter.id;
    }
    request.prompt = std::move(prompt);
    request.max_new_tokens = new_tokens;
    request.sampling.temperature = 0;
    request.on_token = [tokens](TokenId token, uint32_t /*continuation*/) {
      tokens->push_back(token);
      return true;
    };
    QUIRE_RETURN_IF_ERROR(decoding->engine_->Add(std::move(request)).status());
    decoding->tokens_ = tokens;
    return decoding;
  }

  // Until there are so many in all, or no more come.
  absl::Status DecodeTo(size_t tokens) {
    while (tokens_->size() < tokens && !engine_->done()) {
      QUIRE_RETURN_IF_ERROR(engine_->Step());
    }
    return absl::OkStatus();
  }

  Session& session() { return *session_; }

 private:
  Decoding() = default;
  std::unique_ptr<Session> session_;
  std::unique_ptr<Engine> engine_;  // destroyed first
  std::vector<TokenId>* tokens_ = nullptr;
};

absl::StatusOr<RealModel> RunOneAlone(const RealOptions& options,
                                      const std::string& path,
                                      StressRandom* random) {
  const Source source = ParseSource(path);
  RealModel model;
  model.path = path;
  const uint64_t new_tokens = options.tokens_per_turn * options.turns;
  QUIRE_ASSIGN_OR_RETURN(const std::unique_ptr<Checkpoint> checkpoint,
                         Checkpoint::Open(source.model));
  QUIRE_ASSIGN_OR_RETURN(const ModelConfig config,
                         ParseModelConfig(*checkpoint));
  for (const CheckpointFile& file : checkpoint->files()) {
    model.files.push_back(file.path);
  }
  model.prompt = DrawPrompt(options.prompt_tokens, config.vocab_size, random);
  QUIRE_ASSIGN_OR_RETURN(
      const std::unique_ptr<Decoding> decoding,
      Decoding::Open(source.model, MakeSessionOptions(options, source),
                     model.prompt, new_tokens, &model.tokens));
  QUIRE_RETURN_IF_ERROR(decoding->DecodeTo(new_tokens));
  model.peak = decoding->session().runtime().memory()->GetStatistics().in_use;
  return model;
}

class Turns {
 public:
  Turns(const RealOptions& options, const std::vector<RealModel>& models,
        SwitchStrategy strategy)
      : options_(options), models_(models), places_(models.size()) {
    result_.strategy = strategy;
    result_.tokens.resize(models.size());
  }

  absl::StatusOr<RealResult> Run() {
    QUIRE_RETURN_IF_ERROR(CreateDevice());
    result_.planned_switches = options_.turns * models_.size();
    const auto total = static_cast<double>(result_.planned_switches);
    for (uint64_t turn = 0; turn < options_.turns; ++turn) {
      for (size_t i = 0; i < models_.size(); ++i) {
        if (options_.progress) {
          options_.progress(absl::StrCat(SwitchStrategyName(result_.strategy),
                                         ", ", models_[i].path),
                            static_cast<double>(turn * models_.size() + i),
                            total);
        }
        const absl::Status status = OfModel(models_[i].path, Turn(i));
        NoteUse();
        if (absl::IsResourceExhausted(status)) {
          result_.failure = std::string(status.message());
          result_.failure_kind = KindOfFailure(i);
          return Finish();
        }
        QUIRE_RETURN_IF_ERROR(status);
      }
    }
    return Finish();
  }

 private:
  struct Place {
    std::unique_ptr<Decoding> decoding;
    bool asleep = false;
  };

  ShortageKind KindOfFailure(size_t failed) const {
    Bytes needed = models_[failed].peak;
    for (size_t i = 0; i < places_.size(); ++i) {
      const bool there =
          places_[i].decoding != nullptr ? !places_[i].asleep : ComesBack(i);
      if (i == failed || !there) continue;
      needed = SaturatingAdd(needed, models_[i].peak);
    }
    return needed > result_.device_memory ? ShortageKind::kCapacity
                                          : ShortageKind::kFragmentation;
  }

  absl::Status CreateDevice() {
    Bytes memory = options_.device_memory;
    if (memory.zero()) {
      for (const RealModel& model : models_) {
        memory = std::max(memory, model.peak);
      }
      memory = SaturatingAdd(memory, Bytes(memory.value() / 16));
    }
    DeviceOptions device;
    device.device_memory = memory;
    device.memory_utilization = 1;
    device.page_size = options_.page_size;
    QUIRE_ASSIGN_OR_RETURN(runtime_, CreateRuntime(device));
    result_.device_memory = memory;
    return absl::OkStatus();
  }

  // kRestart: was there before, and has more to say.
  bool ComesBack(size_t index) const {
    return result_.strategy == SwitchStrategy::kRestart && opened_[index] > 0 &&
           result_.tokens[index].size() <
               options_.tokens_per_turn * options_.turns;
  }

  // What a new process begins with: a device of its own, and all that was
  // there, but for the model that it switches to.
  absl::Status Restart(size_t index) {
    for (Place& place : places_) place = {};
    runtime_.reset();
    QUIRE_RETURN_IF_ERROR(CreateDevice());
    for (size_t i = 0; i < places_.size(); ++i) {
      if (i != index && ComesBack(i)) QUIRE_RETURN_IF_ERROR(Open(i));
    }
    return absl::OkStatus();
  }

  absl::Status Turn(size_t index) {
    const Clock::time_point start = Clock::now();
    if (result_.strategy == SwitchStrategy::kRestart) {
      QUIRE_RETURN_IF_ERROR(Restart(index));
    } else if (result_.strategy != SwitchStrategy::kKeep) {
      for (size_t i = 0; i < places_.size(); ++i) {
        if (i != index) QUIRE_RETURN_IF_ERROR(PutAway(i));
      }
    }
    QUIRE_RETURN_IF_ERROR(MakeReady(index));
    RealSwitch done;
    done.model = index;
    done.seconds_to_switch = SecondsSince(start);
    Decoding& decoding = *places_[index].decoding;
    const size_t before = result_.tokens[index].size();
    QUIRE_RETURN_IF_ERROR(decoding.DecodeTo(before + 1));
    done.seconds_to_first_token = SecondsSince(start);
    QUIRE_RETURN_IF_ERROR(decoding.DecodeTo(before + options_.tokens_per_turn));
    const DeviceMemoryStatistics memory = runtime_->memory()->GetStatistics();
    done.reserved = memory.in_use;
    done.host_memory = memory.asleep_on_host;
    result_.switches.push_back(done);
    return absl::OkStatus();
  }

  OwnerId OwnerOf(size_t index) {
    return *places_[index].decoding->session().runtime().owner();
  }

  absl::Status PutAway(size_t index) {
    Place& place = places_[index];
    if (place.decoding == nullptr || place.asleep) return absl::OkStatus();
    if (result_.strategy == SwitchStrategy::kReload) {
      place.decoding.reset();
      return absl::OkStatus();
    }
    const StreamId stream = place.decoding->session().decoder().stream();
    QUIRE_ASSIGN_OR_RETURN(
        const QuiescentSection section,
        QuiescentSection::Begin(runtime_->memory(), std::span(&stream, 1)));
    QUIRE_ASSIGN_OR_RETURN(
        const SleepReport report,
        runtime_->allocator()->Sleep(section, OwnerOf(index)));
    place.asleep = true;
    result_.copied_out = SaturatingAdd(result_.copied_out, report.bytes_moved);
    // The pages of who wakes up are new, as those of MeasureCopy are.
    runtime_->memory()->Trim();
    NoteUse();
    return absl::OkStatus();
  }

  absl::Status MakeReady(size_t index) {
    Place& place = places_[index];
    if (place.decoding == nullptr) return Open(index);
    if (!place.asleep) return absl::OkStatus();
    const Clock::time_point start = Clock::now();
    QUIRE_ASSIGN_OR_RETURN(const SleepReport report,
                           runtime_->allocator()->Wake(OwnerOf(index)));
    result_.wake_seconds += SecondsSince(start);
    result_.copied_in = SaturatingAdd(result_.copied_in, report.bytes_moved);
    woken_.push_back(report.bytes_moved);
    place.asleep = false;
    return absl::OkStatus();
  }

  // Goes on behind the tokens that there are.
  absl::Status Open(size_t index) {
    const Source source = ParseSource(models_[index].path);
    SessionOptions session = MakeSessionOptions(options_, source);
    session.runtime = runtime_.get();
    session.owner = absl::StrCat("model", index);
    std::vector<TokenId>& tokens = result_.tokens[index];
    std::vector<TokenId> prompt = models_[index].prompt;
    prompt.insert(prompt.end(), tokens.begin(), tokens.end());
    const Clock::time_point start = Clock::now();
    QUIRE_ASSIGN_OR_RETURN(
        places_[index].decoding,
        Decoding::Open(
            source.model, session, std::move(prompt),
            options_.tokens_per_turn * options_.turns - tokens.size(),
            &tokens));
    result_.load_seconds += SecondsSince(start);
    ++opened_[index];
    const Session& opened = places_[index].decoding->session();
    loaded_[index] = opened.weights().load_report().bytes;
    result_.read = SaturatingAdd(result_.read, loaded_[index]);
    return absl::OkStatus();
  }

  void NoteUse() {
    const DeviceMemoryStatistics memory = runtime_->memory()->GetStatistics();
    result_.peak_reserved = std::max(result_.peak_reserved, memory.in_use);
    result_.peak_host_memory =
        std::max(result_.peak_host_memory, memory.asleep_on_host);
  }

  absl::StatusOr<RealResult> Finish() {
    places_.clear();
    for (const Bytes bytes : woken_) {
      QUIRE_ASSIGN_OR_RETURN(const double seconds,
                             MeasureCopy(bytes, options_.page_size));
      result_.copy_seconds += seconds;
    }
    for (size_t i = 0; i < models_.size(); ++i) {
      if (opened_[i] == 0) continue;
      QUIRE_ASSIGN_OR_RETURN(const double seconds,
                             MeasureRead(models_[i].files));
      QUIRE_ASSIGN_OR_RETURN(const double copy,
                             MeasureCopy(loaded_[i], options_.page_size));
      const auto times = static_cast<double>(opened_[i]);
      result_.read_seconds += seconds * times;
      result_.bound_seconds += std::max(seconds, copy) * times;
    }
    return std::move(result_);
  }

  const RealOptions& options_;
  const std::vector<RealModel>& models_;
  std::unique_ptr<Runtime> runtime_;
  std::vector<Place> places_;  // destroyed before the device
  std::vector<Bytes> woken_;
  std::vector<uint64_t> opened_ =
      std::vector<uint64_t>(models_.size());                        // how often
  std::vector<Bytes> loaded_ = std::vector<Bytes>(models_.size());  // each time
  RealResult result_;
};

}  // namespace

absl::StatusOr<std::vector<RealModel>> RunAlone(const RealOptions& options) {
  StressRandom random(options.seed);
  std::vector<RealModel> models;
  for (const std::string& path : options.models) {
    if (options.progress) {
      options.progress(absl::StrCat("alone, ", path),
                       static_cast<double>(models.size()),
                       static_cast<double>(options.models.size()));
    }
    absl::StatusOr<RealModel> model = RunOneAlone(options, path, &random);
    QUIRE_RETURN_IF_ERROR(OfModel(path, model.status()));
    models.push_back(*std::move(model));
  }
  return models;
}

absl::StatusOr<RealResult> RunInTurns(const RealOptions& options,
                                      const std::vector<RealModel>& models,
                                      SwitchStrategy strategy) {
  return Turns(options, models, strategy).Run();
}

std::optional<size_t> FirstDifference(const std::vector<TokenId>& alone,
                                      const std::vector<TokenId>& tokens) {
  const auto [first, second] =
      std::mismatch(alone.begin(), alone.end(), tokens.begin(), tokens.end());
  if (first == alone.end() && second == tokens.end()) return std::nullopt;
  return static_cast<size_t>(first - alone.begin());
}

}  // namespace quire
