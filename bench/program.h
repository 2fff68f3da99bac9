// What the programs here have in common: exit statuses, options that are
// checked before anything runs, and an end that says whether all that was
// printed has arrived.

#ifndef QUIRE_BENCH_PROGRAM_H_
#define QUIRE_BENCH_PROGRAM_H_

#include <optional>

#include "CLI/CLI.hpp"

namespace quire {

constexpr int kFailed = 1;
constexpr int kWrongUsage = 2;

// Nullopt where the program is to go on; else what it ends with: 0 after
// --help, and kWrongUsage, whatever CLI11's own numbers say, where an option is
// wrong.
inline std::optional<int> ParseOptions(CLI::App* app, int argc, char** argv) {
  try {
    app->parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app->exit(error) == 0 ? 0 : kWrongUsage;
  }
  return std::nullopt;
}

// What `program` ends with: `exit_status`, and where that is 0 though standard
// output could not be written, as on a full disk, kFailed, with a line on
// stderr that says so. The last thing that main does.
int FinishOutput(const char* program, int exit_status);

}  // namespace quire

#endif  // QUIRE_BENCH_PROGRAM_H_
