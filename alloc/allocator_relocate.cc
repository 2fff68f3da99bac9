#include <algorithm>
#include <cstddef>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "alloc/allocator_impl.h"
#include "alloc/compaction_timer.h"
#include "quire/alloc/compaction.h"
#include "quire/alloc/quiescent.h"
#include "quire/alloc/status_macros.h"

namespace quire {

// ---- Pins -------------------------------------------------------------------

absl::Status DeviceAllocator::Impl::Pin(DeviceAddress address) {
  MutexLock lock(&mutex_);
  QUIRE_ASSIGN_OR_RETURN(const Block block, LocateLive(address));
  QUIRE_RETURN_IF_ERROR(CheckAwake(block.span->heap->owner()));
  SpecialBlock& special = special_[address.value()];
  if (special.moving) {
    return absl::FailedPreconditionError(absl::StrFormat(
        "%#x is being moved by a relocation pass", address.value()));
  }
  ++special.pins;
  block.record().store(block.record().load().WithSpecial(true));
  return absl::OkStatus();
}

absl::Status DeviceAllocator::Impl::Unpin(DeviceAddress address) {
  MutexLock lock(&mutex_);
  QUIRE_ASSIGN_OR_RETURN(const Block block, LocateLive(address));
  const auto special = special_.find(address.value());
  if (special == special_.end() || special->second.pins == 0) {
    return absl::FailedPreconditionError(
        absl::StrFormat("%#x is not pinned", address.value()));
  }
  --special->second.pins;
  DropIfPlain(block);
  return absl::OkStatus();
}

void DeviceAllocator::Impl::DropIfPlain(Block block) {
  const auto special = special_.find(block.address().value());
  if (!special->second.empty()) return;
  special_.erase(special);
  block.record().store(block.record().load().WithSpecial(false));
}

bool DeviceAllocator::Impl::IsPinned(Block block) const {
  return block.record().load().special() &&
         special_.find(block.address().value())->second.pins > 0;
}

bool DeviceAllocator::Impl::IsMovable(Block block) const {
  return block.record().load().movable() && !IsPinned(block);
}

// ---- Passes -----------------------------------------------------------------

class RelocationPass::Impl {
 public:
  explicit Impl(DeviceAllocator::Impl* allocator)
      : allocator_(allocator), timer_(*allocator->memory_->driver()) {}
  ~Impl() {
    if (allocator_ == nullptr) return;
    std::fill(actions.begin(), actions.end(), MoveAction::kIgnore);
    End();
  }

  absl::Status Copy() {
    QUIRE_RETURN_IF_ERROR(allocator_->CheckNotForked());
    Driver* const driver = allocator_->memory_->driver();
    CompactionListener* const listener = allocator_->options_.listener;
    QUIRE_ASSIGN_OR_RETURN(const StreamId stream,
                           driver->CreateStream(allocator_->memory_->device()));
    absl::Status status;
    for (size_t i = 0; i < moves.size() && status.ok(); ++i) {
      if (actions[i] != MoveAction::kCopy) continue;
      if (listener != nullptr) listener->BeforeMove(moves[i]);
      if (moves[i].size.zero()) continue;
      status = driver->CopyOnDevice(moves[i].to, moves[i].from, moves[i].size,
                                    stream);
    }
    // What was queued must not outlive the call, whatever became of the rest.
    const absl::Status done = driver->SynchronizeStream(stream);
    (void)driver->DestroyStream(stream);
    return status.ok() ? done : status;
  }

  CompactionReport End() {
    DeviceAllocator::Impl* const allocator = std::exchange(allocator_, nullptr);
    if (allocator->in_forked_child()) return {};  // the pass is the parent's
    CompactionReport report = allocator->FinishMoves(*this);
    timer_.Report(&report);
    if (CompactionListener* const listener = allocator->options_.listener) {
      for (size_t i = 0; i < moves.size(); ++i) {
        listener->AfterMove(moves[i], actions[i]);
      }
      listener->AfterCompaction(CompactionLevel::kRelocation, report);
    }
    return report;
  }

  std::vector<RelocationMove> moves;
  std::vector<MoveAction> actions;
  std::optional<OwnerId> owner;  // whose moves they are; none: of all
  uint64_t bytes_taken = 0;      // by pages that were mapped for what moves

