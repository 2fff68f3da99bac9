#include "alloc/pickle_reader.h"

#include <bit>
#include <limits>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "quire/alloc/status_macros.h"

namespace quire {
namespace {

// Operation codes, as in Python's Lib/pickle.py.
enum Operation : uint8_t {
  kMark = '(',
  kStop = '.',
  kNone = 'N',
  kTrue = 0x88,
  kFalse = 0x89,
  kInt4 = 'J',
  kInt1 = 'K',
  kInt2 = 'M',
  kLong1 = 0x8a,
  kFloat8 = 'G',
  kText1 = 0x8c,
  kText4 = 'X',
  kText8 = 0x8d,
  kEmptyList = ']',
  kAppend = 'a',
  kAppends = 'e',
  kEmptyTuple = ')',
  kTuple1 = 0x85,
  kTuple2 = 0x86,
  kTuple3 = 0x87,
  kTuple = 't',
  kEmptyDict = '}',
  kSetItem = 's',
  kSetItems = 'u',
  kPut1 = 'q',
  kPut4 = 'r',
  kMemoize = 0x94,
  kGet1 = 'h',
  kGet4 = 'j',
  kProtocol = 0x80,
  kFrame = 0x95,
};

// Those that look up, call or build something else, by their names: the error
// says what the file wanted.
const char* RefusedName(uint8_t operation) {
  switch (operation) {
    case 'c':
      return "GLOBAL";
    case 0x93:
      return "STACK_GLOBAL";
    case 'i':
      return "INST";
    case 'o':
      return "OBJ";
    case 0x81:
      return "NEWOBJ";
    case 0x92:
      return "NEWOBJ_EX";
    case 'R':
      return "REDUCE";
    case 'b':
      return "BUILD";
    case 'P':
      return "PERSID";
    case 'Q':
      return "BINPERSID";
    case 0x82:
      return "EXT1";
    case 0x83:
      return "EXT2";
    case 0x84:
      return "EXT4";
    default:
      return nullptr;
  }
}

}  // namespace

// The stack machine that a pickle is a program of.
class PickleMachine {
 public:
  explicit PickleMachine(std::string_view contents) : contents_(contents) {}

  absl::StatusOr<PickleDocument> Run() {
    QUIRE_RETURN_IF_ERROR(ReadProtocol());
    for (;;) {
      begin_ = at_;
      QUIRE_ASSIGN_OR_RETURN(const uint64_t operation, Fixed(1));
      if (operation == kStop) break;
      QUIRE_RETURN_IF_ERROR(Do(static_cast<uint8_t>(operation)));
    }
    if (!marks_.empty() || stack_.size() != 1) {
      return Error(absl::StrCat("the end, with ", stack_.size(),
                                " values instead of one"));
    }
    document_.root_ = stack_[0];
    return std::move(document_);
  }

 private:
  using Kind = PickleDocument::Kind;
  using Value = PickleDocument::Value;

  absl::Status Error(std::string_view what) const {
    return absl::InvalidArgumentError(
        absl::StrCat("byte ", begin_, " of the pickle: ", std::string(what)));
  }

  // ---- Input ----
  absl::StatusOr<std::string_view> Take(uint64_t size) {
    if (size > contents_.size() - at_) return Error("the file ends here");
    const std::string_view taken = contents_.substr(at_, size);
    at_ += size;
    return taken;
  }
  // Little-endian. REQUIRES: size <= 8.
  absl::StatusOr<uint64_t> Fixed(uint64_t size) {
    QUIRE_ASSIGN_OR_RETURN(const std::string_view bytes, Take(size));
    uint64_t number = 0;
    for (size_t i = 0; i < bytes.size(); ++i) {
      number |= uint64_t{static_cast<uint8_t>(bytes[i])} << (8 * i);
    }
    return number;
  }

  absl::Status ReadProtocol() {
    if (contents_.size() < 2 ||
        static_cast<uint8_t>(contents_[0]) != kProtocol) {
      return absl::InvalidArgumentError(
          "is no pickle of protocol 2 or later: it does not begin with 0x80");
    }
    const auto protocol = static_cast<uint8_t>(contents_[1]);
    if (protocol < 2 || protocol > 5) {
      return absl::InvalidArgumentError(
          absl::StrCat("pickle protocol ", protocol, " is none of 2 to 5"));
    }
    at_ = 2;
    return absl::OkStatus();
  }

