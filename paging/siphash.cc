#include "paging/siphash.h"

#include <bit>
#include <random>

namespace quire {
namespace {

class SipState {
 public:
  explicit SipState(const SipHashKey& key)
      : v0_(key.first ^ 0x736f6d6570736575),
        v1_(key.second ^ 0x646f72616e646f6d ^ 0xee),
        v2_(key.first ^ 0x6c7967656e657261),
        v3_(key.second ^ 0x7465646279746573) {}

  void Absorb(uint64_t word) {
    v3_ ^= word;
    Rounds(2);
    v0_ ^= word;
  }
  Hash128 Finish() {
    v2_ ^= 0xee;
    Rounds(4);
    const uint64_t low = v0_ ^ v1_ ^ v2_ ^ v3_;
    v1_ ^= 0xdd;
    Rounds(4);
    return {low, v0_ ^ v1_ ^ v2_ ^ v3_};
  }

 private:
  void Rounds(int count) {
    for (int i = 0; i < count; ++i) {
      v0_ += v1_;
      v2_ += v3_;
      v1_ = std::rotl(v1_, 13) ^ v0_;
      v3_ = std::rotl(v3_, 16) ^ v2_;
      v0_ = std::rotl(v0_, 32);
      v2_ += v1_;
      v0_ += v3_;
      v1_ = std::rotl(v1_, 17) ^ v2_;
      v3_ = std::rotl(v3_, 21) ^ v0_;
      v2_ = std::rotl(v2_, 32);
    }
  }

  uint64_t v0_, v1_, v2_, v3_;
};

uint64_t LoadLittleEndian(std::span<const std::byte> bytes) {
  uint64_t word = 0;
  for (size_t i = 0; i < bytes.size(); ++i)
    word |= std::to_integer<uint64_t>(bytes[i]) << (8 * i);
  return word;
}

}  // namespace

SipHashKey SipHashKey::Random() {
  std::random_device device;
  const auto word = [&] { return uint64_t{device()} << 32 | device(); };
  const uint64_t first = word();
  return {first, word()};
}

Hash128 SipHash128(const SipHashKey& key, std::span<const std::byte> data) {
  SipState state(key);
  const uint64_t length = data.size();
  for (; data.size() >= 8; data = data.subspan(8))
    state.Absorb(LoadLittleEndian(data.first<8>()));
  state.Absorb(length << 56 | LoadLittleEndian(data));
  return state.Finish();
}

}  // namespace quire
