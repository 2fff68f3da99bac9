// The settings of a policy, as given behind its name:
//
//   pytorch:max_split_size_mb=128:expandable_segments=true

#ifndef QUIRE_BENCH_POLICIES_POLICY_SETTINGS_H_
#define QUIRE_BENCH_POLICIES_POLICY_SETTINGS_H_

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "quire/alloc/units.h"

namespace quire {

// Where the first `separator` stands that is in no brackets, or the end.
size_t FindOutsideBrackets(std::string_view text, char separator);

// Values are looked up by name and stay as they are where none was given. What
// cannot be read, and what nobody looked up, is told by Finish.
class PolicySettings {
 public:
  // "key=value:key=value", or empty. Colons in brackets are of the value.
  static absl::StatusOr<PolicySettings> Parse(std::string_view text);

  void Read(const std::string& key, bool* value);
  void Read(const std::string& key, uint64_t* value);
  void Read(const std::string& key, std::string* value);
  // A fraction: 0 to 1.
  void ReadFraction(const std::string& key, double* value);
  // "512MiB".
  void Read(const std::string& key, Bytes* value);
  // A number of MiB.
  void ReadMebibytes(const std::string& key, Bytes* value);

  // OK, or kInvalidArgument with the first that was wrong and the names known.
  absl::Status Finish() const;

 private:
  // Null where nothing was given.
  const std::string* Find(const std::string& key);
  void Refuse(const std::string& key, const char* expected);

  std::map<std::string, std::string> given_;
  std::vector<std::string> known_;
  absl::Status status_;
};

}  // namespace quire

#endif  // QUIRE_BENCH_POLICIES_POLICY_SETTINGS_H_
