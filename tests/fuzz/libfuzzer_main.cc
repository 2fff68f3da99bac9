// Drives one target by libFuzzer: the build says which, as QUIRE_FUZZ_TARGET.

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "absl/status/status.h"
#include "tests/fuzz/targets.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const absl::Status status = quire::QUIRE_FUZZ_TARGET(
      std::string_view(reinterpret_cast<const char*>(data), size));
  if (status.ok()) return 0;
  std::fprintf(stderr, "%s\n", status.ToString().c_str());
  std::abort();
}
