// What options of a command line say together.
//
// Each by itself was checked when it was parsed. Here is what is wrong only
// beside others: contradictions, and options that would be read and change
// nothing. Both are wrong usage, whatever the model is.

#ifndef QUIRE_MODEL_CLI_OPTION_RULES_H_
#define QUIRE_MODEL_CLI_OPTION_RULES_H_

#include <CLI/App.hpp>
#include <string>

#include "quire/model/session.h"

namespace quire {

// The option of `verb` was on the command line, or in the environment. False
// for options that the verb does not have.
bool IsGiven(const CLI::App& verb, const std::string& option);

// "--option value", as it was given.
std::string AsGiven(const CLI::App& verb, const std::string& option);

// Wrong usage where `option` is given and `has_effect` is false: it "has no
// effect" `beside`, as "without --kv-cache paged".
void RejectIdleOption(const CLI::App& verb, const std::string& option,
                      bool has_effect, const std::string& beside);

// What a verb does with options that others ignore.
struct VerbTraits {
  bool shows_all_layouts = false;  // with or without --layers-per-row auto
  bool places_weights = false;     // with or without --device-map
};

// The rules of the options that AddSessionOptions and its like add, for
// whichever of them the verb has. A level of the batch limit that was not given
// follows the one that was.
void FinishSessionOptions(const CLI::App& verb, SessionOptions* options,
                          const VerbTraits& traits = {});

}  // namespace quire

#endif  // QUIRE_MODEL_CLI_OPTION_RULES_H_
