#include "quire/alloc/quiescent.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "quire/alloc/status_macros.h"

namespace quire {

absl::StatusOr<QuiescentSection> QuiescentSection::Begin(
    DeviceMemory* memory, std::span<const StreamId> streams,
    std::span<const EventId> events) {
  QUIRE_RETURN_IF_ERROR(memory->BeginQuiescence());
  // Ends with every way out from here.
  QuiescentSection section(memory);
  for (const StreamId stream : streams) {
    if (stream == StreamId()) {
      return absl::InvalidArgumentError(
          "a quiescent section that waits for stream 0: the null stream means "
          "another one on each device, name the stream");
    }
    QUIRE_RETURN_IF_ERROR(memory->driver()->SynchronizeStream(stream));
  }
  for (const EventId event : events) {
    QUIRE_RETURN_IF_ERROR(memory->driver()->SynchronizeEvent(event));
  }
  return section;
}

QuiescentSection::QuiescentSection(QuiescentSection&& other) noexcept
    : memory_(std::exchange(other.memory_, nullptr)) {}

QuiescentSection& QuiescentSection::operator=(
    QuiescentSection&& other) noexcept {
  if (this == &other) return *this;
  End();
  memory_ = std::exchange(other.memory_, nullptr);
  return *this;
}

void QuiescentSection::End() {
  if (memory_ != nullptr) std::exchange(memory_, nullptr)->EndQuiescence();
}

absl::Status QuiescentSection::CheckOpen(const DeviceMemory& memory,
                                         const char* action) const {
  if (memory_ == &memory) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      action, " runs inside of a quiescent section of this memory only: ",
      memory_ == nullptr ? "the section given has ended"
                         : "the section given is of another memory"));
}

}  // namespace quire
