// The C interface of memory that graphs keep.

#include <vector>

#include "alloc/c_api_internal.h"

using quire::GraphPoolId;
using quire::OwnerId;
using quire::StreamId;
using quire::c_api::Call;
using quire::c_api::CheckArguments;

quire_status quire_allocator_create_graph_pool(quire_allocator* allocator,
                                               uint32_t owner,
                                               uint64_t* pool) noexcept {
  return Call([&]() -> absl::Status {
    QUIRE_RETURN_IF_ERROR(
        CheckArguments({{"allocator", allocator}, {"pool", pool}}));
    QUIRE_ASSIGN_OR_RETURN(
        const GraphPoolId created,
        allocator->allocator->CreateGraphPool(OwnerId(owner)));
    *pool = created.value();
    return absl::OkStatus();
  });
}

quire_status quire_allocator_begin_graph_capture(quire_allocator* allocator,
                                                 uint64_t pool,
                                                 uint64_t stream) noexcept {
  return Call([&]() -> absl::Status {
    QUIRE_RETURN_IF_ERROR(CheckArguments({{"allocator", allocator}}));
    return allocator->allocator->BeginGraphCapture(GraphPoolId(pool),
                                                   StreamId(stream));
  });
}

quire_status quire_allocator_end_graph_capture(quire_allocator* allocator,
                                               uint64_t stream) noexcept {
  return Call([&]() -> absl::Status {
    QUIRE_RETURN_IF_ERROR(CheckArguments({{"allocator", allocator}}));
    return allocator->allocator->EndGraphCapture(StreamId(stream));
  });
}

quire_status quire_allocator_release_graph_pool(
    quire_allocator* allocator, uint64_t pool, const uint64_t* streams,
    uint64_t stream_count) noexcept {
  return Call([&]() -> absl::Status {
    QUIRE_RETURN_IF_ERROR(CheckArguments({{"allocator", allocator}}));
    QUIRE_ASSIGN_OR_RETURN(const std::vector<StreamId> run_on,
                           quire::c_api::ReadStreams(streams, stream_count));
    return allocator->allocator->ReleaseGraphPool(GraphPoolId(pool), run_on);
  });
}
