// Whatever the bytes, the header of a safetensors file is refused or describes
// tensors that tile the file.

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "loader/checkpoint_test_util.h"
#include "loader/safetensors_header.h"

namespace {

void Check(const std::string& bytes) {
  const auto tensors =
      quire::ReadSafetensorsHeader(quire::MemoryFile(bytes), /*file_index=*/0);
  if (!tensors.ok()) {
    if (tensors.status().message().find('\n') != absl::string_view::npos)
      std::abort();
    return;
  }
  uint64_t end = tensors->empty() ? bytes.size() : tensors->front().offset;
  for (const quire::TensorInfo& tensor : *tensors) {
    if (tensor.offset != end) std::abort();
    end += tensor.size.value();
  }
  if (end != bytes.size()) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string input(reinterpret_cast<const char*>(data), size);
  Check(input);
  // With a right length in front, so that mutations reach the JSON.
  Check(quire::Safetensors(input));
  return 0;
}
