// How a device memory follows a ledger.
//
// One lock: the operation under way, which holds it over calls of the memory
// and of the ledger, and never while it waits for other processes. Reclaimers
// run under it, since they are what gives memory back; hooks do not, as every
// operation defers them until it has let go. The hooks of this class take the
// lock themselves.
//
// The order of limit and claim is what keeps the promise to others: the limit
// rises after the claim, and falls before it. So in_use <= max(limit, what was
// in use when the limit fell) <= claim, at every moment.

#include "quire/paging/memory_balloon.h"

#include <algorithm>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "paging/process_check.h"
#include "quire/alloc/limit_raiser.h"
#include "quire/alloc/memory_hooks.h"
#include "quire/alloc/mutex.h"
#include "quire/alloc/status_macros.h"
#include "quire/alloc/verdict.h"

namespace quire {
namespace {

using Clock = std::chrono::steady_clock;

// Between two looks at what others have given back.
constexpr std::chrono::milliseconds kPollInterval(1);

}  // namespace

class MemoryBalloon::Impl : public MemoryHooks, public LimitRaiser {
 public:
  Impl(DeviceMemory* memory, MemoryLedger* ledger,
       const MemoryBalloonOptions& options)
      : memory_(memory),
        ledger_(ledger),
        options_(options),
        page_size_(memory->page_size()),
        first_limit_(memory->GetStatistics().limit) {}
  ~Impl() override;

  absl::Status Start();
  bool in_forked_child() const { return memory_->in_forked_child(); }
  absl::Status CheckNotForked() const { return CheckProcess(*memory_); }
  absl::Status AddOwner(OwnerId owner, Bytes min, Bytes max)
      ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status Sync() ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status EnsureRoom(Bytes room) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status health() const ABSL_LOCKS_EXCLUDED(thread_mutex_) {
    MutexLock lock(&thread_mutex_);
    return health_;
  }

  // ---- MemoryHooks ----
  void OnPressure(const PressureChange& change) override;
  Bytes OnOutOfMemory(const OutOfMemoryVerdict& verdict) override;

  // ---- LimitRaiser ----
  Bytes HighestLimit() const override { return max_; }

 private:
  struct Owner {
    OwnerId id;
    LedgerEntryId entry;
    Bytes min;
    std::optional<Bytes> applied;  // the limit that was set last; 0: none
  };

  // Reports, asks for `wanted` in all, hopes for claim_ahead, and comes down to
  // what is left to it.
  absl::Status Adjust(Bytes wanted) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<LedgerAnswer> Ask(Bytes wanted, Bytes hoped)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status ComeDownTo(Bytes most) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status AdjustOwner(Owner* owner) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // What the memory must hold for `room` to be there.
  Bytes TotalWith(Bytes room) const;
  // What was wanted lately, in all.
  Bytes WantedNow() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return Clock::now() < wanted_until_ ? wanted_total_ : Bytes(0);
  }
  // What it could not give back.
  Bytes UsedOf(const DeviceMemoryStatistics& statistics) const;
  // Can be committed without a further claim.
  Bytes Available() const;
  Bytes Reclaimable() const;
  // Asks for `room` until it is there, or patience ends. Whether it is.
  absl::StatusOr<bool> Await(Bytes room) ABSL_LOCKS_EXCLUDED(mutex_);
  void RunThread();

  DeviceMemory* const memory_;
  MemoryLedger* const ledger_;
  const MemoryBalloonOptions options_;
  const Bytes page_size_;
  const Bytes first_limit_;
  Bytes min_;  // set at the start
  Bytes max_;  // the same: what the ledger could grant, with nobody else there

  mutable Mutex mutex_;
  LedgerEntryId entry_ ABSL_GUARDED_BY(mutex_);
  Bytes limit_ ABSL_GUARDED_BY(mutex_);  // of the memory
  std::vector<Owner> owners_ ABSL_GUARDED_BY(mutex_);
  // What somebody asked for, and until when it is held or asked for again.
  Bytes wanted_total_ ABSL_GUARDED_BY(mutex_);
  Clock::time_point wanted_until_ ABSL_GUARDED_BY(mutex_);

  bool hooked_ = false;  // set at the start
  mutable Mutex thread_mutex_;
  CondVar stop_;
  bool stopped_ ABSL_GUARDED_BY(thread_mutex_) = false;
  absl::Status health_ ABSL_GUARDED_BY(thread_mutex_);
  std::optional<std::thread> thread_;
};

