#include "bench/synthetic_checkpoint.h"

#include <quire/loader/checkpoint.h>
#include <quire/model/tokenizer.h>
#include <stdlib.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace quire {
namespace {

class SyntheticCheckpointTest : public ::testing::Test {
 protected:
  SyntheticCheckpointTest() {
    std::string pattern = ::testing::TempDir() + "synthetic_XXXXXX";
    folder_ = mkdtemp(pattern.data());
  }
  ~SyntheticCheckpointTest() override { std::filesystem::remove_all(folder_); }

  std::string Weights(uint64_t seed) const {
    EXPECT_TRUE(WriteSyntheticCheckpoint(folder_, seed).ok());
    std::ifstream in(folder_ + "/model.safetensors", std::ios::binary);
    std::ostringstream bytes;
    bytes << in.rdbuf();
    return bytes.str();
  }

  std::string folder_;
};

TEST_F(SyntheticCheckpointTest, LeavesNothingWhereAFileCannotBeWritten) {
  for (const char* const name :
       {"model.safetensors", "tokenizer.json", "config.json"}) {
    const std::string in_the_way = folder_ + "/" + name;
    std::filesystem::create_directory(in_the_way);
    EXPECT_FALSE(WriteSyntheticCheckpoint(folder_, 1).ok()) << name;
    for (const auto& entry : std::filesystem::directory_iterator(folder_))
      EXPECT_EQ(entry.path(), in_the_way);
    std::filesystem::remove(in_the_way);
  }
}

TEST_F(SyntheticCheckpointTest, IsAWholeCheckpointOfSaneNumbers) {
  ASSERT_TRUE(WriteSyntheticCheckpoint(folder_, 1).ok());
  const auto checkpoint = Checkpoint::Open(folder_);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  EXPECT_TRUE((*checkpoint)->warnings().empty());
  EXPECT_EQ((*checkpoint)->tensors().size(), 2u + 4 * 9);
  for (const TensorInfo& tensor : (*checkpoint)->tensors()) {
    std::vector<std::byte> bytes;
    ASSERT_TRUE((*checkpoint)->ReadSmallTensor(tensor, &bytes).ok());
    std::vector<float> values(bytes.size() / sizeof(float));
    std::memcpy(values.data(), bytes.data(), bytes.size());
    double sum_of_squares = 0;
    for (const float value : values) {
      ASSERT_TRUE(std::isfinite(value));
      sum_of_squares += static_cast<double>(value) * value;
    }
    // A product with it keeps the size of what it multiplies.
    const double rows = static_cast<double>(tensor.shape[0]);
    EXPECT_NEAR(sum_of_squares / rows, 1.0, 0.02) << tensor.name;
  }
}

TEST_F(SyntheticCheckpointTest, TokenizesAnyBytes) {
  ASSERT_TRUE(WriteSyntheticCheckpoint(folder_, 1).ok());
  const auto tokenizer = Tokenizer::Load(folder_);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  std::string text = "Any text: \t\n caf\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80";
  const std::vector<TokenId> tokens = (*tokenizer)->Encode(text);
  ASSERT_EQ(tokens.size(), text.size());
  for (size_t i = 0; i < text.size(); ++i)
    EXPECT_EQ(tokens[i], static_cast<unsigned char>(text[i]));
  const auto decoded = (*tokenizer)->Decode(tokens);
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  EXPECT_EQ(*decoded, text);
}

TEST_F(SyntheticCheckpointTest, IsDecidedByTheSeed) {
  const std::string first = Weights(1);
  EXPECT_EQ(Weights(1), first);
  EXPECT_NE(Weights(2), first);
}

TEST_F(SyntheticCheckpointTest, NamesAFolderThatIsMissing) {
  const absl::Status status = WriteSyntheticCheckpoint(folder_ + "/none", 1);
  EXPECT_FALSE(status.ok());
  EXPECT_NE(status.message().find(folder_ + "/none"), std::string::npos);
}

}  // namespace
}  // namespace quire
