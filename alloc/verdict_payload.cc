// How a verdict travels as the payload of a status.
//
// Decimal numbers, each ended by a space; strings as length, space, bytes;
// lists as length and elements. Transfer lists the fields once, for both
// directions.

#include <charconv>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/cord.h"
#include "quire/alloc/verdict.h"

namespace quire {
namespace {

constexpr char kPayloadUrl[] = "quire/out-of-memory-verdict";
// First in the payload, so that a later layout is not misread as this one.
constexpr uint64_t kPayloadVersion = 4;

class Writer {
 public:
  void Number(uint64_t* number) {
    payload_ += std::to_string(*number);
    payload_ += ' ';
  }
  void Text(std::string* text) {
    uint64_t size = text->size();
    Number(&size);
    payload_ += *text;
  }
  template <typename T, typename Element>
  void List(std::vector<T>* list, Element element) {
    uint64_t size = list->size();
    Number(&size);
    for (T& each : *list) element(&each);
  }

  const std::string& payload() const { return payload_; }

 private:
  std::string payload_;
};

// Once something is missing, every field reads as 0 and ok() is false.
class Reader {
 public:
  explicit Reader(std::string_view text) : text_(text) {}

  void Number(uint64_t* number) {
    *number = 0;
    const char* const end = text_.data() + text_.size();
    const auto [at, error] = std::from_chars(text_.data(), end, *number);
    if (error != std::errc() || at == end || *at != ' ') {
      Fail();
      *number = 0;
      return;
    }
    text_.remove_prefix(static_cast<size_t>(at + 1 - text_.data()));
  }
  void Text(std::string* text) {
    uint64_t size = 0;
    Number(&size);
    if (size > text_.size()) return Fail();
    *text = text_.substr(0, size);
    text_.remove_prefix(size);
  }
  template <typename T, typename Element>
  void List(std::vector<T>* list, Element element) {
    uint64_t size = 0;
    Number(&size);
    // Every element takes a byte at least: a number that is made up ends here.
    for (uint64_t i = 0; i < size && ok(); ++i) {
      list->emplace_back();
      element(&list->back());
    }
  }

  bool ok() const { return !failed_; }
  bool at_end() const { return text_.empty(); }

 private:
  void Fail() {
    failed_ = true;
    text_ = {};
  }

  std::string_view text_;
  bool failed_ = false;
};

template <typename Archive>
void TransferBytes(Archive* archive, Bytes* bytes) {
  uint64_t number = bytes->value();
  archive->Number(&number);
  *bytes = Bytes(number);
}

template <typename Archive>
void TransferOwnerLimit(Archive* archive,
                        std::optional<OwnerShortage>* owner_limit) {
  uint64_t exists = owner_limit->has_value() ? 1 : 0;
  archive->Number(&exists);
  if (exists == 0) return;
  if (!*owner_limit) owner_limit->emplace();
  archive->Text(&(*owner_limit)->owner);
  TransferBytes(archive, &(*owner_limit)->limit);
  TransferBytes(archive, &(*owner_limit)->live);
}

template <typename Archive>
void Transfer(Archive* archive, uint64_t* kind, OutOfMemoryVerdict* verdict) {
  archive->Number(kind);
  for (Bytes* const bytes :
       {&verdict->requested, &verdict->free, &verdict->largest_possible,
        &verdict->limit, &verdict->device_total, &verdict->cooling,
        &verdict->held_as_slack, &verdict->mesh_frees,
        &verdict->relocation_frees, &verdict->sleep_frees,
        &verdict->reserved_for_others}) {
    TransferBytes(archive, bytes);
  }
  TransferOwnerLimit(archive, &verdict->owner_limit);
  archive->List(&verdict->owners, [&](auto* owner) {
    archive->Text(&owner->first);
    TransferBytes(archive, &owner->second);
  });
  archive->List(&verdict->awaited, [&](AwaitedStream* awaited) {
    uint64_t stream = awaited->stream.value();
    archive->Number(&stream);
    awaited->stream = StreamId(stream);
    TransferBytes(archive, &awaited->cooling);
  });
  archive->List(&verdict->recent, [&](RecentEvent* event) {
    archive->Number(&event->nanoseconds_before);
    archive->Text(&event->action);
    archive->Text(&event->owner);
    TransferBytes(archive, &event->size);
    archive->Text(&event->label);
  });
  archive->Text(&verdict->advice);
}

}  // namespace

absl::Status OutOfMemoryVerdict::ToStatus() const {
  Writer writer;
  uint64_t version = kPayloadVersion;
  writer.Number(&version);
  // A writer changes nothing.
  OutOfMemoryVerdict copy = *this;
  auto kind_number = static_cast<uint64_t>(kind);
  Transfer(&writer, &kind_number, &copy);
  absl::Status status = absl::ResourceExhaustedError(ToString());
  status.SetPayload(kPayloadUrl, absl::Cord(writer.payload()));
  return status;
}

std::optional<OutOfMemoryVerdict> OutOfMemoryVerdict::FromStatus(
    const absl::Status& status) {
  const auto payload = status.GetPayload(kPayloadUrl);
  if (!payload.has_value()) return std::nullopt;
  const std::string text(*payload);
  Reader reader(text);
  uint64_t version = 0;
  reader.Number(&version);
  if (!reader.ok() || version != kPayloadVersion) return std::nullopt;
  uint64_t kind_number = 0;
  OutOfMemoryVerdict verdict;
  Transfer(&reader, &kind_number, &verdict);
  if (!reader.ok() || !reader.at_end() ||
      kind_number > static_cast<uint64_t>(ShortageKind::kMappings)) {
    return std::nullopt;
  }
  verdict.kind = static_cast<ShortageKind>(kind_number);
  return verdict;
}

}  // namespace quire
