#include "loader/streaming_test_util.h"

#include <algorithm>
#include <cstring>
#include <fstream>
#include <random>
#include <sstream>
#include <unordered_map>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace quire {
namespace {

constexpr char kUntouched = '\x5a';

std::string SafetensorsOf(const std::vector<KnownTensor>& tensors) {
  std::string header = "{";
  std::string data;
  for (const KnownTensor& tensor : tensors) {
    const size_t end = data.size() + tensor.bytes.size();
    absl::StrAppend(
        &header, header.size() > 1 ? "," : "",
        Entry(tensor.name, "U8", absl::StrCat("[", tensor.bytes.size(), "]"),
              Offsets(data.size(), end)));
    data += tensor.bytes;
  }
  return Safetensors(header + "}") + data;
}

}  // namespace

std::string PseudoRandomBytes(size_t size, uint32_t seed) {
  std::string bytes(size, '\0');
  for (char& byte : bytes) {
    seed = seed * 1664525 + 1013904223;
    byte = static_cast<char>(seed >> 24);
  }
  return bytes;
}

std::string ReadWholeFile(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

uint32_t NaiveCrc32(const std::string& bytes) {
  uint32_t crc = ~uint32_t{0};
  for (const char byte : bytes) {
    crc ^= static_cast<unsigned char>(byte);
    for (int bit = 0; bit < 8; ++bit)
      crc = crc >> 1 ^ ((crc & 1) != 0 ? 0xedb88320 : 0);
  }
  return ~crc;
}

void WriteNaiveCheckpoint(const TemporaryFolder& folder,
                          const std::vector<KnownTensor>& tensors) {
  folder.Write("config.json", "{}");
  folder.Write("model.safetensors", SafetensorsOf(tensors));
}

void WriteNaiveShards(const TemporaryFolder& folder,
                      const std::vector<std::vector<KnownTensor>>& shards) {
  std::string map;
  for (size_t i = 0; i < shards.size(); ++i) {
    const std::string name = absl::StrCat("model-", i + 1, ".safetensors");
    folder.Write(name, SafetensorsOf(shards[i]));
    for (const KnownTensor& tensor : shards[i]) {
      absl::StrAppend(&map, map.empty() ? "\"" : ",\"", tensor.name, "\":\"",
                      name, "\"");
    }
  }
  folder.Write("model.safetensors.index.json",
               absl::StrCat(R"({"metadata":{},"weight_map":{)", map, "}}"));
  folder.Write("config.json", "{}");
}

LoadTarget::LoadTarget(Bytes size) {
  HostDriverOptions options;
  options.granularity = KiB(64);
  size_ = *CheckedAlignUp(size, options.granularity);
  options.memory_per_device = size_;
  driver_ = TestDriver::Create(options).value();
  base_ = driver_->ReserveAddress(size_, Bytes(0)).value();
  const PageHandle page = driver_->CreatePage(DeviceId(0), size_).value();
  EXPECT_TRUE(driver_->Map(base_, {&page, 1}).ok());
  EXPECT_TRUE(driver_->ReleasePage(page).ok());
  std::memset(base_.host_pointer<char>(), kUntouched, size_.value());
}

LoadTarget::~LoadTarget() {
  EXPECT_TRUE(driver_->Unmap(base_, size_).ok());
  EXPECT_TRUE(driver_->ReleaseAddress(base_, size_).ok());
  EXPECT_THAT(driver_->Leaks(), ::testing::IsEmpty());
}

std::vector<TensorPlacement> LoadTarget::PlaceAll(
    const Checkpoint& checkpoint) {
  std::vector<TensorPlacement> placements;
  for (const TensorInfo& tensor : checkpoint.tensors())
    placements.push_back({&tensor, DeviceAddress()});
  std::mt19937 random(1);
  std::shuffle(placements.begin(), placements.end(), random);
  uint64_t offset = 13;
  for (TensorPlacement& placement : placements) {
    placement.destination = DeviceAddress(base_.value() + offset);
    offset += placement.tensor->size.value() + 7;
    EXPECT_LE(offset, size_.value());
  }
  return placements;
}

void LoadTarget::ExpectHolds(const std::vector<TensorPlacement>& placements,
                             const std::vector<KnownTensor>& tensors) const {
  std::unordered_map<std::string, const std::string*> bytes_of;
  for (const KnownTensor& tensor : tensors)
    bytes_of[tensor.name] = &tensor.bytes;
  std::string expected(size_.value(), kUntouched);
  for (const TensorPlacement& placement : placements) {
    ASSERT_EQ(bytes_of.count(placement.tensor->name), 1u);
    const std::string& bytes = *bytes_of[placement.tensor->name];
    expected.replace(placement.destination.value() - base_.value(),
                     bytes.size(), bytes);
  }
  const char* actual = base_.host_pointer<char>();
  const auto [at, unused] =
      std::mismatch(expected.begin(), expected.end(), actual);
  EXPECT_EQ(at, expected.end())
      << "the first wrong byte is at " << at - expected.begin();
}

}  // namespace quire