// ---- Beginning and end ------------------------------------------------------

absl::Status MemoryBalloon::Impl::Start() {
  const DeviceMemoryStatistics statistics = memory_->GetStatistics();
  const Bytes max =
      options_.max.zero() ? first_limit_ : std::min(options_.max, first_limit_);
  const Bytes min = std::max(options_.min, page_size_);
  {
    MutexLock lock(&mutex_);
    QUIRE_ASSIGN_OR_RETURN(
        entry_,
        ledger_->Register({.name = options_.name, .min = min, .max = max}));
  }
  const Bytes needed = std::max(statistics.in_use, page_size_);
  min_ = min;
  QUIRE_ASSIGN_OR_RETURN(const LedgerSnapshot snapshot, ledger_->Read());
  max_ = std::min(max, snapshot.budget);
  LedgerAnswer answer;
  const Clock::time_point give_up = Clock::now() + options_.patience;
  while (true) {
    {
      MutexLock lock(&mutex_);
      QUIRE_ASSIGN_OR_RETURN(
          answer, ledger_->Request(entry_, {.held = answer.claim,
                                            .used = answer.claim,
                                            .wanted = std::max(needed, min)}));
      limit_ = answer.claim;
    }
    if (answer.claim >= needed) break;
    if (Clock::now() >= give_up)
      return absl::ResourceExhaustedError(absl::StrCat(
          "memory ledger ", ledger_->name(), ": ", options_.name, " needs ",
          needed.value(), " bytes to begin with and can have ",
          answer.claim.value(), " of them"));
    std::this_thread::sleep_for(kPollInterval);
  }
  QUIRE_RETURN_IF_ERROR(memory_->SetLimit(answer.claim));
  memory_->AddHooks(this);
  hooked_ = true;
  if (options_.sync_interval.count() > 0) {
    try {
      thread_.emplace([this] { RunThread(); });
    } catch (const std::system_error& error) {
      return absl::ResourceExhaustedError(absl::StrCat(
          "cannot start a thread that follows the ledger: ", error.what()));
    }
  }
  return Sync();
}

MemoryBalloon::Impl::~Impl() {
  if (thread_) {
    {
      MutexLock lock(&thread_mutex_);
      stopped_ = true;
      stop_.NotifyAll();
    }
    thread_->join();
  }
  if (hooked_) {
    memory_->RemoveHooks(this);
    memory_->SetLimit(first_limit_).IgnoreError();
  }
  MutexLock lock(&mutex_);
  // Where it fails, the claim ends with the ledger's handle or the process.
  if (entry_ != LedgerEntryId()) ledger_->Unregister(entry_).IgnoreError();
}

void MemoryBalloon::Impl::RunThread() {
  while (true) {
    absl::Status status = Sync();
    MutexLock lock(&thread_mutex_);
    health_ = std::move(status);
    // Early wake-ups cost a Sync.
    if (!stopped_) stop_.WaitFor(&thread_mutex_, options_.sync_interval);
    if (stopped_) return;
  }
}

// ---- Following the ledger ---------------------------------------------------

Bytes MemoryBalloon::Impl::Reclaimable() const {
  return CheckedBytes(memory_->ReclaimablePages(), page_size_)
      .value_or(Bytes(UINT64_MAX));
}

Bytes MemoryBalloon::Impl::Available() const {
  const DeviceMemoryStatistics statistics = memory_->GetStatistics();
  return SaturatingAdd(SaturatingAdd(statistics.growable, statistics.cached),
                       Reclaimable());
}

Bytes MemoryBalloon::Impl::TotalWith(Bytes room) const {
  const DeviceMemoryStatistics statistics = memory_->GetStatistics();
  // What cools is not to be had yet.
  const Bytes total = SaturatingAdd(
      SaturatingAdd(UsedOf(statistics), statistics.cooling), room);
  return CheckedAlignUp(total, page_size_).value_or(Bytes(UINT64_MAX));
}

Bytes MemoryBalloon::Impl::UsedOf(
    const DeviceMemoryStatistics& statistics) const {
  return SaturatingSubtract(
      SaturatingAdd(statistics.live, statistics.quarantined), Reclaimable());
}

absl::StatusOr<LedgerAnswer> MemoryBalloon::Impl::Ask(Bytes wanted,
                                                      Bytes hoped) {
  const DeviceMemoryStatistics statistics = memory_->GetStatistics();
  return ledger_->Request(entry_, {.held = std::max(limit_, statistics.in_use),
                                   .used = UsedOf(statistics),
                                   .wanted = wanted,
                                   .hoped = hoped});
}

