#include "bench/policies/policy_settings.h"

#include <algorithm>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace quire {

size_t FindOutsideBrackets(std::string_view text, char separator) {
  bool inside = false;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == separator && !inside) return i;
    if (text[i] == '[') inside = true;
    if (text[i] == ']') inside = false;
  }
  return text.size();
}

absl::StatusOr<PolicySettings> PolicySettings::Parse(std::string_view text) {
  PolicySettings settings;
  while (!text.empty()) {
    const size_t end = FindOutsideBrackets(text, ':');
    const std::string setting(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
    const size_t equals = setting.find('=');
    if (equals == 0 || equals == setting.npos) {
      return absl::InvalidArgumentError(
          absl::StrCat("\"", setting, "\" is no setting: key=value"));
    }
    settings.given_[setting.substr(0, equals)] = setting.substr(equals + 1);
  }
  return settings;
}

const std::string* PolicySettings::Find(const std::string& key) {
  known_.push_back(key);
  const auto found = given_.find(key);
  return found == given_.end() ? nullptr : &found->second;
}

void PolicySettings::Refuse(const std::string& key, const char* expected) {
  status_.Update(absl::InvalidArgumentError(
      absl::StrCat(key, " is \"", given_[key], "\", which is no ", expected)));
}

void PolicySettings::Read(const std::string& key, bool* value) {
  const std::string* const text = Find(key);
  if (text == nullptr || absl::SimpleAtob(*text, value)) return;
  Refuse(key, "true or false");
}

void PolicySettings::Read(const std::string& key, uint64_t* value) {
  const std::string* const text = Find(key);
  if (text == nullptr || absl::SimpleAtoi(*text, value)) return;
  Refuse(key, "number");
}

void PolicySettings::Read(const std::string& key, std::string* value) {
  const std::string* const text = Find(key);
  if (text != nullptr) *value = *text;
}

void PolicySettings::ReadFraction(const std::string& key, double* value) {
  const std::string* const text = Find(key);
  if (text == nullptr) return;
  if (absl::SimpleAtod(*text, value) && *value >= 0 && *value <= 1) return;
  Refuse(key, "fraction from 0 to 1");
}

void PolicySettings::Read(const std::string& key, Bytes* value) {
  const std::string* const text = Find(key);
  if (text == nullptr) return;
  if (const auto size = ParseBytes(*text)) {
    *value = *size;
  } else {
    Refuse(key, "size");
  }
}

void PolicySettings::ReadMebibytes(const std::string& key, Bytes* value) {
  const std::string* const text = Find(key);
  if (text == nullptr) return;
  uint64_t count = 0;
  const auto size = absl::SimpleAtoi(*text, &count)
                        ? CheckedMultiply(MiB(1), count)
                        : std::nullopt;
  if (size) {
    *value = *size;
  } else {
    Refuse(key, "number of MiB");
  }
}

absl::Status PolicySettings::Finish() const {
  if (!status_.ok()) return status_;
  for (const auto& [key, value] : given_) {
    if (std::find(known_.begin(), known_.end(), key) != known_.end()) continue;
    if (known_.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat("there is no setting ", key, ", nor any other"));
    }
    return absl::InvalidArgumentError(
        absl::StrCat("there is no setting ", key, "; there are ",
                     absl::StrJoin(known_, ", ")));
  }
  return absl::OkStatus();
}

}  // namespace quire
