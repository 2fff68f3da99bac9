// What is fuzzed: everything that reads bytes from outside, and the allocator's
// operations.
//
// A target takes any bytes. It returns OK where they were refused, or were
// read and what came of them has the properties that its file names; an error
// is a fault of ours. libFuzzer drives the targets one by one
// (libfuzzer_main.cc), and an ordinary test plays what is kept of them in
// corpus/<name> (corpus_test.cc).
//
// Several files make one input: they stand one after the other, parted by lines
// of "%%".

#ifndef QUIRE_TESTS_FUZZ_TARGETS_H_
#define QUIRE_TESTS_FUZZ_TARGETS_H_

#include <string_view>

#include "absl/status/status.h"

namespace quire {

absl::Status FuzzAdapter(std::string_view input);
absl::Status FuzzAllocationTrace(std::string_view input);
absl::Status FuzzAllocator(std::string_view input);
absl::Status FuzzDeviceMap(std::string_view input);
absl::Status FuzzGguf(std::string_view input);
absl::Status FuzzMemorySnapshot(std::string_view input);
absl::Status FuzzModelConfig(std::string_view input);
absl::Status FuzzSafetensorsHeader(std::string_view input);
absl::Status FuzzShardIndex(std::string_view input);
absl::Status FuzzTokenizer(std::string_view input);

}  // namespace quire

#endif  // QUIRE_TESTS_FUZZ_TARGETS_H_
