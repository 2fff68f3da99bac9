#include "loader/safetensors_syntax.h"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "loader/json_parse.h"
#include "quire/alloc/quote.h"
#include "quire/alloc/status_macros.h"

namespace quire {
namespace {

using Text = SafetensorsEntries::Text;

constexpr std::string_view kMetadataName = "__metadata__";
// Limits of ours, far beyond any model: they bound the memory that a header can
// cost before it is known to be good. The first is NumPy's.
constexpr size_t kMaxTensorRank = 64;
constexpr size_t kMaxDimensions = 8 << 20;
constexpr size_t kMaxMetadataKeys = 1 << 20;
// {"dtype":"F4","shape":[],"data_offsets":[0,0]} and a name of one letter.
constexpr uint64_t kMinEntrySize = 50;

enum class Field { kDtype, kShape, kDataOffsets };
constexpr std::array<const char*, 3> kFieldNames = {"dtype", "shape",
                                                    "data_offsets"};

class HeaderHandler : public JsonHandler {
 public:
  explicit HeaderHandler(SafetensorsEntries* out) : out_(*out) {}

  bool null() override { return Value("null"); }
  bool boolean(bool) override { return Value("a boolean"); }
  // Only what has a minus sign arrives here, "-0" too.
  bool number_integer(number_integer_t) override {
    return Value("a negative number");
  }
  // Fractions, exponents and what does not fit 64 bits.
  bool number_float(number_float_t, const string_t& text) override {
    return Value(absl::StrCat("the number ", Printable(text, 40)));
  }

  bool number_unsigned(number_unsigned_t value) override {
    if (state_ != State::kNumbers) return Value("a number");
    if (field_ == Field::kShape) {
      if (entry_.rank == kMaxTensorRank)
        return FailEntry(absl::StrCat("\"shape\" has more than ",
                                      kMaxTensorRank, " dimensions"));
      if (out_.dimensions.size() == kMaxDimensions)
        return FailEntry(absl::StrCat("more than ", kMaxDimensions,
                                      " dimensions up to here"));
      out_.dimensions.push_back(value);
      ++entry_.rank;
      return true;
    }
    if (offsets_ == 2) return FailEntry(kTwoOffsets);
    (offsets_++ == 0 ? entry_.begin : entry_.end) = value;
    return true;
  }

  bool string(string_t& value) override {
    if (state_ == State::kMetadata) return true;
    if (state_ != State::kEntry || field_ != Field::kDtype)
      return Value("a string");
    const std::optional<DType> dtype = DTypeFromSafetensors(value);
    if (!dtype)
      return FailEntry(absl::StrCat("\"dtype\" is ", Quoted(value),
                                    ", which is no type of the format"));
    entry_.dtype = *dtype;
    return true;
  }

  bool start_object(std::size_t) override {
    switch (state_) {
      case State::kStart:
        state_ = State::kTop;
        return true;
      case State::kTop:
        if (in_metadata_) {
          state_ = State::kMetadata;
          return true;
        }
        state_ = State::kEntry;
        seen_ = {};
        offsets_ = 0;
        entry_.rank = 0;
        entry_.shape_begin = static_cast<uint32_t>(out_.dimensions.size());
        return true;
      default:
        return Value("an object");
    }
  }

  bool end_object() override {
    if (state_ == State::kEntry) {
      for (size_t i = 0; i < seen_.size(); ++i)
        if (!seen_[i])
          return FailEntry(
              absl::StrCat("the field \"", kFieldNames[i], "\" is missing"));
      out_.entries.push_back(entry_);
    }
    // Closing the top object ends the input, whatever the state.
    state_ = State::kTop;
    return true;
  }

  bool key(string_t& name) override {
    switch (state_) {
      case State::kTop:
        return TopKey(name);
      case State::kMetadata:
        if (metadata_keys_.size() == kMaxMetadataKeys)
          return Fail(absl::StrCat("__metadata__: more than ", kMaxMetadataKeys,
                                   " keys"));
        metadata_keys_.push_back(Store(name));
        return true;
      default:
        return EntryKey(name);
    }
  }

  bool start_array(std::size_t) override {
    if (state_ != State::kEntry || field_ == Field::kDtype)
      return Value("an array");
    state_ = State::kNumbers;
    return true;
  }

  bool end_array() override {
    if (field_ == Field::kDataOffsets && offsets_ != 2)
      return FailEntry(kTwoOffsets);
    state_ = State::kEntry;
    return true;
  }

  // Names are compared as they are after unescaping: "a" is "\u0061".
  std::optional<std::string> FindDuplicate() {
    std::vector<Text> names = std::move(metadata_keys_);
    if (const auto name = FirstDuplicate(&names))
      return absl::StrCat("__metadata__: the key ", Quoted(*name),
                          " occurs twice");
    for (const auto& entry : out_.entries) names.push_back(entry.name);
    if (const auto name = FirstDuplicate(&names))
      return absl::StrCat("tensor ", Quoted(*name), " occurs twice");
    return std::nullopt;
  }

