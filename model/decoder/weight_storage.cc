// Where a WeightBuilder puts what it builds: allocators of devices for parts
// that stay there, stores for those that are kept on the host or on disk.

#include <algorithm>
#include <unordered_set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "model/decoder/weight_builder.h"
#include "quire/alloc/quote.h"
#include "quire/alloc/status_macros.h"

namespace quire {
namespace {

constexpr size_t kEmbedding = 0;

// "model.layers.3.mlp.up_proj" of "model.layers.3.mlp.up_proj.qweight".
std::string_view ModuleOf(std::string_view tensor) {
  return tensor.substr(0, tensor.rfind('.'));
}

}  // namespace

std::vector<PlacementBlock> WeightBuilder::Blocks() const {
  std::vector<PlacementBlock> blocks;
  std::vector<std::unordered_set<std::string_view>> modules(
      weights_->parts_.size());
  for (const Placement& placement : placements_)
    modules[placement.part].insert(ModuleOf(placement.tensor->name));
  for (const PendingAtLoad& pending : pending_at_load_)
    modules[pending.part].insert(ModuleOf(pending.tensor->name));
  for (size_t part = 0; part < weights_->parts_.size(); ++part) {
    blocks.push_back({.name = weights_->parts_[part].name,
                      .size = TensorBytes(part),
                      .layer = part >= 1 && part <= config_.layers,
                      .modules = static_cast<uint32_t>(modules[part].size())});
  }
  if (weights_->tied_head_) blocks.back().tied_to = kEmbedding;
  return blocks;
}

Bytes WeightBuilder::TensorBytes(size_t part) const {
  Bytes total;
  for (const Placement& placement : placements_) {
    if (placement.part == part)
      total = SaturatingAdd(total, placement.tensor->size);
  }
  for (const PendingAtLoad& pending : pending_at_load_) {
    if (pending.part == part)
      total = SaturatingAdd(total, SaturatingAdd(CodeBytes(*pending.matrix),
                                                 ScaleBytes(*pending.matrix)));
  }
  return total;
}

// What is kept elsewhere runs where the part before it ran, so that activations
// stay; at the start, where the first resident part runs.
DeviceId WeightBuilder::ExecutionDevice(size_t part) const {
  const std::vector<WeightPart>& parts = weights_->parts_;
  for (size_t i = part + 1; i-- > 0;) {
    if (IsResident(i)) return parts[i].place.device;
  }
  const auto next = std::find_if(
      parts.begin(), parts.end(),
      [](const WeightPart& p) { return p.place.tier == MemoryTier::kDevice; });
  return next == parts.end() ? DeviceId(0) : next->place.device;
}

absl::Status WeightBuilder::PlaceParts(const WeightPlacement& placement) {
  embedding_by_rows_ = placement.embedding_by_rows;
  std::vector<WeightPart>& parts = weights_->parts_;
  if (!placement.places.empty()) {
    if (placement.places.size() != parts.size())
      return absl::InvalidArgumentError(
          absl::StrCat("a placement of ", placement.places.size(),
                       " parts for a model of ", parts.size()));
    for (size_t i = 0; i < parts.size(); ++i)
      parts[i].place = placement.places[i];
  }
  for (const WeightPart& part : parts) {
    if (part.place.tier == MemoryTier::kDevice &&
        part.place.device.value() >= runtime_->device_count())
      return absl::InvalidArgumentError(absl::StrCat(
          part.name, " is placed on device ", part.place.device.value(),
          ", there are ", runtime_->device_count()));
  }
  if (weights_->tied_head_ && parts.back().place != parts[kEmbedding].place)
    return absl::InvalidArgumentError(
        absl::StrCat(parts.back().name, " shares its weights with ",
                     parts[kEmbedding].name, ", which is placed elsewhere"));
  units_.resize(parts.size());
  weights_->residences_.resize(parts.size());
  for (size_t i = 0; i < parts.size(); ++i)
    weights_->residences_[i].device = ExecutionDevice(i);
  QUIRE_RETURN_IF_ERROR(CheckDiskParts(placement.offload));
  return MakeStores(placement.offload);
}

absl::Status WeightBuilder::CheckDiskParts(const OffloadOptions& options) {
  if (!options.folder.empty()) return absl::OkStatus();
  const std::vector<WeightPart>& parts = weights_->parts_;
  const auto on_disk = [&](size_t part) {
    return parts[part].place.tier == MemoryTier::kDisk;
  };
  std::vector<Bytes> made(parts.size());  // that no file holds
  for (const PendingGptq& pending : pending_gptq_) {
    if (!on_disk(pending.part)) continue;
    QUIRE_ASSIGN_OR_RETURN(const GroupedRows rows, RowsOf(*pending.module));
    if (pending.module->packing != GptqPacking::kGptq || !rows.order.empty())
      return absl::FailedPreconditionError(absl::StrCat(
          Printable(parts[pending.part].name),
          " on disk: ", Printable(pending.module->qweight->name),
          " does not run as it is in the checkpoint; an offload folder is "
          "needed to keep it in"));
    made[pending.part] =
        SaturatingAdd(made[pending.part],
                      Bytes(rows.begin.size() * sizeof(rows.begin.front())));
  }
  for (const PendingScaled& pending : pending_scaled_) {
    if (!on_disk(pending.part)) continue;
    QUIRE_ASSIGN_OR_RETURN(const std::vector<uint32_t> columns,
                           ReadScaleColumns(checkpoint_, *pending.module));
    made[pending.part] = SaturatingAdd(
        made[pending.part], Bytes(columns.size() * sizeof(columns.front())));
  }
  for (const PendingAtLoad& pending : pending_at_load_) {
    made[pending.part] = SaturatingAdd(
        made[pending.part],
        SaturatingAdd(CodeBytes(*pending.matrix), ScaleBytes(*pending.matrix)));
  }
  for (size_t part = 0; part < parts.size(); ++part) {
    if (on_disk(part) && made[part] > kMaxDiskPatch)
      return absl::FailedPreconditionError(absl::StrCat(
          Printable(parts[part].name), " on disk: ", made[part].value(),
          " bytes of it are not in the checkpoint; an offload folder is needed "
          "to keep them in"));
  }
  return absl::OkStatus();
}

absl::Status WeightBuilder::MakeStores(const OffloadOptions& options) {
  weights_->stores_.resize(static_cast<size_t>(runtime_->device_count()));
  for (size_t part = 0; part < weights_->parts_.size(); ++part) {
    if (IsResident(part)) continue;
    PartResidence& residence = weights_->residences_[part];
    std::unique_ptr<OffloadStore>& store =
        weights_->stores_[static_cast<size_t>(residence.device.value())];
    if (store == nullptr) {
      QUIRE_ASSIGN_OR_RETURN(
          store, OffloadStore::Create(runtime_->memory(residence.device),
                                      owner_, options));
    }
    residence.store = store.get();
  }
  return absl::OkStatus();
}

bool WeightBuilder::ReadsRowsElsewhere() const {
  const MemoryTier tier = weights_->parts_[kEmbedding].place.tier;
  return tier == MemoryTier::kHost ||
         (tier == MemoryTier::kDisk && embedding_by_rows_);
}

bool WeightBuilder::IsOnlyReadByRows() const {
  return !weights_->tied_head_ && ReadsRowsElsewhere();
}

absl::Status WeightBuilder::ForEachInHand(
    const std::function<absl::Status()>& make) {
  const auto make_resident = [&] {
    in_hand_ = kResidentParts;
    return make();
  };
  if (!IsOnlyReadByRows()) QUIRE_RETURN_IF_ERROR(make_resident());
  for (size_t part = 0; part < weights_->parts_.size(); ++part) {
    // A tied head has nothing of its own.
    const Bytes size = TensorBytes(part);
    if (IsResident(part) || size.zero()) continue;
    in_hand_ = part;
    // Addresses cost nothing: enough for indexes that are made beside the
    // tensors, and for the gaps between all of them.
    const Bytes room =
        SaturatingAdd(SaturatingAdd(size, Bytes(size.value() / 2)), MiB(4));
    QUIRE_ASSIGN_OR_RETURN(units_[part],
                           weights_->residences_[part].store->Begin(
                               weights_->parts_[part].name,
                               weights_->parts_[part].place.tier, room));
    QUIRE_RETURN_IF_ERROR(make());
    if (part != kEmbedding || !IsOnlyReadByRows()) continue;
    weights_->residences_[part].store->SetSchedule({});
    QUIRE_RETURN_IF_ERROR(make_resident());
  }
  return absl::OkStatus();
}

absl::StatusOr<DeviceAddress> WeightBuilder::AllocateBytes(Bytes size) {
  const PartResidence& residence = weights_->residences_[part_];
  if (residence.store != nullptr) return residence.store->Allocate(size);
  if (dropped_ != nullptr) return AllocateAgain(size);
  QUIRE_ASSIGN_OR_RETURN(
      const DeviceAddress address,
      runtime_->allocator(residence.device)->Allocate(size, {.owner = owner_}));
  weights_->allocations_.push_back({residence.device, address, size});
  return address;
}

absl::StatusOr<DeviceAddress> WeightBuilder::AllocateAgain(Bytes size) {
  const auto& allocations = dropped_->allocations_;
  if (next_allocation_ == allocations.size()) return AllocationsDiffer();
  const ModelWeights::Allocation& again = allocations[next_allocation_];
  if (again.device != weights_->residences_[part_].device || again.size != size)
    return AllocationsDiffer();
  ++next_allocation_;
  return again.address;
}

absl::Status WeightBuilder::AllocationsDiffer() const {
  return absl::DataLossError(absl::StrCat(
      checkpoint_.folder(),
      ": the model takes other memory than when it was first loaded, from "
      "allocation ",
      next_allocation_, " of ", dropped_->allocations_.size(), " on"));
}

absl::StatusOr<std::vector<TensorPlacement>> WeightBuilder::AllocateTensors() {
  std::vector<TensorPlacement> tensors;
  for (const Placement& placement : placements_) {
    if (!IsInHand(placement.part)) continue;
    part_ = placement.part;
    QUIRE_ASSIGN_OR_RETURN(const DeviceAddress address,
                           AllocateBytes(placement.tensor->size));
    placement.assign(address);
    tensors.push_back({placement.tensor, address});
  }
  return tensors;
}

void WeightBuilder::ListTensors() {
  std::vector<WeightTensor>& tensors = weights_->tensors_;
  const auto add = [&](const TensorInfo& tensor, size_t part, Bytes memory) {
    const auto tables = tables_.find(&tensor);
    tensors.push_back(
        {.name = tensor.name,
         .dtype = tensor.dtype,
         .shape = tensor.shape,
         .part = part,
         .file = tensor.size,
         .memory = memory,
         .workspace = tables == tables_.end() ? Bytes(0) : tables->second});
  };
  for (const Placement& placement : placements_)
    add(*placement.tensor, placement.part, placement.tensor->size);
  for (const PendingAtLoad& pending : pending_at_load_)
    add(*pending.tensor, pending.part,
        SaturatingAdd(CodeBytes(*pending.matrix), ScaleBytes(*pending.matrix)));
  std::stable_sort(tensors.begin(), tensors.end(),
                   [](const WeightTensor& a, const WeightTensor& b) {
                     return a.part < b.part;
                   });
}

absl::Status WeightBuilder::ForEachDevice(
    std::span<const TensorPlacement> tensors,
    const std::function<absl::Status(
        DeviceId device, std::span<const TensorPlacement> here)>& load) const {
  for (int i = 0; i < runtime_->device_count(); ++i) {
    const DeviceId device(i);
    std::vector<TensorPlacement> here;
    for (const TensorPlacement& tensor : tensors) {
      if (runtime_->memory(device)->Contains(tensor.destination))
        here.push_back(tensor);
    }
    if (!here.empty()) QUIRE_RETURN_IF_ERROR(load(device, here));
  }
  return absl::OkStatus();
}

absl::Status WeightBuilder::ReserveStaging(
    std::span<const TensorPlacement> tensors, const StreamingOptions& options) {
  WeightStaging& staging = weights_->staging_;
  Bytes& most =
      in_hand_ == kResidentParts ? staging.resident : staging.parts[in_hand_];
  return ForEachDevice(
      tensors,
      [&](DeviceId, std::span<const TensorPlacement> here) -> absl::Status {
        QUIRE_ASSIGN_OR_RETURN(const Bytes bytes,
                               StagingBytes(checkpoint_, here, options));
        most = std::max(most, bytes);
        return absl::OkStatus();
      });
}

absl::Status WeightBuilder::Stream(std::span<const TensorPlacement> tensors,
                                   const StreamingOptions& options) {
  // Of all parts, or of those that come again.
  const auto counts = [this](size_t part) {
    return dropped_ == nullptr || IsInHand(part);
  };
  Bytes total;
  for (const Placement& placement : placements_) {
    if (counts(placement.part))
      total = SaturatingAdd(total, placement.tensor->size);
  }
  for (const PendingAtLoad& pending : pending_at_load_) {
    if (counts(pending.part))
      total = SaturatingAdd(total, pending.tensor->size);
  }
  LoadReport& report = weights_->load_report_;
  const auto load = [&](DeviceId device,
                        std::span<const TensorPlacement> here) -> absl::Status {
    StreamingOptions one = options;
    one.milestones.clear();
    // What is kept on disk may be read from the checkpoint again, if it stays
    // as it was read.
    one.checksum = options.checksum ||
                   (in_hand_ != kResidentParts &&
                    weights_->parts_[in_hand_].place.tier == MemoryTier::kDisk);
    if (options.progress != nullptr) {
      one.progress = [&](const LoadProgress& progress) {
        options.progress({SaturatingAdd(report.bytes, progress.done), total,
                          report.seconds + progress.seconds});
      };
    }
    QUIRE_ASSIGN_OR_RETURN(
        LoadReport loaded,
        StreamTensors(runtime_->driver(), device, checkpoint_, here, one));
    report.bytes = SaturatingAdd(report.bytes, loaded.bytes);
    report.seconds += loaded.seconds;
    report.staging_peak = std::max(report.staging_peak, loaded.staging_peak);
    report.direct = loaded.direct && (report.chunks == 0 || report.direct);
    report.chunks += loaded.chunks;
    report.read_retries += loaded.read_retries;
    for (const TensorPlacement& placement : here) {
      if (one.checksum)
        AddChecksum(*placement.tensor, loaded.crc32.at(placement.tensor->name));
    }
    return absl::OkStatus();
  };
  return ForEachDevice(tensors, load);
}

void WeightBuilder::AddChecksum(const TensorInfo& tensor, uint32_t crc32) {
  uint32_t& whole = weights_->load_report_.crc32[tensor.name];
  // What is quantised at load comes by slices, from front to back.
  whole = tensor.offset == checkpoint_.Find(tensor.name)->offset
              ? crc32
              : JoinCrc32(whole, crc32, tensor.size);
}

absl::Status WeightBuilder::Keep(std::span<const TensorPlacement> tensors) {
  return weights_->residences_[in_hand_].store->Finish(
      checkpoint_, tensors, weights_->load_report_.crc32);
}

absl::Status WeightBuilder::ConnectParts(bool loaded) {
  std::vector<WeightPart>& parts = weights_->parts_;
  // A tied head runs on the embedding's bytes.
  if (weights_->tied_head_) {
    std::get<DenseMatrix>(weights_->output_.matrix).data =
        weights_->embedding_.data;
    weights_->residences_.back() = weights_->residences_[kEmbedding];
    units_.back() = units_[kEmbedding];
  }
  // Few rows of an embedding are read at a time, from where it is kept.
  const OffloadStore* embedding = nullptr;
  if (ReadsRowsElsewhere())
    embedding = std::exchange(weights_->residences_[kEmbedding].store, nullptr);
  for (const std::unique_ptr<OffloadStore>& store : weights_->stores_) {
    if (store == nullptr) continue;
    std::vector<size_t> visits;
    for (size_t part = 0; part < parts.size(); ++part) {
      PartResidence& residence = weights_->residences_[part];
      if (residence.store != store.get()) continue;
      residence.visit = visits.size();
      visits.push_back(units_[part]);
    }
    store->SetSchedule(std::move(visits));
  }
  if (embedding != nullptr && loaded) ConnectEmbedding(embedding);
  return absl::OkStatus();
}

void WeightBuilder::ConnectEmbedding(const OffloadStore* store) {
  const void*& data = weights_->embedding_.data;
  const DeviceAddress address(reinterpret_cast<uint64_t>(data));
  const size_t unit = units_[kEmbedding];
  if (weights_->parts_[kEmbedding].place.tier == MemoryTier::kHost) {
    data = store->HostPointer(unit, address);
  } else {
    weights_->disk_rows_ = {store, unit, address};
    data = nullptr;
  }
}

}  // namespace quire
