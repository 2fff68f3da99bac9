#include "model/quantizer/part_feed.h"

#include "quire/alloc/status_macros.h"
#include "quire/alloc/try_twice.h"

namespace quire {

PartFeed::PartFeed(Runtime* runtime, const ModelWeights* weights)
    : driver_(runtime->driver()), weights_(*weights) {}

PartFeed::~PartFeed() {
  // What was fetched ahead is of no use to whoever runs the weights next: that
  // begins with the first part.
  for (OffloadStore* const store : weights_.stores())
    store->EndPass(/*completed=*/false).IgnoreError();
  for (const auto& [device, stream] : streams_)
    TryTwice([&, stream = stream] {
      return driver_->DestroyStream(stream);
    }).IgnoreError();
}

absl::StatusOr<StreamId> PartFeed::StreamOf(DeviceId device) {
  const auto known = streams_.find(device);
  if (known != streams_.end()) return known->second;
  QUIRE_ASSIGN_OR_RETURN(const StreamId stream, driver_->CreateStream(device));
  streams_.emplace(device, stream);
  return stream;
}

absl::Status PartFeed::Acquire(size_t part) {
  const PartResidence& residence = weights_.residences()[part];
  if (residence.store == nullptr) return absl::OkStatus();
  QUIRE_ASSIGN_OR_RETURN(const StreamId stream, StreamOf(residence.device));
  QUIRE_RETURN_IF_ERROR(residence.store->Acquire(residence.visit, stream));
  QUIRE_RETURN_IF_ERROR(driver_->SynchronizeStream(stream));
  // A read that failed is known now, and not after hours of work with whatever
  // was in its buffer.
  return residence.store->EndPass(/*completed=*/true);
}

absl::Status PartFeed::Release(size_t part) {
  const PartResidence& residence = weights_.residences()[part];
  if (residence.store == nullptr) return absl::OkStatus();
  QUIRE_ASSIGN_OR_RETURN(const StreamId stream, StreamOf(residence.device));
  return residence.store->Release(residence.visit, stream);
}

}  // namespace quire
