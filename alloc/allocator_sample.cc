// Who made an allocation: what the trace and the sampler are told.
//
// A sampled block is special (SpecialBlock), so that its free leaves the fast
// path by the test that is there for all special ones, and no other free has to
// ask. The sampler walks the stack without the allocator's lock; its own lock
// is inside that one.

#include "alloc/allocator_impl.h"
#include "quire/alloc/allocation_sampler.h"

namespace quire {

void DeviceAllocator::Impl::ObserveFastAllocation(
    DeviceAddress address, Bytes size, const AllocateOptions& options,
    const void* caller) {
  Trace(TraceAction::kAllocate, options.owner, address, size, options.stream);
  if (sampler_ != nullptr) Sample(address, size, options, caller);
}

void DeviceAllocator::Impl::Sample(DeviceAddress address, Bytes size,
                                   const AllocateOptions& options,
                                   const void* caller) {
  if (options.caller != nullptr) caller = options.caller;
  if (!sampler_->OnAllocate(address, size, caller)) return;
  MutexLock lock(&mutex_);
  // The caller has not got the address yet, so nobody has freed it.
  const absl::StatusOr<Block> block = LocateLive(address);
  if (!block.ok()) return sampler_->OnFree(address);
  special_[address.value()].sampled = true;
  block->record().store(block->record().load().WithSpecial(true));
}

void DeviceAllocator::Impl::ForgetSpecial(DeviceAddress address) {
  const auto special = special_.find(address.value());
  if (special->second.sampled) sampler_->OnFree(address);
  special_.erase(special);
}

}  // namespace quire
