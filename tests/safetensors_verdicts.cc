// Reads safetensors files from its input and says of each what our reader makes
// of it: for safetensors_differential_test.py.
//
// Input: for each file its length as a little-endian number of 64 bits, and its
// bytes. Output: a line of JSON for each, {"error": ...} or {"tensors":
// [[name, dtype, shape, offset, size], ...]}.

#include <cstdint>
#include <iostream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>

#include "loader/checkpoint_test_util.h"
#include "loader/safetensors_header.h"

namespace quire {
namespace {

nlohmann::json Verdict(std::string file) {
  const auto tensors =
      ReadSafetensorsHeader(MemoryFile(std::move(file)), /*file_index=*/0);
  if (!tensors.ok())
    return {{"error", std::string(tensors.status().message())}};
  nlohmann::json list = nlohmann::json::array();
  for (const TensorInfo& tensor : *tensors)
    list.push_back({tensor.name, DTypeName(tensor.dtype), tensor.shape,
                    tensor.offset, tensor.size.value()});
  return {{"tensors", std::move(list)}};
}

int Main() {
  const std::string input{std::istreambuf_iterator<char>(std::cin), {}};
  std::string_view rest = input;
  while (rest.size() >= sizeof(uint64_t)) {
    uint64_t size = 0;
    for (size_t i = 0; i < sizeof size; ++i)
      size |= uint64_t{static_cast<unsigned char>(rest[i])} << (8 * i);
    rest.remove_prefix(sizeof size);
    if (size > rest.size()) return 1;
    std::cout << Verdict(std::string(rest.substr(0, size))).dump() << "\n";
    rest.remove_prefix(size);
  }
  return rest.empty() ? 0 : 1;
}

}  // namespace
}  // namespace quire

int main() { return quire::Main(); }
