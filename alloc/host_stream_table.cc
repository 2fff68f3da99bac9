#include "alloc/host_stream_table.h"

#include <utility>

#include "absl/strings/str_format.h"
#include "alloc/driver_checks.h"
#include "quire/alloc/status_macros.h"

namespace quire {
namespace {

// A host function that waits for a stream may wait for itself.
absl::Status CheckMayWait(const char* call) {
  if (!HostStream::OnStreamThread()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrFormat("%s: called from a host function on a stream", call));
}

}  // namespace

StreamId HostStreamTable::CreateStream(DeviceId device) {
  MutexLock lock(&mutex_);
  const StreamId stream(++last_id_);
  streams_[stream] = std::make_shared<HostStream>(device);
  return stream;
}

absl::StatusOr<std::shared_ptr<HostStream>> HostStreamTable::FindStream(
    StreamId stream) {
  MutexLock lock(&mutex_);
  const auto found = streams_.find(stream);
  if (found == streams_.end()) return UnknownStream(stream);
  return found->second;
}

absl::Status HostStreamTable::DestroyStream(StreamId stream) {
  QUIRE_RETURN_IF_ERROR(CheckMayWait("DestroyStream"));
  std::shared_ptr<HostStream> destroyed;
  {
    MutexLock lock(&mutex_);
    const auto found = streams_.find(stream);
    if (found == streams_.end()) return UnknownStream(stream);
    destroyed = std::move(found->second);
    streams_.erase(found);
  }
  destroyed->Synchronize();
  return absl::OkStatus();
}

absl::Status HostStreamTable::SynchronizeStream(StreamId stream) {
  QUIRE_RETURN_IF_ERROR(CheckMayWait("SynchronizeStream"));
  QUIRE_ASSIGN_OR_RETURN(const std::shared_ptr<HostStream> found,
                         FindStream(stream));
  found->Synchronize();
  return absl::OkStatus();
}

void HostStreamTable::Synchronize() {
  std::vector<std::shared_ptr<HostStream>> streams;
  {
    MutexLock lock(&mutex_);
    for (const auto& [id, stream] : streams_) streams.push_back(stream);
  }
  for (const auto& stream : streams) stream->Synchronize();
}

EventId HostStreamTable::CreateEvent(DeviceId device) {
  MutexLock lock(&mutex_);
  const EventId event(++last_id_);
  events_[event] = {device, nullptr};
  return event;
}

absl::Status HostStreamTable::DestroyEvent(EventId event) {
  MutexLock lock(&mutex_);
  return events_.erase(event) == 0 ? UnknownEvent(event) : absl::OkStatus();
}

absl::Status HostStreamTable::RecordEvent(EventId event, StreamId stream) {
  MutexLock lock(&mutex_);
  const auto found = events_.find(event);
  if (found == events_.end()) return UnknownEvent(event);
  const auto target = streams_.find(stream);
  if (target == streams_.end()) return UnknownStream(stream);
  QUIRE_RETURN_IF_ERROR(CheckRecord({event, found->second.device},
                                    {stream, target->second->device()}));
  auto mark = std::make_shared<StreamMark>();
  QUIRE_RETURN_IF_ERROR(target->second->EnqueueMark(mark));
  found->second.mark = std::move(mark);
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<StreamMark>> HostStreamTable::FindMark(
    EventId event) {
  MutexLock lock(&mutex_);
  const auto found = events_.find(event);
  if (found == events_.end()) return UnknownEvent(event);
  return found->second.mark;
}

absl::StatusOr<bool> HostStreamTable::QueryEvent(EventId event) {
  QUIRE_ASSIGN_OR_RETURN(const std::shared_ptr<StreamMark> mark,
                         FindMark(event));
  return mark == nullptr || mark->reached();
}

absl::Status HostStreamTable::SynchronizeEvent(EventId event) {
  QUIRE_RETURN_IF_ERROR(CheckMayWait("SynchronizeEvent"));
  QUIRE_ASSIGN_OR_RETURN(const std::shared_ptr<StreamMark> mark,
                         FindMark(event));
  if (mark != nullptr) mark->Wait();
  return absl::OkStatus();
}

absl::Status HostStreamTable::WaitEvent(StreamId stream, EventId event) {
  QUIRE_ASSIGN_OR_RETURN(const std::shared_ptr<HostStream> target,
                         FindStream(stream));
  QUIRE_ASSIGN_OR_RETURN(const std::shared_ptr<StreamMark> mark,
                         FindMark(event));
  if (mark == nullptr || mark->reached()) return absl::OkStatus();
  return target->Enqueue([mark] { mark->Wait(); });
}

void HostStreamTable::AppendLeaks(std::vector<std::string>* leaks) const {
  MutexLock lock(&mutex_);
  for (const auto& [stream, unused] : streams_) {
    leaks->push_back(
        absl::StrFormat("stream %d is not destroyed", stream.value()));
  }
  for (const auto& [event, unused] : events_) {
    leaks->push_back(
        absl::StrFormat("event %d is not destroyed", event.value()));
  }
}

}  // namespace quire