  // ---- Values ----
  absl::Status Push(PickleDocument::Node node) {
    if (document_.nodes_.size() == std::numeric_limits<Value>::max()) {
      return Error("more values than 2^32");
    }
    stack_.push_back(static_cast<Value>(document_.nodes_.size()));
    document_.nodes_.push_back(node);
    return absl::OkStatus();
  }
  absl::Status PushNumber(Kind kind, int64_t number) {
    PickleDocument::Node node;
    node.kind = kind;
    node.integer = number;
    return Push(node);
  }
  absl::Status PushText(uint64_t size) {
    QUIRE_ASSIGN_OR_RETURN(const std::string_view text, Take(size));
    PickleDocument::Node node;
    node.kind = Kind::kString;
    node.container = static_cast<uint32_t>(document_.strings_.size());
    document_.strings_.emplace_back(text);
    return Push(node);
  }
  absl::Status PushContainer(Kind kind, std::vector<Value> items) {
    PickleDocument::Node node;
    node.kind = kind;
    node.container = static_cast<uint32_t>(document_.containers_.size());
    document_.containers_.push_back(std::move(items));
    return Push(node);
  }

  // The values above `size` on the stack, which lose their place.
  std::vector<Value> PopDownTo(size_t size) {
    const auto from = stack_.begin() + static_cast<std::ptrdiff_t>(size);
    std::vector<Value> popped(from, stack_.end());
    stack_.erase(from, stack_.end());
    return popped;
  }
  absl::StatusOr<std::vector<Value>> PopCount(size_t count) {
    // What lies below a mark belongs to something else.
    const size_t floor = marks_.empty() ? 0 : marks_.back();
    if (stack_.size() - floor < count) return Error("the stack is too short");
    return PopDownTo(stack_.size() - count);
  }
  absl::StatusOr<std::vector<Value>> PopToMark() {
    if (marks_.empty()) return Error("there is no mark");
    const size_t size = marks_.back();
    marks_.pop_back();
    return PopDownTo(size);
  }
  absl::Status Append(Kind kind, const std::vector<Value>& values) {
    if (stack_.size() <= (marks_.empty() ? 0 : marks_.back()) ||
        document_.kind(stack_.back()) != kind) {
      return Error(kind == Kind::kDict ? "there is no dict to set items of"
                                       : "there is no list to append to");
    }
    if (kind == Kind::kDict && values.size() % 2 != 0) {
      return Error("a key of a dict has no value");
    }
    std::vector<Value>& items =
        document_.containers_[document_.nodes_[stack_.back()].container];
    items.insert(items.end(), values.begin(), values.end());
    return absl::OkStatus();
  }
  absl::Status Remember(uint64_t number) {
    if (stack_.empty()) return Error("there is nothing to remember");
    memo_[number] = stack_.back();
    return absl::OkStatus();
  }
  absl::Status Recall(uint64_t number) {
    const auto found = memo_.find(number);
    if (found == memo_.end()) {
      return Error(absl::StrCat("memo ", number, " was never set"));
    }
    stack_.push_back(found->second);
    return absl::OkStatus();
  }

  absl::Status Do(uint8_t operation);

