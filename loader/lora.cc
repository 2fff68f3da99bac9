#include "quire/loader/lora.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <map>
#include <system_error>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "loader/lora_config.h"
#include "quire/alloc/quote.h"
#include "quire/alloc/status_macros.h"

namespace quire {
namespace {

constexpr char kPrefix[] = "base_model.model.";
constexpr char kConfigName[] = "adapter_config.json";
constexpr char kTensorsName[] = "adapter_model.safetensors";

// A tensor's name taken apart: module, what of it, and the adapter's name,
// which older versions of PEFT leave in ("lora_A.default.weight").
struct ParsedName {
  std::string_view module;
  const TensorInfo* LoraModule::*slot = nullptr;  // null: not understood
  bool embedding = false;
  bool copied = false;  // "modules_to_save"
};

struct Suffix {
  std::string_view marker;  // after the module, before an adapter's name
  std::string_view end;     // after that
  const TensorInfo* LoraModule::*slot;
  bool embedding = false;
  bool copied = false;
};
constexpr std::array<Suffix, 11> kLoraSuffixes = {{
    {".lora_A", ".weight", &LoraModule::a},
    {".lora_B", ".weight", &LoraModule::b},
    {".lora_B", ".bias", &LoraModule::b_bias},
    {".lora_embedding_A", "", &LoraModule::a, true},
    {".lora_embedding_B", "", &LoraModule::b, true},
    {".modules_to_save", ".weight", &LoraModule::weight, false, true},
    {".modules_to_save", ".bias", &LoraModule::bias, false, true},
    {".base_layer", ".weight", &LoraModule::weight},
    {".base_layer", ".bias", &LoraModule::bias},
    {"", ".weight", &LoraModule::weight},
    {"", ".bias", &LoraModule::bias},
}};

// Whether `name` is a module, `suffix`, and perhaps one word between the
// suffix's two parts.
bool Split(std::string_view name, const Suffix& suffix,
           std::string_view* module) {
  if (!name.ends_with(suffix.end)) return false;
  name.remove_suffix(suffix.end.size());
  const size_t marker = name.rfind(suffix.marker);
  if (marker == std::string_view::npos || marker == 0) return false;
  const std::string_view word = name.substr(marker + suffix.marker.size());
  if (!suffix.marker.empty() && !word.empty() &&
      (word.front() != '.' || word.find('.', 1) != std::string_view::npos))
    return false;
  *module = name.substr(0, suffix.marker.empty() ? name.size() : marker);
  return true;
}

ParsedName Parse(std::string_view name) {
  ParsedName parsed;
  for (const Suffix& suffix : kLoraSuffixes) {
    if (!Split(name, suffix, &parsed.module)) continue;
    // A part of an adapter that is not in the table is no module of the model.
    if (parsed.module.find(".lora_") == std::string_view::npos)
      parsed.slot = suffix.slot;
    parsed.embedding = suffix.embedding;
    parsed.copied = suffix.copied;
    return parsed;
  }
  return parsed;
}

std::string ShapeText(const TensorInfo& tensor) {
  return absl::StrCat(DTypeName(tensor.dtype), " [",
                      absl::StrJoin(tensor.shape, ", "), "]");
}

bool IsFloat(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kF16 || dtype == DType::kBF16;
}

}  // namespace

const TensorInfo& LoraModule::tensor() const {
  for (const TensorInfo* tensor : {a, b, b_bias, weight})
    if (tensor != nullptr) return *tensor;
  return *bias;  // a module is there because of a tensor
}

LoraAdapter::LoraAdapter() = default;
LoraAdapter::~LoraAdapter() = default;

bool LoraAdapter::ties_weights() const { return config_->ties_weights(); }

absl::Status LoraAdapter::Error(const TensorInfo& tensor,
                                std::string_view problem) const {
  return absl::InvalidArgumentError(absl::StrCat(
      Printable(checkpoint_->files()[tensor.file].path), ": tensor ",
      Quoted(tensor.name), " ", std::string(problem)));
}

absl::StatusOr<std::unique_ptr<LoraAdapter>> LoraAdapter::Open(
    const std::string& folder) {
  auto adapter = absl::WrapUnique(new LoraAdapter);
  const std::filesystem::path path(folder);
  std::error_code error;
  if (!std::filesystem::is_directory(path, error))
    return absl::NotFoundError(
        absl::StrCat(Printable(folder), ": is no folder with an adapter"));
  QUIRE_ASSIGN_OR_RETURN(
      LoraConfig config,
      LoraConfig::Read((path / kConfigName).string(), &adapter->warnings_));
  adapter->config_ = std::make_unique<LoraConfig>(std::move(config));
  const std::filesystem::path tensors = path / kTensorsName;
  if (!std::filesystem::exists(tensors, error)) {
    const bool pickled =
        std::filesystem::exists(path / "adapter_model.bin", error);
    return absl::NotFoundError(absl::StrCat(
        Printable(folder), ": no ", kTensorsName,
        pickled ? "; adapter_model.bin is not read, because it can run code: "
                  "convert it to safetensors"
                : ""));
  }
  QUIRE_ASSIGN_OR_RETURN(adapter->checkpoint_,
                         Checkpoint::Open(tensors.string()));
  QUIRE_RETURN_IF_ERROR(adapter->ReadTensors());
  return adapter;
}

absl::Status LoraAdapter::ReadTensors() {
  Modules modules;
  for (const TensorInfo& tensor : checkpoint_->tensors())
    QUIRE_RETURN_IF_ERROR(AddTensor(tensor, &modules));
  for (auto& [name, module] : modules) modules_.push_back(std::move(module));
  if (modules_.empty())
    return absl::InvalidArgumentError(
        absl::StrCat(Printable(checkpoint_->files().front().path),
                     ": has no tensors, so the adapter does nothing"));
  for (LoraModule& module : modules_)
    QUIRE_RETURN_IF_ERROR(CheckModule(&module));
  return CheckSavedModules();
}

absl::Status LoraAdapter::AddTensor(const TensorInfo& tensor,
                                    Modules* modules) const {
  const std::string_view name = tensor.name;
  if (name.find(".lora_magnitude_vector") != std::string_view::npos)
    return absl::UnimplementedError(
        Error(tensor, "is of DoRA, which is not supported; plain LoRA is")
            .message());
  const bool prefixed = name.starts_with(kPrefix);
  const ParsedName parsed =
      prefixed ? Parse(name.substr(sizeof(kPrefix) - 1)) : ParsedName();
  if (parsed.slot == nullptr)
    return Error(tensor,
                 "is none that an adapter has (base_model.model.<module>."
                 "lora_A.weight and the like)");
  if (!IsFloat(tensor.dtype))
    return Error(tensor, absl::StrCat("is ", DTypeName(tensor.dtype),
                                      ", not F32, F16 or BF16"));
  LoraModule& module = (*modules)[std::string(parsed.module)];
  module.name = parsed.module;
  const TensorInfo*& slot = module.*parsed.slot;
  if (slot != nullptr)
    return Error(tensor, absl::StrCat("means the same as ", Quoted(slot->name),
                                      ", and only one can count"));
  slot = &tensor;
  if (parsed.slot == &LoraModule::a || parsed.slot == &LoraModule::b) {
    const bool other_half = module.a != nullptr && module.b != nullptr;
    if (other_half && module.embedding != parsed.embedding)
      return Error(tensor,
                   "is of an embedding, and its other half of a "
                   "linear, or the other way round");
    module.embedding = parsed.embedding;
  }
  module.copied |= parsed.copied;
  return absl::OkStatus();
}

absl::Status LoraAdapter::CheckModule(LoraModule* module) const {
  module->copied |= config_->IsSaved(module->name);
  if (module->a == nullptr && module->b == nullptr) {
    if (module->b_bias != nullptr)
      return Error(*module->b_bias, "has no lora_A and lora_B beside it");
    return absl::OkStatus();
  }
  const TensorInfo& present = module->a != nullptr ? *module->a : *module->b;
  if (module->a == nullptr || module->b == nullptr)
    return Error(present,
                 absl::StrCat("has no other half: ",
                              module->a == nullptr ? "lora_A" : "lora_B",
                              " of the module is absent"));
  for (const TensorInfo* half : {module->a, module->b}) {
    if (half->shape.size() != 2 || half->elements() == 0)
      return Error(*half, absl::StrCat("is ", ShapeText(*half),
                                       ", not a matrix of elements"));
  }
  module->rank = module->a->shape[0];
  if (module->b->shape[1] != module->rank)
    return Error(*module->b,
                 absl::StrCat("is ", ShapeText(*module->b), ", and lora_A ",
                              ShapeText(*module->a), ": their ranks differ"));
  QUIRE_ASSIGN_OR_RETURN(const uint64_t rank, config_->RankOf(module->name));
  if (rank != module->rank)
    return Error(*module->a, absl::StrCat("is of rank ", module->rank,
                                          ", the configuration says ", rank));
  QUIRE_ASSIGN_OR_RETURN(module->scale,
                         config_->ScaleOf(module->name, module->rank));
  // PEFT puts a module with a product in front of the base's, whose tensors are
  // then called base_layer.
  if (module->weight != nullptr &&
      module->weight->name.find(".base_layer.") == std::string::npos)
    return Error(*module->weight,
                 "stands beside a product for the same module");
  return absl::OkStatus();
}

absl::Status LoraAdapter::CheckSavedModules() const {
  for (const std::string& part : config_->saved_modules()) {
    const bool found = std::any_of(
        modules_.begin(), modules_.end(), [&](const LoraModule& module) {
          return LoraConfig::IsWithin(module.name, part);
        });
    if (!found)
      return absl::InvalidArgumentError(
          absl::StrCat(config_->where(), ": modules_to_save has ", Quoted(part),
                       ", but ", kTensorsName, " has no tensor of it"));
  }
  return absl::OkStatus();
}

const LoraModule* LoraAdapter::Find(std::string_view module) const {
  const auto found =
      std::lower_bound(modules_.begin(), modules_.end(), module,
                       [](const LoraModule& m, std::string_view wanted) {
                         return m.name < wanted;
                       });
  return found != modules_.end() && found->name == module ? &*found : nullptr;
}

absl::Status LoraAdapter::CheckTarget(std::string_view module,
                                      LoraTarget target) const {
  if (!config_->has_targets()) return absl::OkStatus();
  QUIRE_ASSIGN_OR_RETURN(const bool targeted, config_->Targets(module, target));
  const LoraModule* const found = Find(module);
  const bool has_product = found != nullptr && found->a != nullptr;
  if (targeted && !has_product)
    return absl::InvalidArgumentError(absl::StrCat(
        config_->where(), ": target_modules has ", Quoted(module), ", but ",
        kTensorsName, " has no tensor ", kPrefix, std::string(module),
        target == LoraTarget::kEmbedding ? ".lora_embedding_A"
                                         : ".lora_A.weight"));
  if (!targeted && has_product)
    return Error(*found->a, "is of a module that target_modules does not name");
  return absl::OkStatus();
}

}  // namespace quire
