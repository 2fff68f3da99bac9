// PyTorch's setting roundup_power2_divisions: into how many steps the sizes
// between a power of two and the next are divided, for each of them.

#ifndef QUIRE_BENCH_POLICIES_PYTORCH_DIVISIONS_H_
#define QUIRE_BENCH_POLICIES_PYTORCH_DIVISIONS_H_

#include <array>
#include <cstdint>
#include <string_view>

#include "absl/status/statusor.h"

namespace quire {

// Entry i is of sizes from 2^i MiB to below the double of it; the first one of
// those below 1 MiB too, the last one of those above 64 GiB. 0 and 1: they are
// not rounded to steps.
using PyTorchDivisions = std::array<uint64_t, 16>;

// The entry that a request of `size` bytes goes by. REQUIRES: size > 0.
uint64_t DivisionsOf(const PyTorchDivisions& divisions, uint64_t size);

// As PyTorch reads it: one number for all sizes, or a list in which each size,
// in MiB, has its own: "[256:1,512:2,1024:4,>:8]". The first one is of all
// below it as well, ">" of all above the one before it; what lies between two
// that are named stays 0. Errors: kInvalidArgument, for what is no such list,
// and for sizes and divisions that are no powers of two.
absl::StatusOr<PyTorchDivisions> ParsePyTorchDivisions(std::string_view text);

}  // namespace quire

#endif  // QUIRE_BENCH_POLICIES_PYTORCH_DIVISIONS_H_