 private:
  DeviceAllocator::Impl* allocator_;  // null once it has ended
  const CompactionTimer timer_;
};

RelocationPass::RelocationPass(std::unique_ptr<Impl> impl)
    : impl_(std::move(impl)) {}
RelocationPass::RelocationPass(RelocationPass&&) noexcept = default;
RelocationPass& RelocationPass::operator=(RelocationPass&&) noexcept = default;
RelocationPass::~RelocationPass() = default;

std::span<const RelocationMove> RelocationPass::moves() const {
  return impl_->moves;
}
void RelocationPass::SetAction(size_t index, MoveAction action) {
  impl_->actions[index] = action;
}
absl::Status RelocationPass::Copy() { return impl_->Copy(); }
CompactionReport RelocationPass::End() { return impl_->End(); }

absl::StatusOr<RelocationPass> DeviceAllocator::Impl::BeginRelocation(
    const QuiescentSection& section, const RelocationLimits& limits) {
  QUIRE_RETURN_IF_ERROR(section.CheckOpen(*memory_, "relocation"));
  QUIRE_RETURN_IF_ERROR(table_error_);
  {
    MutexLock lock(&mutex_);
    if (relocating_) {
      return absl::FailedPreconditionError(
          "a relocation pass of this allocator is open");
    }
    relocating_ = true;
  }
  TellBefore(CompactionLevel::kRelocation);
  auto pass = std::make_unique<RelocationPass::Impl>(this);
  pass->owner = limits.owner;
  // What is left of several classes may need a page to meet on. Without it the
  // pass does less.
  (void)memory_->Prepare(PageCount(1));
  const HookDeferral deferral(memory_);
  MutexLock lock(&mutex_);
  Collect();
  const auto is_movable = [this](Block block) ABSL_EXCLUSIVE_LOCKS_REQUIRED(
                              mutex_) { return IsMovable(block); };
  RelocationLimits left = limits;
  const uint64_t before = mapped_.bytes;
  // A free on the fast path takes no lock: none may come between the look at a
  // block and the mark that it moves.
  StopCaches(caches_);
  for (const auto& heap : heaps_) {
    if (heap->asleep()) continue;
    if (heap->kept_for_graphs()) continue;
    if (limits.owner && heap->owner() != *limits.owner) continue;
    for (const OwnerHeap::Move& move : heap->PlanRelocation(left, is_movable)) {
      const DeviceAddress from = move.from.address();
      const SlotRecordPlace record = move.from.record();
      record.store(record.load().WithSpecial(true));
      special_[from.value()].moving = true;
      reserved_bytes_ += move.to.size();
      pass->moves.push_back({from, move.to.address(),
                             Bytes(RequestedOf(move.from)), heap->owner()});
      left.max_bytes = Bytes(left.max_bytes.value() - move.from.size());
      --left.max_moves;
    }
  }
  ResumeCaches(caches_);
  pass->bytes_taken = mapped_.bytes - before;
  pass->actions.resize(pass->moves.size(), MoveAction::kCopy);
  CheckAfterMutation();
  return RelocationPass(std::move(pass));
}

CompactionReport DeviceAllocator::Impl::FinishMoves(
    const RelocationPass::Impl& pass) {
  CompactionReport report;
  const HookDeferral deferral(memory_);
  MutexLock lock(&mutex_);
  const uint64_t before = mapped_.bytes;
  for (size_t i = 0; i < pass.moves.size(); ++i) {
    FinishMove(pass.moves[i], pass.actions[i]);
    if (pass.actions[i] != MoveAction::kCopy) continue;
    ++report.moves;
    report.bytes_moved =
        Bytes(report.bytes_moved.value() + pass.moves[i].size.value());
  }
  relocating_ = false;
  for (const auto& heap : heaps_) heap->ReleaseFree(UINT64_MAX);
  report.pages_freed =
      PageCount(SaturatingSubtract(before, mapped_.bytes + pass.bytes_taken) /
                memory_->page_size().value());
  TraceCompaction(TraceAction::kRelocate, pass.owner, report);
  CheckAfterMutation();
  return report;
}

void DeviceAllocator::Impl::FinishMove(const RelocationMove& move,
                                       MoveAction action) {
  const auto block_at = [this](DeviceAddress address) {
    Span* const span = spans_->Find(address);
    return Block{span, *span->SlotAt(address.value())};
  };
  const Block from = block_at(move.from);
  const Block to = block_at(move.to);
  OwnerHeap* const heap = from.span->heap;
  reserved_bytes_ -= to.size();
  special_.find(move.from.value())->second.moving = false;
  if (action == MoveAction::kIgnore) {
    DropIfPlain(from);
    heap->Free(to);
    return;
  }
  const SlotRecord was = from.record().load();
  // To a trace, what moves is freed, and allocated elsewhere.
  const AllocationInfo info = InfoOf(from);
  Trace(TraceAction::kFree, info.owner, info.address, info.requested,
        StreamId());
  if (action == MoveAction::kCopy) {
    to.record().store(SlotRecord::Live(was.waste(), was.stream(),
                                       /*inherits=*/false)
                          .WithMovable(true)
                          .WithSpecial(true));
    SpecialBlock moved =
        std::move(special_.extract(move.from.value()).mapped());
    if (moved.sampled) sampler_->OnMove(move.from, move.to);
    special_[move.to.value()] = std::move(moved);
    DropIfPlain(to);
    Trace(TraceAction::kAllocate, info.owner, move.to, info.requested,
          info.stream);
  } else {
    ForgetSpecial(move.from);
    CountFree(heap, from.size(), RequestedOf(from));
    heap->Free(to);
  }
  from.record().store(was.Freed());
  heap->Free(from);
}

}  // namespace quire
