#include "model/ops/code_values.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

namespace quire {
namespace {

constexpr int kMantissaBits = 3;  // of E4M3
constexpr int kExponentBias = 7;

float F8E4M3Value(uint8_t code) {
  const int exponent = (code >> kMantissaBits) & 15;
  const int mantissa = code & 7;
  float magnitude;
  if ((code & 0x7F) == 0x7F) {
    magnitude = std::numeric_limits<float>::quiet_NaN();
  } else if (exponent == 0) {
    magnitude = std::ldexp(static_cast<float>(mantissa),
                           1 - kExponentBias - kMantissaBits);
  } else {
    magnitude = std::ldexp(static_cast<float>(8 + mantissa),
                           exponent - kExponentBias - kMantissaBits);
  }
  return (code & 0x80) != 0 ? -magnitude : magnitude;
}

constexpr std::array<float, 16> kUint4Values = {-8, -7, -6, -5, -4, -3, -2, -1,
                                                0,  1,  2,  3,  4,  5,  6,  7};
constexpr std::array<float, 16> kF4E2M1Values = {
    0.0f,  0.5f,  1.0f,  1.5f,  2.0f,  3.0f,  4.0f,  6.0f,
    -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f};

float ByteValue(CodeKind kind, uint8_t code) {
  switch (kind) {
    case CodeKind::kF8E4M3:
      return F8E4M3Value(code);
    case CodeKind::kInt8:
      return static_cast<float>(static_cast<int8_t>(code));
    default:  // kUint8
      return static_cast<float>(code) - 128;
  }
}

using ByteTable = std::array<float, 256>;
using NibbleTable = std::array<NibblePair, 256>;

ByteTable MakeByteTable(CodeKind kind) {
  ByteTable table;
  for (size_t code = 0; code < table.size(); ++code)
    table[code] = ByteValue(kind, static_cast<uint8_t>(code));
  return table;
}

NibbleTable MakeNibbleTable(CodeKind kind) {
  const std::array<float, 16>& values = NibbleValues(kind);
  NibbleTable table;
  for (size_t byte = 0; byte < table.size(); ++byte) {
    table[byte] = {values[byte & 15], values[byte >> 4]};
  }
  return table;
}

const ByteTable& BytesOfKind(CodeKind kind) {
  static const ByteTable kF8E4M3 = MakeByteTable(CodeKind::kF8E4M3);
  static const ByteTable kInt8 = MakeByteTable(CodeKind::kInt8);
  static const ByteTable kUint8 = MakeByteTable(CodeKind::kUint8);
  return kind == CodeKind::kF8E4M3 ? kF8E4M3
         : kind == CodeKind::kInt8 ? kInt8
                                   : kUint8;
}

const NibbleTable& NibblesOfKind(CodeKind kind) {
  static const NibbleTable kUint4 = MakeNibbleTable(CodeKind::kUint4);
  static const NibbleTable kNf4 = MakeNibbleTable(CodeKind::kNf4);
  static const NibbleTable kF4E2M1 = MakeNibbleTable(CodeKind::kF4E2M1);
  return kind == CodeKind::kUint4 ? kUint4
         : kind == CodeKind::kNf4 ? kNf4
                                  : kF4E2M1;
}

}  // namespace

// Quantiles of the normal distribution, scaled to [-1, 1], with an exact zero:
// bitsandbytes' functional.py, get_4bit_type("nf4").
const std::array<float, 16> kNf4Levels = {
    -1.0f,
    -0.6961928009986877f,
    -0.5250730514526367f,
    -0.39491748809814453f,
    -0.28444138169288635f,
    -0.18477343022823334f,
    -0.09105003625154495f,
    0.0f,
    0.07958029955625534f,
    0.16093020141124725f,
    0.24611230194568634f,
    0.33791524171829224f,
    0.44070982933044434f,
    0.5626170039176941f,
    0.7229568362236023f,
    1.0f,
};

const std::array<float, 16>& NibbleValues(CodeKind kind) {
  return kind == CodeKind::kUint4 ? kUint4Values
         : kind == CodeKind::kNf4 ? kNf4Levels
                                  : kF4E2M1Values;
}

const F8E4M3Tables& F8E4M3Tables::Get() {
  static const F8E4M3Tables kTables = [] {
    F8E4M3Tables tables = {};
    for (size_t code = 0; code < tables.low.size(); ++code) {
      const auto bits =
          std::bit_cast<uint32_t>(F8E4M3Value(static_cast<uint8_t>(code)));
      tables.low[code] = static_cast<uint8_t>(bits >> 16);
      tables.high[code] = static_cast<uint8_t>(bits >> 24);
    }
    for (size_t i = 0; i < 32; ++i) {
      std::array<uint8_t, 64>& places = tables.spread[i / 16];
      places[i % 16 * 4 + 2] = static_cast<uint8_t>(i);
      places[i % 16 * 4 + 3] = static_cast<uint8_t>(64 + i);
    }
    return tables;
  }();
  return kTables;
}

void DecodeCodes(CodeKind kind, const uint8_t* codes, size_t count,
                 float* values) {
  if (CodeBits(kind) == 8) {
    const ByteTable& table = BytesOfKind(kind);
    for (size_t i = 0; i < count; ++i) values[i] = table[codes[i]];
    return;
  }
  const NibbleTable& table = NibblesOfKind(kind);
  for (size_t i = 0; i < count / 2; ++i)
    std::memcpy(values + 2 * i, table[codes[i]].data(), sizeof(NibblePair));
  if (count % 2 != 0) values[count - 1] = table[codes[count / 2]][0];
}

}  // namespace quire
