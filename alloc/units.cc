#include "quire/alloc/units.h"

#include <array>
#include <cctype>
#include <cmath>
#include <cstdio>
#include <string_view>

namespace quire {
namespace {

struct Unit {
  std::string_view name;  // lower case
  uint64_t bytes;
};

constexpr std::array<Unit, 20> kUnits = {{
    {"", 1},
    {"b", 1},
    {"k", uint64_t{1} << 10},
    {"kib", uint64_t{1} << 10},
    {"kb", 1000},
    {"m", uint64_t{1} << 20},
    {"mib", uint64_t{1} << 20},
    {"mb", 1000 * 1000},
    {"g", uint64_t{1} << 30},
    {"gib", uint64_t{1} << 30},
    {"gb", 1000 * 1000 * 1000},
    {"t", uint64_t{1} << 40},
    {"tib", uint64_t{1} << 40},
    {"tb", uint64_t{1000} * 1000 * 1000 * 1000},
    {"p", uint64_t{1} << 50},
    {"pib", uint64_t{1} << 50},
    {"pb", uint64_t{1000} * 1000 * 1000 * 1000 * 1000},
    {"e", uint64_t{1} << 60},
    {"eib", uint64_t{1} << 60},
    {"eb", uint64_t{1000} * 1000 * 1000 * 1000 * 1000 * 1000},
}};

}  // namespace

std::string FormatBytes(Bytes n) {
  constexpr std::array<const char*, 6> kNames = {"KiB", "MiB", "GiB",
                                                 "TiB", "PiB", "EiB"};
  if (n.value() < 1024) return std::to_string(n.value()) + " B";
  double scaled = static_cast<double>(n.value()) / 1024;
  size_t unit = 0;
  while (scaled >= 1024 && unit + 1 < kNames.size()) {
    scaled /= 1024;
    ++unit;
  }
  char text[32];
  std::snprintf(text, sizeof(text), "%.2f %s", scaled, kNames[unit]);
  return text;
}

std::optional<Bytes> ParseBytes(const std::string& text) {
  size_t at = 0;
  const auto skip_spaces = [&] {
    while (at < text.size() && text[at] == ' ') ++at;
  };
  skip_spaces();
  uint64_t whole = 0;
  const size_t digits_from = at;
  while (at < text.size() &&
         std::isdigit(static_cast<unsigned char>(text[at]))) {
    const auto tens = CheckedMultiply(whole, 10);
    const auto next =
        tens ? CheckedAdd(*tens, static_cast<uint64_t>(text[at] - '0'))
             : std::nullopt;
    if (!next) return std::nullopt;
    whole = *next;
    ++at;
  }
  if (at == digits_from) return std::nullopt;
  double fraction = 0;
  if (at < text.size() && text[at] == '.') {
    double digit_value = 0.1;
    const size_t fraction_from = ++at;
    while (at < text.size() &&
           std::isdigit(static_cast<unsigned char>(text[at]))) {
      fraction += digit_value * (text[at] - '0');
      digit_value /= 10;
      ++at;
    }
    if (at == fraction_from) return std::nullopt;
  }
  skip_spaces();
  std::string unit_name;
  while (at < text.size() && text[at] != ' ') {
    unit_name +=
        static_cast<char>(std::tolower(static_cast<unsigned char>(text[at])));
    ++at;
  }
  skip_spaces();
  if (at != text.size()) return std::nullopt;
  for (const Unit& unit : kUnits) {
    if (unit.name != unit_name) continue;
    const auto base = CheckedMultiply(whole, unit.bytes);
    if (!base) return std::nullopt;
    const auto extra = static_cast<uint64_t>(
        std::llround(fraction * static_cast<double>(unit.bytes)));
    const auto total = CheckedAdd(*base, extra);
    return total ? std::optional(Bytes(*total)) : std::nullopt;
  }
  return std::nullopt;
}

}  // namespace quire
