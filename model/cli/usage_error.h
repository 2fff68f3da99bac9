// What is said to a command line that cannot be read.

#ifndef QUIRE_MODEL_CLI_USAGE_ERROR_H_
#define QUIRE_MODEL_CLI_USAGE_ERROR_H_

#include <CLI/App.hpp>
#include <CLI/Error.hpp>
#include <string>

namespace quire {

// The message of a parse error of `app`, on one line. Of a verb or an option
// that there is not, it names the word, the nearest one that there is, and, of
// verbs, all of them.
std::string DescribeUsageError(const CLI::App& app,
                               const CLI::ParseError& error);

}  // namespace quire

#endif  // QUIRE_MODEL_CLI_USAGE_ERROR_H_
