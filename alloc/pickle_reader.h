// Reads pickles of plain data: dicts, lists, tuples, strings, integers, floats,
// booleans and None.
//
// A pickle is a program that may call anything; this reader knows only the
// operations that build plain data, and refuses every other one, by name, where
// it stands. Protocols 2 to 5. Nothing recurses, and memory stays in proportion
// to the input.

#ifndef QUIRE_ALLOC_PICKLE_READER_H_
#define QUIRE_ALLOC_PICKLE_READER_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace quire {

// Values refer to each other by number: what a pickle mentions twice is one
// value here, as in Python.
class PickleDocument {
 public:
  enum class Kind : uint8_t {
    kNone,
    kBool,
    kInteger,
    kFloat,
    kString,
    kList,
    kTuple,
    kDict,
  };
  using Value = uint32_t;

  Kind kind(Value value) const { return nodes_[value].kind; }
  // REQUIRES for each: the kind says so.
  int64_t integer(Value value) const { return nodes_[value].integer; }
  double real(Value value) const { return nodes_[value].real; }
  const std::string& text(Value value) const {
    return strings_[nodes_[value].container];
  }
  // Elements of a list or tuple.
  const std::vector<Value>& items(Value value) const {
    return containers_[nodes_[value].container];
  }
  // The value of a key of a dict, where it is one: the last, as in Python.
  std::optional<Value> Find(Value dict, std::string_view key) const;

  Value root() const { return root_; }

 private:
  friend class PickleMachine;
  struct Node {
    Kind kind = Kind::kNone;
    union {
      int64_t integer = 0;  // and bool
      double real;
      uint32_t container;  // of strings_ or containers_
    };
  };

  std::vector<Node> nodes_;
  std::vector<std::string> strings_;
  // Elements, and keys and values of dicts in turn.
  std::vector<std::vector<Value>> containers_;
  Value root_ = 0;
};

// Errors: kInvalidArgument with the byte at fault.
absl::StatusOr<PickleDocument> ReadPickle(std::string_view contents);

}  // namespace quire

#endif  // QUIRE_ALLOC_PICKLE_READER_H_
