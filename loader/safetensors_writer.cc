#include "quire/loader/safetensors_writer.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <tuple>
#include <unordered_map>

#include "absl/strings/str_cat.h"
#include "quire/alloc/quote.h"
#include "quire/alloc/status_macros.h"
#include "quire/alloc/units.h"
#include "quire/alloc/utf8.h"

namespace quire {
namespace {

constexpr char kMetadataKey[] = "__metadata__";
// What the reference reader takes.
constexpr size_t kMaxHeaderBytes = 100'000'000;
// The data begins at a multiple of this: the header is padded with spaces.
constexpr size_t kHeaderAlignment = 8;

// The reference writer's order of types, which is also by alignment:
// the declaration order of safetensors' Dtype, last one first.
constexpr std::array kFileOrder = {
    DType::kU64,        DType::kI64,    DType::kF64,    DType::kC64,
    DType::kF32,        DType::kU32,    DType::kI32,    DType::kBF16,
    DType::kF16,        DType::kU16,    DType::kI16,    DType::kF8E5M2FNUZ,
    DType::kF8E4M3FNUZ, DType::kF8E8M0, DType::kF8E4M3, DType::kF8E5M2,
    DType::kI8,         DType::kU8,     DType::kF6E3M2, DType::kF6E2M3,
    DType::kF4,         DType::kBool,
};

// nullopt for the block types of GGUF, which safetensors has no name for.
std::optional<size_t> RankOf(DType dtype) {
  const auto at = std::find(kFileOrder.begin(), kFileOrder.end(), dtype);
  if (at == kFileOrder.end()) return std::nullopt;
  return static_cast<size_t>(at - kFileOrder.begin());
}

// `text` as a JSON string, quotes included. REQUIRES: it is UTF-8.
std::string JsonString(const std::string& text) {
  return nlohmann::json(text).dump();
}

absl::Status CheckName(const std::string& path, const std::string& name) {
  if (!name.empty() && name != kMetadataKey &&
      name.find('\0') == std::string::npos && IsValidUtf8(name))
    return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(path, ": ", Quoted(name),
                   " cannot name a tensor: names are UTF-8, not empty, "
                   "without NUL and not ",
                   kMetadataKey));
}

absl::StatusOr<Bytes> SizeOf(const std::string& path,
                             const SafetensorsEntry& entry) {
  uint64_t elements = 1;
  bool fits = true;
  for (const uint64_t dimension : entry.shape) {
    const auto product = CheckedMultiply(elements, dimension);
    fits = fits && product.has_value();
    elements = product.value_or(0);
  }
  const auto size = fits ? BytesOf(entry.dtype, elements) : std::nullopt;
  if (!RankOf(entry.dtype).has_value() || !size.has_value()) {
    return absl::InvalidArgumentError(absl::StrCat(
        path, ": tensor ", Quoted(entry.name), " of ", DTypeName(entry.dtype),
        RankOf(entry.dtype).has_value()
            ? ": its shape is no whole number of bytes below 2^64"
            : ": not a type of safetensors"));
  }
  return *size;
}

struct TensorRange {
  uint64_t begin = 0;  // in the file
  uint64_t size = 0;
  uint64_t written = 0;
};

struct Layout {
  std::string header;  // with its length in front and its padding
  std::unordered_map<std::string, TensorRange> tensors;
  uint64_t file_size = 0;
};

std::string LittleEndian(uint64_t value) {
  std::string bytes;
  for (int shift = 0; shift < 64; shift += 8)
    bytes += static_cast<char>(value >> shift & 0xff);
  return bytes;
}

// `{"a":"b",...}`.
absl::StatusOr<std::string> MetadataJson(
    const std::string& path,
    const std::vector<std::pair<std::string, std::string>>& metadata) {
  std::string json = "{";
  for (const auto& [key, value] : metadata) {
    if (!IsValidUtf8(key) || !IsValidUtf8(value)) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": metadata ", Quoted(key), " is not UTF-8"));
    }
    absl::StrAppend(&json, json.size() > 1 ? "," : "", JsonString(key), ":",
                    JsonString(value));
  }
  return json + "}";
}

