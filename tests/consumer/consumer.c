// The allocator from C: a device of 64 MiB in host memory.
#include <quire/alloc/c_api.h>
#include <stdio.h>
#include <string.h>

// Says what failed, and where.
static int Failed(const char* what) {
  fprintf(stderr, "%s: %s\n", what, quire_last_error());
  return 1;
}

// The compiler says where an initialiser leaves a field out.
static void UseInitialisers(void) {
  quire_allocator_options allocator = QUIRE_ALLOCATOR_OPTIONS_INIT;
  quire_owner_limits limits = QUIRE_OWNER_LIMITS_INIT;
  quire_sleep_options sleep = QUIRE_SLEEP_OPTIONS_INIT;
  (void)allocator;
  (void)limits;
  (void)sleep;
}

int main(void) {
  UseInitialisers();
  quire_runtime* runtime = NULL;
  quire_allocator* allocator = NULL;
  quire_runtime_options options = QUIRE_RUNTIME_OPTIONS_INIT;
  options.host_memory_per_device = UINT64_C(64) << 20;
  if (quire_runtime_create(&options, &runtime) != QUIRE_OK)
    return Failed("quire_runtime_create");
  if (quire_runtime_get_allocator(runtime, 0, &allocator) != QUIRE_OK)
    return Failed("quire_runtime_get_allocator");

  uint64_t stream = 0;
  if (quire_stream_create(runtime, 0, &stream) != QUIRE_OK)
    return Failed("quire_stream_create");
  quire_allocate_options where = QUIRE_ALLOCATE_OPTIONS_INIT;
  where.stream = stream;
  uint64_t address = 0;
  if (quire_allocator_allocate(allocator, 5000, &where, &address) != QUIRE_OK)
    return Failed("quire_allocator_allocate");
  memset((void*)(uintptr_t)address, 0x5a, 5000);

  quire_allocator_statistics statistics;
  statistics.size = sizeof(statistics);
  if (quire_allocator_get_statistics(allocator, &statistics) != QUIRE_OK)
    return Failed("quire_allocator_get_statistics");
  if (statistics.requested_bytes != 5000) {
    fprintf(stderr, "requested_bytes is wrong\n");
    return 1;
  }

  // More than there is: the error says why, and how much could be had.
  uint64_t refused = 0;
  if (quire_allocator_allocate(allocator, SIZE_MAX, NULL, &refused) !=
      QUIRE_OUT_OF_DEVICE_MEMORY) {
    return Failed("SIZE_MAX bytes");
  }
  quire_shortage shortage = QUIRE_SHORTAGE_INIT;
  if (quire_last_shortage(&shortage) != QUIRE_OK)
    return Failed("quire_last_shortage");
  if (shortage.requested != SIZE_MAX || shortage.largest_possible == 0) {
    fprintf(stderr, "the shortage is wrong\n");
    return 1;
  }

  if (quire_allocator_free(allocator, address, stream) != QUIRE_OK)
    return Failed("quire_allocator_free");
  if (quire_stream_destroy(runtime, stream) != QUIRE_OK)
    return Failed("quire_stream_destroy");
  quire_allocator_destroy(allocator);
  quire_runtime_destroy(runtime);
  printf("quire %s from C\n", quire_alloc_version());
  return 0;
}
