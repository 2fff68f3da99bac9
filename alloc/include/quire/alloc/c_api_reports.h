// The C interface of what is told of device memory, to people and to programs:
// snapshots, statistics by size class, stream and owner, marks, traces, leaks.
//
//   quire_runtime_mark(runtime, "decode");
//   ...
//   quire_runtime_write_trace(runtime, 0, QUIRE_TRACE_RMM, "today.csv");
//   quire_leak_totals leaks = QUIRE_LEAK_TOTALS_INIT;
//   char* text = NULL;
//   if (quire_runtime_find_leaks(runtime, model, &leaks, &text) == QUIRE_OK &&
//       leaks.owners > 0) {
//     fputs(text, stderr);
//   }
//   quire_string_free(text);
//
// Include quire/alloc/c_api.h, which explains the conventions. All but
// quire_runtime_mark walk all pages and allocations of a device, or all events
// that are kept of them.

#ifndef QUIRE_ALLOC_C_API_REPORTS_H_
#define QUIRE_ALLOC_C_API_REPORTS_H_

#include "quire/alloc/c_api_base.h"

#ifdef __cplusplus
extern "C" {
#endif

// ---- Snapshots --------------------------------------------------------------

// The device's memory as JSON (docs/memory_snapshot.md), and as the report that
// a person reads. QUIRE_INVALID_ARGUMENT for a device
// that is not there.
QUIRE_C_FUNCTION quire_status quire_runtime_get_snapshot_json(
    quire_runtime* runtime, int32_t device, char** json) QUIRE_C_NOEXCEPT;
QUIRE_C_FUNCTION quire_status quire_runtime_get_report(
    quire_runtime* runtime, int32_t device, char** text) QUIRE_C_NOEXCEPT;

typedef int32_t quire_snapshot_format;
enum {
  QUIRE_SNAPSHOT_JSON = 0,
  QUIRE_SNAPSHOT_HTML = 1,    // one page to look at
  QUIRE_SNAPSHOT_PYTORCH = 2  // a pickle, for PyTorch's viewers
};
// The same into a file, which is made, or emptied first. Errors:
// QUIRE_INVALID_ARGUMENT for the device and the format;
// QUIRE_FAILED_PRECONDITION where the file cannot be written, of which a part
// may be there then.
QUIRE_C_FUNCTION quire_status quire_runtime_write_snapshot(
    quire_runtime* runtime, int32_t device, quire_snapshot_format format,
    const char* path) QUIRE_C_NOEXCEPT;

// ---- What the memory of an allocator is used for ----------------------------

// By size class, stream and owner, as of the moment when it was calculated.
typedef struct quire_allocator_breakdown quire_allocator_breakdown;

// Walks all slots, and keeps threads from allocating meanwhile.
QUIRE_C_FUNCTION quire_status quire_allocator_calculate_breakdown(
    const quire_allocator* allocator,
    quire_allocator_breakdown** breakdown) QUIRE_C_NOEXCEPT;
QUIRE_C_FUNCTION void quire_allocator_breakdown_destroy(
    quire_allocator_breakdown* breakdown) QUIRE_C_NOEXCEPT;

// Rows are in order of slot size, large allocations last, and of the numbers of
// streams and owners. What the fields mean is said in allocator_breakdown.h; in
// rows of classes and owners, mapped = live + cached + cooling + slack.
typedef struct quire_size_class_statistics {
  size_t size;
  uint32_t version;  // set by the library: of the fields that it knows
  uint32_t padding;
  uint64_t slot_size;  // 0: large allocations, and what lies between them
  uint64_t slabs;
  uint64_t live_allocations;
  uint64_t requested_bytes;
  uint64_t live_bytes;
  uint64_t cached_bytes;
  uint64_t cooling_bytes;
  uint64_t slack_bytes;
  uint64_t mapped_bytes;
  double internal_fragmentation;  // (live - requested) / live
  double external_fragmentation;  // (mapped - live) / mapped
} quire_size_class_statistics;
#define QUIRE_SIZE_CLASS_STATISTICS_INIT \
  { sizeof(quire_size_class_statistics), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 }

typedef struct quire_stream_statistics {
  size_t size;
  uint32_t version;  // set by the library: of the fields that it knows
  uint32_t padding;
  uint64_t stream;  // 0: none, or one of too many to be told apart
  uint64_t live_allocations;
  uint64_t requested_bytes;
  uint64_t live_bytes;
  uint64_t thread_cached_bytes;
  uint64_t cooling_bytes;
  uint64_t shared_cooling_bytes;
} quire_stream_statistics;
#define QUIRE_STREAM_STATISTICS_INIT \
  { sizeof(quire_stream_statistics), 0, 0, 0, 0, 0, 0, 0, 0, 0 }

typedef struct quire_owner_use_statistics {
  size_t size;
  uint32_t version;  // set by the library: of the fields that it knows
  uint32_t owner;
  uint64_t live_allocations;
  uint64_t requested_bytes;
  uint64_t live_bytes;
  uint64_t cached_bytes;
  uint64_t cooling_bytes;
  uint64_t slack_bytes;
  uint64_t mapped_bytes;
  uint64_t slabs;
  uint64_t asleep_bytes;
  uint64_t graph_pool_bytes;
  double internal_fragmentation;
  double external_fragmentation;
} quire_owner_use_statistics;
#define QUIRE_OWNER_USE_STATISTICS_INIT                                        \
  {                                                                            \
    sizeof(quire_owner_use_statistics), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, \
        0                                                                      \
  }
#define QUIRE_ALLOCATOR_BREAKDOWN_VERSION 1

// Each of the counts may be NULL. QUIRE_INVALID_ARGUMENT for an index that is
// not below its count.
QUIRE_C_FUNCTION quire_status quire_allocator_breakdown_get_counts(
    const quire_allocator_breakdown* breakdown, uint64_t* classes,
    uint64_t* streams, uint64_t* owners) QUIRE_C_NOEXCEPT;
QUIRE_C_FUNCTION quire_status quire_allocator_breakdown_get_class(
    const quire_allocator_breakdown* breakdown, uint64_t index,
    quire_size_class_statistics* statistics) QUIRE_C_NOEXCEPT;
QUIRE_C_FUNCTION quire_status quire_allocator_breakdown_get_stream(
    const quire_allocator_breakdown* breakdown, uint64_t index,
    quire_stream_statistics* statistics) QUIRE_C_NOEXCEPT;
QUIRE_C_FUNCTION quire_status quire_allocator_breakdown_get_owner(
    const quire_allocator_breakdown* breakdown, uint64_t index,
    quire_owner_use_statistics* statistics) QUIRE_C_NOEXCEPT;

// ---- Marks and traces -------------------------------------------------------

// A phase of the program begins, as timelines, verdicts and traces tell it:
// "load", "prefill". `label` is copied. Nothing is kept where the trace is
// disabled.
QUIRE_C_FUNCTION quire_status
quire_runtime_mark(quire_runtime* runtime, const char* label) QUIRE_C_NOEXCEPT;

typedef int32_t quire_trace_format;
enum {
  QUIRE_TRACE_CSV = 0,  // everything: docs/trace_formats.md
  QUIRE_TRACE_RMM = 1   // what RMM's replay_benchmark reads
};
// What the program asked of the device's allocator, in order, to be played
// again (allocator_replay, fragmentation_stress): as far back as events are
// kept (quire_runtime_options), and what was live by then as the first. Into a
// file, which is made, or emptied first. Errors: QUIRE_INVALID_ARGUMENT for the
// device and the format; QUIRE_FAILED_PRECONDITION where the trace is disabled,
// or the file cannot be written, of which a part may be there then.
QUIRE_C_FUNCTION quire_status quire_runtime_write_trace(
    quire_runtime* runtime, int32_t device, quire_trace_format format,
    const char* path) QUIRE_C_NOEXCEPT;

// Not 0 in a field: it is done.
typedef struct quire_replay_options {
  size_t size;
  // Each thread of the trace is a thread of its own; one event at a time all
  // the same, in the order of the trace.
  uint32_t use_threads;
  // Tries what could not be had in the recording too, and frees it at once.
  uint32_t try_failures;
} quire_replay_options;
#define QUIRE_REPLAY_OPTIONS_INIT \
  { sizeof(quire_replay_options), 0, 0 }

// Counts, bytes and time; TraceReplayResult in trace_replay.h.
typedef struct quire_replay_result {
  size_t size;
  uint32_t version;  // set by the library: of the fields that it knows
  uint32_t padding;
  uint64_t allocations;
  uint64_t frees;
  uint64_t failures;
  uint64_t failures_served;
  uint64_t peak_requested;
  uint64_t peak_mapped;
  uint64_t peak_in_use;  // since the runtime was created
  uint64_t driver_calls;
  uint64_t operations;
  uint64_t nanoseconds;  // for these
} quire_replay_result;
#define QUIRE_REPLAY_RESULT_INIT \
  { sizeof(quire_replay_result), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 }
#define QUIRE_REPLAY_RESULT_VERSION 1

// Plays a file against the allocator, on streams of its own: Quire's CSV and
// JSON snapshots, RMM's logs, PyTorch's snapshots, told apart by how they begin
// (docs/trace_formats.md). Owners of the trace are registered, and their limits
// hold. What it allocated is freed again, whatever happens. Nobody else may use
// the device's memory meanwhile. Lack of memory is part of the result, which
// may be NULL, as the options may. Errors: QUIRE_NOT_FOUND for a file that is
// not there, QUIRE_FAILED_PRECONDITION for one that cannot be read,
// QUIRE_INVALID_ARGUMENT for what is none of these, with its place; the
// driver's.
QUIRE_C_FUNCTION quire_status
quire_allocator_replay_trace(quire_allocator* allocator, const char* path,
                             const quire_replay_options* options,
                             quire_replay_result* result) QUIRE_C_NOEXCEPT;

// ---- Leaks ------------------------------------------------------------------

#define QUIRE_ALL_OWNERS UINT32_MAX

typedef struct quire_leak_totals {
  size_t size;
  uint64_t owners;  // that hold anything, on each device
  uint64_t allocations;
  uint64_t requested_bytes;
  // Of pages that owners mapped themselves and did not give up.
  uint64_t page_bytes;
} quire_leak_totals;
#define QUIRE_LEAK_TOTALS_INIT \
  { sizeof(quire_leak_totals), 0, 0, 0, 0 }

// What an owner, and those below it, hold when they should hold nothing, on all
// devices. Memory that was freed and is kept for re-use is not held. `totals`
// and `text` may be NULL; the text has a paragraph for each owner and device,
// with sizes, streams and, of what was sampled, callers: "" where there are
// none. QUIRE_INVALID_ARGUMENT for an owner that was never registered.
QUIRE_C_FUNCTION quire_status quire_runtime_find_leaks(
    quire_runtime* runtime, uint32_t owner, quire_leak_totals* totals,
    char** text) QUIRE_C_NOEXCEPT;

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // QUIRE_ALLOC_C_API_REPORTS_H_
