// GPTQModel's `dynamic`: patterns over module names, each with settings that
// replace the defaults, or with the word that the module is not quantised.

#ifndef QUIRE_LOADER_GPTQ_OVERRIDES_H_
#define QUIRE_LOADER_GPTQ_OVERRIDES_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "loader/module_pattern.h"
#include "quire/loader/gptq.h"
#include "quire/loader/json_fields.h"

namespace quire {

// Values that a file gives for bits and group size, checked. kNotFound where
// the field is absent.
absl::StatusOr<int> GetGptqBits(const JsonFields& fields,
                                std::string_view field, bool planar = false);
absl::StatusOr<int64_t> GetGptqGroupSize(const JsonFields& fields,
                                         std::string_view field);

// Immutable. A pattern that begins with "-:" leaves modules plain; "+:" or no
// such prefix replaces settings. The first pattern that matches counts.
class GptqOverrides {
 public:
  // `dynamic` is the object, `order` its keys in the order of the file.
  static absl::StatusOr<GptqOverrides> Parse(
      const JsonFields& dynamic, const std::vector<std::string>& order,
      bool planar);

  // `settings` as the first match changes them; nullopt where it says that the
  // module is not quantised.
  absl::StatusOr<std::optional<GptqSettings>> Apply(
      std::string_view module, GptqSettings settings) const;

 private:
  struct Override {
    std::string text;                      // as in the file
    std::optional<ModulePattern> pattern;  // empty for literals
    bool skip = false;
    std::optional<int> bits;
    std::optional<int64_t> group_size;
    std::optional<bool> desc_act;
    std::optional<bool> sym;
  };

  // The first that matches; null where none does.
  absl::StatusOr<const Override*> Find(std::string_view module) const;

  std::string where_;
  std::vector<Override> overrides_;
  // Patterns that match one name only, by that name: a file may have one for
  // every module, and trying all of them on each would take n^2 matches.
  std::unordered_map<std::string, size_t> literals_;
  std::vector<size_t> patterns_;  // the others, in order
};

}  // namespace quire

#endif  // QUIRE_LOADER_GPTQ_OVERRIDES_H_
