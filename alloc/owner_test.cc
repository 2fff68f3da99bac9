#include "quire/alloc/owner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace quire {
namespace {

TEST(OwnerTest, IdsBeyondWhatAccountsHoldAreRefused) {
  EXPECT_TRUE(CheckOwner(kUnnamedOwner).ok());
  EXPECT_TRUE(CheckOwner(OwnerId(65535)).ok());
  const absl::Status refused = CheckOwner(OwnerId(65536));
  EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(refused.message(), "owner 65536 is not below 65536");
}

TEST(OwnerRegistryTest, GivesSmallDenseIdsAndOneIdPerName) {
  OwnerRegistry owners;
  const OwnerId weights = owners.Register("weights");
  EXPECT_EQ(weights, OwnerId(1));
  EXPECT_EQ(owners.Register("kv"), OwnerId(2));
  EXPECT_EQ(owners.Register("weights"), weights);
  EXPECT_EQ(owners.Register("unnamed"), kUnnamedOwner);
  EXPECT_THAT(owners.Names(),
              ::testing::ElementsAre("unnamed", "weights", "kv"));
}

TEST(OwnerRegistryTest, NamesEveryIdEvenUnregisteredOnes) {
  OwnerRegistry owners;
  EXPECT_EQ(owners.Name(kUnnamedOwner), "unnamed");
  EXPECT_EQ(owners.Name(OwnerId(7)), "owner 7");
}

TEST(OwnerRegistryTest, OwnersNestAndAreNamedByPath) {
  OwnerRegistry owners;
  const OwnerId server = owners.Register("server");
  const OwnerId llama = owners.Register("llama", server);
  const OwnerId kv = owners.Register("kv", llama);
  EXPECT_EQ(owners.Name(kv), "server/llama/kv");
  EXPECT_EQ(owners.Register("server/llama/kv"), kv);
  EXPECT_EQ(owners.Register("llama/kv", server), kv);
  // One name under two parents, and at the top, is three owners.
  EXPECT_NE(owners.Register("kv"), kv);
  EXPECT_NE(owners.Register("kv", server), kv);
  EXPECT_EQ(owners.Parent(kv), llama);
  EXPECT_EQ(owners.Parent(llama), server);
  EXPECT_EQ(owners.Parent(server), std::nullopt);
  EXPECT_EQ(owners.Parent(OwnerId(99)), std::nullopt);
  EXPECT_TRUE(owners.IsWithin(kv, server));
  EXPECT_TRUE(owners.IsWithin(kv, kv));
  EXPECT_TRUE(owners.IsWithin(OwnerId(99), OwnerId(99)));
  EXPECT_FALSE(owners.IsWithin(server, kv));
  EXPECT_FALSE(owners.IsWithin(kv, kUnnamedOwner));
  EXPECT_FALSE(owners.IsWithin(OwnerId(99), server));
}

TEST(OwnerRegistryTest, APathRegistersEveryLevel) {
  OwnerRegistry owners;
  const OwnerId kv = owners.Register("a/b/c");
  EXPECT_THAT(owners.Names(),
              ::testing::ElementsAre("unnamed", "a", "a/b", "a/b/c"));
  EXPECT_EQ(kv, OwnerId(3));
  EXPECT_EQ(owners.Register("x", OwnerId(99)), owners.Register("x"));
  // Whatever a name is, its path leads back to it.
  for (const char* name : {"", "/", "//", "a/", "/a", "a//b", "unnamed/x"}) {
    const OwnerId id = owners.Register(name);
    EXPECT_EQ(owners.Name(id), name);
    EXPECT_EQ(owners.Register(name), id);
  }
}

}  // namespace
}  // namespace quire
