#include "quire/loader/json_fields.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

namespace quire {
namespace {

using ::testing::ElementsAre;

const nlohmann::json& Object() {
  static const auto* const object =
      new nlohmann::json(nlohmann::json::parse(R"({
      "name": "llama", "none": null, "yes": true, "count": 12, "minus": -3,
      "huge": 18446744073709551615, "eps": 1e-5, "nested": {"factor": 8},
      "names": ["a", "b"], "sizes": [1, 2], "mixed": [1, "x"],
      "factors": [1, 2.5]})"));
  return *object;
}

class JsonFieldsTest : public testing::Test {
 protected:
  const JsonFields fields_{Object(), "config.json"};
};

TEST_F(JsonFieldsTest, ReadsValuesOfTheRightType) {
  EXPECT_EQ(*fields_.GetString("name"), "llama");
  EXPECT_EQ(*fields_.GetBool("yes"), true);
  EXPECT_EQ(*fields_.GetUint("count"), 12u);
  EXPECT_EQ(*fields_.GetUint("huge"), UINT64_MAX);
  EXPECT_EQ(*fields_.GetInt("minus"), -3);
  EXPECT_EQ(*fields_.GetDouble("eps"), 1e-5);
  EXPECT_EQ(*fields_.GetDouble("count"), 12.0);
  EXPECT_EQ(*fields_.GetPositive("eps"), 1e-5);
  EXPECT_THAT(*fields_.GetStrings("names"), ElementsAre("a", "b"));
  EXPECT_THAT(*fields_.GetUints("sizes"), ElementsAre(1, 2));
  EXPECT_THAT(*fields_.GetDoubles("factors"), ElementsAre(1, 2.5));
  EXPECT_EQ(*fields_.GetObject("nested")->GetUint("factor"), 8u);
}

TEST_F(JsonFieldsTest, AbsentAndNullFieldsAreNotFound) {
  for (const char* field : {"absent", "none"}) {
    EXPECT_FALSE(fields_.Has(field));
    EXPECT_EQ(fields_.GetUint(field).status().message(),
              "config.json: field \"" + std::string(field) + "\" is missing");
    EXPECT_TRUE(absl::IsNotFound(fields_.GetObject(field).status()));
    EXPECT_EQ(*fields_.GetUintOr(field, 7), 7u);
    EXPECT_EQ(*fields_.GetStringOr(field, "x"), "x");
    EXPECT_EQ(*fields_.GetBoolOr(field, true), true);
    EXPECT_EQ(*fields_.GetDoubleOr(field, 0.5), 0.5);
    EXPECT_EQ(*fields_.GetPositiveOr(field, 0.5), 0.5);
    EXPECT_TRUE(absl::IsNotFound(fields_.GetPositive(field).status()));
  }
}

TEST_F(JsonFieldsTest, ErrorsNameTheFileTheFieldAndTheValue) {
  EXPECT_EQ(fields_.GetPositiveOr("minus", 1).status().message(),
            "config.json: field \"minus\" is -3, not above 0");
  EXPECT_EQ(fields_.GetUint("name").status().message(),
            "config.json: field \"name\" is \"llama\", not a whole number from "
            "0 to 18446744073709551615");
  EXPECT_EQ(fields_.GetUint("count", 1, 8).status().message(),
            "config.json: field \"count\" is 12, not a whole number from 1 to "
            "8");
  EXPECT_EQ(fields_.GetBool("count").status().message(),
            "config.json: field \"count\" is 12, not true or false");
  EXPECT_EQ(fields_.GetString("nested").status().message(),
            "config.json: field \"nested\" is an object, not a string");
  EXPECT_EQ(fields_.GetObject("nested")->GetBool("factor").status().message(),
            "config.json: nested: field \"factor\" is 8, not true or false");
  EXPECT_EQ(fields_.GetUints("mixed").status().message(),
            "config.json: field \"mixed\" has an element that is not a whole "
            "number from 0");
}

TEST_F(JsonFieldsTest, NumbersAreNotConverted) {
  EXPECT_FALSE(fields_.GetUint("minus").ok());
  EXPECT_FALSE(fields_.GetUint("eps").ok());
  EXPECT_FALSE(fields_.GetUint("yes").ok());
  EXPECT_FALSE(fields_.GetInt("huge").ok());
  EXPECT_FALSE(fields_.GetBool("minus").ok());
  // A default replaces nothing that is there.
  EXPECT_FALSE(fields_.GetUintOr("name", 1).ok());
}

TEST_F(JsonFieldsTest, WhatIsNoObjectHasNoFields) {
  const nlohmann::json array = nlohmann::json::array({1});
  EXPECT_FALSE(JsonFields(array, "x").Has("0"));
}

}  // namespace
}  // namespace quire
