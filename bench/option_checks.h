// What options of the programs here may be, where CLI11 would take more.

#ifndef QUIRE_BENCH_OPTION_CHECKS_H_
#define QUIRE_BENCH_OPTION_CHECKS_H_

#include <CLI/CLI.hpp>
#include <cerrno>
#include <cstdlib>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

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

// The name of a file: where an empty one means that none was given, one that is
// given is not empty.
inline CLI::Validator NotEmpty() {
  return CLI::Validator(
      [](std::string& text) {
        return text.empty() ? std::string("is empty") : std::string();
      },
      "");
}

}  // namespace quire

#endif  // QUIRE_BENCH_OPTION_CHECKS_H_
