#include "alloc/testing/fake_cuda_memory.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/str_format.h"
#include "alloc/host_kernel.h"
#include "alloc/mapping_table.h"
#include "quire/alloc/status_macros.h"
#include "quire/alloc/units.h"

namespace quire {
namespace {

constexpr size_t kHostPage = 4096;

// What is written to the start of every granule of a new allocation.
constexpr int kJunk = 0xA5;
constexpr size_t kJunkBytes = 64;

void* Pointer(CUdeviceptr address) { return reinterpret_cast<void*>(address); }

}  // namespace

bool FakeCudaMemory::Mapping::Allows(CUdevice device,
                                     CUmemAccess_flags wanted) const {
  const auto granted = access.find(device);
  return granted != access.end() && (granted->second & wanted) == wanted;
}

absl::StatusOr<std::unique_ptr<FakeCudaMemory>> FakeCudaMemory::Create(
    const FakeCudaOptions& options) {
  if (options.granularity < kHostPage || !IsPowerOfTwo(options.granularity)) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "granularity %d: a power of two, at least %d, is needed",
        options.granularity, kHostPage));
  }
  std::vector<std::unique_ptr<HostPageMemory>> devices;
  for (int i = 0; i < options.device_count; ++i) {
    QUIRE_ASSIGN_OR_RETURN(
        std::unique_ptr<HostPageMemory> device,
        HostPageMemory::Create(DeviceId(i), options.memory_per_device,
                               options.backing));
    devices.push_back(std::move(device));
  }
  return absl::WrapUnique(new FakeCudaMemory(options, std::move(devices)));
}

FakeCudaMemory::~FakeCudaMemory() {
  MutexLock lock(&mutex_);
  for (const auto& [address, size] : reservations_) {
    (void)SystemHostKernel()->Unmap(address, size);
  }
}

CUresult FakeCudaMemory::GetInfo(CUdevice device, size_t* free,
                                 size_t* total) const {
  if (free == nullptr || total == nullptr) return CUDA_ERROR_INVALID_VALUE;
  MutexLock lock(&mutex_);
  // [info-free]
  const HostPageMemory& memory = *devices_[device];
  *total = memory.capacity();
  *free = memory.capacity() - memory.used();
  return CUDA_SUCCESS;
}

// ---- Addresses --------------------------------------------------------------

CUresult FakeCudaMemory::AddressReserve(CUdeviceptr* address, size_t size,
                                        size_t alignment, CUdeviceptr hint,
                                        unsigned long long flags) {
  // [reserve-flags]
  if (address == nullptr || flags != 0) return CUDA_ERROR_INVALID_VALUE;
  // [reserve-aligned]
  if (size == 0 || size % kHostPage != 0 || hint % kHostPage != 0 ||
      (alignment != 0 && !IsPowerOfTwo(alignment))) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (alignment == 0) alignment = options_.granularity;
  MutexLock lock(&mutex_);
  // [reserve-exhausted]
  if (size > options_.address_space - reserved_bytes_) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  // [reserve-hint]
  const bool hint_served = hint != 0 && hint % alignment == 0 &&
                           SystemHostKernel()->ReserveAt(hint, size) == 0;
  uint64_t reserved = hint;
  if (!hint_served &&
      ReserveAligned(SystemHostKernel(), size, alignment, &reserved) != 0) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  reservations_[reserved] = size;
  reserved_bytes_ += size;
  *address = reserved;
  return CUDA_SUCCESS;
}

