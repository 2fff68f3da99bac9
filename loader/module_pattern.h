// A regular expression over module names, as in GPTQModel's `dynamic`.
//
// Matched from the start of the name, not to its end (Python's re.match). The
// pattern comes from a file: compiling and matching are bounded in steps and
// memory, and exceeding the bound is an error, never "no match".

#ifndef QUIRE_LOADER_MODULE_PATTERN_H_
#define QUIRE_LOADER_MODULE_PATTERN_H_

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace quire {

// Thread-safe: matching changes no state.
class ModulePattern {
 public:
  static absl::StatusOr<ModulePattern> Compile(std::string_view pattern);

  absl::StatusOr<bool> Matches(std::string_view module) const;

  // The only name that matches, for patterns like ^model\.layers\.0\.mlp$, of
  // which GPTQModel may write one per module.
  static std::optional<std::string> LiteralOf(std::string_view pattern);

 private:
  struct Code;
  struct CodeDeleter {
    void operator()(Code* code) const;
  };
  explicit ModulePattern(std::unique_ptr<Code, CodeDeleter> code)
      : code_(std::move(code)) {}

  std::unique_ptr<Code, CodeDeleter> code_;
};

}  // namespace quire

#endif  // QUIRE_LOADER_MODULE_PATTERN_H_
