// The C interface of hooks: what a program may hear of a device's memory, and
// do about it.
//
// Include quire/alloc/c_api.h, which explains the conventions. Compactions are
// told to a listener: c_api_compaction.h.

#ifndef QUIRE_ALLOC_C_API_HOOKS_H_
#define QUIRE_ALLOC_C_API_HOOKS_H_

#include "quire/alloc/c_api_base.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef int32_t quire_pressure_level;
enum {
  QUIRE_PRESSURE_NONE = 0,
  // Where quire_runtime_options say nothing else:
  QUIRE_PRESSURE_HIGH = 1,     // 85 % in use, until it is below 80 %
  QUIRE_PRESSURE_CRITICAL = 2  // 95 %, until it is below 90 %
};

// Of a device's memory: what is in use and not cached, against its limit; of an
// owner, its live pages against its hard limit. Beyond a soft limit pressure is
// high at least.
typedef struct quire_pressure_change {
  size_t size;
  quire_pressure_level before;
  quire_pressure_level now;
  uint64_t used;
  // What `used` counts against: the soft limit where pressure is high beyond
  // it, else the hard one. Where pressure has ended, the one at which it begins
  // again; 0 where there is none any more.
  uint64_t limit;
  int32_t of_one_owner;  // 0: of the device's memory
  uint32_t owner;
} quire_pressure_change;

// Addresses under which the driver mapped pages, or unmapped them, in one call.
typedef struct quire_mapping_change {
  size_t size;
  uint64_t address;
  uint64_t bytes;
  uint32_t owner;
  uint32_t padding;
} quire_mapping_change;

// Callbacks, each of which may be NULL. They run without a lock, on the thread
// whose call caused them and before that call returns; each thread's in the
// order in which it caused them. They may call every function of the C
// interface: what that causes is told after the callback has returned. They
// must return, and should soon: the caller waits. What pointers point to is
// valid until they do, and has `size` bytes: a library older than the program
// has less than the struct. Several threads may be in a callback at a time.
typedef struct quire_memory_hooks {
  size_t size;
  void* context;  // passed to all of them
  void (*on_pressure)(void* context, const quire_pressure_change* change);
  void (*on_pages_mapped)(void* context, const quire_mapping_change* change);
  // The pages are gone already: nothing used them any more.
  void (*on_pages_unmapped)(void* context, const quire_mapping_change* change);
  // Memory is short, and nothing is left that could be reclaimed or waited for.
  // Gives up memory of the program's own (frees allocations, raises a limit)
  // and returns how many bytes that were: if not 0, the search is made again, 8
  // times at most. Not called for more than a limit allows in any case, nor for
  // what is short inside a callback. `verdict` is `shortage` in words.
  uint64_t (*on_out_of_memory)(void* context, const quire_shortage* shortage,
                               const char* verdict);
} quire_memory_hooks;
#define QUIRE_MEMORY_HOOKS_INIT \
  { sizeof(quire_memory_hooks), 0, 0, 0, 0, 0 }

typedef struct quire_hook_registration quire_hook_registration;

// From here on the callbacks are called, after those that were added before.
// `hooks` is copied. The registration keeps the runtime until it is removed.
// Error: QUIRE_INVALID_ARGUMENT.
QUIRE_C_FUNCTION quire_status
quire_memory_add_hooks(quire_memory* memory, const quire_memory_hooks* hooks,
                       quire_hook_registration** registration) QUIRE_C_NOEXCEPT;
// Returns when no thread is in a callback of the registration any more, nor
// will be; waits for those that are, so call it without a lock that they take.
// Destroys the handle. NULL is allowed. Error, after which the registration
// stays: QUIRE_FAILED_PRECONDITION in one of its own callbacks.
QUIRE_C_FUNCTION quire_status quire_memory_remove_hooks(
    quire_hook_registration* registration) QUIRE_C_NOEXCEPT;

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // QUIRE_ALLOC_C_API_HOOKS_H_