 private:
  enum class State { kStart, kTop, kMetadata, kEntry, kNumbers };

  static constexpr char kTwoOffsets[] =
      "\"data_offsets\" does not hold exactly two numbers";

  std::string_view View(Text text) const {
    return std::string_view(out_.text).substr(text.begin, text.size);
  }

  // The header's own limit keeps all text below 32 bits.
  Text Store(std::string_view text) {
    const Text stored = {static_cast<uint32_t>(out_.text.size()),
                         static_cast<uint32_t>(text.size())};
    out_.text.append(text);
    return stored;
  }

  // Sorts `names` and empties it.
  std::optional<std::string_view> FirstDuplicate(std::vector<Text>* names) {
    const auto less = [this](Text a, Text b) { return View(a) < View(b); };
    const auto same = [this](Text a, Text b) { return View(a) == View(b); };
    std::sort(names->begin(), names->end(), less);
    const auto found = std::adjacent_find(names->begin(), names->end(), same);
    if (found != names->end()) return View(*found);
    names->clear();
    return std::nullopt;
  }

  bool TopKey(std::string_view name) {
    in_metadata_ = name == kMetadataName;
    if (in_metadata_) {
      if (metadata_seen_) return Fail("\"__metadata__\" occurs twice");
      metadata_seen_ = true;
      return true;
    }
    if (name.empty()) return Fail("a tensor has an empty name");
    if (name.find('\0') != std::string_view::npos)
      return Fail(absl::StrCat("tensor ", Quoted(name),
                               " has a NUL character in its name"));
    entry_.name = Store(name);
    return true;
  }

  bool EntryKey(std::string_view name) {
    const auto found = std::find(kFieldNames.begin(), kFieldNames.end(), name);
    if (found == kFieldNames.end())
      return FailEntry(absl::StrCat("unknown field ", Quoted(name)));
    const auto index = static_cast<size_t>(found - kFieldNames.begin());
    if (seen_[index])
      return FailEntry(
          absl::StrCat("the field ", Quoted(name), " occurs twice"));
    seen_[index] = true;
    field_ = static_cast<Field>(index);
    return true;
  }

  bool FailEntry(std::string_view error) {
    return Fail(absl::StrCat("tensor ", Quoted(View(entry_.name)), ": ",
                             std::string(error)));
  }

  // A value of the kind `what` stands where the format wants another.
  bool Value(const std::string& what) {
    switch (state_) {
      case State::kStart:
        return Fail("the header is not a JSON object");
      case State::kTop:
        if (in_metadata_)
          return Fail(absl::StrCat("\"__metadata__\" is ", what,
                                   ", not an object of strings"));
        return FailEntry(
            absl::StrCat("described by ", what, ", not by an object"));
      case State::kMetadata:
        return Fail(absl::StrCat("__metadata__: the value of ",
                                 Quoted(View(metadata_keys_.back())), " is ",
                                 what, ", not a string"));
      case State::kEntry:
      case State::kNumbers:
        break;
    }
    const std::string wanted =
        field_ == Field::kDtype ? "not a string"
        : state_ == State::kEntry
            ? "not an array"
            : "not a whole number from 0 to 18446744073709551615";
    return FailEntry(absl::StrCat(
        "\"", kFieldNames[static_cast<size_t>(field_)],
        state_ == State::kNumbers ? "\" has " : "\" is ", what, ", ", wanted));
  }

  SafetensorsEntries& out_;
  State state_ = State::kStart;
  bool in_metadata_ = false;
  bool metadata_seen_ = false;
  std::vector<Text> metadata_keys_;
  // The entry that is being read.
  SafetensorsEntries::Entry entry_;
  Field field_ = Field::kDtype;
  std::array<bool, 3> seen_ = {};
  int offsets_ = 0;
};

}  // namespace

absl::StatusOr<SafetensorsEntries> ParseSafetensorsHeader(
    const RandomAccessFile& file, uint64_t begin, uint64_t size) {
  SafetensorsEntries entries;
  // What is reserved and not filled costs no memory; a buffer that doubles
  // does.
  entries.text.reserve(size);
  entries.entries.reserve(size / kMinEntrySize);
  HeaderHandler handler(&entries);
  QUIRE_RETURN_IF_ERROR(ParseJson(file, begin, size, &handler));
  if (const auto duplicate = handler.FindDuplicate())
    return absl::InvalidArgumentError(
        absl::StrCat(file.display_name(), ": ", *duplicate));
  return entries;
}

}  // namespace quire
