#include "model/engine/reservation.h"

#include <utility>

#include "quire/alloc/status_macros.h"
#include "quire/model/decoder.h"
#include "quire/model/thread_pool.h"

namespace quire {
namespace {

// Room for workspaces, whatever the batch, on all devices together: they carry
// no memory.
constexpr Bytes kRoomForWorkspace = GiB(1024);

Bytes RequestedBytes(const Runtime& runtime, DeviceId device) {
  return Bytes(runtime.allocator(device)->GetStatistics().requested_bytes);
}

}  // namespace

absl::StatusOr<Reservation> ReserveModel(const Checkpoint& checkpoint,
                                         const ModelConfig& config,
                                         const SessionOptions& options,
                                         const WeightPlacement& placement,
                                         int device_count) {
  DeviceOptions large = options.device;
  large.driver = "host";
  large.backing = false;
  large.memory_utilization = 1;
  large.device_count = device_count;
  large.limits.clear();
  large.device_memory = SaturatingAdd(
      SaturatingAdd(checkpoint.total_size(), checkpoint.total_size()),
      Bytes(kRoomForWorkspace.value() / static_cast<uint64_t>(device_count)));
  Reservation made;
  QUIRE_ASSIGN_OR_RETURN(made.runtime, CreateRuntime(large));
  Runtime* const runtime = made.runtime.get();
  QUIRE_ASSIGN_OR_RETURN(
      made.weights,
      ModelWeights::Reserve(runtime, checkpoint, config, options.streaming,
                            placement, options.weights));
  made.devices.resize(static_cast<size_t>(device_count));
  std::vector<Bytes> before;
  for (int i = 0; i < device_count; ++i)
    before.push_back(RequestedBytes(*runtime, DeviceId(i)));
  ThreadPool pool(1);
  QUIRE_ASSIGN_OR_RETURN(const std::unique_ptr<Decoder> decoder,
                         Decoder::Create(runtime, config, made.weights.get(),
                                         &pool, options.decoder));
  for (int i = 0; i < device_count; ++i) {
    made.devices[static_cast<size_t>(i)].workspace = SaturatingSubtract(
        RequestedBytes(*runtime, DeviceId(i)), before[static_cast<size_t>(i)]);
  }
  AdapterSet adapters(runtime, config, made.weights->tied_head(),
                      options.decoder.max_batch_tokens);
  for (const AdapterSource& adapter : options.adapters)
    QUIRE_RETURN_IF_ERROR(
        adapters.Reserve(adapter.name, adapter.folder).status());
  made.adapters = adapters.List();
  for (int i = 0; i < device_count; ++i) {
    DeviceReservation& device = made.devices[static_cast<size_t>(i)];
    const Bytes allocated(
        runtime->allocator(DeviceId(i))->GetStatistics().mapped_bytes);
    if (const OffloadStore* const store = made.weights->store(DeviceId(i));
        store != nullptr)
      device.buffers = store->GetStatistics().device;
    device.fixed = SaturatingAdd(allocated, device.buffers);
    device.peak = runtime->memory(DeviceId(i))->GetStatistics().peak_in_use;
  }
  QUIRE_ASSIGN_OR_RETURN(
      made.layers,
      LayersByDevice(config, options, LayerDevices(config, *made.weights)));
  return made;
}

}  // namespace quire
