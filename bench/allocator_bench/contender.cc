#include "bench/allocator_bench/contender.h"

#include <dlfcn.h>
#include <stdlib.h>

#include <initializer_list>

#include "absl/strings/str_format.h"

namespace quire {

const Mimalloc* Mimalloc::Get() {
  static const Mimalloc* const loaded = []() -> const Mimalloc* {
    // It gives memory back to the system after a while, as no benchmark of hits
    // wants it to: measured at its best.
    setenv("MIMALLOC_ALLOW_DECOMMIT", "0", /*overwrite=*/0);
    for (const char* const name : {"libmimalloc.so.2", "libmimalloc.so"}) {
      // Local: its malloc stays its own. Never closed: its threads' data live
      // until the end of the program.
      void* const library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
      if (library == nullptr) continue;
      static Mimalloc mimalloc;
      mimalloc.malloc_ =
          reinterpret_cast<void* (*)(size_t)>(dlsym(library, "mi_malloc"));
      mimalloc.free_ =
          reinterpret_cast<void (*)(void*)>(dlsym(library, "mi_free"));
      mimalloc.version_ =
          reinterpret_cast<int (*)()>(dlsym(library, "mi_version"));
      if (mimalloc.malloc_ != nullptr && mimalloc.free_ != nullptr &&
          mimalloc.version_ != nullptr) {
        return &mimalloc;
      }
    }
    return nullptr;
  }();
  return loaded;
}

std::string Mimalloc::Version() {
  const Mimalloc* const mimalloc = Get();
  if (mimalloc == nullptr) return "not found (Debian: libmimalloc-dev)";
  const int version = mimalloc->version_();
  return absl::StrFormat("%d.%d.%d", version / 100, version / 10 % 10,
                         version % 10);
}

}  // namespace quire
