// A safetensors file from a list of tensors, for tests.

#ifndef QUIRE_LOADER_TENSORS_TEST_UTIL_H_
#define QUIRE_LOADER_TENSORS_TEST_UTIL_H_

#include <cstdint>
#include <functional>
#include <map>
#include <numeric>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "loader/checkpoint_test_util.h"

namespace quire {

struct Tensor {
  std::string dtype;
  std::vector<uint64_t> shape;
  std::string bytes;  // empty: zeros
};
using Tensors = std::map<std::string, Tensor>;

inline uint64_t ElementSize(const std::string& dtype) {
  if (dtype == "I64") return 8;
  if (dtype == "I32" || dtype == "F32") return 4;
  return dtype == "F16" || dtype == "BF16" || dtype == "I16" ? 2 : 1;
}

inline std::string FileOf(const Tensors& tensors) {
  std::string header = "{";
  std::string data;
  for (const auto& [name, tensor] : tensors) {
    std::string bytes = tensor.bytes;
    if (bytes.empty()) {
      bytes.resize(std::accumulate(tensor.shape.begin(), tensor.shape.end(),
                                   ElementSize(tensor.dtype),
                                   std::multiplies<>()));
    }
    absl::StrAppend(
        &header, header.size() == 1 ? "" : ",",
        Entry(name, tensor.dtype,
              absl::StrCat("[", absl::StrJoin(tensor.shape, ","), "]"),
              Offsets(data.size(), data.size() + bytes.size())));
    data += bytes;
  }
  header += "}";
  return LittleEndian<uint64_t>(header.size()) + header + data;
}

template <typename T>
std::string BytesOfAll(const std::vector<T>& values) {
  std::string bytes;
  for (const T value : values) bytes += LittleEndian(value);
  return bytes;
}

}  // namespace quire

#endif  // QUIRE_LOADER_TENSORS_TEST_UTIL_H_
