// DeviceMemory: owners that sleep and wake up.
//
// Three steps each. Under the lock the pages are looked up, or taken and
// mapped, and their ranges marked as moving; without it their contents are
// copied, which takes seconds; under the lock again it is finished, or undone.
// Who wants to change such a range meanwhile waits for the last step; who does
// anything else does not.

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "alloc/compaction_timer.h"
#include "alloc/copy_streams.h"
#include "alloc/device_memory_impl.h"
#include "quire/alloc/sleep.h"
#include "quire/alloc/status_macros.h"

namespace quire {
namespace {

absl::Status CheckOptions(const SleepOptions& options) {
  if (options.target == SleepTarget::kDisk && options.folder.empty()) {
    return absl::InvalidArgumentError(
        "sleep to the disk was asked for, and no folder was named");
  }
  return absl::OkStatus();
}

}  // namespace

std::vector<ManagedRange*> DeviceMemory::Impl::RangesWithin(
    OwnerId owner) const {
  std::vector<ManagedRange*> ranges;
  for (const auto& [first_page, range] : ranges_) {
    if (!range->retired && owners_->IsWithin(range->owner(), owner)) {
      ranges.push_back(range.get());
    }
  }
  return ranges;
}

void DeviceMemory::Impl::AwaitTransition(const ManagedRange* range) {
  while (range->moving) moved_.Wait(&mutex_);
}

void DeviceMemory::Impl::EndTransition() {
  AfterMutation();
  freed_.NotifyAll();
  moved_.NotifyAll();
}

void DeviceMemory::Impl::RecordRuns(TraceAction action,
                                    const SleepTransition& transition) const {
  for (const SleepTransition::Run& run : transition.runs) {
    if (run.pages > 0) Record(action, run.range.get(), run.first, run.pages);
  }
}

// ---- Sleep ------------------------------------------------------------------

absl::StatusOr<SleepReport> DeviceMemory::Impl::Sleep(
    OwnerId owner, const SleepOptions& options) {
  QUIRE_RETURN_IF_ERROR(CheckOwner(owner));
  QUIRE_RETURN_IF_ERROR(CheckOptions(options));
  const CompactionTimer timer(*driver_);
  // No hook runs before it is over: it might want what is in hand.
  const HookScope scope(&dispatcher_);
  absl::Status refusal;
  std::vector<const PageReclaimer*> prepared;
  reclaimers_.ForEach([&](PageReclaimer* reclaimer) {
    refusal = reclaimer->BeforeSleep(owner);
    if (refusal.ok()) prepared.push_back(reclaimer);
    return refusal.ok();
  });
  absl::StatusOr<SleepReport> report =
      refusal.ok() ? PutToSleep(owner, options)
                   : absl::StatusOr<SleepReport>(refusal);
  reclaimers_.ForEach([&](PageReclaimer* reclaimer) {
    if (std::find(prepared.begin(), prepared.end(), reclaimer) !=
        prepared.end()) {
      reclaimer->AfterSleep(owner, report.ok());
    }
    return true;
  });
  if (report.ok()) timer.Report(&*report);
  return report;
}

absl::StatusOr<SleepReport> DeviceMemory::Impl::PutToSleep(
    OwnerId owner, const SleepOptions& options) {
  // What nobody holds is not worth saving.
  AskForPagesOf(owner, UINT64_MAX, /*cooling=*/true);
  SleepTransition transition;
  {
    Section section(this);
    HarvestAll();
    QUIRE_ASSIGN_OR_RETURN(transition,
                           backing_.BeginSleep(RangesWithin(owner)));
    AfterMutation();
  }
  absl::Status status = SaveContents(options, &transition);
  {
    Section section(this);
    if (status.ok()) {
      status = backing_.FinishSleep(&transition);
    } else {
      backing_.AbandonSleep(transition);
    }
    if (status.ok()) {
      RecordRuns(TraceAction::kDecommit, transition);
      RecordOfDevice(TraceAction::kSleep, transition.freed, owner);
    }
    EndTransition();
  }
  QUIRE_RETURN_IF_ERROR(status);
  SleepReport report;
  report.pages = PageCount(transition.pages.size());
  report.pages_freed = PageCount(transition.freed);
  if (options.target != SleepTarget::kDrop) {
    report.bytes_moved = PageBytes(transition.pages.size());
  }
  return report;
}

absl::Status DeviceMemory::Impl::SaveContents(const SleepOptions& options,
                                              SleepTransition* transition) {
  if (options.target == SleepTarget::kDrop || transition->pages.empty()) {
    return absl::OkStatus();
  }
  std::vector<ArchivedPage> pages;
  pages.reserve(transition->pages.size());
  for (const SleepTransition::Page& page : transition->pages) {
    pages.push_back({page.address, page.saved->owner});
  }
  const ArchiveContext context = {driver_, device_, page_size_, &archive_use_};
  QUIRE_ASSIGN_OR_RETURN(const std::shared_ptr<PageArchive> archive,
                         options.target == SleepTarget::kHost
                             ? SaveToHost(context, pages)
                             : SaveToDisk(context, pages, options.folder));
  for (size_t i = 0; i < pages.size(); ++i) {
    transition->pages[i].saved->archive = archive;
    transition->pages[i].saved->place = i;
  }
  return absl::OkStatus();
}

// ---- Wake -------------------------------------------------------------------

absl::StatusOr<SleepReport> DeviceMemory::Impl::Wake(
    OwnerId owner, const WakeOptions& options) {
  QUIRE_RETURN_IF_ERROR(CheckOwner(owner));
  for (int round = 0;; ++round) {
    absl::StatusOr<SleepReport> report = WakeOrExplain(owner, options);
    if (round == kOutOfMemoryRounds || !AskOutOfMemoryHooks(report.status())) {
      return report;
    }
  }
}

absl::StatusOr<SleepReport> DeviceMemory::Impl::WakeOrExplain(
    OwnerId owner, const WakeOptions& options) {
  const HookScope scope(&dispatcher_);
  const CompactionTimer timer(*driver_);
  SleepTransition transition;
  CommitAttempt attempt;
  const absl::Status begun = TryWithRelief(
      /*may_wait=*/true, &attempt, [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
        return backing_.TryBeginWake(RangesWithin(owner), &attempt,
                                     &transition);
      });
  if (absl::IsResourceExhausted(begun)) {
    return OutOfMemory({attempt.limited_by.value_or(owner), attempt.requested(),
                        attempt.shortage, begun, VerdictDetail::kFull});
  }
  QUIRE_RETURN_IF_ERROR(begun);
  SleepReport report;
  const absl::Status copied = RestoreContents(options, transition, &report);
  // Gives host memory back, which takes its time, without the lock.
  std::vector<std::unique_ptr<SavedPage>> restored;
  {
    Section section(this);
    absl::Status undone;
    if (copied.ok()) {
      backing_.FinishWake(transition, &restored);
      RecordRuns(TraceAction::kCommit, transition);
      RecordOfDevice(TraceAction::kWake, transition.pages.size(), owner);
    } else {
      undone = backing_.AbandonWake(&transition);
      backing_.AbandonCommit(attempt);
    }
    EndTransition();
    // What was lost weighs more than why the wake failed.
    QUIRE_RETURN_IF_ERROR(undone);
  }
  QUIRE_RETURN_IF_ERROR(copied);
  restored.clear();
  reclaimers_.ForEach([owner](PageReclaimer* reclaimer) {
    reclaimer->AfterWake(owner);
    return true;
  });
  report.pages = PageCount(transition.pages.size());
  timer.Report(&report);
  return report;
}

absl::Status DeviceMemory::Impl::RestoreContents(
    const WakeOptions& options, const SleepTransition& transition,
    SleepReport* report) const {
  std::vector<SleepTransition::Page> pages = transition.pages;
  std::stable_sort(
      pages.begin(), pages.end(), [](const auto& a, const auto& b) {
        const auto key = [](const SleepTransition::Page& page) {
          return std::pair(page.saved->archive.get(), page.saved->place);
        };
        return key(a) < key(b);
      });
  uint64_t moved = 0;
  for (size_t begin = 0; begin < pages.size();) {
    PageArchive* const archive = pages[begin].saved->archive.get();
    const size_t end = EndOfRun(begin, pages.size(), [&](size_t i) {
      return pages[i].saved->archive.get() == archive;
    });
    std::vector<ArchivePlacement> placements;
    for (size_t i = begin; i < end; ++i) {
      placements.push_back({pages[i].saved->place, pages[i].address});
    }
    if (archive != nullptr) {
      QUIRE_RETURN_IF_ERROR(archive->Load(placements));
      moved += end - begin;
    } else if (options.zero_dropped) {
      QUIRE_RETURN_IF_ERROR(FillWithZeros(placements));
    }
    begin = end;
  }
  report->bytes_moved = PageBytes(moved);
  return absl::OkStatus();
}

absl::Status DeviceMemory::Impl::FillWithZeros(
    std::span<const ArchivePlacement> pages) const {
  CopyStreams streams(driver_);
  QUIRE_RETURN_IF_ERROR(streams.Open(device_));
  for (size_t at = 0, turn = 0; at < pages.size(); ++turn) {
    const size_t end = EndOfAddresses(pages, at, pages.size(), page_size_);
    QUIRE_RETURN_IF_ERROR(driver_->Fill(pages[at].address, 0,
                                        PageBytes(end - at), streams.at(turn)));
    at = end;
  }
  return streams.Synchronize();
}

}  // namespace quire
