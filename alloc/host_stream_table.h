// The streams and events of a HostDriver, by their ids.
//
// Thread-safe. No lock is held while work runs or is waited for. Ids are
// numbered from 1 and never used twice.

#ifndef QUIRE_ALLOC_HOST_STREAM_TABLE_H_
#define QUIRE_ALLOC_HOST_STREAM_TABLE_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "alloc/host_stream.h"
#include "quire/alloc/mutex.h"
#include "quire/alloc/units.h"

namespace quire {

class HostStreamTable {
 public:
  HostStreamTable() = default;
  // The work of one stream may wait for that of another, so all keep running
  // until the last has been waited for.
  ~HostStreamTable() { Synchronize(); }

  StreamId CreateStream(DeviceId device);
  absl::StatusOr<std::shared_ptr<HostStream>> FindStream(StreamId stream);
  absl::Status DestroyStream(StreamId stream);
  absl::Status SynchronizeStream(StreamId stream);
  // Waits for the work queued on every stream.
  void Synchronize();

  EventId CreateEvent(DeviceId device);
  absl::Status DestroyEvent(EventId event);
  absl::Status RecordEvent(EventId event, StreamId stream);
  absl::StatusOr<bool> QueryEvent(EventId event);
  absl::Status SynchronizeEvent(EventId event);
  absl::Status WaitEvent(StreamId stream, EventId event);

  void AppendLeaks(std::vector<std::string>* leaks) const;

 private:
  struct Event {
    DeviceId device;
    std::shared_ptr<StreamMark> mark;  // null: never recorded
  };

  absl::StatusOr<std::shared_ptr<StreamMark>> FindMark(EventId event);

  mutable Mutex mutex_;
  uint64_t last_id_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<StreamId, std::shared_ptr<HostStream>> streams_
      ABSL_GUARDED_BY(mutex_);
  std::map<EventId, Event> events_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace quire

#endif  // QUIRE_ALLOC_HOST_STREAM_TABLE_H_
