// The device allocator for C, and for every language that can call C.
//
// What the functions do is what the C++ headers of the same folder say in full;
// this header says what the border adds. It includes the others of its kind:
//   c_api_base.h        handles, errors, versions
//   c_api_compaction.h  quiescent sections, mesh, relocation, pins, sleep
//   c_api_graph.h       memory that graphs keep
//   c_api_hooks.h       pressure, shortages, pages that come and go
//   c_api_pytorch.h     PyTorch's pluggable allocator
//   c_api_reports.h     snapshots, statistics in detail, traces, leaks
// They are C11 and C++11, and an ABI:
// within one minor version (0.x), or one major version from 1 on, functions and
// fields are added at the end and nothing else changes.
//
// Example:
//   quire_runtime* runtime = NULL;
//   quire_allocator* allocator = NULL;
//   quire_runtime_options options = QUIRE_RUNTIME_OPTIONS_INIT;
//   options.driver = QUIRE_DRIVER_CUDA;
//   uint64_t address = 0;
//   if (quire_runtime_create(&options, &runtime) != QUIRE_OK ||
//       quire_runtime_get_allocator(runtime, 0, &allocator) != QUIRE_OK ||
//       quire_allocator_allocate(allocator, size, NULL, &address) != QUIRE_OK)
//     fprintf(stderr, "%s\n", quire_last_error());
//
// Errors. Functions that can fail return a quire_status. No exception leaves
// them, and none of them aborts, whatever its arguments are: NULL for a handle,
// an output or a text is QUIRE_INVALID_ARGUMENT unless the function says that
// NULL is allowed. Outputs are written on QUIRE_OK only. A failed call changes
// nothing. (Where the process itself has no memory left, Abseil, which formats
// the messages, may end it before QUIRE_OUT_OF_HOST_MEMORY can be returned.)
//
// Ownership. A handle that a function gives belongs to the caller, who destroys
// it once. Each handle keeps alive what it stands on, so handles may be
// destroyed in any order; what they stand on goes with the last of them.
// Destroying NULL does nothing. Like free(), destroying a handle twice or using
// it afterwards is undefined. Text that a function gives is freed with
// quire_string_free.
//
// Threads. Every function may be called from any thread at any time, also on
// one handle, until the handle is destroyed. Errors are kept for each thread.
//
// Forks. In a forked child every function that is given a handle of the
// parent's is QUIRE_FAILED_PRECONDITION; destroying one leaves everything to
// the parent.
//
// Streams. A stream is a number from quire_stream_create or
// quire_stream_adopt; 0 is no stream.
// Nothing is stream-ordered unless the function says so.
//
// Structs begin with their size, which the caller sets to sizeof, so that
// programs and libraries of different versions understand each other. Options:
// zero in a field is its default (the _INIT macros set the size and zeros); a
// field that the library does not know and that is not zero is
// QUIRE_INVALID_ARGUMENT. Results: the library fills the fields that both know
// and sets the others to zero. A size below that of the first version is
// QUIRE_INVALID_ARGUMENT, 0 included. Where a result may be NULL, nobody asks
// for it.

#ifndef QUIRE_ALLOC_C_API_H_
#define QUIRE_ALLOC_C_API_H_

#include "quire/alloc/c_api_base.h"
#include "quire/alloc/c_api_compaction.h"
#include "quire/alloc/c_api_graph.h"
#include "quire/alloc/c_api_hooks.h"
#include "quire/alloc/c_api_pytorch.h"
#include "quire/alloc/c_api_reports.h"

