// Expectations on statuses.

#ifndef QUIRE_ALLOC_TESTING_EXPECT_STATUS_H_
#define QUIRE_ALLOC_TESTING_EXPECT_STATUS_H_

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/status/status.h"

// That the status has the code (kNotFound) and says the text.
#define EXPECT_STATUS(code_, text, expression)                               \
  do {                                                                       \
    const absl::Status status_ = (expression);                               \
    EXPECT_EQ(status_.code(), absl::StatusCode::code_) << status_;           \
    EXPECT_THAT(std::string(status_.message()), ::testing::HasSubstr(text)); \
  } while (false)

#endif  // QUIRE_ALLOC_TESTING_EXPECT_STATUS_H_
