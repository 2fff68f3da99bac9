// quire: one program, a verb for each thing that can be done with a model.
//
// Exit status: 0 ok, 1 failed, 2 wrong usage. Never a signal: a reader that
// goes away is an error like any other.

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <exception>
#include <iostream>
#include <string>

#include "absl/strings/str_cat.h"
#include "model/cli/options.h"
#include "model/cli/output.h"
#include "model/cli/usage_error.h"
#include "model/cli/verbs.h"

namespace quire {
namespace {

constexpr int kOk = 0;
constexpr int kFailed = 1;
constexpr int kWrongUsage = 2;

// What CLI11 has printed itself has arrived, or that is the error.
int FinishHelp(int exit_status) {
  errno = 0;
  std::cout.flush();
  if (std::cout.good() && std::ferror(stdout) == 0) return exit_status;
  // What failed when it was printed has left no reason.
  PrintError(
      absl::StrCat("standard output: cannot write",
                   errno == 0 ? "" : absl::StrCat(": ", std::strerror(errno))));
  return kFailed;
}

int Main(int argc, char** argv) {
  BindStandardStreams();
  // A reader that goes away, and a limit on file sizes: both are errors of
  // write.
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);
  CLI::App app(
      "Loads, quantises and runs language models in the memory there "
      "is.",
      "quire");
  app.set_version_flag("--version", "quire " QUIRE_VERSION);
  app.require_subcommand(1);
  Action chosen;
  AddInspectVerb(&app, &chosen);
  AddLoadVerb(&app, &chosen);
  AddLogitsVerb(&app, &chosen);
  AddGenerateVerb(&app, &chosen);
  AddTokenizeVerbs(&app, &chosen);
  AddBenchVerb(&app, &chosen);
  AddQuantizeVerbs(&app, &chosen);
  AddMemoryVerb(&app, &chosen);
  AddPlanVerb(&app, &chosen);
  AddKvVerb(&app, &chosen);
  AddTopVerb(&app, &chosen);
  CheckNumbers(&app);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    // Help and version are errors to CLI11, too.
    if (error.get_exit_code() == 0) return FinishHelp(app.exit(error));
    PrintError(DescribeUsageError(app, error) + "; --help says more");
    return kWrongUsage;
  }
  const absl::Status status = chosen();
  if (status.ok()) return kOk;
  PrintError(std::string(status.message()));
  return kFailed;
}

}  // namespace
}  // namespace quire

int main(int argc, char** argv) {
  // The libraries under us may run out of host memory; that too is an error
  // with a message, not a signal.
  try {
    return quire::Main(argc, argv);
  } catch (const std::exception& error) {
    quire::PrintError(error.what());
    return 1;
  }
}