#ifdef __cplusplus
extern "C" {
#endif

// ---- Runtime: the driver and its devices ------------------------------------

typedef int32_t quire_driver_kind;
enum {
  // A device in host memory: its addresses are pointers.
  QUIRE_DRIVER_HOST = 0,
  // The same without memory behind the pages: any size, for simulations.
  QUIRE_DRIVER_HOST_WITHOUT_MEMORY = 1,
  // NVIDIA's driver, loaded when the runtime is created.
  QUIRE_DRIVER_CUDA = 2
};

typedef struct quire_runtime_options {
  size_t size;
  quire_driver_kind driver;
  // Of the software devices alone: how many (default 1, at most 64), each with
  // so much memory (default 8 GiB).
  int32_t host_device_count;
  uint64_t host_memory_per_device;
  // Bytes of a physical page: a power of two, a multiple of the device's
  // granularity. Default 2 MiB.
  uint64_t page_size;
  // Physical memory to use on each device, at most. Default: what is free when
  // the runtime is created.
  uint64_t limit;
  // Events kept for reports, of all devices together (default 16384, at most
  // 2^28); each thread takes memory for as many as it causes. Not 0 in the
  // second field: none are kept.
  uint64_t trace_capacity;
  uint32_t disable_trace;
  uint32_t padding;
  // Of what is free on each device, left to others, whatever the limit.
  uint64_t headroom;
  // Pages that a thread per device keeps prepared. Default: there is none.
  uint64_t prepare_ahead;
  // Hears of the compactions of the runtime's own allocators. NULL: nobody.
  const quire_compaction_listener* listener;
  // Of one allocation in so many bytes, drawn at random, it is remembered which
  // functions asked for it, for quire_runtime_find_leaks. Default: of none.
  uint64_t sample_interval;
  // Parts of a limit, of each device and owner, at which pressure begins, and
  // how much further down it ends. Default 0.85, 0.95 and 0.05.
  double pressure_high;
  double pressure_critical;
  double pressure_hysteresis;
  // Of each device: quire_memory_set_soft_limit. Default: none.
  uint64_t soft_limit;
  // Called where anything is still held when the runtime goes, with its last
  // handle, by the thread that destroys that. `totals` and `text` are those of
  // quire_runtime_find_leaks, and are gone afterwards. The runtime is going:
  // the callback must not use it. NULL: nobody looks.
  void (*on_leaks)(void* context, const quire_leak_totals* totals,
                   const char* text);
  void* leak_context;  // passed to it
  // Small allocations are placed in random order: this one. Default 1.
  uint64_t seed;
} quire_runtime_options;
#define QUIRE_RUNTIME_OPTIONS_INIT                                           \
  {                                                                          \
    sizeof(quire_runtime_options), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, \
        0, 0, 0, 0, 0                                                        \
  }

// Opens the driver and gives every device of it a pool of pages and an
// allocator. `options` may be NULL: all defaults. Errors:
// QUIRE_INVALID_ARGUMENT for options, QUIRE_UNAVAILABLE for the driver.
QUIRE_C_FUNCTION quire_status
quire_runtime_create(const quire_runtime_options* options,
                     quire_runtime** runtime) QUIRE_C_NOEXCEPT;
// With the last handle, memory still allocated is given back when the streams
// that it was allocated for are done: the call waits for them.
QUIRE_C_FUNCTION void quire_runtime_destroy(quire_runtime* runtime)
    QUIRE_C_NOEXCEPT;

// Devices are numbered from 0 on.
QUIRE_C_FUNCTION quire_status quire_runtime_get_device_count(
    const quire_runtime* runtime, int32_t* count) QUIRE_C_NOEXCEPT;

// ---- Streams ----------------------------------------------------------------

// A queue of work of one device, owned by the caller. QUIRE_INVALID_ARGUMENT
// for a device that is not there.
QUIRE_C_FUNCTION quire_status quire_stream_create(
    quire_runtime* runtime, int32_t device, uint64_t* stream) QUIRE_C_NOEXCEPT;
// A number for a stream that the program made itself: a CUstream, which is also
// a cudaStream_t; NULL is the device's default stream. The same number for the
// same stream. The stream must live until quire_stream_destroy, which leaves it
// to whoever made it. QUIRE_UNAVAILABLE on the host driver.
QUIRE_C_FUNCTION quire_status
quire_stream_adopt(quire_runtime* runtime, int32_t device, void* cuda_stream,
                   uint64_t* stream) QUIRE_C_NOEXCEPT;
// Both wait for the work queued on the stream. QUIRE_NOT_FOUND for a stream
// that does not exist: destroying one twice is an error without harm.
QUIRE_C_FUNCTION quire_status
quire_stream_destroy(quire_runtime* runtime, uint64_t stream) QUIRE_C_NOEXCEPT;
QUIRE_C_FUNCTION quire_status quire_stream_synchronize(
    quire_runtime* runtime, uint64_t stream) QUIRE_C_NOEXCEPT;

// ---- Owners -----------------------------------------------------------------

// Whom memory is accounted to: weights, KV, a model. 0 is everything that names
// no owner. A name is a path: "server/llama/kv" is "kv" in "llama" in "server",
// which are registered as well, and what an owner uses, those above it use too.
// The first call with a name gives it a number, later ones the same; it stays
// valid as long as the runtime. `name` is copied.
QUIRE_C_FUNCTION quire_status quire_owner_register(
    quire_runtime* runtime, const char* name, uint32_t* owner) QUIRE_C_NOEXCEPT;
// "owner 7" for numbers that were never registered.
QUIRE_C_FUNCTION quire_status quire_owner_get_name(
    quire_runtime* runtime, uint32_t owner, char** name) QUIRE_C_NOEXCEPT;

// ---- Device memory: the pool of physical pages of one device ----------------

QUIRE_C_FUNCTION quire_status
quire_runtime_get_memory(quire_runtime* runtime, int32_t device,
                         quire_memory** memory) QUIRE_C_NOEXCEPT;
QUIRE_C_FUNCTION void quire_memory_destroy(quire_memory* memory)
    QUIRE_C_NOEXCEPT;

// Bytes and counts; DeviceMemoryStatistics in device_memory.h. Physical pages
// are counted once: in_use = live + cooling + cached + quarantined. Addresses:
// reserved = mapped + unmapped.
typedef struct quire_memory_statistics {
  size_t size;
  uint32_t version;  // set by the library: of the fields that it knows
  uint32_t padding;
  uint64_t page_size;
  uint64_t limit;
  uint64_t address_space;
  uint64_t reserved;
  uint64_t mapped;
  uint64_t unmapped;
  uint64_t shared;
  uint64_t in_use;
  uint64_t live;
  uint64_t cooling;
  uint64_t cached;
  uint64_t quarantined;
  uint64_t peak_in_use;
  uint64_t peak_live;
  uint64_t growable;
  uint64_t pages_created;
  uint64_t pages_released;
  uint64_t commits;
  uint64_t commits_from_cache;
  uint64_t over_limit;  // version 2
  uint64_t asleep;      // version 3, from here on
  uint64_t asleep_on_host;
  uint64_t asleep_on_disk;
  uint64_t soft_limit;  // version 4
} quire_memory_statistics;
#define QUIRE_MEMORY_STATISTICS_INIT                                           \
  {                                                                            \
    sizeof(quire_memory_statistics), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, \
        0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0                                     \
  }
#define QUIRE_MEMORY_STATISTICS_VERSION 4

// O(1).
QUIRE_C_FUNCTION quire_status quire_memory_get_statistics(
    const quire_memory* memory,
    quire_memory_statistics* statistics) QUIRE_C_NOEXCEPT;

// The most that in_use may be. May change at any time, also to less than is in
// use: nothing is taken from anybody, and nothing grows until enough was given
// up. QUIRE_INVALID_ARGUMENT for less than a page.
QUIRE_C_FUNCTION quire_status
quire_memory_set_limit(quire_memory* memory, uint64_t limit) QUIRE_C_NOEXCEPT;

// Beyond so much that is live, cooling or quarantined the memory is under high
// pressure at least (c_api_hooks.h); nothing is refused for its sake. 0: there
// is none. QUIRE_INVALID_ARGUMENT for less than a page.
QUIRE_C_FUNCTION quire_status quire_memory_set_soft_limit(
    quire_memory* memory, uint64_t limit) QUIRE_C_NOEXCEPT;

// A limit as a fraction of the device, as gpu_memory_utilization of vLLM:
//   min(fraction * total, free + held - headroom)
// `fraction` is above 0 and at most 1, `held` what the memory has now. What
// others use now is not counted on. For quire_memory_set_limit. Errors:
// QUIRE_INVALID_ARGUMENT for the fraction, QUIRE_OUT_OF_DEVICE_MEMORY where
// nothing is left.
QUIRE_C_FUNCTION quire_status quire_memory_limit_from_utilization(
    const quire_memory* memory, double fraction, uint64_t headroom,
    uint64_t* limit) QUIRE_C_NOEXCEPT;

// Of one owner and all below it, in bytes of pages. 0: none.
typedef struct quire_owner_limits {
  size_t size;
  // Beyond it the owner is under pressure, and its caches are the first to go.
  uint64_t soft;
  // Growth beyond it is refused.
  uint64_t hard;
  // Others cannot have what the owner uses less than this, also where the hard
  // limit of an owner above it is less.
  uint64_t reserved_minimum;
  uint64_t padding;
} quire_owner_limits;
#define QUIRE_OWNER_LIMITS_INIT \
  { sizeof(quire_owner_limits), 0, 0, 0, 0 }

// May change at any time, like the limit above. Errors: QUIRE_INVALID_ARGUMENT
// for limits that contradict each other and for owners that cannot be,
// QUIRE_FAILED_PRECONDITION for a minimum that cannot be kept free.
QUIRE_C_FUNCTION quire_status quire_memory_set_owner_limits(
    quire_memory* memory, uint32_t owner,
    const quire_owner_limits* limits) QUIRE_C_NOEXCEPT;

// In bytes; OwnerStatistics in memory_limits.h.
typedef struct quire_owner_statistics {
  size_t size;
  uint32_t version;  // set by the library: of the fields that it knows
  uint32_t owner;
  uint64_t own_live;  // of the owner itself
  uint64_t live;      // with all below it
  uint64_t peak_live;
  uint64_t soft_limit;
  uint64_t hard_limit;
  uint64_t reserved_minimum;
  uint64_t hard_room;  // UINT64_MAX where there is no hard limit
  uint64_t allowance;
  uint64_t over_soft;
  uint64_t over_hard;
  uint64_t asleep;  // version 2, from here on: with all below it
  quire_pressure_level pressure;
  uint32_t padding;
} quire_owner_statistics;
#define QUIRE_OWNER_STATISTICS_INIT                                           \
  {                                                                           \
    sizeof(quire_owner_statistics), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, \
        0                                                                     \
  }
#define QUIRE_OWNER_STATISTICS_VERSION 2

// O(levels of owners). Of any number: no owner needs to have had a page.
QUIRE_C_FUNCTION quire_status quire_memory_get_owner_statistics(
    const quire_memory* memory, uint32_t owner,
    quire_owner_statistics* statistics) QUIRE_C_NOEXCEPT;

// Creates pages ahead until `pages` are cached, so that the next allocations
// need none of the driver's slowest calls. Stops early at the limit.
QUIRE_C_FUNCTION quire_status
quire_memory_prepare(quire_memory* memory, uint64_t pages) QUIRE_C_NOEXCEPT;
// Gives memory that nobody holds back to the driver, caches of allocators
// included, until at most `keep_pages` pages are cached. Waits for nothing.
// `pages_given_back` may be NULL.
QUIRE_C_FUNCTION quire_status
quire_memory_trim(quire_memory* memory, uint64_t keep_pages,
                  uint64_t* pages_given_back) QUIRE_C_NOEXCEPT;
// QUIRE_OK, or the first refusal of the driver that put memory into quarantine.
// The memory stays usable.
QUIRE_C_FUNCTION quire_status
quire_memory_check_health(const quire_memory* memory) QUIRE_C_NOEXCEPT;

// ---- Allocator --------------------------------------------------------------

// The allocator that the runtime made for the device. Every handle of it is of
// the same allocator.
QUIRE_C_FUNCTION quire_status
quire_runtime_get_allocator(quire_runtime* runtime, int32_t device,
                            quire_allocator** allocator) QUIRE_C_NOEXCEPT;

typedef struct quire_allocator_options {
  size_t size;
  // Small allocations are placed in random order: this one. Default 1.
  uint64_t seed;
  // What was freed on one stream and not used there again gathers up to so many
  // bytes for one event. Default 1 GiB.
  uint64_t fence_batch;
  // The most that a thread keeps of what it freed on one stream for one owner,
  // to have it again without a lock. Default: 4 GiB, and never more than a
  // quarter of the pool. 1: nothing.
  uint64_t thread_cache;
  // Hears of its compactions. NULL: nobody.
  const quire_compaction_listener* listener;
  // As in quire_runtime_options: called where anything of the allocator is
  // still live when it goes, with its last handle, by the thread that destroys
  // that. The callback must not use it.
  void (*on_leaks)(void* context, const quire_leak_totals* totals,
                   const char* text);
  void* leak_context;  // passed to it
} quire_allocator_options;
#define QUIRE_ALLOCATOR_OPTIONS_INIT \
  { sizeof(quire_allocator_options), 0, 0, 0, 0, 0, 0 }

// Another allocator on the same pages. `options` may be NULL: all defaults.
QUIRE_C_FUNCTION quire_status quire_allocator_create(
    quire_memory* memory, const quire_allocator_options* options,
    quire_allocator** allocator) QUIRE_C_NOEXCEPT;
// With the last handle of an allocator, memory still allocated is told to
// on_leaks, and given back when the streams that it was allocated for are done:
// the call waits for them.
QUIRE_C_FUNCTION void quire_allocator_destroy(quire_allocator* allocator)
    QUIRE_C_NOEXCEPT;

typedef struct quire_allocate_options {
  size_t size;
  // The stream that will use the memory first. 0: any stream, now.
  uint64_t stream;
  // A power of two. Default, and least: 256.
  uint64_t alignment;
  uint32_t owner;
  // Not 0: a relocation pass may move it. Its free is slower.
  uint32_t movable;
} quire_allocate_options;
#define QUIRE_ALLOCATE_OPTIONS_INIT \
  { sizeof(quire_allocate_options), 0, 0, 0, 0 }

// Stream-ordered: memory that was freed on `stream` may be handed out before
// the work queued there is done. `options` may be NULL: all defaults. 0 bytes
// give an address of its own, which may not be used and must be freed. The
// memory belongs to the caller until it is freed, or the allocator is gone.
// Errors: QUIRE_OUT_OF_DEVICE_MEMORY for everything that cannot be had, up to
// SIZE_MAX bytes; QUIRE_INVALID_ARGUMENT for an alignment or an owner.
QUIRE_C_FUNCTION quire_status quire_allocator_allocate(
    quire_allocator* allocator, uint64_t bytes,
    const quire_allocate_options* options, uint64_t* address) QUIRE_C_NOEXCEPT;
// Stream-ordered: all uses are queued on `stream` (0: are over), or on streams
// that were recorded. QUIRE_NOT_FOUND for a stream that never was.
//
//   the address is                         the result is
//   0                                      QUIRE_OK: nothing is done
//   the start of what is live              QUIRE_OK, asleep or not
//     that is pinned, or being moved       QUIRE_FAILED_PRECONDITION
//   inside of what is live                 QUIRE_INVALID_ARGUMENT
//   in what was freed, whether its memory  QUIRE_FAILED_PRECONDITION
//     is kept, cools, sleeps or was given
//     back (quire_allocator_trim)
//   of another allocator, another runtime, QUIRE_INVALID_ARGUMENT
//     the host; never handed out
//
// What was freed is known until its memory is in another use. Of pages that the
// allocator has or had, what was never handed out but as a part of others may
// count as freed.
QUIRE_C_FUNCTION quire_status
quire_allocator_free(quire_allocator* allocator, uint64_t address,
                     uint64_t stream) QUIRE_C_NOEXCEPT;
// Adds a stream that uses the allocation: nobody has the memory again before
// its work is done. Errors as for quire_allocator_free.
QUIRE_C_FUNCTION quire_status
quire_allocator_record_stream(quire_allocator* allocator, uint64_t address,
                              uint64_t stream) QUIRE_C_NOEXCEPT;

typedef struct quire_allocation_info {
  size_t size;
  uint64_t address;
  uint64_t requested;
  uint64_t allocated;  // with rounding
  uint64_t stream;
  uint32_t owner;
  uint32_t padding;
} quire_allocation_info;
#define QUIRE_ALLOCATION_INFO_INIT \
  { sizeof(quire_allocation_info), 0, 0, 0, 0, 0, 0 }

// Whose memory it is, or QUIRE_NOT_FOUND where it is none of this allocator's.
// Of what is not live, one that had it. O(1), without a lock.
QUIRE_C_FUNCTION quire_status
quire_allocator_get_owner_of(const quire_allocator* allocator, uint64_t address,
                             uint32_t* owner) QUIRE_C_NOEXCEPT;
// The live allocation that contains `address`, or QUIRE_NOT_FOUND. O(1) for
// small ones, O(log of the owner's large ones) for those.
QUIRE_C_FUNCTION quire_status
quire_allocator_find(const quire_allocator* allocator, uint64_t address,
                     quire_allocation_info* info) QUIRE_C_NOEXCEPT;

// Gives whole free pages back to the pool until at most `keep` bytes are cached
// here. Moves nothing, waits for nothing. `bytes_given_back` may be NULL.
QUIRE_C_FUNCTION quire_status
quire_allocator_trim(quire_allocator* allocator, uint64_t keep,
                     uint64_t* bytes_given_back) QUIRE_C_NOEXCEPT;

// Bytes and counts; QUIRE_ALLOCATOR_STATISTICS in allocator.h.
typedef struct quire_allocator_statistics {
  size_t size;
  uint32_t version;  // set by the library: of the fields that it knows
  uint32_t padding;
  uint64_t requested_bytes;
  uint64_t live_bytes;
  uint64_t cached_bytes;
  uint64_t cooling_bytes;
  uint64_t slack_bytes;
  uint64_t mapped_bytes;
  uint64_t live_allocations;
  uint64_t peak_requested_bytes;
  uint64_t peak_mapped_bytes;
  uint64_t total_allocations;
  uint64_t total_frees;
  uint64_t failed_allocations;
  uint64_t slab_count;
  uint64_t thread_cached_bytes;
  uint64_t metadata_bytes;
  uint64_t asleep_bytes;      // version 2
  uint64_t graph_pool_bytes;  // version 3
} quire_allocator_statistics;
#define QUIRE_ALLOCATOR_STATISTICS_INIT                                        \
  {                                                                            \
    sizeof(quire_allocator_statistics), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, \
        0, 0, 0, 0, 0, 0                                                       \
  }
#define QUIRE_ALLOCATOR_STATISTICS_VERSION 3

// O(1).
QUIRE_C_FUNCTION quire_status quire_allocator_get_statistics(
    const quire_allocator* allocator,
    quire_allocator_statistics* statistics) QUIRE_C_NOEXCEPT;
// The largest allocation that would succeed now, everything reclaimable
// reclaimed and everything that cools waited for; the second is for an owner,
// within its limits. O(owners).
QUIRE_C_FUNCTION quire_status quire_allocator_get_largest_possible(
    const quire_allocator* allocator, uint64_t* bytes) QUIRE_C_NOEXCEPT;
QUIRE_C_FUNCTION quire_status quire_allocator_get_largest_possible_for(
    const quire_allocator* allocator, uint32_t owner,
    uint64_t* bytes) QUIRE_C_NOEXCEPT;
// Walks everything; QUIRE_INTERNAL names the equation that does not hold.
QUIRE_C_FUNCTION quire_status quire_allocator_check_invariants(
    const quire_allocator* allocator) QUIRE_C_NOEXCEPT;

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // QUIRE_ALLOC_C_API_H_
