// Whatever adapter_config.json and the names and shapes of an adapter's
// tensors, it is refused or is one whose modules fit together; a model takes it
// or refuses it, and gets its memory back.
//
// The input has these two parts; the second one is a list for TensorFile.

#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "quire/alloc/host_driver.h"
#include "quire/alloc/runtime.h"
#include "quire/alloc/status_macros.h"
#include "quire/loader/lora.h"
#include "quire/model/adapters.h"
#include "quire/model/model_config.h"
#include "tests/fuzz/fuzz_util.h"
#include "tests/fuzz/targets.h"

namespace quire {
namespace {

// Two layers, small enough for their adapters to be 1 MiB.
ModelConfig SmallModel() {
  ModelConfig config;
  config.family = "llama";
  config.hidden_size = 8;
  config.intermediate_size = 16;
  config.layers = 2;
  config.heads = 2;
  config.kv_heads = 1;
  config.head_dim = 4;
  config.vocab_size = 32;
  config.max_positions = 64;
  return config;
}

// Devices are as large as the adapters want: pages carry no memory.
absl::StatusOr<std::unique_ptr<Runtime>> EmptyDevice() {
  HostDriverOptions options;
  options.memory_per_device = MiB(64);
  options.granularity = KiB(64);
  options.backing = HostDriverOptions::Backing::kNone;
  QUIRE_ASSIGN_OR_RETURN(auto driver, HostDriver::Create(options));
  return Runtime::Create(std::move(driver), {.page_size = KiB(64)});
}

absl::Status CheckModules(const LoraAdapter& adapter) {
  for (const LoraModule& module : adapter.modules()) {
    QUIRE_RETURN_IF_ERROR(Property(adapter.Find(module.name) == &module,
                                   "a module is found by its name"));
    QUIRE_RETURN_IF_ERROR(
        Property((module.a == nullptr) == (module.b == nullptr),
                 "a product has both factors or none"));
    QUIRE_RETURN_IF_ERROR(Property(module.a != nullptr ||
                                       module.weight != nullptr ||
                                       module.bias != nullptr,
                                   "a module has a tensor"));
    QUIRE_RETURN_IF_ERROR(Property(
        module.a == nullptr || (module.rank > 0 && std::isfinite(module.scale)),
        "a product has a rank and a scale"));
    const absl::Status target =
        adapter.CheckTarget(module.name, LoraTarget::kLinear);
    if (!target.ok()) QUIRE_RETURN_IF_ERROR(CheckRefusal(target));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status FuzzAdapter(std::string_view input) {
  static const ScratchFolder folder;
  static const auto* const device =
      new absl::StatusOr<std::unique_ptr<Runtime>>(EmptyDevice());
  QUIRE_RETURN_IF_ERROR(device->status());
  const std::vector<std::string_view> parts = InputParts(input, 2);
  QUIRE_RETURN_IF_ERROR(folder.Write("adapter_config.json", parts[0]));
  QUIRE_RETURN_IF_ERROR(
      folder.Write("adapter_model.safetensors", TensorFile(parts[1])));
  const auto adapter = LoraAdapter::Open(folder.path());
  if (!adapter.ok()) return CheckRefusal(adapter.status());
  QUIRE_RETURN_IF_ERROR(CheckModules(**adapter));

  for (const bool tied_head : {false, true}) {
    AdapterSet adapters(device->value().get(), SmallModel(), tied_head,
                        /*max_batch_tokens=*/4);
    const auto id = adapters.Reserve("fuzzed", folder.path());
    if (!id.ok()) {
      QUIRE_RETURN_IF_ERROR(CheckRefusal(id.status()));
      continue;
    }
    QUIRE_RETURN_IF_ERROR(adapters.Unload(*id));
  }
  return Property(
      device->value()->allocator()->GetStatistics().live_allocations == 0,
      "an adapter that was unloaded has no memory");
}

}  // namespace quire
