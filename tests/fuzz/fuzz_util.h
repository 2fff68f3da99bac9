// What the fuzz targets share: properties, and inputs of several files.

#ifndef QUIRE_TESTS_FUZZ_FUZZ_UTIL_H_
#define QUIRE_TESTS_FUZZ_FUZZ_UTIL_H_

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"

namespace quire {

// OK where `holds`, else kInternal: `what` is broken.
absl::Status Property(bool holds, std::string_view what);

// A message that names a cause on one line, whatever the file holds.
absl::Status CheckRefusal(const absl::Status& status);

// Exactly `count` parts; those that are not there are empty.
std::vector<std::string_view> InputParts(std::string_view input, size_t count);

// A safetensors file of zeros with the tensors that `list` names, a line each:
// "model.norm.weight BF16 64" or "model.embed_tokens.weight F16 8 64". Lines
// that say no such thing are passed over, and so is what would make the file
// larger than 1 MiB: the file is sound, whatever the list.
std::string TensorFile(std::string_view list);

// A folder in memory, where files of one input replace those of the last.
class ScratchFolder {
 public:
  ScratchFolder();
  ~ScratchFolder();
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;

  const std::string& path() const { return path_; }
  std::string File(const std::string& name) const { return path_ + "/" + name; }
  // Without contents there is no file of that name.
  absl::Status Write(const std::string& name, std::string_view contents) const;

 private:
  std::string path_;
};

}  // namespace quire

#endif  // QUIRE_TESTS_FUZZ_FUZZ_UTIL_H_