absl::Status MemoryBalloon::Impl::Adjust(Bytes wanted) {
  wanted = std::max(wanted, min_);
  const Bytes hoped = TotalWith(options_.claim_ahead);
  // A claim that nobody needs is others'; a little is kept, so that it does not
  // go back and forth.
  const Bytes enough =
      std::max({wanted, hoped, memory_->GetStatistics().in_use});
  if (SaturatingSubtract(limit_, enough) > options_.claim_ahead) {
    QUIRE_RETURN_IF_ERROR(ComeDownTo(enough));
  }
  QUIRE_ASSIGN_OR_RETURN(LedgerAnswer answer, Ask(wanted, hoped));
  const bool may_give = !memory_->GetStatistics().over_limit.zero() &&
                        !memory_->ReclaimablePages().zero();
  if (answer.most < limit_ || may_give) {
    QUIRE_RETURN_IF_ERROR(ComeDownTo(std::min(answer.most, limit_)));
    QUIRE_ASSIGN_OR_RETURN(answer, Ask(wanted, hoped));
  }
  // What is in use beyond a limit that was lowered is claimed as well, but no
  // reason to raise it again.
  const Bytes limit = std::min(answer.claim, answer.most);
  if (limit > limit_) {
    QUIRE_RETURN_IF_ERROR(memory_->SetLimit(limit));
    limit_ = limit;
  }
  return absl::OkStatus();
}

absl::Status MemoryBalloon::Impl::ComeDownTo(Bytes most) {
  const Bytes limit = std::max(most, page_size_);
  // Gives cached pages back, as far as they are beyond it.
  QUIRE_RETURN_IF_ERROR(memory_->SetLimit(limit));
  limit_ = limit;
  const Bytes over = memory_->GetStatistics().over_limit;
  if (over.zero()) return absl::OkStatus();
  // Nothing is cached any more, and what comes in goes to the driver: so much
  // is asked of the reclaimers, and no more.
  const PageCount reclaimable = memory_->ReclaimablePages();
  memory_->Trim(PageCount(SaturatingSubtract(
      reclaimable.value(), PagesFor(over, page_size_).value())));
  return absl::OkStatus();
}

absl::Status MemoryBalloon::Impl::AdjustOwner(Owner* owner) {
  const OwnerStatistics statistics = memory_->GetOwnerStatistics(owner->id);
  QUIRE_ASSIGN_OR_RETURN(
      const LedgerAnswer answer,
      ledger_->Request(owner->entry,
                       {.held = statistics.live, .used = statistics.live}));
  const Bytes hard = answer.most >= first_limit_
                         ? Bytes(0)
                         : std::max(answer.most, page_size_);
  if (owner->applied == hard) return absl::OkStatus();
  // The soft limit makes its caches the first to give.
  QUIRE_RETURN_IF_ERROR(memory_->SetOwnerLimits(
      owner->id, {.soft = hard, .hard = hard, .reserved_minimum = owner->min}));
  owner->applied = hard;
  const Bytes over = memory_->GetOwnerStatistics(owner->id).over_hard;
  if (over.zero()) return absl::OkStatus();
  // Of the caches of this owner first, which is beyond its soft limit.
  const uint64_t spare = SaturatingAdd(
      memory_->ReclaimablePages().value(),
      memory_->GetStatistics().cached.value() / page_size_.value());
  memory_->Trim(
      PageCount(SaturatingSubtract(spare, PagesFor(over, page_size_).value())));
  return absl::OkStatus();
}

absl::Status MemoryBalloon::Impl::Sync() {
  const HookDeferral deferral(memory_);
  MutexLock lock(&mutex_);
  QUIRE_RETURN_IF_ERROR(Adjust(WantedNow()));
  for (Owner& owner : owners_) QUIRE_RETURN_IF_ERROR(AdjustOwner(&owner));
  return absl::OkStatus();
}

absl::StatusOr<bool> MemoryBalloon::Impl::Await(Bytes room) {
  const Clock::time_point give_up = Clock::now() + options_.patience;
  while (true) {
    {
      const HookDeferral deferral(memory_);
      MutexLock lock(&mutex_);
      wanted_total_ = std::max(WantedNow(), TotalWith(room));
      wanted_until_ = Clock::now() + options_.want_lifetime;
      QUIRE_RETURN_IF_ERROR(Adjust(wanted_total_));
      if (Available() >= room) return true;
    }
    if (Clock::now() >= give_up) return false;
    std::this_thread::sleep_for(kPollInterval);
  }
}

