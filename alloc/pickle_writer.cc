#include "alloc/pickle_writer.h"

#include <bit>
#include <utility>

namespace quire {
namespace {

// As Python's own: readers may put a batch on their stack.
constexpr size_t kBatch = 1000;

}  // namespace

PickleWriter::PickleWriter() : out_("\x80\x04") {}

void PickleWriter::LittleEndian(uint64_t number, size_t size) {
  for (size_t i = 0; i < size; ++i) {
    out_ += static_cast<char>(i < 8 ? number >> (8 * i) & 0xff : 0);
  }
}

void PickleWriter::Before() {
  if (open_.empty() || open_.back().batch > 0) return;
  out_ += '(';
}

void PickleWriter::After() {
  if (open_.empty()) return;
  Open& container = open_.back();
  if (++container.batch < 2 * kBatch) return;  // even: whole pairs
  out_ += container.append;
  container.batch = 0;
}

void PickleWriter::Begin(char operation, char append) {
  Before();
  out_ += operation;
  open_.push_back({append});
}

void PickleWriter::End() {
  if (open_.back().batch > 0) out_ += open_.back().append;
  open_.pop_back();
  After();
}

void PickleWriter::BeginList() { Begin(']', 'e'); }
void PickleWriter::EndList() { End(); }
void PickleWriter::BeginDict() { Begin('}', 'u'); }
void PickleWriter::EndDict() { End(); }

void PickleWriter::Bool(bool value) {
  Before();
  out_ += value ? '\x88' : '\x89';
  After();
}

void PickleWriter::Raw(uint64_t value) {
  if (value <= 0xff) {
    out_ += 'K';
    LittleEndian(value, 1);
  } else if (value <= 0xffff) {
    out_ += 'M';
    LittleEndian(value, 2);
  } else if (value <= 0x7fffffff) {
    out_ += 'J';
    LittleEndian(value, 4);
  } else {
    // Two's complement: one bit is for the sign.
    const auto size = static_cast<size_t>(std::bit_width(value) / 8 + 1);
    out_ += '\x8a';
    LittleEndian(size, 1);
    LittleEndian(value, size);
  }
}

void PickleWriter::Number(uint64_t value) {
  Before();
  Raw(value);
  After();
}

void PickleWriter::Pair(uint64_t first, uint64_t second) {
  Before();
  Raw(first);
  Raw(second);
  out_ += '\x86';
  After();
}

void PickleWriter::Text(std::string_view text) {
  Before();
  const auto [known, added] =
      memo_.emplace(std::string(text), static_cast<uint32_t>(memo_.size()));
  if (added) {
    out_ += 'X';
    LittleEndian(text.size(), 4);
    out_ += text;
    out_ += '\x94';
  } else if (known->second <= 0xff) {
    out_ += 'h';
    LittleEndian(known->second, 1);
  } else {
    out_ += 'j';
    LittleEndian(known->second, 4);
  }
  After();
}

void PickleWriter::Field(std::string_view key, uint64_t value) {
  Text(key);
  Number(value);
}

void PickleWriter::Field(std::string_view key, std::string_view value) {
  Text(key);
  Text(value);
}

std::string PickleWriter::Finish() {
  out_ += '.';
  return std::move(out_);
}

}  // namespace quire
