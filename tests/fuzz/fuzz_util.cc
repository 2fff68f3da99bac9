#include "tests/fuzz/fuzz_util.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <set>
#include <system_error>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "loader/checkpoint_test_util.h"
#include "quire/alloc/units.h"
#include "quire/loader/dtype.h"

namespace quire {
namespace {

constexpr std::string_view kSeparator = "%%\n";
constexpr Bytes kMaxTensorBytes = MiB(1);

// The next line of `text`, which loses it.
std::string_view TakeLine(std::string_view* text) {
  const size_t end = text->find('\n');
  const std::string_view line = text->substr(0, end);
  text->remove_prefix(end == std::string_view::npos ? text->size() : end + 1);
  return line;
}

// A name that needs no escapes, so that the header is right by construction.
bool IsPlain(std::string_view name) {
  for (const char c : name)
    if (c < '!' || c > '~' || c == '"' || c == '\\') return false;
  return !name.empty() && name != "__metadata__";
}

struct Tensor {
  std::string_view name;
  std::string_view dtype;
  std::string shape = "[";
  Bytes size;
};

std::optional<Tensor> ParseTensor(std::string_view line) {
  const std::vector<absl::string_view> words = absl::StrSplit(
      absl::string_view(line.data(), line.size()), ' ', absl::SkipEmpty());
  if (words.size() < 2) return std::nullopt;
  Tensor tensor;
  tensor.name = {words[0].data(), words[0].size()};
  tensor.dtype = {words[1].data(), words[1].size()};
  const std::optional<DType> dtype = DTypeFromSafetensors(tensor.dtype);
  if (!IsPlain(tensor.name) || !dtype) return std::nullopt;
  std::vector<uint64_t> shape;
  for (size_t i = 2; i < words.size(); ++i) {
    uint64_t dimension = 0;
    if (!absl::SimpleAtoi(words[i], &dimension)) return std::nullopt;
    absl::StrAppend(&tensor.shape, i == 2 ? "" : ",", dimension);
    shape.push_back(dimension);
  }
  tensor.shape += "]";
  const std::optional<Bytes> size = BytesOf(*dtype, shape);
  if (!size) return std::nullopt;
  tensor.size = *size;
  return tensor;
}

}  // namespace

absl::Status Property(bool holds, std::string_view what) {
  if (holds) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("broken: ", std::string(what)));
}

absl::Status CheckRefusal(const absl::Status& status) {
  const absl::string_view message = status.message();
  return Property(!message.empty() &&
                      message.find('\n') == absl::string_view::npos &&
                      message.size() < 10000,
                  "a refusal is one line that says why");
}

std::vector<std::string_view> InputParts(std::string_view input, size_t count) {
  std::vector<std::string_view> parts(count);
  for (size_t i = 0; i < count; ++i) {
    const size_t end =
        i + 1 == count ? std::string_view::npos : input.find(kSeparator);
    parts[i] = input.substr(0, end);
    if (end == std::string_view::npos) break;
    input.remove_prefix(end + kSeparator.size());
  }
  return parts;
}

std::string TensorFile(std::string_view list) {
  std::string header = "{";
  Bytes end;
  std::set<std::string_view> names;
  while (!list.empty()) {
    const std::optional<Tensor> tensor = ParseTensor(TakeLine(&list));
    if (!tensor || tensor->size > SaturatingSubtract(kMaxTensorBytes, end) ||
        !names.insert(tensor->name).second)
      continue;
    const Bytes next = SaturatingAdd(end, tensor->size);
    absl::StrAppend(&header, header.size() == 1 ? "" : ",",
                    Entry(tensor->name, tensor->dtype, tensor->shape,
                          Offsets(end.value(), next.value())));
    end = next;
  }
  return LittleEndian<uint64_t>(header.size() + 1) + header + "}" +
         std::string(end.value(), '\0');
}

ScratchFolder::ScratchFolder() {
  // Memory where the system has it there: an input is a matter of microseconds.
  std::error_code ignored;
  const std::filesystem::path memory = "/dev/shm";
  path_ = ((std::filesystem::is_directory(memory, ignored)
                ? memory
                : std::filesystem::temp_directory_path()) /
           "quire_fuzz_XXXXXX")
              .string();
  if (mkdtemp(path_.data()) == nullptr) path_.clear();
}

ScratchFolder::~ScratchFolder() {
  std::error_code ignored;
  if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
}

absl::Status ScratchFolder::Write(const std::string& name,
                                  std::string_view contents) const {
  const std::string path = File(name);
  if (contents.empty()) {
    unlink(path.c_str());
    return absl::OkStatus();
  }
  const int fd =
      open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  if (fd < 0) return absl::InternalError(path + ": cannot be created");
  const ssize_t written = write(fd, contents.data(), contents.size());
  close(fd);
  return Property(written == static_cast<ssize_t>(contents.size()),
                  "the scratch folder has room");
}

}  // namespace quire
