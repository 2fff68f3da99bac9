// Whatever the bytes, a GGUF file is refused or describes tensors that lie in
// the file and do not overlap, and metadata that can be printed.

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "loader/checkpoint_test_util.h"
#include "loader/gguf_reader.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string bytes(reinterpret_cast<const char*>(data), size);
  const auto gguf = quire::ReadGguf(quire::MemoryFile(bytes));
  if (!gguf.ok()) {
    if (gguf.status().message().find('\n') != absl::string_view::npos)
      std::abort();
    return 0;
  }
  (void)gguf->metadata.dump();
  uint64_t end = 0;
  for (const quire::TensorInfo& tensor : gguf->tensors) {
    if (tensor.offset < end) std::abort();
    end = tensor.offset + tensor.size.value();
  }
  if (end > size) std::abort();
  return 0;
}
