// What all parts of the C interface share: handles, errors, versions.
//
// Include quire/alloc/c_api.h, which explains the conventions.

#ifndef QUIRE_ALLOC_C_API_BASE_H_
#define QUIRE_ALLOC_C_API_BASE_H_

#include <stddef.h>
#include <stdint.h>

#define QUIRE_ALLOC_VERSION_MAJOR 0
#define QUIRE_ALLOC_VERSION_MINOR 1
#define QUIRE_ALLOC_VERSION_PATCH 0

// Only the shared library exports these names; in a static one they are as
// hidden as the rest.
#if defined(QUIRE_ALLOC_BUILDS_SHARED_LIBRARY)
#define QUIRE_C_FUNCTION __attribute__((visibility("default")))
#else
#define QUIRE_C_FUNCTION
#endif

#ifdef __cplusplus
#define QUIRE_C_NOEXCEPT noexcept
extern "C" {
#else
#define QUIRE_C_NOEXCEPT
#endif

// ---- Handles ----------------------------------------------------------------

typedef struct quire_runtime quire_runtime;
typedef struct quire_memory quire_memory;
typedef struct quire_allocator quire_allocator;

// ---- Version and errors -----------------------------------------------------

// "0.1.0": of the library that runs, where the macros above are of the header.
QUIRE_C_FUNCTION const char* quire_alloc_version(void) QUIRE_C_NOEXCEPT;

typedef int32_t quire_status;
enum {
  QUIRE_OK = 0,
  // An argument that the function cannot take; the message names it.
  QUIRE_INVALID_ARGUMENT = 1,
  // A stream, owner or allocation that does not exist.
  QUIRE_NOT_FOUND = 2,
  // The state forbids it: double free.
  QUIRE_FAILED_PRECONDITION = 3,
  // Memory, addresses or a limit of the device ran out. The message is the
  // verdict; quire_last_shortage has it in numbers.
  QUIRE_OUT_OF_DEVICE_MEMORY = 4,
  // The process has no memory for bookkeeping.
  QUIRE_OUT_OF_HOST_MEMORY = 5,
  // The driver refused to undo what it had done: memory is in quarantine.
  QUIRE_DATA_LOSS = 6,
  // No driver, no device, or no such backend in this build.
  QUIRE_UNAVAILABLE = 7,
  // The driver failed in another way, or Quire has a defect.
  QUIRE_INTERNAL = 8
};

// "OUT_OF_DEVICE_MEMORY"; "UNKNOWN" for numbers that are no status. Static.
QUIRE_C_FUNCTION const char* quire_status_name(quire_status status)
    QUIRE_C_NOEXCEPT;

// What was wrong in the last call of this thread that failed; "" before the
// first. Never NULL. Valid until the next failure of this thread, or its end.
QUIRE_C_FUNCTION const char* quire_last_error(void) QUIRE_C_NOEXCEPT;

typedef int32_t quire_shortage_kind;
enum {
  QUIRE_SHORTAGE_CAPACITY = 1,       // not enough exists on the device
  QUIRE_SHORTAGE_FRAGMENTATION = 2,  // enough exists, held as slack or cache
  QUIRE_SHORTAGE_LIMIT = 3,          // the caller's own limit
  QUIRE_SHORTAGE_COOLING = 4,        // freed, but a stream is still using it
  QUIRE_SHORTAGE_ADDRESS_SPACE = 5,  // addresses ran out, not memory
  QUIRE_SHORTAGE_OTHER_PROCESS = 6,  // another process holds it
  QUIRE_SHORTAGE_MAPPINGS = 7        // the driver takes no more mappings
};

// The verdict on a request that could not be served, in bytes.
typedef struct quire_shortage {
  size_t size;
  quire_shortage_kind kind;
  uint32_t padding;
  uint64_t requested;
  // For QUIRE_SHORTAGE_ADDRESS_SPACE these three are of addresses, else of
  // memory.
  uint64_t free;              // could be created or is cached now
  uint64_t largest_possible;  // the largest request that would succeed now
  uint64_t limit;
  uint64_t device_total;
  uint64_t cooling;
  uint64_t held_as_slack;  // what caches could free
  // Kept free for other owners, which have less than their reserved minimum.
  uint64_t reserved_for_others;
  // Of QUIRE_SHORTAGE_LIMIT: whose limit it is and what they use; limit 0 where
  // it is that of the device's memory. The message has the owner's name.
  uint64_t owner_limit;
  uint64_t owner_live;
  // Beyond held_as_slack, what mesh could free, and relocation beyond that.
  uint64_t mesh_frees;
  uint64_t relocation_frees;
  // What sleep of others could free, with what the levels above could of it.
  uint64_t sleep_frees;
} quire_shortage;
#define QUIRE_SHORTAGE_INIT \
  { sizeof(quire_shortage), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 }

// The verdict of the last call of this thread that failed. QUIRE_NOT_FOUND,
// which does not replace that error, where the call failed for another reason.
QUIRE_C_FUNCTION quire_status quire_last_shortage(quire_shortage* shortage)
    QUIRE_C_NOEXCEPT;

// Frees text that a function of this header gave. NULL is allowed.
QUIRE_C_FUNCTION void quire_string_free(char* text) QUIRE_C_NOEXCEPT;

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // QUIRE_ALLOC_C_API_BASE_H_
