#include "loader/json_file.h"

#include <cstddef>
#include <utility>

#include "absl/strings/str_cat.h"
#include "loader/json_parse.h"
#include "loader/random_access_file.h"
#include "quire/alloc/quote.h"
#include "quire/alloc/status_macros.h"

namespace quire {
namespace {

using nlohmann::json;

// A value takes about a hundred bytes of memory at worst and two of the file.
constexpr size_t kMaxValues = 1 << 20;
constexpr size_t kMaxRepeatedFields = 16;

class DocumentBuilder : public JsonHandler {
 public:
  DocumentBuilder(std::string_view ordered_path, JsonFile* file)
      : ordered_path_(ordered_path), file_(file) {}

  bool null() override { return Add(nullptr); }
  bool boolean(bool value) override { return Add(value); }
  bool number_integer(number_integer_t value) override { return Add(value); }
  bool number_unsigned(number_unsigned_t value) override { return Add(value); }
  bool number_float(number_float_t value, const string_t&) override {
    return Add(value);
  }
  bool string(string_t& value) override { return Add(std::move(value)); }

  bool start_object(std::size_t) override { return Open(json::object()); }
  bool end_object() override { return Close(); }
  bool start_array(std::size_t) override { return Open(json::array()); }
  bool end_array() override { return Close(); }

  bool key(string_t& name) override {
    Level& level = levels_.back();
    level.key = name;
    if (level.value->contains(name)) {
      if (file_->repeated_fields.size() < kMaxRepeatedFields)
        file_->repeated_fields.push_back(Path(levels_.size()));
    } else if (!ordered_path_.empty() &&
               Path(levels_.size() - 1) == ordered_path_) {
      file_->ordered_keys.push_back(name);
    }
    return true;
  }

 private:
  struct Level {
    json* value;      // an object or an array that is being filled
    std::string key;  // of the field that comes next, in an object
  };

  // The dotted path that the keys of the first `depth` levels make.
  std::string Path(size_t depth) const {
    std::string path;
    for (size_t i = 0; i < depth; ++i)
      absl::StrAppend(&path, i == 0 ? "" : ".",
                      levels_[i].value->is_array() ? "[]" : levels_[i].key);
    return path;
  }

  // Where the new value stands; null where there are too many.
  json* Insert(json value) {
    if (++values_ > kMaxValues) {
      Fail(absl::StrCat("more than ", kMaxValues, " values"));
      return nullptr;
    }
    if (levels_.empty()) {
      file_->value = std::move(value);
      return &file_->value;
    }
    Level& level = levels_.back();
    if (level.value->is_array()) {
      level.value->push_back(std::move(value));
      return &level.value->back();
    }
    json& field = (*level.value)[level.key];
    field = std::move(value);
    return &field;
  }

  bool Add(json value) {
    if (levels_.empty()) return Fail("the file does not hold a JSON object");
    return Insert(std::move(value)) != nullptr;
  }

  bool Open(json value) {
    if (levels_.empty() && !value.is_object())
      return Fail("the file does not hold a JSON object");
    if (levels_.size() == kMaxJsonDepth)
      return Fail(absl::StrCat("nested deeper than ", kMaxJsonDepth));
    json* const inserted = Insert(std::move(value));
    if (inserted == nullptr) return false;
    levels_.push_back({inserted, {}});
    return true;
  }

  bool Close() {
    levels_.pop_back();
    return true;
  }

  const std::string_view ordered_path_;
  JsonFile* const file_;
  // A level's value is only ever appended to while it is the last one, so the
  // pointers into the document stay good.
  std::vector<Level> levels_;
  size_t values_ = 0;
};

}  // namespace

absl::StatusOr<JsonFile> ReadJsonFile(const std::string& path,
                                      std::string_view ordered_path) {
  QUIRE_ASSIGN_OR_RETURN(const auto file, OpenFile(path));
  QUIRE_ASSIGN_OR_RETURN(const bool lfs_pointer, IsGitLfsPointer(*file));
  if (lfs_pointer) return GitLfsPointerError(*file);
  if (file->size() > kMaxJsonFileSize)
    return absl::InvalidArgumentError(
        absl::StrCat(file->display_name(), ": ", FormatBytes(file->size()),
                     " is more than a configuration file may have, ",
                     FormatBytes(kMaxJsonFileSize)));
  JsonFile result;
  DocumentBuilder builder(ordered_path, &result);
  QUIRE_RETURN_IF_ERROR(ParseJson(*file, 0, file->size().value(), &builder));
  return result;
}

}  // namespace quire
