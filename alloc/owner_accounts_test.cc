#include "alloc/owner_accounts.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "alloc/testing/owner_model.h"

namespace quire {
namespace {

constexpr uint64_t kCapacity = 100;

class OwnerAccountsTest : public ::testing::Test {
 protected:
  OwnerRegistry registry_;
  OwnerId server_ = registry_.Register("server");
  OwnerId model_ = registry_.Register("model", server_);
  OwnerId kv_ = registry_.Register("kv", model_);
  OwnerId weights_ = registry_.Register("weights", model_);
  OwnerId other_ = registry_.Register("other");
  OwnerAccounts accounts_{&registry_};

  std::optional<GrowthRefusal> Check(OwnerId owner, uint64_t pages) {
    return accounts_.CheckGrowth(owner, pages, kCapacity);
  }
  absl::Status SetLimits(OwnerId owner, const OwnerPageLimits& limits) {
    return accounts_.SetLimits(owner, limits, kCapacity);
  }
};

TEST_F(OwnerAccountsTest, AChargeCountsForEveryLevelOnce) {
  accounts_.Enter(kv_, 5);
  accounts_.Enter(weights_, 7);
  accounts_.Leave(kv_, 2);
  accounts_.UpdatePeaks(kv_);
  accounts_.Leave(kv_, 1);
  EXPECT_EQ(accounts_.AccountOf(kv_).live, 2u);
  EXPECT_EQ(accounts_.AccountOf(model_).own, 0u);
  EXPECT_EQ(accounts_.AccountOf(model_).live, 9u);
  EXPECT_EQ(accounts_.AccountOf(server_).live, 9u);
  EXPECT_EQ(accounts_.AccountOf(other_).live, 0u);
  EXPECT_EQ(accounts_.AccountOf(kv_).peak, 3u);
  EXPECT_EQ(accounts_.AccountOf(server_).peak, 10u);
  EXPECT_EQ(accounts_.AccountOf(weights_).peak, 0u);
}

TEST_F(OwnerAccountsTest, TheLimitWithTheMostToGiveUpIsNamed) {
  ASSERT_EQ(SetLimits(kv_, {.hard = 8}), absl::OkStatus());
  ASSERT_EQ(SetLimits(server_, {.hard = 10}), absl::OkStatus());
  accounts_.Enter(weights_, 5);
  EXPECT_FALSE(Check(kv_, 5).has_value());
  // 1 too many for the server, none for the owner itself.
  ASSERT_TRUE(Check(kv_, 6).has_value());
  EXPECT_EQ(Check(kv_, 6)->limited_by, server_);
  EXPECT_EQ(Check(kv_, 6)->missing, 1u);
  accounts_.Leave(weights_, 5);
  EXPECT_EQ(Check(kv_, 9)->limited_by, kv_);
  EXPECT_EQ(Check(kv_, UINT64_MAX)->limited_by, kv_);
  EXPECT_EQ(accounts_.HardRoom(kv_), 8u);
  EXPECT_EQ(accounts_.HardRoom(weights_), 10u);
  EXPECT_EQ(accounts_.HardRoom(other_), kNoPageLimit);
}

TEST_F(OwnerAccountsTest, AMinimumIsKeptForItsOwnerAndForNobodyElse) {
  ASSERT_EQ(SetLimits(model_, {.reserved = 40}), absl::OkStatus());
  accounts_.Enter(kv_, 10);
  EXPECT_EQ(accounts_.Allowance(other_, kCapacity), 60u);
  EXPECT_EQ(accounts_.ReservedForOthers(other_), 30u);
  EXPECT_FALSE(Check(other_, 60).has_value());
  ASSERT_TRUE(Check(other_, 61).has_value());
  EXPECT_EQ(Check(other_, 61)->limited_by, std::nullopt);
  EXPECT_EQ(Check(other_, 61)->missing, 1u);
  accounts_.Enter(other_, 60);
  // All that is left belongs to those below the model, up to the minimum.
  EXPECT_EQ(accounts_.Allowance(weights_, kCapacity), 30u);
  EXPECT_EQ(accounts_.ReservedForOthers(weights_), 0u);
  EXPECT_FALSE(Check(weights_, 30).has_value());
  // Beyond that there is no room at all: no reservation is to blame.
  EXPECT_FALSE(Check(weights_, 31).has_value());
}

TEST_F(OwnerAccountsTest, AMinimumInsideAMinimumIsNotKeptTwice) {
  ASSERT_EQ(SetLimits(model_, {.reserved = 40}), absl::OkStatus());
  ASSERT_EQ(SetLimits(kv_, {.reserved = 30}), absl::OkStatus());
  EXPECT_EQ(accounts_.Allowance(other_, kCapacity), 60u);
  // The siblings may have what the inner one does not keep.
  EXPECT_EQ(accounts_.Allowance(weights_, kCapacity), 70u);
  EXPECT_EQ(accounts_.Allowance(kv_, kCapacity), 100u);
  accounts_.Enter(weights_, 20);
  // 20 of the weights and 30 for the KV are more than the model keeps.
  EXPECT_EQ(accounts_.Allowance(other_, kCapacity), 50u);
}

TEST_F(OwnerAccountsTest, RefusesAMinimumThatCannotBeKept) {
  accounts_.Enter(other_, 70);
  EXPECT_EQ(SetLimits(model_, {.reserved = 31}).code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(SetLimits(model_, {.reserved = UINT64_MAX}).code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(accounts_.AccountOf(model_).limits.reserved, 0u);
  EXPECT_EQ(SetLimits(model_, {.reserved = 30}), absl::OkStatus());
  EXPECT_EQ(SetLimits(kv_, {.reserved = 31}).code(),
            absl::StatusCode::kFailedPrecondition);
  // Less is always possible, also where there is too little for it by now.
  EXPECT_EQ(accounts_.SetLimits(model_, {.reserved = 20}, /*capacity=*/50),
            absl::OkStatus());
}

TEST_F(OwnerAccountsTest, PagesMoveUnderTheLimitsOfTheirNewOwner) {
  ASSERT_EQ(SetLimits(kv_, {.hard = 5}), absl::OkStatus());
  ASSERT_EQ(SetLimits(model_, {.hard = 8}), absl::OkStatus());
  accounts_.Enter(weights_, 8);
  EXPECT_EQ(accounts_.Move(weights_, kv_, 6, kCapacity)->limited_by, kv_);
  EXPECT_EQ(accounts_.AccountOf(weights_).live, 8u);
  EXPECT_FALSE(accounts_.Move(weights_, kv_, 5, kCapacity).has_value());
  EXPECT_EQ(accounts_.AccountOf(model_).live, 8u);
  accounts_.Enter(other_, 1);
  EXPECT_EQ(accounts_.Move(other_, weights_, 1, kCapacity)->limited_by, model_);
  // Within the model it is no growth, even where the model is beyond its limit.
  ASSERT_EQ(SetLimits(model_, {.hard = 2}), absl::OkStatus());
  EXPECT_FALSE(accounts_.Move(kv_, weights_, 5, kCapacity).has_value());
  EXPECT_TRUE(Check(weights_, 1).has_value());
  EXPECT_FALSE(Check(weights_, 0).has_value());
}

TEST_F(OwnerAccountsTest, AnOwnerNeverRegisteredStandsAtTheTop) {
  const OwnerId unknown(50);
  accounts_.Enter(unknown, 3);
  EXPECT_EQ(accounts_.AccountOf(unknown).parent, std::nullopt);
  EXPECT_EQ(accounts_.Allowance(unknown, kCapacity), 97u);
  accounts_.Leave(unknown, 3);
}

TEST(OwnerAccountsModelTest, RandomChargesAndLimitsAgreeWithTheDefinitions) {
  std::mt19937 random(7);
  for (int round = 0; round < 40; ++round) {
    SCOPED_TRACE(round);
    OwnerRegistry registry;
    OwnerAccounts accounts(&registry);
    OwnerModel model;
    model.owners.resize(1);  // "unnamed"
    for (uint32_t i = 1; i < 9; ++i) {
      const size_t parent = random() % (2 * i);
      const std::string name = "o" + std::to_string(i);
      const bool top = parent >= i || parent == 0;
      ASSERT_EQ(
          top ? registry.Register(name)
              : registry.Register(name, OwnerId(static_cast<uint32_t>(parent))),
          OwnerId(i));
      model.owners.push_back({top ? std::nullopt : std::optional(parent)});
    }
    for (int step = 0; step < 300; ++step) {
      const size_t at = random() % model.owners.size();
      const OwnerId owner(static_cast<uint32_t>(at));
      OwnerModel::Owner& expected = model.owners[at];
      const uint64_t pages = random() % 12;
      // A capacity that changes is a limit that does.
      const uint64_t capacity = 40 + random() % 60;
      switch (random() % 5) {
        case 0:
        case 1: {
          const bool allowed = model.Allows(at, pages, capacity);
          ASSERT_EQ(!accounts.CheckGrowth(owner, pages, capacity), allowed);
          if (!allowed || model.Live() + pages > capacity) break;
          accounts.Enter(owner, pages);
          expected.own += pages;
          break;
        }
        case 2: {
          const size_t to = random() % model.owners.size();
          const uint64_t moved = std::min(pages, expected.own);
          const bool allowed = model.AllowsMove(at, to, moved, capacity);
          ASSERT_EQ(!accounts.Move(owner, OwnerId(static_cast<uint32_t>(to)),
                                   moved, capacity),
                    allowed);
          if (!allowed) break;
          expected.own -= moved;
          model.owners[to].own += moved;
          break;
        }
        case 3:
          accounts.Leave(owner, std::min(pages, expected.own));
          expected.own -= std::min(pages, expected.own);
          break;
        default: {
          OwnerPageLimits limits;
          if (random() % 2 == 0) limits.hard = 1 + random() % 40;
          if (random() % 2 == 0) limits.reserved = random() % 30;
          limits.reserved = std::min(limits.reserved, limits.hard);
          ASSERT_EQ(accounts.SetLimits(owner, limits, capacity).ok(),
                    model.SetLimits(at, limits, capacity));
        }
      }
      std::vector<uint64_t> own;
      for (const OwnerModel::Owner& each : model.owners)
        own.push_back(each.own);
      ASSERT_EQ(accounts.CheckInvariants(own), absl::OkStatus());
      for (uint32_t i = 0; i < model.owners.size(); ++i) {
        ASSERT_EQ(accounts.AccountOf(OwnerId(i)).live, model.Live(i));
        ASSERT_EQ(accounts.AccountOf(OwnerId(i)).claim(), model.Claim(i));
        // The allowance is the most that may be added.
        const uint64_t most = accounts.Allowance(OwnerId(i), capacity);
        ASSERT_TRUE(most == 0 || model.Allows(i, most, capacity));
        ASSERT_TRUE(!model.Allows(i, most + 1, capacity) ||
                    model.Live() + most + 1 > capacity);
      }
    }
  }
}

}  // namespace
}  // namespace quire
