#include "loader/gptq_overrides.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "quire/alloc/quote.h"
#include "quire/alloc/status_macros.h"

namespace quire {
namespace {

// Every pattern is tried on every module until one matches.
constexpr size_t kMaxPatterns = 1024;

template <typename T>
absl::Status ReadOptional(absl::StatusOr<T> value, std::optional<T>* out) {
  if (absl::IsNotFound(value.status())) return absl::OkStatus();
  QUIRE_RETURN_IF_ERROR(value.status());
  *out = *value;
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<int> GetGptqBits(const JsonFields& fields,
                                std::string_view field, bool planar) {
  QUIRE_ASSIGN_OR_RETURN(const uint64_t bits, fields.GetUint(field));
  if (planar && bits >= 2 && bits <= 8) return static_cast<int>(bits);
  if (planar)
    return fields.Error(
        field, absl::StrCat("is ", bits, "; the planar format has 2 to 8"));
  if (bits == 5 || bits == 6 || bits == 7)
    return fields.Error(field,
                        absl::StrCat("is ", bits,
                                     ", a width that only the planar format "
                                     "has; 2, 3, 4 and 8 are supported"));
  if (bits != 2 && bits != 3 && bits != 4 && bits != 8)
    return fields.Error(
        field, absl::StrCat("is ", bits, "; 2, 3, 4 and 8 are supported"));
  return static_cast<int>(bits);
}

absl::StatusOr<int64_t> GetGptqGroupSize(const JsonFields& fields,
                                         std::string_view field) {
  QUIRE_ASSIGN_OR_RETURN(const int64_t size,
                         fields.GetInt(field, -1, int64_t{1} << 31));
  if (size == 0)
    return fields.Error(field, "is 0; -1 means one group for all inputs");
  return size;
}

absl::StatusOr<GptqOverrides> GptqOverrides::Parse(
    const JsonFields& dynamic, const std::vector<std::string>& order,
    bool planar) {
  GptqOverrides result;
  result.where_ = dynamic.where();
  for (const std::string& text : order) {
    std::string_view pattern = text;
    Override entry;
    entry.text = text;
    entry.skip = absl::StartsWith(text, "-:");
    if (entry.skip || absl::StartsWith(text, "+:")) pattern.remove_prefix(2);
    if (dynamic.Has(text) && !entry.skip) {
      QUIRE_ASSIGN_OR_RETURN(const JsonFields settings,
                             dynamic.GetObject(text));
      QUIRE_RETURN_IF_ERROR(
          ReadOptional(GetGptqBits(settings, "bits", planar), &entry.bits));
      QUIRE_RETURN_IF_ERROR(ReadOptional(
          GetGptqGroupSize(settings, "group_size"), &entry.group_size));
      QUIRE_RETURN_IF_ERROR(
          ReadOptional(settings.GetBool("desc_act"), &entry.desc_act));
      QUIRE_RETURN_IF_ERROR(ReadOptional(settings.GetBool("sym"), &entry.sym));
    }
    const size_t number = result.overrides_.size();
    if (auto literal = ModulePattern::LiteralOf(pattern)) {
      result.literals_.try_emplace(*std::move(literal), number);
    } else {
      if (result.patterns_.size() == kMaxPatterns)
        return absl::InvalidArgumentError(absl::StrCat(
            result.where_, ": more than ", kMaxPatterns, " patterns"));
      auto compiled = ModulePattern::Compile(pattern);
      if (!compiled.ok())
        return absl::InvalidArgumentError(
            absl::StrCat(result.where_, ": ", compiled.status().message()));
      entry.pattern = *std::move(compiled);
      result.patterns_.push_back(number);
    }
    result.overrides_.push_back(std::move(entry));
  }
  return result;
}

absl::StatusOr<const GptqOverrides::Override*> GptqOverrides::Find(
    std::string_view module) const {
  size_t first = overrides_.size();
  if (const auto literal = literals_.find(std::string(module));
      literal != literals_.end())
    first = literal->second;
  for (const size_t number : patterns_) {
    if (number > first) break;
    const Override& entry = overrides_[number];
    const auto matches = entry.pattern->Matches(module);
    if (!matches.ok())
      return absl::InvalidArgumentError(absl::StrCat(
          where_, ": ", Quoted(entry.text), ": ", matches.status().message()));
    if (*matches) {
      first = number;
      break;
    }
  }
  return first == overrides_.size() ? nullptr : &overrides_[first];
}

absl::StatusOr<std::optional<GptqSettings>> GptqOverrides::Apply(
    std::string_view module, GptqSettings settings) const {
  QUIRE_ASSIGN_OR_RETURN(const Override* entry, Find(module));
  if (entry == nullptr) return settings;
  if (entry->skip) return std::nullopt;
  settings.bits = entry->bits.value_or(settings.bits);
  settings.group_size = entry->group_size.value_or(settings.group_size);
  settings.desc_act = entry->desc_act.value_or(settings.desc_act);
  settings.sym = entry->sym.value_or(settings.sym);
  return settings;
}

}  // namespace quire