CUresult FakeCudaMemory::AddressFree(CUdeviceptr address, size_t size) {
  MutexLock lock(&mutex_);
  const auto reservation = reservations_.find(address);
  // [free-exact] [free-unmapped]
  if (reservation == reservations_.end() || reservation->second != size ||
      OverlapsMapping(address, size)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  // A refusal leaves addresses reserved that nobody uses, which is harmless.
  (void)SystemHostKernel()->Unmap(address, size);
  reservations_.erase(reservation);
  reserved_bytes_ -= size;
  return CUDA_SUCCESS;
}

bool FakeCudaMemory::IsReserved(CUdeviceptr address, size_t size) const {
  auto reservation = reservations_.upper_bound(address);
  if (reservation == reservations_.begin()) return false;
  --reservation;
  const size_t offset = address - reservation->first;
  return offset < reservation->second && size <= reservation->second - offset;
}

bool FakeCudaMemory::OverlapsMapping(CUdeviceptr address, size_t size) const {
  const auto next = mappings_.upper_bound(address);
  if (next != mappings_.end() && next->first - address < size) return true;
  if (next == mappings_.begin()) return false;
  const auto& [start, mapping] = *std::prev(next);
  return address - start < mapping.size;
}

// ---- Physical memory --------------------------------------------------------

CUresult FakeCudaMemory::CheckProperties(
    const CUmemAllocationProp* properties) const {
  // [create-properties] Managed memory, other places and handles for other
  // processes are not modelled.
  if (properties == nullptr ||
      properties->type != CU_MEM_ALLOCATION_TYPE_PINNED ||
      properties->location.type != CU_MEM_LOCATION_TYPE_DEVICE ||
      properties->requestedHandleTypes != CU_MEM_HANDLE_TYPE_NONE ||
      properties->win32HandleMetaData != nullptr) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  // [create-device]
  if (!IsDevice(properties->location.id)) return CUDA_ERROR_INVALID_DEVICE;
  return CUDA_SUCCESS;
}

CUresult FakeCudaMemory::GetAllocationGranularity(
    size_t* granularity, const CUmemAllocationProp* properties,
    CUmemAllocationGranularity_flags option) const {
  if (granularity == nullptr ||
      (option != CU_MEM_ALLOC_GRANULARITY_MINIMUM &&
       option != CU_MEM_ALLOC_GRANULARITY_RECOMMENDED)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const CUresult checked = CheckProperties(properties);
  if (checked != CUDA_SUCCESS) return checked;
  *granularity =
      option == CU_MEM_ALLOC_GRANULARITY_RECOMMENDED
          ? std::max(options_.granularity, options_.recommended_granularity)
          : options_.granularity;
  return CUDA_SUCCESS;
}

CUresult FakeCudaMemory::CreateAllocation(CUmemGenericAllocationHandle* handle,
                                          size_t size,
                                          const CUmemAllocationProp* properties,
                                          unsigned long long flags) {
  // [create-flags] [create-granularity]
  if (handle == nullptr || flags != 0 || size == 0 ||
      size % options_.granularity != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  if (const CUresult checked = CheckProperties(properties);
      checked != CUDA_SUCCESS) {
    return checked;
  }
  MutexLock lock(&mutex_);
  const CUdevice device = properties->location.id;
  // [create-exhausted]
  const auto backing = devices_[device]->Allocate(size);
  if (!backing.ok()) return CUDA_ERROR_OUT_OF_MEMORY;
  // [create-unmapped]
  *handle = ++last_handle_;
  allocations_[*handle] = {device, size, *backing};
  return CUDA_SUCCESS;
}

CUresult FakeCudaMemory::Release(CUmemGenericAllocationHandle handle) {
  MutexLock lock(&mutex_);
  const auto found = allocations_.find(handle);
  // [release-valid]
  if (found == allocations_.end() || found->second.released) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  // [release-mapped]
  found->second.released = true;
  FreeIfUnused(handle);
  return CUDA_SUCCESS;
}

void FakeCudaMemory::FreeIfUnused(CUmemGenericAllocationHandle handle) {
  // [memory-lives] [memory-outlives-context]
  const auto found = allocations_.find(handle);
  const Allocation& allocation = found->second;
  if (!allocation.released || allocation.mappings > 0) return;
  devices_[allocation.device]->Free(allocation.backing, allocation.size);
  allocations_.erase(found);
}

// ---- Mapping ----------------------------------------------------------------

CUresult FakeCudaMemory::Map(CUdeviceptr address, size_t size, size_t offset,
                             CUmemGenericAllocationHandle handle,
                             unsigned long long flags) {
  // [map-flags] [map-offset] [map-granularity]
  if (flags != 0 || offset != 0 || size == 0 ||
      size % options_.granularity != 0 || address % options_.granularity != 0) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  MutexLock lock(&mutex_);
  const auto found = allocations_.find(handle);
  // [map-handle] [map-size] [map-reserved] [map-once]
  if (found == allocations_.end() || found->second.released ||
      size > found->second.size || !IsReserved(address, size) ||
      OverlapsMapping(address, size)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  // [map-no-access] Nothing is put at the addresses yet.
  mappings_[address] = {size, handle, {}};
  ++found->second.mappings;
  return CUDA_SUCCESS;
}

CUresult FakeCudaMemory::Unmap(CUdeviceptr address, size_t size) {
  MutexLock lock(&mutex_);
  const auto mapping = mappings_.find(address);
  // [unmap-whole] One mapping, which is the least that it can mean.
  if (mapping == mappings_.end() || mapping->second.size != size) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const auto access = std::exchange(mapping->second.access, {});
  if (const CUresult hidden = UpdateKernel({&mapping, 1});
      hidden != CUDA_SUCCESS) {
    mapping->second.access = access;
    return hidden;
  }
  // [unmap-reserves] [unmap-access] Nothing is left but the reservation.
  const CUmemGenericAllocationHandle handle = mapping->second.handle;
  mappings_.erase(mapping);
  --allocations_.at(handle).mappings;
  FreeIfUnused(handle);
  return CUDA_SUCCESS;
}

CUresult FakeCudaMemory::CheckAccess(const CUmemAccessDesc& access) const {
  // [access-location]
  if (access.location.type != CU_MEM_LOCATION_TYPE_DEVICE ||
      (access.flags != CU_MEM_ACCESS_FLAGS_PROT_NONE &&
       access.flags != CU_MEM_ACCESS_FLAGS_PROT_READ &&
       access.flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE)) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  // [access-device]
  return IsDevice(access.location.id) ? CUDA_SUCCESS
                                      : CUDA_ERROR_INVALID_DEVICE;
}

CUresult FakeCudaMemory::SetAccess(CUdeviceptr address, size_t size,
                                   const CUmemAccessDesc* access,
                                   size_t count) {
  if (access == nullptr || count == 0) return CUDA_ERROR_INVALID_VALUE;
  const std::span<const CUmemAccessDesc> wanted(access, count);
  for (const CUmemAccessDesc& one : wanted) {
    if (const CUresult checked = CheckAccess(one); checked != CUDA_SUCCESS) {
      return checked;
    }
  }
  MutexLock lock(&mutex_);
  // [access-whole]
  std::vector<MappingIterator> mappings;
  CUdeviceptr reached = address;
  while (reached - address < size) {
    const MappingIterator mapping = mappings_.find(reached);
    if (mapping == mappings_.end()) return CUDA_ERROR_INVALID_VALUE;
    mappings.push_back(mapping);
    reached += mapping->second.size;
  }
  if (mappings.empty() || reached - address != size) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  for (const MappingIterator& mapping : mappings) {
    const CUdevice owner = allocations_.at(mapping->second.handle).device;
    for (const CUmemAccessDesc& one : wanted) {
      // [access-peer]
      if (one.location.id != owner && !options_.peers_reach_each_other) {
        return CUDA_ERROR_INVALID_DEVICE;
      }
    }
  }
  std::vector<std::map<CUdevice, CUmemAccess_flags>> before;
  for (const MappingIterator& mapping : mappings) {
    before.push_back(mapping->second.access);
    for (const CUmemAccessDesc& one : wanted) {
      // [access-none]
      if (one.flags == CU_MEM_ACCESS_FLAGS_PROT_NONE) {
        mapping->second.access.erase(one.location.id);
      } else {
        mapping->second.access[one.location.id] = one.flags;
      }
    }
  }
  const CUresult updated = UpdateKernel(mappings);
  if (updated == CUDA_SUCCESS) return CUDA_SUCCESS;
  for (size_t i = 0; i < mappings.size(); ++i) {
    mappings[i]->second.access = std::move(before[i]);
  }
  return updated;
}

// ---- The kernel's side ------------------------------------------------------

CUresult FakeCudaMemory::UpdateKernel(
    std::span<const MappingIterator> mappings) {
  if (!options_.backing) return CUDA_SUCCESS;
  const auto is_due = [](const MappingIterator& mapping) {
    return mapping->second.in_kernel == mapping->second.access.empty();
  };
  std::vector<std::span<const MappingIterator>> done;
  for (size_t i = 0; i < mappings.size();) {
    if (!is_due(mappings[i])) {
      ++i;
      continue;
    }
    size_t end = i + 1;
    while (end < mappings.size() && is_due(mappings[end]) &&
           Continues(mappings[end - 1]->second, mappings[end]->second)) {
      ++end;
    }
    const auto run = mappings.subspan(i, end - i);
    if (const CUresult result = FlipInKernel(run); result != CUDA_SUCCESS) {
      // The kernel can take back what it has just done.
      for (const auto& earlier : done) (void)FlipInKernel(earlier);
      return result;
    }
    done.push_back(run);
    i = end;
  }
  return CUDA_SUCCESS;
}

bool FakeCudaMemory::Continues(const Mapping& mapping,
                               const Mapping& next) const {
  const Allocation& from = allocations_.at(mapping.handle);
  const Allocation& to = allocations_.at(next.handle);
  return mapping.in_kernel == next.in_kernel && from.device == to.device &&
         from.backing + mapping.size == to.backing;
}

CUresult FakeCudaMemory::FlipInKernel(std::span<const MappingIterator> run) {
  const CUdeviceptr address = run.front()->first;
  const size_t size = run.back()->first + run.back()->second.size - address;
  const Allocation& first = allocations_.at(run.front()->second.handle);
  const bool show = !run.front()->second.in_kernel;
  const int error =
      show ? SystemHostKernel()->MapFile(
                 address, size, devices_[first.device]->fd(), first.backing)
           : SystemHostKernel()->Cover(address, size);
  // Out of kernel mappings.
  if (error != 0) return CUDA_ERROR_OUT_OF_MEMORY;
  for (const MappingIterator& mapping : run) {
    mapping->second.in_kernel = show;
    if (show) FillWithJunk(mapping);
  }
  return CUDA_SUCCESS;
}

void FakeCudaMemory::FillWithJunk(const MappingIterator& mapping) {
  // [create-contents]
  Allocation& allocation = allocations_.at(mapping->second.handle);
  if (std::exchange(allocation.contents_are_junk, true)) return;
  for (size_t at = 0; at < mapping->second.size; at += options_.granularity) {
    std::memset(Pointer(mapping->first + at), kJunk, kJunkBytes);
  }
}

// ---- For copies -------------------------------------------------------------

template <typename Function>
bool FakeCudaMemory::ForEachMapping(CUdeviceptr address, size_t size,
                                    Function function) const {
  auto mapping = mappings_.upper_bound(address);
  if (mapping == mappings_.begin()) return false;
  --mapping;
  for (CUdeviceptr reached = address; reached - address < size; ++mapping) {
    if (mapping == mappings_.end() || mapping->first > reached ||
        reached - mapping->first >= mapping->second.size ||
        !function(mapping->second)) {
      return false;
    }
    reached = mapping->first + mapping->second.size;
  }
  return true;
}

CUresult FakeCudaMemory::CheckArgument(CUdeviceptr address, size_t size) const {
  if (size == 0) return CUDA_SUCCESS;
  MutexLock lock(&mutex_);
  // [copy-argument]
  return ForEachMapping(address, size, [](const Mapping&) { return true; })
             ? CUDA_SUCCESS
             : CUDA_ERROR_INVALID_VALUE;
}

bool FakeCudaMemory::Touch(CUdevice device, std::span<const Range> ranges,
                           const std::function<void()>& work) const {
  MutexLock lock(&mutex_);
  for (const Range& range : ranges) {
    // [copy-access]
    if (!ForEachMapping(range.address, range.size, [&](const Mapping& mapping) {
          return mapping.Allows(device, range.access);
        })) {
      return false;
    }
  }
  work();
  return true;
}

// ---- For tests --------------------------------------------------------------

std::map<CUdeviceptr, FakeCudaMemory::Mapping> FakeCudaMemory::mappings()
    const {
  MutexLock lock(&mutex_);
  return mappings_;
}

size_t FakeCudaMemory::reservation_count() const {
  MutexLock lock(&mutex_);
  return reservations_.size();
}

size_t FakeCudaMemory::handle_count() const {
  MutexLock lock(&mutex_);
  return std::count_if(
      allocations_.begin(), allocations_.end(),
      [](const auto& allocation) { return !allocation.second.released; });
}

size_t FakeCudaMemory::allocation_count() const {
  MutexLock lock(&mutex_);
  return allocations_.size();
}

void FakeCudaMemory::AppendLeaks(std::vector<std::string>* leaks) const {
  MutexLock lock(&mutex_);
  for (const auto& [address, size] : reservations_) {
    leaks->push_back(absl::StrFormat("address range %s is still reserved",
                                     FormatRange(address, size)));
  }
  for (const auto& [address, mapping] : mappings_) {
    leaks->push_back(absl::StrFormat("allocation %d is still mapped at %s",
                                     mapping.handle,
                                     FormatRange(address, mapping.size)));
  }
  for (const auto& [handle, allocation] : allocations_) {
    if (allocation.released) continue;
    leaks->push_back(absl::StrFormat(
        "allocation %d of %s on device %d is not released", handle,
        FormatBytes(Bytes(allocation.size)), allocation.device));
  }
}

}  // namespace quire
