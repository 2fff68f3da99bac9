// The verbs of `quire`: each adds its subcommand to the command line.

#ifndef QUIRE_MODEL_CLI_VERBS_H_
#define QUIRE_MODEL_CLI_VERBS_H_

#include <CLI/App.hpp>
#include <functional>

#include "absl/status/status.h"

namespace quire {

// What the chosen verb does. It runs after the whole command line was parsed;
// an error becomes one line on stderr and exit status 1.
using Action = std::function<absl::Status()>;

void AddInspectVerb(CLI::App* app, Action* chosen);
void AddLoadVerb(CLI::App* app, Action* chosen);
void AddLogitsVerb(CLI::App* app, Action* chosen);
void AddGenerateVerb(CLI::App* app, Action* chosen);
void AddTokenizeVerbs(CLI::App* app, Action* chosen);  // and detokenize
void AddBenchVerb(CLI::App* app, Action* chosen);
void AddQuantizeVerbs(CLI::App* app, Action* chosen);  // and perplexity
void AddMemoryVerb(CLI::App* app, Action* chosen);
void AddPlanVerb(CLI::App* app, Action* chosen);
void AddKvVerb(CLI::App* app, Action* chosen);
void AddTopVerb(CLI::App* app, Action* chosen);

}  // namespace quire

#endif  // QUIRE_MODEL_CLI_VERBS_H_
