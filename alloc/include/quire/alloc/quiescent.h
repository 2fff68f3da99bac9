// A time in which nothing uses the memory of a device.
//
// The allocator cannot know which streams touch live memory, so whatever takes
// it away from under its addresses (mesh, relocation, sleep) runs inside of a
// section that the caller declares: it names the streams and events whose work
// may still be using the memory, Begin waits for them, and the caller promises
// that no work which uses it is queued, and no host thread touches it, before
// the section ends.
//
//   QUIRE_ASSIGN_OR_RETURN(QuiescentSection section,
//                          QuiescentSection::Begin(memory, streams, events));
//   QUIRE_RETURN_IF_ERROR(memory->Sleep(section, owner).status());
//
// A promise about the contents, not a lock: memory may be allocated and freed
// meanwhile, by this thread and others, and new memory may be used.

#ifndef QUIRE_ALLOC_QUIESCENT_H_
#define QUIRE_ALLOC_QUIESCENT_H_

#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "quire/alloc/device_memory.h"
#include "quire/alloc/units.h"

namespace quire {

// One thread at a time. Ends before its DeviceMemory does.
class QuiescentSection {
 public:
  // Waits for all work that is queued on `streams`, and for `events`. Where
  // there are none, the caller has waited already. Errors:
  // kFailedPrecondition where a section of this memory is open, or is being
  // opened by another thread; kInvalidArgument for StreamId(), which stands for
  // no stream; the driver's. After an error none is open.
  static absl::StatusOr<QuiescentSection> Begin(
      DeviceMemory* memory, std::span<const StreamId> streams,
      std::span<const EventId> events = {});

  // What was moved from is not open.
  QuiescentSection(QuiescentSection&& other) noexcept;
  QuiescentSection& operator=(QuiescentSection&& other) noexcept;
  ~QuiescentSection() { End(); }

  // Ends it before the destructor would; more than once is fine.
  void End();

  // Null where it is not open.
  const DeviceMemory* memory() const { return memory_; }
  // OK where it is open on `memory`, else kFailedPrecondition, with `action` as
  // what is refused: "sleep".
  absl::Status CheckOpen(const DeviceMemory& memory, const char* action) const;

 private:
  explicit QuiescentSection(DeviceMemory* memory) : memory_(memory) {}

  DeviceMemory* memory_;
};

}  // namespace quire

#endif  // QUIRE_ALLOC_QUIESCENT_H_
