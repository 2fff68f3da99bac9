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
  quire_owner_limits limits = QUIRE_OWNER_LIMITS_INIT;
  quire_owner_statistics owner = QUIRE_OWNER_STATISTICS_INIT;
  quire_memory_statistics memory = QUIRE_MEMORY_STATISTICS_INIT;
  quire_allocation_info allocation = QUIRE_ALLOCATION_INFO_INIT;
  quire_mesh_options mesh = QUIRE_MESH_OPTIONS_INIT;
  quire_compaction_thresholds thresholds = QUIRE_COMPACTION_THRESHOLDS_INIT;
  quire_sleep_options sleep = QUIRE_SLEEP_OPTIONS_INIT;
  quire_sleep_report slept = QUIRE_SLEEP_REPORT_INIT;
  quire_replay_options replay = QUIRE_REPLAY_OPTIONS_INIT;
  quire_replay_result replayed = QUIRE_REPLAY_RESULT_INIT;
  (void)limits;
  (void)owner;
  (void)memory;
  (void)allocation;
  (void)mesh;
  (void)thresholds;
  (void)sleep;
  (void)slept;
  (void)replay;
  (void)replayed;
}

// What is still held when the runtime goes is told with its callers, the first
// of which is this program and not the library.
static void OnLeaks(void* context, const quire_leak_totals* totals,
                    const char* text) {
  const char* const caller = strstr(text, "sample):\n");
  const char* const end =
      caller == NULL ? NULL : strchr(caller + strlen("sample):\n"), '\n');
  const char* const library =
      caller == NULL ? NULL : strstr(caller, "libquire_alloc");
  *(int*)context = totals->allocations == 1 && end != NULL &&
                   (library == NULL || library > end);
  if (*(int*)context == 0) fprintf(stderr, "leaks: %s\n", text);
}

static int Leak(void) {
  int told = 0;
  uint64_t address = 0;
  quire_runtime* runtime = NULL;
  quire_allocator* allocator = NULL;
  quire_runtime_options options = QUIRE_RUNTIME_OPTIONS_INIT;
  options.driver = QUIRE_DRIVER_HOST_WITHOUT_MEMORY;
  options.sample_interval = 1;
  options.on_leaks = &OnLeaks;
  options.leak_context = &told;
  if (quire_runtime_create(&options, &runtime) != QUIRE_OK ||
      quire_runtime_get_allocator(runtime, 0, &allocator) != QUIRE_OK ||
      quire_allocator_allocate(allocator, 5000, NULL, &address) != QUIRE_OK)
    return Failed("quire_allocator_allocate");
  quire_allocator_destroy(allocator);
  quire_runtime_destroy(runtime);
  return told ? 0 : 1;
}

// Pages that are mapped now, moves that were carried out, and what was told to
// be live at the end.
typedef struct Counts {
  uint64_t mapped_bytes;
  uint64_t moves;
  uint64_t leaked;
} Counts;

static void OnLeaksOfAllocator(void* context, const quire_leak_totals* totals,
                               const char* text) {
  if (strlen(text) > 0) ((Counts*)context)->leaked += totals->allocations;
}

static void OnPagesMapped(void* context, const quire_mapping_change* change) {
  ((Counts*)context)->mapped_bytes += change->bytes;
}
static void OnPagesUnmapped(void* context, const quire_mapping_change* change) {
  ((Counts*)context)->mapped_bytes -= change->bytes;
}
static void AfterMove(void* context, const quire_relocation_move* move,
                      quire_move_action action) {
  if (move->bytes > 0 && action == QUIRE_MOVE_COPY) ++((Counts*)context)->moves;
}

enum { kTensors = 128, kTensorBytes = 64 << 10 };

// What a pass has moved is found under its new address.
static int MoveTensors(quire_allocator* allocator,
                       const quire_quiescent_section* section,
                       uint64_t* tensors) {
  quire_relocation_limits limits = QUIRE_RELOCATION_LIMITS_INIT;
  quire_relocation_pass* pass = NULL;
  limits.max_bytes = kTensors * kTensorBytes;
  if (quire_relocation_pass_begin(allocator, section, &limits, &pass) !=
      QUIRE_OK)
    return Failed("quire_relocation_pass_begin");
  uint64_t count = 0;
  if (quire_relocation_pass_copy(pass) != QUIRE_OK ||
      quire_relocation_pass_get_move_count(pass, &count) != QUIRE_OK)
    return Failed("quire_relocation_pass_copy");
  for (uint64_t i = 0; i < count; ++i) {
    quire_relocation_move move = QUIRE_RELOCATION_MOVE_INIT;
    if (quire_relocation_pass_get_move(pass, i, &move) != QUIRE_OK)
      return Failed("quire_relocation_pass_get_move");
    for (int t = 0; t < kTensors; ++t) {
      if (tensors[t] == move.from) tensors[t] = move.to;
    }
  }
  quire_compaction_report report = QUIRE_COMPACTION_REPORT_INIT;
  if (quire_relocation_pass_finish(pass, &report) != QUIRE_OK)
    return Failed("quire_relocation_pass_finish");
  quire_relocation_pass_destroy(pass);
  if (report.moves == 0 || report.moves != count) {
    fprintf(stderr, "the pass moved what it should not\n");
    return 1;
  }
  return 0;
}

