// Whatever the bytes, a GGUF file is refused or describes tensors that lie in
// the file and do not overlap, and metadata that can be printed.

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "loader/checkpoint_test_util.h"
#include "loader/gguf_reader.h"
#include "quire/alloc/status_macros.h"
#include "tests/fuzz/fuzz_util.h"
#include "tests/fuzz/targets.h"

namespace quire {

absl::Status FuzzGguf(std::string_view input) {
  const auto gguf = ReadGguf(MemoryFile(std::string(input)));
  if (!gguf.ok()) return CheckRefusal(gguf.status());
  (void)gguf->metadata.dump();
  uint64_t end = 0;
  for (const TensorInfo& tensor : gguf->tensors) {
    QUIRE_RETURN_IF_ERROR(
        Property(tensor.offset >= end, "tensors do not overlap"));
    end = tensor.offset + tensor.size.value();
  }
  return Property(end <= input.size(), "tensors lie in the file");
}

}  // namespace quire
