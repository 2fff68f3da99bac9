// Sums that stop at the largest number and at 0: for reports, whose numbers may
// come from files or from traces that lost events. What memory is given by uses
// the checked sums of units.h.

#ifndef QUIRE_ALLOC_SATURATING_H_
#define QUIRE_ALLOC_SATURATING_H_

#include <cstdint>

#include "quire/alloc/units.h"

namespace quire {

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

}  // namespace quire

#endif  // QUIRE_ALLOC_SATURATING_H_
