// The C interface of compaction: getting memory back that others hold.
// docs/compaction.md says what each level does and costs.
//
// Include quire/alloc/c_api.h, which explains the conventions.
//
// Example, with `allocator` of `memory`, and `stream` that uses its memory:
//   quire_quiescent_section* section = NULL;
//   quire_relocation_pass* pass = NULL;
//   if (quire_quiescent_section_begin(memory, &stream, 1, &section) !=
//           QUIRE_OK ||
//       quire_relocation_pass_begin(allocator, section, NULL, &pass) !=
//           QUIRE_OK ||
//       quire_relocation_pass_copy(pass) != QUIRE_OK)
//     fprintf(stderr, "%s\n", quire_last_error());
//   (change the pointers: quire_relocation_pass_get_move)
//   quire_relocation_pass_finish(pass, NULL);
//   quire_relocation_pass_destroy(pass);
//   quire_quiescent_section_end(section);

#ifndef QUIRE_ALLOC_C_API_COMPACTION_H_
#define QUIRE_ALLOC_C_API_COMPACTION_H_

#include "quire/alloc/c_api_base.h"

#ifdef __cplusplus
extern "C" {
#endif

// ---- Quiescent sections -----------------------------------------------------

// A time in which nothing uses the memory of a device, but what the functions
// below do: the caller promises that no work which uses it is queued, and no
// thread of the host touches it, before the section ends. It may be allocated
// and freed meanwhile, and new memory may be used. quiescent.h.
typedef struct quire_quiescent_section quire_quiescent_section;

// Waits for all work that is queued on the streams; `streams` may be NULL where
// there are none. Errors: QUIRE_FAILED_PRECONDITION where a section of this
// memory is open; QUIRE_INVALID_ARGUMENT for stream 0; QUIRE_NOT_FOUND for a
// stream that does not exist; the driver's.
QUIRE_C_FUNCTION quire_status quire_quiescent_section_begin(
    quire_memory* memory, const uint64_t* streams, uint64_t stream_count,
    quire_quiescent_section** section) QUIRE_C_NOEXCEPT;
// Ends the section, and destroys the handle. Where a relocation pass of the
// section was not destroyed, it stays open until that is. NULL is allowed.
QUIRE_C_FUNCTION void quire_quiescent_section_end(
    quire_quiescent_section* section) QUIRE_C_NOEXCEPT;

// ---- Trim -------------------------------------------------------------------

// Of one pass of any kind.
typedef struct quire_compaction_report {
  size_t size;
  uint64_t moves;  // allocations that were copied
  uint64_t bytes_moved;
  uint64_t pages_freed;
  uint64_t driver_calls;
  double seconds;
} quire_compaction_report;
#define QUIRE_COMPACTION_REPORT_INIT \
  { sizeof(quire_compaction_report), 0, 0, 0, 0, 0 }

// quire_allocator_trim and quire_memory_trim, with all that they have to
// report. `report` may be NULL. Listeners hear of the first.
QUIRE_C_FUNCTION quire_status quire_allocator_trim_with_report(
    quire_allocator* allocator, uint64_t keep,
    quire_compaction_report* report) QUIRE_C_NOEXCEPT;
QUIRE_C_FUNCTION quire_status
quire_memory_trim_with_report(quire_memory* memory, uint64_t keep_pages,
                              quire_compaction_report* report) QUIRE_C_NOEXCEPT;

// ---- Mesh -------------------------------------------------------------------

typedef struct quire_mesh_options {
  size_t size;
  // Slabs of smaller slots are left alone. Default 32 KiB.
  uint64_t smallest_slot;
  // Not 0: only what belongs to `owner`, and not to those below it.
  int32_t of_one_owner;
  uint32_t owner;
} quire_mesh_options;
#define QUIRE_MESH_OPTIONS_INIT \
  { sizeof(quire_mesh_options), 0, 0, 0 }

// Lays slabs whose live slots do not overlap into one physical page and gives
// the other pages back to the pool. No address changes. `options` may be NULL
// (all slabs of 32 KiB slots and more), `report` too. Errors:
// QUIRE_FAILED_PRECONDITION for a section of another device's memory; the
// driver's, after which what was not done is as it was.
QUIRE_C_FUNCTION quire_status quire_allocator_mesh(
    quire_allocator* allocator, const quire_quiescent_section* section,
    const quire_mesh_options* options,
    quire_compaction_report* report) QUIRE_C_NOEXCEPT;

// When quire_allocator_compact does something; ThresholdPolicy in compaction.h.
typedef struct quire_compaction_thresholds {
  size_t size;
  // Memory in use beyond this part of the limit. Default 0.85.
  double pool_in_use;
  // Mapped memory that lies free between live slots, beyond this part of it, is
  // worth a mesh. Default 0.10.
  double pinned;
  // Since the last time, where no allocation has failed. Default 10.
  double least_seconds;
  // Whatever is in use, where nothing was allocated or freed for so long, and
  // at a time of each day, UTC, in seconds from midnight; one that ends before
  // it begins goes on over midnight. Default: neither.
  double idle_seconds;
  uint32_t maintenance_begin;
  uint32_t maintenance_end;
} quire_compaction_thresholds;
#define QUIRE_COMPACTION_THRESHOLDS_INIT \
  { sizeof(quire_compaction_thresholds), 0, 0, 0, 0, 0, 0 }

// For every point at which the program is quiet: meshes, and gives to the
// driver what nobody holds, where the thresholds say that it is time.
// `thresholds` and `report` may be NULL. Errors: those of
// quire_allocator_mesh, and QUIRE_INVALID_ARGUMENT for a threshold below 0 or
// NaN, and for what is no time of the day.
QUIRE_C_FUNCTION quire_status quire_allocator_compact(
    quire_allocator* allocator, const quire_quiescent_section* section,
    const quire_compaction_thresholds* thresholds,
    quire_compaction_report* report) QUIRE_C_NOEXCEPT;

// ---- Pins -------------------------------------------------------------------

// A pinned allocation keeps its address and its physical pages: for memory that
// is registered with others (NCCL, RDMA, another process). Pins count. Errors:
// those of quire_allocator_free; QUIRE_FAILED_PRECONDITION for what a
// relocation pass moves, for what sleeps, and for unpinning what is not pinned.
QUIRE_C_FUNCTION quire_status quire_allocator_pin(
    quire_allocator* allocator, uint64_t address) QUIRE_C_NOEXCEPT;
QUIRE_C_FUNCTION quire_status quire_allocator_unpin(
    quire_allocator* allocator, uint64_t address) QUIRE_C_NOEXCEPT;

// ---- Relocation -------------------------------------------------------------

// One pass of an allocator over what was allocated as `movable` and is not
// pinned. Until it ends, what it moves can be neither freed nor pinned, and no
// other pass of the allocator can begin.
typedef struct quire_relocation_pass quire_relocation_pass;

typedef struct quire_relocation_limits {
  size_t size;
  // Stop before the moves come to more than this; slabs are emptied as a whole.
  // Default: no limit.
  uint64_t max_bytes;
  uint64_t max_moves;
  // Not 0: only what belongs to `owner`, and not to those below it.
  int32_t of_one_owner;
  uint32_t owner;
} quire_relocation_limits;
#define QUIRE_RELOCATION_LIMITS_INIT \
  { sizeof(quire_relocation_limits), 0, 0, 0, 0 }

// An allocation that would lie better elsewhere. Until the pass ends both
// places are allocated.
typedef struct quire_relocation_move {
  size_t size;
  uint64_t from;
  uint64_t to;
  uint64_t bytes;  // as requested
  uint32_t owner;
  uint32_t padding;
} quire_relocation_move;
#define QUIRE_RELOCATION_MOVE_INIT \
  { sizeof(quire_relocation_move), 0, 0, 0, 0, 0 }

typedef int32_t quire_move_action;
enum {
  // `to` is the allocation from the end of the pass on. What every move is at
  // first. The contents are copied by quire_relocation_pass_copy, or by the
  // caller; the pointers are the caller's to change.
  QUIRE_MOVE_COPY = 0,
  // It stays where it is.
  QUIRE_MOVE_IGNORE = 1,
  // It is not needed any more: both places are freed.
  QUIRE_MOVE_DESTROY = 2
};

// `limits` may be NULL: none. A pass may have no moves. Errors:
// QUIRE_FAILED_PRECONDITION for a section of another device's memory, and where
// a pass is open.
QUIRE_C_FUNCTION quire_status quire_relocation_pass_begin(
    quire_allocator* allocator, const quire_quiescent_section* section,
    const quire_relocation_limits* limits,
    quire_relocation_pass** pass) QUIRE_C_NOEXCEPT;
// Gives up a pass that was not finished: everything stays where it is.
QUIRE_C_FUNCTION void quire_relocation_pass_destroy(quire_relocation_pass* pass)
    QUIRE_C_NOEXCEPT;

// Also after the end. QUIRE_INVALID_ARGUMENT for an index that is not below the
// count.
QUIRE_C_FUNCTION quire_status quire_relocation_pass_get_move_count(
    const quire_relocation_pass* pass, uint64_t* count) QUIRE_C_NOEXCEPT;
QUIRE_C_FUNCTION quire_status quire_relocation_pass_get_move(
    const quire_relocation_pass* pass, uint64_t index,
    quire_relocation_move* move) QUIRE_C_NOEXCEPT;

// The three that follow are QUIRE_FAILED_PRECONDITION after the end, and while
// another of them is under way on this pass: in another thread, or in the
// callback that calls them.
//
// QUIRE_INVALID_ARGUMENT for an index that is not below the count, and for
// numbers that are no action.
QUIRE_C_FUNCTION quire_status
quire_relocation_pass_set_action(quire_relocation_pass* pass, uint64_t index,
                                 quire_move_action action) QUIRE_C_NOEXCEPT;
// The library copies the contents of all moves that are QUIRE_MOVE_COPY, and
// waits for that. An error of the driver leaves the pass open.
QUIRE_C_FUNCTION quire_status
quire_relocation_pass_copy(quire_relocation_pass* pass) QUIRE_C_NOEXCEPT;
// Carries the actions out, and gives the pages that this makes free back to the
// pool: the end of the pass. `report` may be NULL.
QUIRE_C_FUNCTION quire_status
quire_relocation_pass_finish(quire_relocation_pass* pass,
                             quire_compaction_report* report) QUIRE_C_NOEXCEPT;

// ---- Sleep ------------------------------------------------------------------

typedef int32_t quire_sleep_target;
enum {
  QUIRE_SLEEP_HOST = 0,  // pinned host memory
  QUIRE_SLEEP_DISK = 1,  // a file in `folder`
  QUIRE_SLEEP_DROP = 2   // the contents are lost
};

typedef struct quire_sleep_options {
  size_t size;
  // Work that is queued on these streams now may use the memory: it is waited
  // for. May be NULL where there are none.
  const uint64_t* streams;
  uint64_t stream_count;
  const char* folder;
  quire_sleep_target target;
  uint32_t padding;
  // The section that is open; then `streams` has none. NULL: one for the time
  // of the call.
  const quire_quiescent_section* section;
} quire_sleep_options;
#define QUIRE_SLEEP_OPTIONS_INIT \
  { sizeof(quire_sleep_options), 0, 0, 0, 0, 0, 0 }

typedef struct quire_sleep_report {
  size_t size;
  uint64_t bytes_moved;
  uint64_t pages;
  uint64_t pages_freed;  // by a sleep
  uint64_t driver_calls;
  double seconds;
} quire_sleep_report;
#define QUIRE_SLEEP_REPORT_INIT \
  { sizeof(quire_sleep_report), 0, 0, 0, 0, 0 }

// Takes all pages of the owner, and of the owners below it, away until it wakes
// up, at the same addresses. The caller promises that nothing uses the memory,
// but what is queued on the streams named, until the call has returned.
// `options` may be NULL (to host memory, nothing to wait for), `report` too.
// Errors: QUIRE_FAILED_PRECONDITION where memory of the owner is pinned or has
// a graph pool, where a relocation pass is open, where a section is open and
// was not named, or the memory is being compacted by another thread;
// QUIRE_INVALID_ARGUMENT for a target, a missing folder, or streams beside a
// section; those of the file and of the driver. After an error everything is
// awake.
QUIRE_C_FUNCTION quire_status
quire_allocator_sleep(quire_allocator* allocator, uint32_t owner,
                      const quire_sleep_options* options,
                      quire_sleep_report* report) QUIRE_C_NOEXCEPT;
// The owner and all below it, or a part of what sleeps. What was dropped reads
// as zeros where `zero_dropped` is not 0. `report` may be NULL. Errors:
// QUIRE_OUT_OF_DEVICE_MEMORY, after which it sleeps on; those of the file and
// of the driver.
QUIRE_C_FUNCTION quire_status quire_allocator_wake(
    quire_allocator* allocator, uint32_t owner, int32_t zero_dropped,
    quire_sleep_report* report) QUIRE_C_NOEXCEPT;

// ---- Hearing of it ----------------------------------------------------------

typedef int32_t quire_compaction_level;
enum {
  QUIRE_COMPACTION_TRIM = 0,
  QUIRE_COMPACTION_MESH = 1,
  QUIRE_COMPACTION_RELOCATION = 2,
  QUIRE_COMPACTION_SLEEP = 3,
  QUIRE_COMPACTION_WAKE = 4
};

// Callbacks, each of which may be NULL, of an allocator's compactions: a field
// of quire_runtime_options and quire_allocator_options, which is copied. They
// run without a lock, on the thread that compacts, and may call the functions
// of this header; they must return. `context` is passed to them and outlives
// the allocator. What pointers point to is valid until they return, and has
// `size` bytes: a library older than the program has less than the struct.
typedef struct quire_compaction_listener {
  size_t size;
  void* context;
  void (*before_compaction)(void* context, quire_compaction_level level);
  // After an error too; the report is of what was done.
  void (*after_compaction)(void* context, quire_compaction_level level,
                           const quire_compaction_report* report);
  // Each move that quire_relocation_pass_copy copies, and each that
  // quire_relocation_pass_finish has carried out.
  void (*before_move)(void* context, const quire_relocation_move* move);
  void (*after_move)(void* context, const quire_relocation_move* move,
                     quire_move_action action);
} quire_compaction_listener;
#define QUIRE_COMPACTION_LISTENER_INIT \
  { sizeof(quire_compaction_listener), 0, 0, 0, 0, 0 }

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // QUIRE_ALLOC_C_API_COMPACTION_H_
