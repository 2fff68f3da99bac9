// Numbers on the command lines of programs here.

#ifndef QUIRE_BENCH_NUMBER_RANGE_H_
#define QUIRE_BENCH_NUMBER_RANGE_H_

#include <CLI/CLI.hpp>
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

}  // namespace quire

#endif  // QUIRE_BENCH_NUMBER_RANGE_H_
