#include "bench/policies/pytorch_divisions.h"

#include <algorithm>
#include <bit>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "quire/alloc/status_macros.h"

namespace quire {
namespace {

constexpr int kLeastShift = 20;  // 1 MiB

absl::Status Refuse(std::string_view text, const char* why) {
  return absl::InvalidArgumentError(absl::StrCat(
      "roundup_power2_divisions: \"", std::string(text), "\" ", why));
}

absl::StatusOr<uint64_t> ParseNumber(std::string_view text) {
  uint64_t value = 0;
  if (!absl::SimpleAtoi(std::string(text), &value)) {
    return Refuse(text, "is no number");
  }
  return value;
}

absl::StatusOr<uint64_t> ParseDivisions(std::string_view text) {
  QUIRE_ASSIGN_OR_RETURN(const uint64_t value, ParseNumber(text));
  if (value != 0 && !std::has_single_bit(value)) {
    return Refuse(text, "is neither a power of two nor 0");
  }
  return value;
}

// Where the entry of a size in MiB stands.
absl::StatusOr<size_t> ParseIndex(std::string_view text) {
  QUIRE_ASSIGN_OR_RETURN(const uint64_t size, ParseNumber(text));
  if (!std::has_single_bit(size)) {
    return Refuse(text, "is no power of two, in MiB");
  }
  return std::min<size_t>(std::bit_width(size) - 1,
                          PyTorchDivisions().size() - 1);
}

}  // namespace

uint64_t DivisionsOf(const PyTorchDivisions& divisions, uint64_t size) {
  const int shift = std::bit_width(size) - 1;
  return divisions[std::clamp<int>(shift - kLeastShift, 0,
                                   static_cast<int>(divisions.size()) - 1)];
}

absl::StatusOr<PyTorchDivisions> ParsePyTorchDivisions(std::string_view text) {
  PyTorchDivisions divisions{};
  if (text.empty() || text.front() != '[') {
    QUIRE_ASSIGN_OR_RETURN(const uint64_t value, ParseDivisions(text));
    divisions.fill(value);
    return divisions;
  }
  if (text.size() < 2 || text.back() != ']') {
    return Refuse(text, "does not end with ]");
  }
  const std::string list(text.substr(1, text.size() - 2));
  const std::vector<std::string> entries = absl::StrSplit(list, ',');
  std::optional<size_t> last;
  for (const std::string& entry : entries) {
    const size_t colon = entry.find(':');
    if (colon == entry.npos) return Refuse(entry, "is not SIZE:DIVISIONS");
    const std::string name = entry.substr(0, colon);
    QUIRE_ASSIGN_OR_RETURN(const uint64_t value,
                           ParseDivisions(entry.substr(colon + 1)));
    if (name == ">") {
      if (!last) return Refuse(entry, "comes before any size");
      std::fill(divisions.begin() + *last + 1, divisions.end(), value);
      continue;
    }
    QUIRE_ASSIGN_OR_RETURN(const size_t index, ParseIndex(name));
    if (!last) std::fill(divisions.begin(), divisions.begin() + index, value);
    divisions[index] = value;
    last = index;
  }
  return divisions;
}

}  // namespace quire
