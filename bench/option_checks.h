// What options of the programs here may be, alone and beside each other, where
// CLI11 would take more.

#ifndef QUIRE_BENCH_OPTION_CHECKS_H_
#define QUIRE_BENCH_OPTION_CHECKS_H_

#include <CLI/CLI.hpp>
#include <cerrno>
#include <cstdlib>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "quire/alloc/units.h"

namespace quire {

// `least` to `most`, both included. CLI::Range takes NaN for a number of every
// range, since no comparison with it is true.
inline CLI::Validator NumberBetween(double least, double most) {
  const std::string range = absl::StrCat("[", least, " - ", most, "]");
  return CLI::Validator(
      [=](std::string& text) {
        double number = 0;
        const bool fits = absl::SimpleAtod(text, &number) && number >= least &&
                          number <= most;
        return fits ? std::string()
                    : absl::StrCat("'", text, "' is no number in ", range);
      },
      absl::StrCat("FLOAT in ", range));
}

// Any number of 64 bits without a sign. CLI11 takes the largest one for what is
// larger still.
inline CLI::Validator WholeNumber() {
  return CLI::Validator(
      [](std::string& text) {
        const bool digit = !text.empty() && text[0] >= '0' && text[0] <= '9';
        char* end = nullptr;
        errno = 0;
        std::strtoull(text.c_str(), &end, 0);
        return digit && errno == 0 && *end == '\0'
                   ? std::string()
                   : absl::StrCat("'", text, "' is no whole number below 2^64");
      },
      "");
}

// Any size that ParseBytes reads.
inline CLI::Validator ByteSize() {
  return CLI::Validator(
      [](std::string& text) {
        return ParseBytes(text)
                   ? std::string()
                   : absl::StrCat("'", text,
                                  "' is no size such as 8GiB, below 16EiB");
      },
      "SIZE");
}

// Of the pages of a software device.
inline CLI::Validator PageSize() {
  return CLI::Validator(
      [](std::string& text) {
        const Bytes size = ParseBytes(text).value_or(Bytes());
        return IsPowerOfTwo(size.value()) && size >= MiB(2)
                   ? std::string()
                   : absl::StrCat("'", text,
                                  "' is no power of two from 2MiB on");
      },
      "SIZE");
}

// The name of a file: where an empty one means that none was given, one that is
// given is not empty.
inline CLI::Validator NotEmpty() {
  return CLI::Validator(
      [](std::string& text) {
        return text.empty() ? std::string("is empty") : std::string();
      },
      "");
}

// kInvalidArgument where one of `options` was given and `have_effect` is false:
// it "has no effect" `beside`, as "with --trace".
inline absl::Status CheckIdleOptions(const CLI::App& app,
                                     const std::vector<std::string>& options,
                                     bool have_effect,
                                     const std::string& beside) {
  for (const std::string& name : options) {
    const CLI::Option* const option = app.get_option_no_throw(name);
    if (have_effect || option == nullptr || option->count() == 0) continue;
    std::string given = name;
    // A flag has no value.
    if (option->get_items_expected_max() > 0)
      absl::StrAppend(&given, " ", absl::StrJoin(option->results(), ","));
    return absl::InvalidArgumentError(
        absl::StrCat(given, " has no effect ", beside));
  }
  return absl::OkStatus();
}

}  // namespace quire

#endif  // QUIRE_BENCH_OPTION_CHECKS_H_
