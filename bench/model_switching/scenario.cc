#include "bench/model_switching/scenario.h"

#include <array>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"
#include "quire/alloc/status_macros.h"
#include "quire/alloc/trace_formats.h"
#include "quire/loader/json_text.h"

namespace quire {
namespace {

using nlohmann::json;
using Kind = ScenarioStep::Kind;

constexpr std::array<std::pair<const char*, Kind>, 8> kKinds = {
    {{"load", Kind::kLoad},
     {"run", Kind::kRun},
     {"unload", Kind::kUnload},
     {"sleep", Kind::kSleep},
     {"wake", Kind::kWake},
     {"reserve", Kind::kReserve},
     {"release", Kind::kRelease},
     {"parallel", Kind::kParallel}}};

constexpr char kMinima[] = "minimum_peak_bytes_of_each_step";

// What memory is handed out in.
constexpr Bytes kPage = MiB(2);
// Larger devices, and larger numbers of tensors, are no one's.
constexpr Bytes kLargestDevice = GiB(4096);
constexpr uint64_t kMostTensors = uint64_t{1} << 21;

// Reads fields of one object; the first that is wrong is the error.
class Fields {
 public:
  explicit Fields(const json& object) : object_(object) {
    if (!object.is_object()) Refuse("it is no object");
  }

  void Read(const char* name, std::string* value) {
    const json* const field = Find(name);
    if (field == nullptr) return;
    if (!field->is_string()) return Refuse(name, " is no text");
    *value = field->get<std::string>();
  }
  void Read(const char* name, uint64_t* value) {
    const json* const field = Find(name);
    if (field == nullptr) return;
    if (!field->is_number_unsigned()) return Refuse(name, " is no number");
    *value = field->get<uint64_t>();
  }
  void Read(const char* name, Bytes* value) {
    uint64_t bytes = 0;
    Read(name, &bytes);
    *value = Bytes(bytes);
  }
  // Empty where it is no list.
  const json& List(const char* name) {
    static const json& empty = *new json(json::array());
    const json* const field = Find(name);
    if (field == nullptr) return empty;
    if (field->is_array()) return *field;
    Refuse(name, " is no list");
    return empty;
  }
  bool Has(const char* name) const {
    return object_.is_object() && object_.contains(name);
  }
  const absl::Status& status() const { return status_; }

 private:
  const json* Find(const char* name) {
    if (Has(name)) return &object_[name];
    Refuse(name, " is missing");
    return nullptr;
  }
  void Refuse(const char* what, const char* why = "") {
    status_.Update(absl::InvalidArgumentError(absl::StrCat(what, why)));
  }

  const json& object_;
  absl::Status status_;
};

absl::Status Refuse(const std::string& what) {
  return absl::InvalidArgumentError(what);
}

absl::Status Within(const absl::Status& status, const std::string& where) {
  if (status.ok()) return status;
  return absl::InvalidArgumentError(
      absl::StrCat(where, ": ", std::string(status.message())));
}

bool NamesPool(Kind kind) {
  return kind == Kind::kReserve || kind == Kind::kRelease;
}

json PartToJson(const ScenarioPart& part) {
  return {{"workload", part.workload}, {"phase", part.phase}};
}

json StepToJson(const ScenarioStep& step) {
  json object = {{"do", ScenarioStepName(step.kind)}};
  if (step.kind == Kind::kParallel) {
    object["chunk"] = step.chunk;
    for (const ScenarioPart& part : step.parts) {
      object["parts"].push_back(PartToJson(part));
    }
    return object;
  }
  const ScenarioPart& part = step.parts.front();
  object[NamesPool(step.kind) ? "name" : "workload"] = part.workload;
  if (step.kind == Kind::kRun) object["phase"] = part.phase;
  if (step.kind == Kind::kReserve) {
    object["count"] = step.count;
    object["bytes_each"] = step.bytes_each.value();
  }
  return object;
}

absl::Status CheckParallel(const ScenarioStep& step) {
  if (step.chunk == 0) return Refuse("chunk is 0");
  if (step.parts.empty()) return Refuse("parts is empty");
  return absl::OkStatus();
}

absl::Status CheckReserve(const ScenarioStep& step) {
  if (step.bytes_each.zero()) return Refuse("bytes_each is 0");
  if (step.count > kMostTensors) {
    return Refuse(
        absl::StrCat("count is ", step.count, ", above ", kMostTensors));
  }
  if (!CheckedMultiply(step.bytes_each, step.count)) {
    return Refuse("count * bytes_each is more than 2^64");
  }
  return absl::OkStatus();
}

// What goes with loading and unloading is played by them.
absl::Status CheckPhase(const std::string& phase) {
  if (phase != "load" && phase != "unload") return absl::OkStatus();
  return Refuse(absl::StrCat("phase ", phase, " is none to run"));
}

absl::StatusOr<ScenarioStep> ReadStep(const json& object) {
  Fields fields(object);
  std::string name;
  fields.Read("do", &name);
  QUIRE_RETURN_IF_ERROR(fields.status());
  ScenarioStep step;
  bool known = false;
  for (const auto& [text, kind] : kKinds) {
    if (name != text) continue;
    step.kind = kind;
    known = true;
  }
  if (!known) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", name, "\" is nothing that can be done"));
  }
  if (step.kind == Kind::kParallel) {
    fields.Read("chunk", &step.chunk);
    for (const json& part : fields.List("parts")) {
      Fields of_part(part);
      ScenarioPart& read = step.parts.emplace_back();
      of_part.Read("workload", &read.workload);
      of_part.Read("phase", &read.phase);
      QUIRE_RETURN_IF_ERROR(of_part.status());
    }
  } else {
    ScenarioPart& part = step.parts.emplace_back();
    fields.Read(NamesPool(step.kind) ? "name" : "workload", &part.workload);
    if (step.kind == Kind::kRun) fields.Read("phase", &part.phase);
    if (step.kind == Kind::kReserve) {
      fields.Read("count", &step.count);
      fields.Read("bytes_each", &step.bytes_each);
    }
  }
  QUIRE_RETURN_IF_ERROR(fields.status());
  for (const ScenarioPart& part : step.parts) {
    QUIRE_RETURN_IF_ERROR(CheckPhase(part.phase));
  }
  if (step.kind == Kind::kParallel) QUIRE_RETURN_IF_ERROR(CheckParallel(step));
  if (step.kind == Kind::kReserve) QUIRE_RETURN_IF_ERROR(CheckReserve(step));
  return step;
}

