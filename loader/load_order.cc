#include "quire/loader/load_order.h"

#include <algorithm>
#include <cstdint>
#include <string_view>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/string_view.h"

namespace quire {
namespace {

// Where a tensor stands: groups come in the order of their ranks.
struct Rank {
  uint64_t number;
  std::string name;
};

constexpr uint64_t kFirst = 0;
constexpr uint64_t kLast = UINT64_MAX;

Rank RankOf(const std::string& tensor) {
  for (size_t begin = 0; begin < tensor.size();) {
    const size_t end = std::min(tensor.find('.', begin), tensor.size());
    const absl::string_view part(tensor.data() + begin, end - begin);
    uint32_t layer = 0;
    if (absl::SimpleAtoi(part, &layer))
      return {uint64_t{layer} + 1, tensor.substr(0, end)};
    begin = end + 1;
  }
  for (const std::string_view embedding : {"embed", "embd", "wte"}) {
    if (tensor.find(embedding) != std::string::npos)
      return {kFirst, "embedding"};
  }
  return {kLast, "head"};
}

}  // namespace

LayerOrder OrderByLayer(const Checkpoint& checkpoint) {
  std::vector<std::pair<Rank, const TensorInfo*>> ranked;
  ranked.reserve(checkpoint.tensors().size());
  for (const TensorInfo& tensor : checkpoint.tensors())
    ranked.emplace_back(RankOf(tensor.name), &tensor);
  std::stable_sort(ranked.begin(), ranked.end(),
                   [](const auto& a, const auto& b) {
                     return a.first.number < b.first.number;
                   });
  LayerOrder order;
  order.tensors.reserve(ranked.size());
  for (size_t i = 0; i < ranked.size(); ++i) {
    order.tensors.push_back(ranked[i].second);
    if (i + 1 == ranked.size() ||
        ranked[i + 1].first.number != ranked[i].first.number)
      order.groups.push_back({ranked[i].first.name, i + 1});
  }
  return order;
}

}  // namespace quire
