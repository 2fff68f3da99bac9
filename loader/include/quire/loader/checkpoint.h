// A checkpoint on disk, read by its index only: every name, type, shape, place
// and byte is known and checked before anything is allocated; no weight is
// read.
//
// Opens what people have: a Hugging Face folder (one safetensors file, shards
// with an index, AutoGPTQ's file names), a single .safetensors file with its
// config beside it, or a .gguf file. Whatever is wrong is an error that names
// the file and the tensor or field.

#ifndef QUIRE_LOADER_CHECKPOINT_H_
#define QUIRE_LOADER_CHECKPOINT_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "quire/alloc/units.h"
#include "quire/loader/dtype.h"

namespace quire {

class RandomAccessFile;

struct TensorInfo {
  std::string name;
  DType dtype = DType::kF32;
  // Row-major, outermost first, in both formats (GGUF stores it reversed).
  std::vector<uint64_t> shape;
  uint32_t file = 0;    // index into Checkpoint::files()
  uint64_t offset = 0;  // of the first byte in that file
  Bytes size;

  uint64_t elements() const;  // the product of the shape
};

// What a file was when it was opened: one that was replaced, written to or cut
// has another.
struct FileStamp {
  uint64_t device = 0;
  uint64_t inode = 0;
  Bytes size;
  int64_t modified_nanoseconds = 0;  // since the epoch

  friend bool operator==(const FileStamp&, const FileStamp&) = default;
};

struct CheckpointFile {
  std::string path;
  Bytes size;
  FileStamp stamp;
  // Of what describes the tensors, at the beginning.
  Bytes header_size;
  uint32_t header_crc32 = 0;

  // The same file with the same contents, as far as can be told without reading
  // it whole; whatever path leads to it.
  bool SameFile(const CheckpointFile& other) const {
    return stamp == other.stamp && header_size == other.header_size &&
           header_crc32 == other.header_crc32;
  }
};

enum class CheckpointFormat { kSafetensors, kGguf };

class Checkpoint {
 public:
  // `path`: a folder, a .gguf file or a .safetensors file.
  static absl::StatusOr<std::unique_ptr<Checkpoint>> Open(
      const std::string& path);
  // A folder as it would be with other tensors than those that are there:
  // `tensors` is given a checkpoint of its configuration and no tensors, and
  // says which it would have, all in one file. For plans: what is described
  // cannot be read.
  static absl::StatusOr<std::unique_ptr<Checkpoint>> Describe(
      const std::string& folder,
      const std::function<
          absl::StatusOr<std::vector<TensorInfo>>(const Checkpoint&)>& tensors);
  ~Checkpoint();

  CheckpointFormat format() const { return format_; }
  // The folder of the files, where config and tokenizer stand.
  const std::string& folder() const { return folder_; }
  const std::vector<CheckpointFile>& files() const { return files_; }
  // In the order of files and of offsets in them: the order to read in.
  const std::vector<TensorInfo>& tensors() const { return tensors_; }
  // Null where there is none.
  const TensorInfo* Find(std::string_view name) const;
  Bytes total_size() const { return total_size_; }

  // config.json, or {} for GGUF.
  const nlohmann::json& config() const { return *config_; }
  // generation_config.json, or {}.
  const nlohmann::json& generation_config() const {
    return *generation_config_;
  }
  // quantize_config.json, quant_config.json or config.json's
  // quantization_config, in this order of preference; {} where there is none.
  const nlohmann::json& quantization_config() const {
    return *quantization_config_;
  }
  // The file that it comes from, for messages.
  const std::string& quantization_config_path() const {
    return quantization_config_path_;
  }
  // The keys of its "dynamic", GPTQModel's overrides, in the order of the file:
  // the first pattern that matches counts, and a JSON object here is sorted.
  const std::vector<std::string>& dynamic_patterns() const {
    return dynamic_patterns_;
  }
  // GGUF's key-value metadata as JSON: arrays stay arrays, keys stay flat
  // ("llama.block_count"). {} for safetensors.
  const nlohmann::json& gguf_metadata() const { return *gguf_metadata_; }

  // What is odd but not wrong, one sentence each, naming file and tensor:
  // files and tensors that no index lists, a stale index, ...
  const std::vector<std::string>& warnings() const { return warnings_; }

  // kDataLoss where a file is no longer what it was when it was opened here:
  // replaced, of another size or time of change, or with another header. Names
  // the file and what has changed. Reads the headers alone.
  absl::Status CheckUnchanged() const;

  // Reads one tensor whole. Only for small ones, such as g_idx: larger than
  // `limit` is kInvalidArgument. `out` gets exactly tensor.size bytes.
  absl::Status ReadSmallTensor(const TensorInfo& tensor,
                               std::vector<std::byte>* out,
                               Bytes limit = MiB(8)) const;

 private:
  Checkpoint();

  // Both fill this object. `single_file`: empty for a folder.
  absl::Status OpenSafetensors(const std::string& folder,
                               const std::string& single_file);
  absl::Status OpenGguf(const RandomAccessFile& file);
  // The small files; the tensors are not looked at.
  absl::Status OpenConfigs(const std::string& folder, bool config_required);
  // Sorts the names; an error where one occurs twice.
  absl::Status IndexTensors();

  CheckpointFormat format_ = CheckpointFormat::kSafetensors;
  std::string folder_;
  std::vector<CheckpointFile> files_;
  std::vector<TensorInfo> tensors_;
  std::vector<uint32_t> by_name_;  // into tensors_, sorted by name
  Bytes total_size_;
  std::unique_ptr<nlohmann::json> config_;
  std::unique_ptr<nlohmann::json> generation_config_;
  std::unique_ptr<nlohmann::json> quantization_config_;
  std::string quantization_config_path_;
  std::vector<std::string> dynamic_patterns_;
  std::unique_ptr<nlohmann::json> gguf_metadata_;
  std::vector<std::string> warnings_;
};

}  // namespace quire

#endif  // QUIRE_LOADER_CHECKPOINT_H_
