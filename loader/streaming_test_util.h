// What the tests of the loader share: files of known bytes and a device to load
// them to.

#ifndef QUIRE_LOADER_STREAMING_TEST_UTIL_H_
#define QUIRE_LOADER_STREAMING_TEST_UTIL_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "alloc/testing/test_driver.h"
#include "loader/checkpoint_test_util.h"
#include "quire/alloc/units.h"
#include "quire/loader/checkpoint.h"
#include "quire/loader/streaming_loader.h"

namespace quire {

// A tensor of one-byte elements.
struct KnownTensor {
  std::string name;
  std::string bytes;
};

std::string PseudoRandomBytes(size_t size, uint32_t seed);
std::string ReadWholeFile(const std::string& path);
// The checksum by its definition, bit by bit.
uint32_t NaiveCrc32(const std::string& bytes);

// Writes a checkpoint of one safetensors file, tensors in the order given, and
// an empty config.
void WriteNaiveCheckpoint(const TemporaryFolder& folder,
                          const std::vector<KnownTensor>& tensors);
// Shards 1, 2, ..., the index that names them, and an empty config.
void WriteNaiveShards(const TemporaryFolder& folder,
                      const std::vector<std::vector<KnownTensor>>& shards);

// A device with one range of memory, in which tensors are placed with
// gaps between them. Every byte of it is known before a load.
class LoadTarget {
 public:
  explicit LoadTarget(Bytes size);
  // Expects that nothing is left on the device but this range.
  ~LoadTarget();

  TestDriver* driver() { return driver_.get(); }
  DeviceAddress base() const { return base_; }
  // Places the tensors of `checkpoint` in a shuffled order, at odd distances.
  std::vector<TensorPlacement> PlaceAll(const Checkpoint& checkpoint);
  // Expects that every placement holds its tensor's bytes and that no byte
  // outside of them was touched.
  void ExpectHolds(const std::vector<TensorPlacement>& placements,
                   const std::vector<KnownTensor>& tensors) const;

 private:
  Bytes size_;
  std::unique_ptr<TestDriver> driver_;
  DeviceAddress base_;
};

}  // namespace quire

#endif  // QUIRE_LOADER_STREAMING_TEST_UTIL_H_
