#include "quire/alloc/owner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace quire {
namespace {

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

}  // namespace
}  // namespace quire
