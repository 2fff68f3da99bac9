// SipHash-2-4 with 128 bits of output (Aumasson and Bernstein, 2012): a keyed
// hash of what strangers write.
//
// Prompts come from users, and a table of prompts that is hashed without a
// secret key can be made to collide at will. With a key that is not known it
// cannot. One pass over the input.

#ifndef QUIRE_PAGING_SIPHASH_H_
#define QUIRE_PAGING_SIPHASH_H_

#include <compare>
#include <cstddef>
#include <cstdint>
#include <span>

namespace quire {

struct SipHashKey {
  uint64_t first = 0;  // bytes 0 to 7 of the published form, little-endian
  uint64_t second = 0;

  // From the system's source of randomness.
  static SipHashKey Random();
};

struct Hash128 {
  uint64_t low = 0;  // bytes 0 to 7 of the published form, little-endian
  uint64_t high = 0;
  friend constexpr auto operator<=>(const Hash128&, const Hash128&) = default;
  template <typename H>
  friend H AbslHashValue(H state, const Hash128& hash) {
    return H::combine(std::move(state), hash.low, hash.high);
  }
};

Hash128 SipHash128(const SipHashKey& key, std::span<const std::byte> data);

}  // namespace quire

#endif  // QUIRE_PAGING_SIPHASH_H_