absl::StatusOr<Layout> MakeLayout(
    const std::string& path, std::vector<SafetensorsEntry> entries,
    const std::vector<std::pair<std::string, std::string>>& metadata) {
  for (const SafetensorsEntry& entry : entries)
    QUIRE_RETURN_IF_ERROR(CheckName(path, entry.name));
  std::sort(entries.begin(), entries.end(),
            [](const SafetensorsEntry& a, const SafetensorsEntry& b) {
              return std::forward_as_tuple(RankOf(a.dtype), a.name) <
                     std::forward_as_tuple(RankOf(b.dtype), b.name);
            });
  Layout layout;
  std::string json = "{";
  if (!metadata.empty()) {
    QUIRE_ASSIGN_OR_RETURN(const std::string text,
                           MetadataJson(path, metadata));
    absl::StrAppend(&json, "\"", kMetadataKey, "\":", text);
  }
  uint64_t offset = 0;
  for (const SafetensorsEntry& entry : entries) {
    QUIRE_ASSIGN_OR_RETURN(const Bytes size, SizeOf(path, entry));
    const auto end = CheckedAdd(offset, size.value());
    if (!end) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": the tensors exceed 2^64 bytes"));
    }
    if (!layout.tensors.emplace(entry.name, TensorRange{offset, size.value()})
             .second) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": two tensors named ", Quoted(entry.name)));
    }
    absl::StrAppend(&json, json.size() > 1 ? "," : "", JsonString(entry.name),
                    ":{\"dtype\":\"", DTypeName(entry.dtype), "\",\"shape\":[");
    for (size_t i = 0; i < entry.shape.size(); ++i)
      absl::StrAppend(&json, i > 0 ? "," : "", entry.shape[i]);
    absl::StrAppend(&json, "],\"data_offsets\":[", offset, ",", *end, "]}");
    offset = *end;
  }
  json += "}";
  json.append(
      (kHeaderAlignment - json.size() % kHeaderAlignment) % kHeaderAlignment,
      ' ');
  if (json.size() > kMaxHeaderBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": a header of ", json.size(),
                     " bytes; readers take at most ", kMaxHeaderBytes));
  }
  layout.header = LittleEndian(json.size()) + json;
  const auto file_size = CheckedAdd(offset, layout.header.size());
  if (!file_size ||
      *file_size > static_cast<uint64_t>(std::numeric_limits<off_t>::max())) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": ", offset, " bytes of tensors fit in no file"));
  }
  layout.file_size = *file_size;
  for (auto& [name, range] : layout.tensors)
    range.begin += layout.header.size();
  return layout;
}

