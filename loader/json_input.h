// Feeds a range of a file to the JSON parser in bounded memory.
//
// nlohmann's lexer keeps every character since the last string or number, and
// every string twice. Left alone, 100 MB of spaces or one endless string would
// take several times their size. This input therefore reads 64 KiB at a time,
// passes on one space where several stand outside strings, and ends with an
// error where a string, or a stretch without any string, exceeds kMaxRun, or
// where a NUL byte stands, which the lexer takes for the end of the text.
// What is delivered parses to the same value as the bytes in the file.

#ifndef QUIRE_LOADER_JSON_INPUT_H_
#define QUIRE_LOADER_JSON_INPUT_H_

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <vector>

#include "absl/status/status.h"
#include "loader/random_access_file.h"

namespace quire {

class JsonInput {
 public:
  static constexpr uint64_t kMaxRun = 8 << 20;

  // REQUIRES: the range lies in the file, which outlives this.
  JsonInput(const RandomAccessFile& file, uint64_t begin, uint64_t size);

  class Iterator {
   public:
    using iterator_category = std::input_iterator_tag;
    using value_type = char;
    using difference_type = std::ptrdiff_t;
    using pointer = const char*;
    using reference = char;

    char operator*() const {
      input_->Settle();
      return input_->current_;
    }
    Iterator& operator++() {
      input_->Settle();
      input_->advance_due_ = true;
      return *this;
    }
    // All iterators of one input stand at the same place.
    bool operator==(const Iterator& other) const {
      return AtEnd() == other.AtEnd();
    }
    bool operator!=(const Iterator& other) const { return !(*this == other); }

   private:
    friend class JsonInput;
    explicit Iterator(JsonInput* input) : input_(input) {}
    bool AtEnd() const {
      if (input_ == nullptr) return true;
      input_->Settle();
      return input_->at_end_;
    }
    JsonInput* input_;
  };

  Iterator begin() { return Iterator(this); }
  Iterator end() { return Iterator(nullptr); }

  // Of the byte that was delivered last, counted from the begin of the range;
  // the end of the range where the parser has seen that.
  uint64_t position() const { return at_end_ ? consumed_ : consumed_ - 1; }
  // Why the input ended early: a failed read, or a run beyond the limit.
  const absl::Status& status() const { return status_; }

 private:
  // Advancing waits until the next character is looked at, so that position()
  // is where the parser is, not one further.
  void Settle() {
    if (!advance_due_) return;
    advance_due_ = false;
    Advance();
  }
  void Advance();
  bool Fill();

  const RandomAccessFile& file_;
  const uint64_t begin_;  // of the range, in the file
  uint64_t next_offset_;  // in the file
  uint64_t unread_;       // bytes of the range that are still in the file
  std::vector<char> buffer_;
  size_t next_ = 0;  // in the buffer
  uint64_t consumed_ = 0;
  uint64_t run_ = 0;  // characters since the last begin of a string
  char current_ = 0;
  bool advance_due_ = true;
  bool at_end_ = false;
  bool in_string_ = false;
  bool escaped_ = false;
  bool after_space_ = false;
  absl::Status status_;
};

}  // namespace quire

#endif  // QUIRE_LOADER_JSON_INPUT_H_
