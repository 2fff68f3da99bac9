// --verify: what a load read, beside a manifest or a second pass.

#ifndef QUIRE_MODEL_CLI_VERIFICATION_H_
#define QUIRE_MODEL_CLI_VERIFICATION_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "quire/loader/checkpoint.h"
#include "quire/loader/streaming_loader.h"
#include "quire/model/session.h"

namespace quire {

class Verification {
 public:
  // Before the load: a manifest that is wrong, or lacks a tensor, should say so
  // at once. Of it a checksum for each tensor is kept.
  static absl::StatusOr<Verification> Prepare(const Checkpoint& checkpoint);

  // `load` was made with checksums. Tensors that were not loaded are read here,
  // where there is a manifest; where there is none, all that was loaded is read
  // again, with the ring of `options`. kDataLoss names file and tensor.
  absl::Status Check(const Checkpoint& checkpoint, const LoadReport& load,
                     StreamingOptions options) const;

  // "manifest" or "second pass".
  const char* by() const { return expected_ ? "manifest" : "second pass"; }
  // Those that Check compares.
  uint64_t TensorsOf(const Checkpoint& checkpoint,
                     const LoadReport& load) const;

 private:
  // By tensor of the checkpoint; none without a manifest.
  std::optional<std::vector<uint32_t>> expected_;
};

// Session::Open, with what it loads verified where options.streaming has
// checksums.
absl::StatusOr<std::unique_ptr<Session>> OpenVerified(
    std::unique_ptr<Checkpoint> checkpoint, const SessionOptions& options);

}  // namespace quire

#endif  // QUIRE_MODEL_CLI_VERIFICATION_H_
