// Whatever the bytes, the header of a safetensors file is refused or describes
// tensors that tile the file.

#include <cstdint>
#include <string>

#include "loader/checkpoint_test_util.h"
#include "loader/safetensors_header.h"
#include "quire/alloc/status_macros.h"
#include "tests/fuzz/fuzz_util.h"
#include "tests/fuzz/targets.h"

namespace quire {
namespace {

absl::Status CheckHeader(const std::string& bytes) {
  const auto tensors =
      ReadSafetensorsHeader(MemoryFile(bytes), /*file_index=*/0);
  if (!tensors.ok()) return CheckRefusal(tensors.status());
  uint64_t end = tensors->empty() ? bytes.size() : tensors->front().offset;
  for (const TensorInfo& tensor : *tensors) {
    QUIRE_RETURN_IF_ERROR(Property(
        tensor.offset == end, "each tensor begins where the last one ends"));
    end += tensor.size.value();
  }
  return Property(end == bytes.size(), "the last one ends with the file");
}

}  // namespace

absl::Status FuzzSafetensorsHeader(std::string_view input) {
  QUIRE_RETURN_IF_ERROR(CheckHeader(std::string(input)));
  // With a right length in front, so that mutations reach the JSON.
  return CheckHeader(Safetensors(input));
}

}  // namespace quire
