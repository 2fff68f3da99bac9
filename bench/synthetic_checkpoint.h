// A small model of random weights, for machines that cannot fetch a real one.

#ifndef QUIRE_BENCH_SYNTHETIC_CHECKPOINT_H_
#define QUIRE_BENCH_SYNTHETIC_CHECKPOINT_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"

namespace quire {

// Writes a Hugging Face folder: a Llama of 4 layers with tied embeddings, 3.4 M
// parameters, and a byte-level tokenizer. Every part is as a real one has it,
// but nothing was trained: its text is noise. `folder` exists; the same seed
// writes the same bytes. After an error no file is there that was not before.
absl::Status WriteSyntheticCheckpoint(const std::string& folder, uint64_t seed);

}  // namespace quire

#endif  // QUIRE_BENCH_SYNTHETIC_CHECKPOINT_H_