absl::Status MemoryBalloon::Impl::EnsureRoom(Bytes room) {
  QUIRE_ASSIGN_OR_RETURN(const bool there, Await(room));
  if (there) return absl::OkStatus();
  QUIRE_ASSIGN_OR_RETURN(const LedgerSnapshot snapshot, ledger_->Read());
  return absl::ResourceExhaustedError(absl::StrCat(
      "memory ledger ", ledger_->name(), ": ", options_.name, " wants ",
      FormatBytes(room), " more and has ", FormatBytes(Available()), "; ",
      FormatBytes(snapshot.claimed), " of ", FormatBytes(snapshot.budget),
      " are claimed by all processes: see quire kv list"));
}

absl::Status MemoryBalloon::Impl::AddOwner(OwnerId owner, Bytes min,
                                           Bytes max) {
  const HookDeferral deferral(memory_);
  MutexLock lock(&mutex_);
  QUIRE_ASSIGN_OR_RETURN(
      const LedgerEntryId entry,
      ledger_->Register({.name = memory_->owners()->Name(owner),
                         .min = min,
                         .max = max,
                         .parent = entry_}));
  owners_.push_back({owner, entry, min, std::nullopt});
  absl::Status status = AdjustOwner(&owners_.back());
  if (!status.ok()) {
    owners_.pop_back();
    ledger_->Unregister(entry).IgnoreError();
  }
  return status;
}

// ---- Hooks ------------------------------------------------------------------

// An error is no news here: a commit that fails for it says what is short, and
// Sync returns it.
void MemoryBalloon::Impl::OnPressure(const PressureChange& change) {
  if (change.owner || change.now <= change.before) return;
  const HookDeferral deferral(memory_);
  MutexLock lock(&mutex_);
  // Who is about to use what is claimed gives none of it back, and does more
  // than hope for the next.
  Adjust(std::max({limit_, WantedNow(), TotalWith(options_.claim_ahead)}))
      .IgnoreError();
}

Bytes MemoryBalloon::Impl::OnOutOfMemory(const OutOfMemoryVerdict& verdict) {
  // What the limit of this memory has no part in.
  if (verdict.owner_limit || verdict.kind == ShortageKind::kAddressSpace ||
      verdict.kind == ShortageKind::kMappings)
    return Bytes(0);
  const Bytes before = memory_->GetStatistics().limit;
  Await(verdict.requested).status().IgnoreError();
  return SaturatingSubtract(memory_->GetStatistics().limit, before);
}

// ---- The public face --------------------------------------------------------

absl::StatusOr<std::unique_ptr<MemoryBalloon>> MemoryBalloon::Create(
    DeviceMemory* memory, MemoryLedger* ledger,
    const MemoryBalloonOptions& options) {
  auto impl = std::make_unique<Impl>(memory, ledger, options);
  QUIRE_RETURN_IF_ERROR(impl->Start());
  return std::unique_ptr<MemoryBalloon>(new MemoryBalloon(std::move(impl)));
}

MemoryBalloon::MemoryBalloon(std::unique_ptr<Impl> impl)
    : impl_(std::move(impl)) {}
// In a forked child the thread and the entry are the parent's.
MemoryBalloon::~MemoryBalloon() {
  if (impl_->in_forked_child()) (void)impl_.release();
}

// The locks may be held by threads that a forked child does not have.
absl::Status MemoryBalloon::AddOwner(OwnerId owner, Bytes min, Bytes max) {
  QUIRE_RETURN_IF_ERROR(impl_->CheckNotForked());
  return impl_->AddOwner(owner, min, max);
}
absl::Status MemoryBalloon::Sync() {
  QUIRE_RETURN_IF_ERROR(impl_->CheckNotForked());
  return impl_->Sync();
}
absl::Status MemoryBalloon::EnsureRoom(Bytes room) {
  QUIRE_RETURN_IF_ERROR(impl_->CheckNotForked());
  return impl_->EnsureRoom(room);
}
absl::Status MemoryBalloon::health() const {
  QUIRE_RETURN_IF_ERROR(impl_->CheckNotForked());
  return impl_->health();
}

}  // namespace quire