absl::Status CheckDevice(const Scenario& scenario) {
  if (scenario.usable < kPage || scenario.usable > kLargestDevice) {
    return Refuse(absl::StrCat("usable_bytes is ", scenario.usable.value(),
                               ", and no device of ", FormatBytes(kPage),
                               " to ", FormatBytes(kLargestDevice)));
  }
  for (size_t i = 0; i < scenario.steps.size(); ++i) {
    const ScenarioStep& step = scenario.steps[i];
    if (step.kind != Kind::kReserve) continue;
    // A balloon takes as many as there is room for.
    if (scenario.usable.value() / step.bytes_each.value() > kMostTensors) {
      return Refuse(
          absl::StrCat("step ", i, ": bytes_each is ", step.bytes_each.value(),
                       ", of which the device holds more than ", kMostTensors));
    }
  }
  return absl::OkStatus();
}

// What is there, step by step, if memory never runs out.
class Order {
 public:
  absl::Status Play(const ScenarioStep& step) {
    for (const ScenarioPart& part : step.parts) {
      QUIRE_RETURN_IF_ERROR(PlayPart(step.kind, part.workload));
    }
    return absl::OkStatus();
  }

 private:
  struct Thing {
    bool pool;
    bool asleep;
  };

  absl::Status PlayPart(Kind kind, const std::string& name) {
    const auto found = there_.find(name);
    const bool there = found != there_.end();
    if (kind == Kind::kLoad || kind == Kind::kReserve) {
      if (there && (!found->second.asleep || NamesPool(kind))) {
        return Refuse(absl::StrCat(name, " is there already"));
      }
      there_[name] = {NamesPool(kind), false};
      return absl::OkStatus();
    }
    if (!there || found->second.pool != NamesPool(kind)) {
      return Refuse(absl::StrCat(name, " is not there"));
    }
    if (kind == Kind::kUnload || kind == Kind::kRelease) {
      there_.erase(found);
      return absl::OkStatus();
    }
    if (kind == Kind::kSleep && found->second.asleep) {
      return Refuse(absl::StrCat(name, " sleeps already"));
    }
    if (kind == Kind::kWake && !found->second.asleep) {
      return Refuse(absl::StrCat(name, " does not sleep"));
    }
    found->second.asleep = kind == Kind::kSleep;
    return absl::OkStatus();
  }

  std::map<std::string, Thing> there_;
};

absl::Status CheckOrder(const Scenario& scenario) {
  Order order;
  for (size_t i = 0; i < scenario.steps.size(); ++i) {
    QUIRE_RETURN_IF_ERROR(
        Within(order.Play(scenario.steps[i]), absl::StrCat("step ", i)));
  }
  return absl::OkStatus();
}

