// Weights that are dropped and come back.
//
// Dropping is a sleep of the owner whose contents go nowhere. Coming back is a
// wake, which gives every address a page again, and the same streaming and
// finishing as in the first load, by a WeightBuilder that is handed the
// allocations there are instead of new ones. Where that does not succeed, the
// pages, which hold half a model, are dropped again.

#include <vector>

#include "absl/strings/str_cat.h"
#include "model/decoder/shared_weights_entry.h"
#include "model/decoder/weight_builder.h"
#include "quire/alloc/quiescent.h"
#include "quire/alloc/quote.h"
#include "quire/alloc/sleep.h"
#include "quire/alloc/status_macros.h"
#include "quire/alloc/try_twice.h"
#include "quire/model/model_weights.h"

namespace quire {

absl::StatusOr<Bytes> ModelWeights::Drop() {
  if (shared_ != nullptr) return shared_->Leave(this);
  // The next pass's weights may be on their way to the slots.
  for (OffloadStore* const store : stores())
    QUIRE_RETURN_IF_ERROR(store->EndPass(/*completed=*/false));
  return DropPages();
}

absl::StatusOr<Bytes> ModelWeights::DropPages() {
  std::vector<QuiescentSection> sections;
  for (int i = 0; i < runtime_->device_count(); ++i) {
    // Nothing that uses the weights is queued anywhere.
    QUIRE_ASSIGN_OR_RETURN(
        QuiescentSection section,
        QuiescentSection::Begin(runtime_->memory(DeviceId(i)), {}));
    sections.push_back(std::move(section));
  }
  Bytes given_back;
  absl::Status first_error;
  for (int i = 0; i < runtime_->device_count(); ++i) {
    const absl::Status status = TryTwice([&]() -> absl::Status {
      QUIRE_ASSIGN_OR_RETURN(
          const SleepReport report,
          runtime_->allocator(DeviceId(i))
              ->Sleep(sections[static_cast<size_t>(i)], owner_,
                      {.target = SleepTarget::kDrop}));
      given_back = SaturatingAdd(
          given_back,
          CheckedBytes(report.pages, runtime_->memory()->page_size())
              .value_or(Bytes(UINT64_MAX)));
      if (report.pages != PageCount(0)) resident_ = false;
      return absl::OkStatus();
    });
    // What was lost is not whole, whatever kept it from being given back.
    if (absl::IsDataLoss(status)) resident_ = false;
    first_error.Update(status);
  }
  if (!first_error.ok()) return first_error;
  // A model of no bytes is dropped as well.
  resident_ = false;
  return given_back;
}

absl::Status ModelWeights::WakePages() {
  for (int i = 0; i < runtime_->device_count(); ++i)
    QUIRE_RETURN_IF_ERROR(
        runtime_->allocator(DeviceId(i))->Wake(owner_).status());
  return absl::OkStatus();
}

absl::Status ModelWeights::CheckSameFiles(const Checkpoint& checkpoint) const {
  const std::vector<CheckpointFile>& files = checkpoint.files();
  if (files.size() != files_.size())
    return absl::DataLossError(absl::StrCat(
        Printable(checkpoint.folder()), ": the checkpoint has ", files.size(),
        " files, but had ", files_.size(), " when its weights were loaded"));
  for (size_t i = 0; i < files.size(); ++i) {
    if (!files[i].SameFile(files_[i]))
      return absl::DataLossError(
          absl::StrCat(Printable(files[i].path),
                       ": is not the file that the weights were loaded from"));
  }
  return checkpoint.CheckUnchanged();
}

absl::StatusOr<LoadReport> ModelWeights::Refill(const Checkpoint& checkpoint,
                                                const ModelConfig& config,
                                                const StreamingOptions& options,
                                                ThreadPool* pool) {
  QUIRE_RETURN_IF_ERROR(WakePages());
  ModelWeights again(runtime_);
  WeightBuilder builder(runtime_, checkpoint, config, options_, &again);
  QUIRE_RETURN_IF_ERROR(builder.Refill(*this, options, pool));
  for (const auto& [name, crc] : again.load_report_.crc32) {
    const auto before = load_report_.crc32.find(name);
    if (before != load_report_.crc32.end() && before->second != crc)
      return absl::DataLossError(absl::StrCat(
          Printable(checkpoint.folder()), ": tensor ", Quoted(name),
          " has another checksum than when it was first loaded"));
  }
  return std::move(again.load_report_);
}

absl::StatusOr<LoadReport> ModelWeights::Reload(const Checkpoint& checkpoint,
                                                const ModelConfig& config,
                                                const StreamingOptions& options,
                                                ThreadPool* pool) {
  if (resident()) return LoadReport();
  if (shared_ != nullptr)
    return shared_->Join(this, {checkpoint, config, options, pool});
  QUIRE_RETURN_IF_ERROR(CheckSameFiles(checkpoint));
  absl::StatusOr<LoadReport> report = Refill(checkpoint, config, options, pool);
  if (report.ok()) {
    resident_ = true;
    return report;
  }
  const absl::Status dropped = DropPages().status();
  if (dropped.ok()) return report;
  return absl::Status(
      report.status().code(),
      absl::StrCat(report.status().message(),
                   "; the pages could not be given back: ", dropped.message()));
}

}  // namespace quire
