// Unit types: what a number counts is part of its type.
//
// Sizes come from files, users and other processes, so the only way to add,
// multiply or align them is checked: a Checked function returns nullopt where
// the result does not fit, and the caller says what was asked for. There is no
// operator+ on purpose.

#ifndef QUIRE_ALLOC_UNITS_H_
#define QUIRE_ALLOC_UNITS_H_

#include <compare>
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <string>

namespace quire {

// A number of bytes.
class Bytes {
 public:
  constexpr Bytes() = default;
  constexpr explicit Bytes(uint64_t value) : value_(value) {}

  constexpr uint64_t value() const { return value_; }
  constexpr bool zero() const { return value_ == 0; }
  friend constexpr auto operator<=>(Bytes, Bytes) = default;

 private:
  uint64_t value_ = 0;
};

constexpr Bytes KiB(uint64_t n) { return Bytes(n << 10); }
constexpr Bytes MiB(uint64_t n) { return Bytes(n << 20); }
constexpr Bytes GiB(uint64_t n) { return Bytes(n << 30); }

// A number of physical pages of one pool's page size.
class PageCount {
 public:
  constexpr PageCount() = default;
  constexpr explicit PageCount(uint64_t value) : value_(value) {}

  constexpr uint64_t value() const { return value_; }
  constexpr bool zero() const { return value_ == 0; }
  friend constexpr auto operator<=>(PageCount, PageCount) = default;

 private:
  uint64_t value_ = 0;
};

// An address in device memory. On HostDriver it is also a host pointer.
class DeviceAddress {
 public:
  constexpr DeviceAddress() = default;
  constexpr explicit DeviceAddress(uint64_t value) : value_(value) {}

  constexpr uint64_t value() const { return value_; }
  constexpr bool null() const { return value_ == 0; }
  friend constexpr auto operator<=>(DeviceAddress, DeviceAddress) = default;

  // Only for memory of HostDriver, where device memory is host memory.
  template <typename T>
  T* host_pointer() const {
    return reinterpret_cast<T*>(value_);
  }

 private:
  uint64_t value_ = 0;
};

// ---- Checked arithmetic -----------------------------------------------------

constexpr std::optional<uint64_t> CheckedAdd(uint64_t a, uint64_t b) {
  uint64_t sum = 0;
  if (__builtin_add_overflow(a, b, &sum)) return std::nullopt;
  return sum;
}

constexpr std::optional<uint64_t> CheckedMultiply(uint64_t a, uint64_t b) {
  uint64_t product = 0;
  if (__builtin_mul_overflow(a, b, &product)) return std::nullopt;
  return product;
}

// a - b, or nullopt where b is larger.
constexpr std::optional<uint64_t> CheckedSubtract(uint64_t a, uint64_t b) {
  if (b > a) return std::nullopt;
  return a - b;
}

constexpr bool IsPowerOfTwo(uint64_t n) { return n != 0 && (n & (n - 1)) == 0; }

// The smallest multiple of `alignment` that is at least `value`.
// REQUIRES: alignment > 0. It need not be a power of two.
constexpr std::optional<uint64_t> CheckedAlignUp(uint64_t value,
                                                 uint64_t alignment) {
  const uint64_t remainder = value % alignment;
  if (remainder == 0) return value;
  return CheckedAdd(value, alignment - remainder);
}

constexpr std::optional<Bytes> CheckedAdd(Bytes a, Bytes b) {
  const auto sum = CheckedAdd(a.value(), b.value());
  return sum ? std::optional(Bytes(*sum)) : std::nullopt;
}
constexpr std::optional<Bytes> CheckedSubtract(Bytes a, Bytes b) {
  const auto rest = CheckedSubtract(a.value(), b.value());
  return rest ? std::optional(Bytes(*rest)) : std::nullopt;
}
constexpr std::optional<Bytes> CheckedMultiply(Bytes a, uint64_t n) {
  const auto product = CheckedMultiply(a.value(), n);
  return product ? std::optional(Bytes(*product)) : std::nullopt;
}
constexpr std::optional<Bytes> CheckedAlignUp(Bytes a, Bytes alignment) {
  const auto up = CheckedAlignUp(a.value(), alignment.value());
  return up ? std::optional(Bytes(*up)) : std::nullopt;
}
constexpr std::optional<DeviceAddress> CheckedAdd(DeviceAddress a, Bytes n) {
  const auto sum = CheckedAdd(a.value(), n.value());
  return sum ? std::optional(DeviceAddress(*sum)) : std::nullopt;
}

// The same, kept at the end of the range where the result does not fit: for
// figures that are compared or reported, never for the size of anything made.
constexpr uint64_t SaturatingAdd(uint64_t a, uint64_t b) {
  return CheckedAdd(a, b).value_or(UINT64_MAX);
}
constexpr uint64_t SaturatingSubtract(uint64_t a, uint64_t b) {
  return CheckedSubtract(a, b).value_or(0);
}
constexpr Bytes SaturatingAdd(Bytes a, Bytes b) {
  return Bytes(SaturatingAdd(a.value(), b.value()));
}
constexpr Bytes SaturatingSubtract(Bytes a, Bytes b) {
  return Bytes(SaturatingSubtract(a.value(), b.value()));
}

// The pages that `size` needs: rounded up, and never an overflow, since the
// count is below the size. REQUIRES: page_size > 0.
constexpr PageCount PagesFor(Bytes size, Bytes page_size) {
  const uint64_t whole = size.value() / page_size.value();
  return PageCount(whole + (size.value() % page_size.value() != 0 ? 1 : 0));
}
constexpr std::optional<Bytes> CheckedBytes(PageCount pages, Bytes page_size) {
  return CheckedMultiply(page_size, pages.value());
}

// ---- Identifiers ------------------------------------------------------------

// A number that names something, distinct from every other kind of number.
template <typename Tag, typename Number>
class Id {
 public:
  constexpr Id() = default;
  constexpr explicit Id(Number value) : value_(value) {}
  constexpr Number value() const { return value_; }
  friend constexpr auto operator<=>(Id, Id) = default;
  template <typename H>
  friend H AbslHashValue(H state, Id id) {
    return H::combine(std::move(state), id.value_);
  }

 private:
  Number value_ = 0;
};

using DeviceId = Id<struct DeviceIdTag, int32_t>;
// 0 names no stream: the null stream means another thing on each device, so
// streams are always explicit.
using StreamId = Id<struct StreamIdTag, uint64_t>;
using EventId = Id<struct EventIdTag, uint64_t>;
// A physical page; 0 names none.
using PageHandle = Id<struct PageHandleTag, uint64_t>;
// Whom memory is accounted to.
using OwnerId = Id<struct OwnerIdTag, uint32_t>;

// ---- Text -------------------------------------------------------------------

// "1.50 GiB", "64.00 MiB", "17 B": for messages. Exact below 1 KiB.
std::string FormatBytes(Bytes n);

// Reads "8GiB", "64 MiB", "2M", "1.5GB", "4096". Binary units (K, KiB, M, ...)
// are powers of 1024; KB, MB, GB, TB are powers of 1000. nullopt for anything
// else, negative numbers and what does not fit.
std::optional<Bytes> ParseBytes(const std::string& text);

}  // namespace quire

template <typename Tag, typename Number>
struct std::hash<quire::Id<Tag, Number>> {
  size_t operator()(quire::Id<Tag, Number> id) const noexcept {
    return std::hash<Number>()(id.value());
  }
};

#endif  // QUIRE_ALLOC_UNITS_H_