std::string FolderToSync(const std::string& path) {
  const size_t slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

// A file in `path`'s folder that nobody else writes, with the permissions that
// a plain new file gets.
absl::StatusOr<int> CreateTemporary(const std::string& path,
                                    std::string* temporary) {
  static std::atomic<uint64_t> counter{0};
  while (true) {
    *temporary = absl::StrCat(path, ".", getpid(), "-",
                              counter.fetch_add(1, std::memory_order_relaxed),
                              ".partial");
    const int descriptor =
        open(temporary->c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (descriptor >= 0) return descriptor;
    if (errno != EEXIST && errno != EINTR) {
      return absl::ErrnoToStatus(errno,
                                 absl::StrCat("cannot create ", *temporary));
    }
  }
}

// So that the rename survives a crash of the machine.
absl::Status SyncFolder(const std::string& folder) {
  const int descriptor = open(folder.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0)
    return absl::ErrnoToStatus(errno, absl::StrCat("cannot open ", folder));
  // Some file systems have no such call for folders, and need none.
  const bool failed = fsync(descriptor) != 0 && errno != EINVAL;
  const int error = errno;
  close(descriptor);
  if (failed)
    return absl::ErrnoToStatus(error, absl::StrCat("cannot sync ", folder));
  return absl::OkStatus();
}

}  // namespace

class SafetensorsWriter::Impl {
 public:
  Impl(std::string path, std::string temporary, int descriptor, Layout layout)
      : path_(std::move(path)),
        temporary_(std::move(temporary)),
        descriptor_(descriptor),
        layout_(std::move(layout)) {}

  ~Impl() {
    if (descriptor_ >= 0) close(descriptor_);
    if (!finished_) unlink(temporary_.c_str());
  }

  absl::Status WriteHeader() {
    // A full disk is found now, rather than after an hour of quantising. Not
    // every file system can do this.
    if (fallocate(descriptor_, 0, 0, static_cast<off_t>(layout_.file_size)) !=
            0 &&
        errno != EOPNOTSUPP && errno != ENOSYS && errno != EINTR) {
      return WriteError(errno);
    }
    return WriteAt(0, std::as_bytes(std::span(layout_.header)));
  }

  absl::Status Append(const std::string& name,
                      std::span<const std::byte> data) {
    if (descriptor_ < 0) {
      return absl::FailedPreconditionError(absl::StrCat(
          path_, ": tensor ", Quoted(name), " comes after Finish"));
    }
    const auto at = layout_.tensors.find(name);
    if (at == layout_.tensors.end()) {
      return absl::NotFoundError(
          absl::StrCat(path_, ": no tensor ", Quoted(name), " was announced"));
    }
    TensorRange& range = at->second;
    if (data.size() > range.size - range.written) {
      return absl::InvalidArgumentError(
          absl::StrCat(path_, ": tensor ", Quoted(name), " takes ", range.size,
                       " bytes, has ", range.written, " and is given ",
                       data.size(), " more"));
    }
    QUIRE_RETURN_IF_ERROR(WriteAt(range.begin + range.written, data));
    range.written += data.size();
    return absl::OkStatus();
  }

  absl::Status Finish() {
    if (descriptor_ < 0) {
      return absl::FailedPreconditionError(
          absl::StrCat(path_, ": Finish was called before"));
    }
    for (const auto& [name, range] : layout_.tensors) {
      if (range.written == range.size) continue;
      return absl::FailedPreconditionError(
          absl::StrCat(path_, ": tensor ", Quoted(name), " has ", range.written,
                       " of ", range.size, " bytes"));
    }
    if (fsync(descriptor_) != 0) return WriteError(errno);
    // Network file systems report what could not be written only here.
    const int closed = close(std::exchange(descriptor_, -1));
    if (closed != 0 && errno != EINTR) return WriteError(errno);
    if (rename(temporary_.c_str(), path_.c_str()) != 0) {
      return absl::ErrnoToStatus(
          errno, absl::StrCat("cannot rename ", temporary_, " to ", path_));
    }
    finished_ = true;
    return SyncFolder(FolderToSync(path_));
  }

 private:
  absl::Status WriteError(int error) const {
    return absl::ErrnoToStatus(
        error, absl::StrCat("cannot write ", path_, " (", layout_.file_size,
                            " bytes in all)"));
  }

  absl::Status WriteAt(uint64_t offset, std::span<const std::byte> data) {
    while (!data.empty()) {
      const ssize_t wrote = pwrite(descriptor_, data.data(), data.size(),
                                   static_cast<off_t>(offset));
      if (wrote < 0) {
        if (errno == EINTR) continue;
        return WriteError(errno);
      }
      data = data.subspan(static_cast<size_t>(wrote));
      offset += static_cast<uint64_t>(wrote);
    }
    return absl::OkStatus();
  }

  const std::string path_;
  const std::string temporary_;
  int descriptor_;  // -1 once Finish has closed it
  Layout layout_;
  bool finished_ = false;
};

absl::StatusOr<std::unique_ptr<SafetensorsWriter>> SafetensorsWriter::Create(
    const std::string& path, std::vector<SafetensorsEntry> entries,
    const std::vector<std::pair<std::string, std::string>>& metadata) {
  QUIRE_ASSIGN_OR_RETURN(Layout layout,
                         MakeLayout(path, std::move(entries), metadata));
  std::string temporary;
  QUIRE_ASSIGN_OR_RETURN(const int descriptor,
                         CreateTemporary(path, &temporary));
  auto impl = std::make_unique<Impl>(path, std::move(temporary), descriptor,
                                     std::move(layout));
  QUIRE_RETURN_IF_ERROR(impl->WriteHeader());
  return std::unique_ptr<SafetensorsWriter>(
      new SafetensorsWriter(std::move(impl)));
}

SafetensorsWriter::SafetensorsWriter(std::unique_ptr<Impl> impl)
    : impl_(std::move(impl)) {}

SafetensorsWriter::~SafetensorsWriter() = default;

absl::Status SafetensorsWriter::Append(const std::string& name,
                                       std::span<const std::byte> data) {
  return impl_->Append(name, data);
}

absl::Status SafetensorsWriter::Finish() { return impl_->Finish(); }

}  // namespace quire
