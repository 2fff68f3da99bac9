#include "loader/shard_index.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "loader/json_parse.h"
#include "quire/alloc/quote.h"
#include "quire/alloc/status_macros.h"

namespace quire {
namespace {

constexpr size_t kMaxFileName = 255;  // NAME_MAX
constexpr size_t kMaxShards = 10'000;

// Why `name` must not be used as the name of a shard; nullptr where it may.
const char* ProblemWithShardName(std::string_view name) {
  if (name.empty()) return "empty";
  if (name.size() > kMaxFileName) return "too long for a file name";
  // A name may not lead out of the folder, on any system.
  if (name.find_first_of(std::string_view("/\\:\0", 4)) !=
      std::string_view::npos)
    return "not a plain file name in the same folder";
  if (name.front() == '.') return "not a plain file name";
  if (!absl::EndsWith({name.data(), name.size()}, ".safetensors"))
    return "not a .safetensors file, which is the only format read here";
  return nullptr;
}

}  // namespace

class ShardIndexHandler : public JsonHandler {
 public:
  explicit ShardIndexHandler(ShardIndex* out) : out_(*out) {}

  bool null() override { return Scalar("null"); }
  bool boolean(bool) override { return Scalar("a boolean"); }
  bool number_integer(number_integer_t) override { return Scalar("a number"); }
  bool number_float(number_float_t, const string_t&) override {
    return Scalar("a number");
  }
  bool number_unsigned(number_unsigned_t value) override {
    if (depth_ == 2 && section_ == Section::kMetadata && key_ == "total_size")
      out_.total_size_ = value;
    return Scalar("a number");
  }

  bool string(string_t& shard) override {
    if (!InWeightMap()) return Scalar("a string");
    if (const char* problem = ProblemWithShardName(shard))
      return FailMapping(absl::StrCat(Quoted(shard), " is ", problem));
    const auto [known, is_new] = shard_numbers_.try_emplace(
        shard, static_cast<uint32_t>(shard_numbers_.size()));
    if (is_new && shard_numbers_.size() > kMaxShards)
      return Fail(absl::StrCat("weight_map: more than ", kMaxShards,
                               " different shards"));
    out_.mappings_.back().shard = known->second;
    return true;
  }

  bool start_object(std::size_t) override {
    return Open("an object", /*is_object=*/true);
  }
  bool end_object() override { return Close(); }
  bool start_array(std::size_t) override {
    return Open("an array", /*is_object=*/false);
  }
  bool end_array() override { return Close(); }

  bool key(string_t& name) override {
    if (InWeightMap()) {
      out_.mappings_.push_back({static_cast<uint32_t>(out_.names_.size()),
                                static_cast<uint32_t>(name.size()), 0});
      out_.names_ += name;
      return true;
    }
    if (depth_ == 1) {
      section_ = name == "weight_map" ? Section::kWeightMap
                 : name == "metadata" ? Section::kMetadata
                                      : Section::kOther;
      if (section_ == Section::kWeightMap &&
          std::exchange(weight_map_seen_, true))
        return Fail("\"weight_map\" occurs twice");
    } else if (depth_ == 2) {
      key_ = name;
    }
    return true;
  }

  // Puts shards and names in order. Returns what is wrong with the whole.
  std::optional<std::string> Finish() {
    if (!weight_map_seen_) return "there is no \"weight_map\"";
    if (out_.mappings_.empty()) return "\"weight_map\" is empty";
    std::vector<uint32_t> order(shard_numbers_.size());
    for (const auto& [name, number] : shard_numbers_) {
      order[number] = static_cast<uint32_t>(out_.shards_.size());
      out_.shards_.push_back(name);
    }
    auto& mappings = out_.mappings_;
    for (auto& mapping : mappings) mapping.shard = order[mapping.shard];
    std::sort(mappings.begin(), mappings.end(),
              [this](const auto& a, const auto& b) {
                return out_.Name(a) < out_.Name(b);
              });
    const auto twice = std::adjacent_find(mappings.begin(), mappings.end(),
                                          [this](const auto& a, const auto& b) {
                                            return out_.Name(a) == out_.Name(b);
                                          });
    if (twice != mappings.end())
      return absl::StrCat("weight_map: tensor ", Quoted(out_.Name(*twice)),
                          " occurs twice");
    return std::nullopt;
  }

 private:
  enum class Section { kOther, kMetadata, kWeightMap };

  bool InWeightMap() const {
    return depth_ == 2 && section_ == Section::kWeightMap;
  }

  bool FailMapping(const std::string& problem) {
    return Fail(absl::StrCat("weight_map: the shard of tensor ",
                             Quoted(out_.Name(out_.mappings_.back())), ", ",
                             problem));
  }

  // Anything goes outside the weight_map; it is skipped.
  bool Scalar(const char* what) {
    if (InWeightMap())
      return FailMapping(absl::StrCat("is ", what, ", not a string"));
    if (depth_ == 0) return Fail("the file does not hold a JSON object");
    if (depth_ == 1 && section_ == Section::kWeightMap)
      return Fail(absl::StrCat("\"weight_map\" is ", what, ", not an object"));
    return true;
  }

  bool Open(const char* what, bool is_object) {
    const bool wants_object =
        depth_ == 0 || (depth_ == 1 && section_ == Section::kWeightMap);
    if (InWeightMap() || (wants_object && !is_object)) return Scalar(what);
    if (depth_ == kMaxJsonDepth)
      return Fail(absl::StrCat("nested deeper than ", kMaxJsonDepth));
    ++depth_;
    return true;
  }

  bool Close() {
    --depth_;
    return true;
  }

  ShardIndex& out_;
  int depth_ = 0;
  Section section_ = Section::kOther;
  std::string key_;
  bool weight_map_seen_ = false;
  std::map<std::string, uint32_t> shard_numbers_;
};

absl::StatusOr<ShardIndex> ShardIndex::Read(const RandomAccessFile& file) {
  QUIRE_ASSIGN_OR_RETURN(const bool lfs_pointer, IsGitLfsPointer(file));
  if (lfs_pointer) return GitLfsPointerError(file);
  if (file.size() > kMaxShardIndexSize)
    return absl::InvalidArgumentError(
        absl::StrCat(file.display_name(), ": ", FormatBytes(file.size()),
                     " is more than a shard index may have, ",
                     FormatBytes(kMaxShardIndexSize)));
  ShardIndex index;
  index.names_.reserve(file.size().value());
  ShardIndexHandler handler(&index);
  QUIRE_RETURN_IF_ERROR(ParseJson(file, 0, file.size().value(), &handler));
  if (const auto problem = handler.Finish())
    return absl::InvalidArgumentError(
        absl::StrCat(file.display_name(), ": ", *problem));
  return index;
}

std::optional<size_t> ShardIndex::Find(std::string_view name) const {
  const auto found =
      std::lower_bound(mappings_.begin(), mappings_.end(), name,
                       [this](const Mapping& mapping, std::string_view wanted) {
                         return Name(mapping) < wanted;
                       });
  if (found == mappings_.end() || Name(*found) != name) return std::nullopt;
  return static_cast<size_t>(found - mappings_.begin());
}

}  // namespace quire
