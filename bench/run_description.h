// What makes a run of a program again: every program here puts it into the
// `settings` of each object that it prints with --json, so that a line can be
// made again from itself. bench/rerun does so, and compares.

#ifndef QUIRE_BENCH_RUN_DESCRIPTION_H_
#define QUIRE_BENCH_RUN_DESCRIPTION_H_

#include "nlohmann/json.hpp"

namespace CLI {
class App;
}

namespace quire {

// `command`: the program's name and its arguments as they were given, for a
// shell in the same folder. `options`: all that the program knows, by name
// (without dashes), as text, a list of texts where several may be given, or
// true and false for flags; those that were not given have their default, null
// where that depends on others. `command` makes the run again with the same
// program; `options` says what it was of, should a default change.
// REQUIRES: `app` has parsed these arguments.
nlohmann::json DescribeRun(const CLI::App& app, int argc,
                           const char* const* argv);

}  // namespace quire

#endif  // QUIRE_BENCH_RUN_DESCRIPTION_H_
