// The C interface of memory that graphs keep.
//
// Include quire/alloc/c_api.h, which explains the conventions. allocator.h says
// what a pool is; in short: a graph uses the addresses of its capture whenever
// it is launched, so memory that is allocated for a captured stream comes from
// a pool whose pages stay where they are until it is released.

#ifndef QUIRE_ALLOC_C_API_GRAPH_H_
#define QUIRE_ALLOC_C_API_GRAPH_H_

#include "quire/alloc/c_api_base.h"

#ifdef __cplusplus
extern "C" {
#endif

// A number for a pool, of this allocator alone and never used again; 0 is none.
// Its pages count as those of the owner, who cannot sleep before the release.
// Errors: QUIRE_INVALID_ARGUMENT for the owner, QUIRE_FAILED_PRECONDITION where
// it sleeps.
QUIRE_C_FUNCTION quire_status
quire_allocator_create_graph_pool(quire_allocator* allocator, uint32_t owner,
                                  uint64_t* pool) QUIRE_C_NOEXCEPT;

// Until the end, everything that is allocated for `stream`, by whatever thread
// and for whatever owner, comes from the pool, and no event is recorded on the
// stream. Call it before the driver's capture begins, and the end after that
// has ended, well or not. Errors, after which nothing has changed:
// QUIRE_NOT_FOUND for the pool or the stream, QUIRE_INVALID_ARGUMENT for stream
// 0, QUIRE_FAILED_PRECONDITION where the stream is captured already; the
// driver's.
QUIRE_C_FUNCTION quire_status
quire_allocator_begin_graph_capture(quire_allocator* allocator, uint64_t pool,
                                    uint64_t stream) QUIRE_C_NOEXCEPT;
// Error: QUIRE_FAILED_PRECONDITION where the stream is not captured.
QUIRE_C_FUNCTION quire_status quire_allocator_end_graph_capture(
    quire_allocator* allocator, uint64_t stream) QUIRE_C_NOEXCEPT;

// The graphs of the pool are gone; they may still run on the streams named,
// after whose work the pages go back. `streams` may be NULL where there are
// none. What is live stays so until it is freed. Errors, after which nothing
// has changed: QUIRE_NOT_FOUND for the pool or a stream, QUIRE_INVALID_ARGUMENT
// for stream 0, QUIRE_FAILED_PRECONDITION where a capture into the pool is open
// or one of the streams is captured; the driver's.
QUIRE_C_FUNCTION quire_status quire_allocator_release_graph_pool(
    quire_allocator* allocator, uint64_t pool, const uint64_t* streams,
    uint64_t stream_count) QUIRE_C_NOEXCEPT;

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // QUIRE_ALLOC_C_API_GRAPH_H_