absl::StatusOr<Scenario> ReadScenario(const json& object) {
  Fields fields(object);
  Scenario scenario;
  fields.Read("name", &scenario.name);
  fields.Read("class", &scenario.category);
  fields.Read("usable_bytes", &scenario.usable);
  if (fields.Has("first_step_over")) {
    fields.Read("first_step_over", &scenario.first_step_over.emplace());
  }
  const bool has_minima = fields.Has(kMinima);
  if (has_minima) {
    for (const json& bytes : fields.List(kMinima)) {
      if (!bytes.is_number_unsigned()) {
        return absl::InvalidArgumentError(
            absl::StrCat(kMinima, " holds what is no number"));
      }
      scenario.minimum_peak_of_steps.push_back(Bytes(bytes.get<uint64_t>()));
    }
  }
  for (const json& step : fields.List("steps")) {
    absl::StatusOr<ScenarioStep> read = ReadStep(step);
    QUIRE_RETURN_IF_ERROR(
        Within(read.status(), absl::StrCat("step ", scenario.steps.size())));
    scenario.steps.push_back(*std::move(read));
  }
  QUIRE_RETURN_IF_ERROR(fields.status());
  if (has_minima &&
      scenario.minimum_peak_of_steps.size() != scenario.steps.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat(kMinima, " has ", scenario.minimum_peak_of_steps.size(),
                     " entries for ", scenario.steps.size(), " steps"));
  }
  QUIRE_RETURN_IF_ERROR(CheckDevice(scenario));
  QUIRE_RETURN_IF_ERROR(CheckOrder(scenario));
  scenario.usable =
      Bytes(scenario.usable.value() / kPage.value() * kPage.value());
  return scenario;
}

// For messages: by its number, and its name where it has one.
std::string NameOf(const json& scenario, size_t number) {
  std::string name = absl::StrCat("scenario ", number);
  if (scenario.is_object() && scenario.contains("name") &&
      scenario["name"].is_string()) {
    absl::StrAppend(&name, " (", scenario["name"].get<std::string>(), ")");
  }
  return name;
}

}  // namespace

const char* ScenarioStepName(Kind kind) {
  for (const auto& [text, known] : kKinds) {
    if (known == kind) return text;
  }
  return "?";
}

absl::StatusOr<std::vector<Scenario>> ReadScenarios(std::string_view contents) {
  const absl::StatusOr<json> file = ParseJsonText(contents, "it");
  if (!file.ok()) return absl::InvalidArgumentError("it is no JSON");
  Fields fields(*file);
  std::vector<Scenario> scenarios;
  for (const json& object : fields.List("scenarios")) {
    absl::StatusOr<Scenario> scenario = ReadScenario(object);
    QUIRE_RETURN_IF_ERROR(
        Within(scenario.status(), NameOf(object, scenarios.size())));
    scenarios.push_back(*std::move(scenario));
  }
  QUIRE_RETURN_IF_ERROR(fields.status());
  return scenarios;
}

std::string WriteScenarios(const std::vector<Scenario>& scenarios) {
  json list = json::array();
  for (const Scenario& scenario : scenarios) {
    json& object =
        list.emplace_back(json{{"name", scenario.name},
                               {"class", scenario.category},
                               {"usable_bytes", scenario.usable.value()}});
    if (scenario.first_step_over) {
      object["first_step_over"] = *scenario.first_step_over;
    }
    for (const Bytes bytes : scenario.minimum_peak_of_steps) {
      object[kMinima].push_back(bytes.value());
    }
    object["steps"] = json::array();
    for (const ScenarioStep& step : scenario.steps) {
      object["steps"].push_back(StepToJson(step));
    }
  }
  return json{{"scenarios", list}}.dump(1) + "\n";
}

std::vector<std::string> WorkloadsOf(const Scenario& scenario) {
  std::set<std::string> names;
  for (const ScenarioStep& step : scenario.steps) {
    if (NamesPool(step.kind)) continue;
    for (const ScenarioPart& part : step.parts) names.insert(part.workload);
  }
  return {names.begin(), names.end()};
}

absl::StatusOr<Workload> ReadWorkload(std::string_view contents) {
  QUIRE_ASSIGN_OR_RETURN(const AllocationTrace trace, ReadQuireCsv(contents));
  Workload workload;
  WorkloadPhase* phase = nullptr;
  uint64_t steps = 0;  // of the phase, that have begun
  for (const AllocationEvent& event : trace.events) {
    if (event.action == AllocationAction::kMark) {
      const std::string& label = trace.labels[event.label];
      const size_t space = label.find(' ');
      phase = &workload.phases[label.substr(0, space)];
      steps = space == std::string::npos ? 0 : steps + 1;
      if (steps == 2) phase->first_result = phase->events.size();
    }
    if (phase == nullptr) {
      return absl::InvalidArgumentError("events come before the first phase");
    }
    phase->events.push_back(event);
  }
  for (auto& [name, read] : workload.phases) {
    if (read.first_result == 0) read.first_result = read.events.size();
  }
  return workload;
}

}  // namespace quire
