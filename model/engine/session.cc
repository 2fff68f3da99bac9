#include "quire/model/session.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "model/engine/cache_factory.h"
#include "model/engine/placement.h"
#include "model/engine/shared_device.h"
#include "quire/alloc/cuda_driver.h"
#include "quire/alloc/host_driver.h"
#include "quire/alloc/status_macros.h"

namespace quire {
namespace {

Bytes MachineMemory() {
  const long pages = sysconf(_SC_PHYS_PAGES);
  const long page_size = sysconf(_SC_PAGESIZE);
  if (pages <= 0 || page_size <= 0) return GiB(8);
  return Bytes(static_cast<uint64_t>(pages) * static_cast<uint64_t>(page_size));
}

absl::StatusOr<std::unique_ptr<Driver>> CreateDriver(
    const DeviceOptions& options) {
  if (options.driver == "cuda") return CreateCudaDriver();
  if (options.driver != "host")
    return absl::InvalidArgumentError(
        absl::StrCat("driver '", options.driver, "': 'host' or 'cuda'"));
  HostDriverOptions host;
  const Bytes memory =
      options.device_memory.zero() ? MachineMemory() : options.device_memory;
  // Smaller pages than a GPU has are for small models and tests.
  host.granularity = std::min(host.granularity, options.page_size);
  if (host.granularity.zero())
    return absl::InvalidArgumentError("a page of 0 bytes");
  if (memory < host.granularity)
    return absl::InvalidArgumentError(
        absl::StrCat("a device memory of ", FormatBytes(memory),
                     " holds no page of ", FormatBytes(host.granularity),
                     ": more memory, or a smaller page unit"));
  host.device_count = options.device_count;
  // A device has whole pages.
  host.memory_per_device = Bytes(memory.value() / host.granularity.value() *
                                 host.granularity.value());
  host.backing = options.backing ? HostDriverOptions::Backing::kMemory
                                 : HostDriverOptions::Backing::kNone;
  QUIRE_ASSIGN_OR_RETURN(std::unique_ptr<HostDriver> driver,
                         HostDriver::Create(host));
  return driver;
}

absl::StatusOr<std::unique_ptr<SharedDevice>> JoinLedger(
    Runtime* runtime, const Checkpoint& checkpoint, const ModelConfig& config,
    const SessionOptions& options) {
  QUIRE_ASSIGN_OR_RETURN(const KvLayout layout, MakeKvLayout(config, options));
  QUIRE_ASSIGN_OR_RETURN(const uint64_t longest,
                         LongestSequence(config, options));
  const std::string& folder = checkpoint.folder();
  const std::string name = folder.substr(folder.rfind('/') + 1);
  return SharedDevice::Join(runtime, options.sharing,
                            name.empty() ? folder : name,
                            checkpoint.total_size(),
                            CheckedMultiply(layout.TokenBytes(), longest)
                                .value_or(Bytes(UINT64_MAX)));
}

// Where weights come from elsewhere, a core is left to what brings them: with a
// thread on every one, a thread that is interrupted holds up all the others.
int ThreadsFor(const SessionOptions& options,
               const WeightPlacement& placement) {
  const bool streams =
      std::any_of(placement.places.begin(), placement.places.end(),
                  [](const MemoryPlace& place) {
                    return place.tier != MemoryTier::kDevice;
                  });
  if (options.threads != 0 || !streams) return options.threads;
  return std::max(1, ThreadPool(0).threads() - 1);
}

}  // namespace

const char* KvCacheKindName(KvCacheKind kind) {
  switch (kind) {
    case KvCacheKind::kContiguous:
      return "contiguous";
    case KvCacheKind::kPaged:
      return "paged";
    case KvCacheKind::kStatic:
      return "static";
  }
  return "?";
}

absl::StatusOr<std::unique_ptr<Runtime>> CreateRuntime(
    const DeviceOptions& options) {
  if (!(options.memory_utilization > 0 && options.memory_utilization <= 1))
    return absl::InvalidArgumentError(absl::StrCat("memory utilization ",
                                                   options.memory_utilization,
                                                   " is outside (0, 1]"));
  QUIRE_ASSIGN_OR_RETURN(std::unique_ptr<Driver> driver, CreateDriver(options));
  QUIRE_ASSIGN_OR_RETURN(const DeviceMemoryInfo memory,
                         driver->GetMemoryInfo(DeviceId(0)));
  RuntimeOptions runtime;
  runtime.page_size = options.page_size;
  runtime.limit = Bytes(static_cast<uint64_t>(
      static_cast<double>(memory.total.value()) * options.memory_utilization));
  QUIRE_ASSIGN_OR_RETURN(std::unique_ptr<Runtime> created,
                         Runtime::Create(std::move(driver), runtime));
  const size_t limited = std::min(options.limits.size(),
                                  static_cast<size_t>(created->device_count()));
  for (size_t i = 0; i < limited; ++i) {
    DeviceMemory* const pool = created->memory(DeviceId(static_cast<int>(i)));
    const Bytes limit =
        std::min(options.limits[i], pool->GetStatistics().limit);
    if (const absl::Status status = pool->SetLimit(limit); !status.ok())
      return absl::Status(
          status.code(),
          absl::StrCat("max memory of device ", i, ": ", status.message()));
  }
  return created;
}

absl::StatusOr<std::unique_ptr<Session>> Session::Open(
    const std::string& model_path, const SessionOptions& options) {
  QUIRE_RETURN_IF_ERROR(options.Validate());
  QUIRE_ASSIGN_OR_RETURN(std::unique_ptr<Checkpoint> checkpoint,
                         Checkpoint::Open(model_path));
  return Open(std::move(checkpoint), options);
}

absl::StatusOr<std::unique_ptr<Session>> Session::Open(
    std::unique_ptr<Checkpoint> checkpoint, const SessionOptions& options) {
  QUIRE_RETURN_IF_ERROR(options.Validate());
  std::unique_ptr<Session> session(new Session());
  session->checkpoint_ = std::move(checkpoint);
  QUIRE_ASSIGN_OR_RETURN(session->config_,
                         ParseModelConfig(*session->checkpoint_));
  const ModelConfig& config = session->config_;
  if (options.shared_weights != nullptr &&
      (options.runtime == nullptr ||
       options.shared_weights->runtime() != options.runtime))
    return absl::InvalidArgumentError(
        "weights are shared by sessions of one runtime: this one is on "
        "another");
  if (options.runtime != nullptr) {
    session->runtime_ = Runtime::CreateView(options.runtime, options.owner);
  } else {
    QUIRE_ASSIGN_OR_RETURN(const DeviceOptions devices,
                           DevicesFor(*session->checkpoint_, config, options));
    QUIRE_ASSIGN_OR_RETURN(session->runtime_, CreateRuntime(devices));
  }
  Runtime* runtime = session->runtime_.get();
  QUIRE_ASSIGN_OR_RETURN(
      PlacedWeights placed,
      PlaceWeights(*session->checkpoint_, config, options, LimitsOf(*runtime)));
  const WeightPlacement& placement = placed.placement;
  session->empty_devices_ = std::move(placed.empty_devices);
  if (!options.sharing.ledger.empty()) {
    QUIRE_ASSIGN_OR_RETURN(
        session->shared_,
        JoinLedger(runtime, *session->checkpoint_, config, options));
  }
  session->pool_ = std::make_unique<ThreadPool>(ThreadsFor(options, placement));

  runtime->trace()->Mark("load weights");
  QUIRE_ASSIGN_OR_RETURN(
      session->weights_,
      options.shared_weights != nullptr
          ? options.shared_weights->Load(
                *session->checkpoint_, config, options.streaming,
                session->pool_.get(), placement, options.weights)
          : ModelWeights::Load(runtime, *session->checkpoint_, config,
                               options.streaming, session->pool_.get(),
                               placement, options.weights));

  // Before the cache, which may take all that is left.
  QUIRE_ASSIGN_OR_RETURN(
      session->decoder_,
      Decoder::Create(runtime, config, session->weights_.get(),
                      session->pool_.get(), options.decoder));
  session->adapters_ = std::make_unique<AdapterSet>(
      runtime, config, session->weights_->tied_head(),
      options.decoder.max_batch_tokens);
  for (const AdapterSource& adapter : options.adapters)
    QUIRE_RETURN_IF_ERROR(
        session->adapters_
            ->Load(adapter.name, adapter.folder, options.streaming)
            .status());
  QUIRE_ASSIGN_OR_RETURN(
      const std::vector<DeviceLayers> devices,
      LayersByDevice(config, options,
                     LayerDevices(config, *session->weights_)));
  for (const DeviceLayers& part : devices)
    absl::StrAppend(&session->kv_layout_,
                    session->kv_layout_.empty() ? "" : "; ",
                    devices.size() == 1
                        ? ""
                        : absl::StrCat("device ", part.device.value(), ": "),
                    part.why);
  QUIRE_ASSIGN_OR_RETURN(
      session->cache_,
      CreateCache(runtime, config, devices, *session->decoder_, options));
  runtime->trace()->Mark("ready");
  session->on_leaks_ = options.on_leaks;
  return session;
}

Session::Session() = default;

Session::~Session() {
  cache_.reset();
  adapters_.reset();
  decoder_.reset();
  weights_.reset();
  if (on_leaks_ != nullptr) {
    const std::vector<LeakReport> leaks = FindLeaks(*runtime_);
    if (!leaks.empty()) on_leaks_(leaks);
  }
  // The claim ends when the memory has gone back, and not before.
  if (shared_ != nullptr) runtime_->memory()->Trim();
}

absl::Status Session::MakeRoom(Bytes missing) {
  if (shared_ == nullptr)
    return absl::FailedPreconditionError(
        "no other process shares the device's memory");
  return shared_->EnsureRoom(missing);
}

absl::Status Session::ComputeLogits(
    std::span<const TokenId> tokens,
    const std::function<absl::Status(std::span<const float> rows)>& sink,
    AdapterId adapter) {
  QUIRE_ASSIGN_OR_RETURN(const AdapterRef used, adapters_->Use(adapter));
  QUIRE_ASSIGN_OR_RETURN(const SequenceId sequence,
                         cache_->Admit(tokens.size()));
  const size_t chunk = std::min(decoder_->options().max_batch_tokens,
                                decoder_->options().max_logit_rows);
  absl::Status status;
  for (size_t at = 0; at < tokens.size() && status.ok(); at += chunk) {
    const std::span<const TokenId> part =
        tokens.subspan(at, std::min(chunk, tokens.size() - at));
    const BatchItem item = {.sequence = sequence,
                            .tokens = part,
                            .position = at,
                            .logit_rows = static_cast<uint32_t>(part.size()),
                            .adapter = used.get()};
    const absl::StatusOr<std::span<const float>> rows =
        decoder_->Forward(std::span(&item, 1), *cache_);
    status = rows.ok() ? sink(*rows) : rows.status();
  }
  // Forward waits for its work, so the pages are free at once.
  status.Update(cache_->Release(sequence, Fence()));
  return status;
}

}  // namespace quire