  const std::string_view contents_;
  size_t at_ = 0;
  size_t begin_ = 0;  // of the operation at hand
  PickleDocument document_;
  std::vector<Value> stack_;
  std::vector<size_t> marks_;  // sizes of the stack
  absl::flat_hash_map<uint64_t, Value> memo_;
};

absl::Status PickleMachine::Do(uint8_t operation) {
  switch (operation) {
    case kMark:
      marks_.push_back(stack_.size());
      return absl::OkStatus();
    case kNone:
      return PushNumber(Kind::kNone, 0);
    case kTrue:
    case kFalse:
      return PushNumber(Kind::kBool, operation == kTrue ? 1 : 0);
    case kInt1:
    case kInt2: {
      QUIRE_ASSIGN_OR_RETURN(const uint64_t n,
                             Fixed(operation == kInt1 ? 1 : 2));
      return PushNumber(Kind::kInteger, static_cast<int64_t>(n));
    }
    case kInt4: {
      QUIRE_ASSIGN_OR_RETURN(const uint64_t n, Fixed(4));
      return PushNumber(Kind::kInteger,
                        static_cast<int32_t>(static_cast<uint32_t>(n)));
    }
    case kLong1: {
      QUIRE_ASSIGN_OR_RETURN(const uint64_t size, Fixed(1));
      if (size > 8) return Error("an integer of more than 64 bits");
      QUIRE_ASSIGN_OR_RETURN(uint64_t n, Fixed(size));
      // Two's complement in as few bytes as do.
      const uint64_t sign_bit = size == 0 ? 0 : uint64_t{1} << (8 * size - 1);
      if ((n & sign_bit) != 0 && size < 8) n |= ~uint64_t{0} << (8 * size);
      return PushNumber(Kind::kInteger, static_cast<int64_t>(n));
    }
    case kFloat8: {
      QUIRE_ASSIGN_OR_RETURN(const uint64_t n, Fixed(8));
      PickleDocument::Node node;
      node.kind = Kind::kFloat;
      node.real = std::bit_cast<double>(__builtin_bswap64(n));
      return Push(node);
    }
    case kText1:
    case kText4:
    case kText8: {
      QUIRE_ASSIGN_OR_RETURN(const uint64_t size,
                             Fixed(operation == kText1   ? 1
                                   : operation == kText4 ? 4
                                                         : 8));
      return PushText(size);
    }
    case kEmptyList:
      return PushContainer(Kind::kList, {});
    case kEmptyDict:
      return PushContainer(Kind::kDict, {});
    case kEmptyTuple:
      return PushContainer(Kind::kTuple, {});
    case kTuple1:
    case kTuple2:
    case kTuple3: {
      QUIRE_ASSIGN_OR_RETURN(
          std::vector<Value> items,
          PopCount(static_cast<size_t>(operation - kTuple1) + 1));
      return PushContainer(Kind::kTuple, std::move(items));
    }
    case kTuple: {
      QUIRE_ASSIGN_OR_RETURN(std::vector<Value> items, PopToMark());
      return PushContainer(Kind::kTuple, std::move(items));
    }
    case kAppend:
    case kSetItem: {
      QUIRE_ASSIGN_OR_RETURN(const std::vector<Value> items,
                             PopCount(operation == kAppend ? 1 : 2));
      return Append(operation == kAppend ? Kind::kList : Kind::kDict, items);
    }
    case kAppends:
    case kSetItems: {
      QUIRE_ASSIGN_OR_RETURN(const std::vector<Value> items, PopToMark());
      return Append(operation == kAppends ? Kind::kList : Kind::kDict, items);
    }
    case kPut1:
    case kPut4: {
      QUIRE_ASSIGN_OR_RETURN(const uint64_t number,
                             Fixed(operation == kPut1 ? 1 : 4));
      return Remember(number);
    }
    case kMemoize:
      return Remember(memo_.size());
    case kGet1:
    case kGet4: {
      QUIRE_ASSIGN_OR_RETURN(const uint64_t number,
                             Fixed(operation == kGet1 ? 1 : 4));
      return Recall(number);
    }
    case kFrame:
      // Frames only say how much to read at once.
      return Fixed(8).status();
    default:
      break;
  }
  if (const char* const name = RefusedName(operation)) {
    return Error(absl::StrCat(name, " is refused: it makes more than data"));
  }
  return Error(absl::StrFormat("operation %#04x does not build plain data",
                               static_cast<unsigned>(operation)));
}

std::optional<PickleDocument::Value> PickleDocument::Find(
    Value dict, std::string_view key) const {
  if (kind(dict) != Kind::kDict) return std::nullopt;
  const std::vector<Value>& items = containers_[nodes_[dict].container];
  for (size_t i = items.size(); i > 0; i -= 2) {
    if (kind(items[i - 2]) == Kind::kString && text(items[i - 2]) == key) {
      return items[i - 1];
    }
  }
  return std::nullopt;
}

absl::StatusOr<PickleDocument> ReadPickle(std::string_view contents) {
  return PickleMachine(contents).Run();
}

}  // namespace quire
