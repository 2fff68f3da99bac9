// Writes a memory snapshot of a runtime that has worked a little, in both
// forms: FOLDER/snapshot.json and FOLDER/snapshot.pickle. For tests in Python.

#include <cstdint>
#include <fstream>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "quire/alloc/host_driver.h"
#include "quire/alloc/memory_snapshot.h"
#include "quire/alloc/runtime.h"
#include "quire/alloc/status_macros.h"

namespace quire {
namespace {

absl::Status Work(Runtime* runtime, MemorySnapshotOptions* options) {
  std::mt19937_64 random(1);
  const OwnerId weights = runtime->owners()->Register("weights");
  const OwnerId kv = runtime->owners()->Register("kv \xff\xe2\x82\xac");
  QUIRE_ASSIGN_OR_RETURN(const StreamId stream,
                         runtime->driver()->CreateStream(DeviceId(0)));
  runtime->trace()->Mark("load");
  std::vector<DeviceAddress> live;
  for (int i = 0; i < 500; ++i) {
    AllocateOptions allocate;
    allocate.owner = weights;
    allocate.stream = stream;
    QUIRE_ASSIGN_OR_RETURN(
        const DeviceAddress address,
        runtime->allocator()->Allocate(Bytes(random() % 300000), allocate));
    live.push_back(address);
    if (i % 3 == 0) continue;
    std::swap(live[random() % live.size()], live.back());
    QUIRE_RETURN_IF_ERROR(runtime->allocator()->Free(live.back(), stream));
    live.pop_back();
  }
  runtime->trace()->Mark("decode");
  QUIRE_ASSIGN_OR_RETURN(AddressRange* const range,
                         runtime->memory()->ReserveRange(PageCount(4000), kv));
  QUIRE_RETURN_IF_ERROR(
      runtime->memory()->Commit(range, PageCount(2), PageCount(30)));
  QUIRE_RETURN_IF_ERROR(
      runtime->memory()->Decommit(range, PageCount(5), PageCount(3), Fence()));
  options->verdict = OutOfMemoryVerdict::FromStatus(
      runtime->memory()->Commit(range, PageCount(0), PageCount(4000)));
  options->host_memory = {{"staging", MiB(1), MiB(2)}};
  return runtime->driver()->SynchronizeStream(stream);
}

absl::Status WriteFile(const std::string& path, const std::string& contents) {
  std::ofstream file(path, std::ios::binary);
  file << contents << std::flush;
  if (file.good()) return absl::OkStatus();
  return absl::UnavailableError("cannot write " + path);
}

absl::Status Write(const std::string& folder) {
  HostDriverOptions device;
  device.granularity = KiB(64);
  device.memory_per_device = MiB(128);
  device.backing = HostDriverOptions::Backing::kNone;
  QUIRE_ASSIGN_OR_RETURN(auto driver, HostDriver::Create(device));
  RuntimeOptions runtime_options;
  runtime_options.page_size = KiB(64);
  QUIRE_ASSIGN_OR_RETURN(const std::unique_ptr<Runtime> runtime,
                         Runtime::Create(std::move(driver), runtime_options));
  MemorySnapshotOptions options;
  QUIRE_RETURN_IF_ERROR(Work(runtime.get(), &options));
  const nlohmann::json snapshot = BuildMemorySnapshot(*runtime, options);
  QUIRE_ASSIGN_OR_RETURN(const std::string pickle,
                         RenderPyTorchSnapshot(snapshot));
  QUIRE_RETURN_IF_ERROR(WriteFile(folder + "/snapshot.pickle", pickle));
  return WriteFile(folder + "/snapshot.json", snapshot.dump(1));
}

}  // namespace
}  // namespace quire

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: snapshot_sample FOLDER\n";
    return 2;
  }
  const absl::Status status = quire::Write(argv[1]);
  if (!status.ok()) std::cerr << status << "\n";
  return status.ok() ? 0 : 1;
}
