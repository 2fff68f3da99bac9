// Writes a pickle of plain data, value by value: protocol 4, with the few
// operations that every reader of it knows, the one in PyTorch's web viewer
// included.
//
// Containers are opened and closed around what they hold; a dict holds keys and
// values in turn. REQUIRES: what is opened is closed, and there is one value at
// the top.

#ifndef QUIRE_ALLOC_PICKLE_WRITER_H_
#define QUIRE_ALLOC_PICKLE_WRITER_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"

namespace quire {

class PickleWriter {
 public:
  PickleWriter();

  void Bool(bool value);
  void Number(uint64_t value);
  // REQUIRES: UTF-8. Equal texts are one object to the reader.
  void Text(std::string_view text);
  // A pair of numbers, as a tuple.
  void Pair(uint64_t first, uint64_t second);

  void BeginList();
  void EndList();
  void BeginDict();
  void EndDict();

  // Shorthands for the key and the value.
  void Field(std::string_view key, uint64_t value);
  void Field(std::string_view key, std::string_view value);

  // The pickle. Leaves the writer unusable.
  std::string Finish();

 private:
  struct Open {
    char append;       // the operation that takes a batch
    size_t batch = 0;  // values since the mark; 0: there is no mark
  };
  void Before();
  void After();
  void Begin(char operation, char append);
  void End();
  void Raw(uint64_t value);
  void LittleEndian(uint64_t number, size_t size);

  std::string out_;
  std::vector<Open> open_;
  absl::flat_hash_map<std::string, uint32_t> memo_;
};

}  // namespace quire

#endif  // QUIRE_ALLOC_PICKLE_WRITER_H_