// Seven tensors of eight are freed; meshing and moving give their pages back.
static int Compact(quire_runtime* runtime) {
  Counts counts = {0, 0, 0};
  quire_memory* memory = NULL;
  quire_allocator* allocator = NULL;
  quire_hook_registration* registration = NULL;
  quire_memory_hooks hooks = QUIRE_MEMORY_HOOKS_INIT;
  quire_compaction_listener listener = QUIRE_COMPACTION_LISTENER_INIT;
  quire_allocator_options options = QUIRE_ALLOCATOR_OPTIONS_INIT;
  hooks.context = &counts;
  hooks.on_pages_mapped = &OnPagesMapped;
  hooks.on_pages_unmapped = &OnPagesUnmapped;
  listener.context = &counts;
  listener.after_move = &AfterMove;
  options.listener = &listener;
  options.on_leaks = &OnLeaksOfAllocator;
  options.leak_context = &counts;
  // What was mapped before the hooks were there is given back before, too.
  if (quire_runtime_get_memory(runtime, 0, &memory) != QUIRE_OK ||
      quire_memory_trim(memory, 0, NULL) != QUIRE_OK ||
      quire_memory_add_hooks(memory, &hooks, &registration) != QUIRE_OK ||
      quire_allocator_create(memory, &options, &allocator) != QUIRE_OK)
    return Failed("quire_allocator_create");

  quire_allocate_options movable = QUIRE_ALLOCATE_OPTIONS_INIT;
  movable.movable = 1;
  uint64_t tensors[kTensors];
  for (int t = 0; t < kTensors; ++t) {
    if (quire_allocator_allocate(allocator, kTensorBytes, &movable,
                                 &tensors[t]) != QUIRE_OK)
      return Failed("quire_allocator_allocate");
    memset((void*)(uintptr_t)tensors[t], t, kTensorBytes);
  }
  for (int t = 0; t < kTensors; ++t) {
    if (t % 8 == 0) continue;
    if (quire_allocator_free(allocator, tensors[t], 0) != QUIRE_OK)
      return Failed("quire_allocator_free");
    tensors[t] = 0;
  }

  quire_quiescent_section* section = NULL;
  quire_compaction_report meshed = QUIRE_COMPACTION_REPORT_INIT;
  if (quire_quiescent_section_begin(memory, NULL, 0, &section) != QUIRE_OK)
    return Failed("quire_quiescent_section_begin");
  if (MoveTensors(allocator, section, tensors) != 0) return 1;
  if (quire_allocator_mesh(allocator, section, NULL, &meshed) != QUIRE_OK)
    return Failed("quire_allocator_mesh");
  quire_quiescent_section_end(section);
  for (int t = 0; t < kTensors; t += 8) {
    const unsigned char* bytes = (const unsigned char*)(uintptr_t)tensors[t];
    if (bytes[0] != t || bytes[kTensorBytes - 1] != t) {
      fprintf(stderr, "tensor %d is not what it was\n", t);
      return 1;
    }
  }
  quire_allocator_destroy(allocator);
  if (counts.leaked != kTensors / 8) {
    fprintf(stderr, "%llu live tensors are told\n",
            (unsigned long long)counts.leaked);
    return 1;
  }
  quire_memory_trim(memory, 0, NULL);
  if (counts.mapped_bytes != 0 || counts.moves == 0) {
    fprintf(stderr, "%llu bytes stay mapped, %llu moves\n",
            (unsigned long long)counts.mapped_bytes,
            (unsigned long long)counts.moves);
    return 1;
  }
  if (quire_memory_remove_hooks(registration) != QUIRE_OK)
    return Failed("quire_memory_remove_hooks");
  quire_memory_destroy(memory);
  return 0;
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

  quire_allocator_statistics statistics = QUIRE_ALLOCATOR_STATISTICS_INIT;
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
  if (Compact(runtime) != 0) return 1;
  if (Leak() != 0) return 1;
  quire_allocator_destroy(allocator);
  quire_runtime_destroy(runtime);
  printf("quire %s from C\n", quire_alloc_version());
  return 0;
}
