#include "bench/kv_stress/bursts.h"

#include <algorithm>
#include <memory>

#include "quire/alloc/device_memory.h"
#include "quire/alloc/host_driver.h"
#include "quire/alloc/owner.h"
#include "quire/alloc/status_macros.h"
#include "quire/paging/kv_cache.h"
#include "quire/paging/scheduler.h"

namespace quire {
namespace {

struct Server {
  BurstResult result;
  bool had_burst = false;
  std::unique_ptr<KvCache> cache;
  std::unique_ptr<Scheduler> scheduler;
};

absl::StatusOr<Server> MakeServer(const StressModel& model,
                                  const BurstOptions& options,
                                  DeviceMemory* memory) {
  Server server;
  server.result.model = model.name();
  QUIRE_ASSIGN_OR_RETURN(
      const KvLayout layout,
      KvLayout::Create(model.Shape(KvDType::kF16), model.layers()));
  KvCacheOptions cache;
  cache.max_sequence_length = options.max_sequence_length;
  cache.owner = memory->owners()->Register(model.name());
  cache.eager_reclaim = options.eager_reclaim;
  QUIRE_ASSIGN_OR_RETURN(server.cache, KvCache::Create(memory, layout, cache));
  QUIRE_ASSIGN_OR_RETURN(server.scheduler,
                         Scheduler::Create(server.cache.get(), {}));
  return server;
}

absl::Status RunBurst(const std::vector<StressRequest>& requests, size_t active,
                      std::vector<Server>* servers) {
  Server& server = (*servers)[active];
  for (const StressRequest& request : requests)
    QUIRE_RETURN_IF_ERROR(
        server.scheduler->Add(request.prompt, request.output).status());
  server.had_burst = true;
  while (server.scheduler->has_work()) {
    QUIRE_RETURN_IF_ERROR(server.scheduler->Schedule().status());
    QUIRE_RETURN_IF_ERROR(server.scheduler->Complete({}, Fence()));
    for (size_t i = 0; i < servers->size(); ++i) {
      Server& each = (*servers)[i];
      const Bytes held = each.cache->Use().held;
      Bytes* const most =
          i == active ? &each.result.peak_held : &each.result.most_idle_held;
      if (each.had_burst) *most = std::max(*most, held);
    }
  }
  server.result.served += requests.size();
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<BurstResult>> SimulateBursts(
    const BurstOptions& options) {
  HostDriverOptions driver_options;
  driver_options.memory_per_device =
      Bytes(options.kv_memory.value() / options.page_size.value() *
            options.page_size.value());
  driver_options.backing = HostDriverOptions::Backing::kNone;
  QUIRE_ASSIGN_OR_RETURN(const std::unique_ptr<HostDriver> driver,
                         HostDriver::Create(driver_options));
  OwnerRegistry owners;
  DeviceMemoryOptions memory_options;
  memory_options.page_size = options.page_size;
  memory_options.address_space = GiB(16 * 1024);
  QUIRE_ASSIGN_OR_RETURN(
      const std::unique_ptr<DeviceMemory> memory,
      DeviceMemory::Create(driver.get(), &owners, memory_options));
  std::vector<Server> servers;
  for (const StressModel& model : options.models) {
    QUIRE_ASSIGN_OR_RETURN(Server server,
                           MakeServer(model, options, memory.get()));
    servers.push_back(std::move(server));
  }
  for (uint32_t round = 0; round < options.rounds; ++round) {
    for (size_t active = 0; active < servers.size(); ++active) {
      QUIRE_RETURN_IF_ERROR(RunBurst(options.requests, active, &servers));
      if (!options.progress) continue;
      const size_t over = round * servers.size() + active + 1;
      options.progress(static_cast<double>(over) /
                       static_cast<double>(options.rounds * servers.size()));
    }
  }
  std::vector<BurstResult> results;
  for (Server& server : servers) {
    server.result.preemptions = server.scheduler->GetStatistics().preemptions;
    results.push_back(server.result);
  }
  return results;
}

}  // namespace quire
