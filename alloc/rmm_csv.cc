// The log of RMM's logging_resource_adaptor.
//
// Its peculiarities, as far as they matter here: times are those of the day,
// and the seconds' fraction follows a point or, in older versions, a colon;
// pointers are hexadecimal whether or not they begin with 0x, and "(nil)" for
// requests that failed; streams are pointers too (0, 1 and 2 are CUDA's default
// streams), which RMM's own replay reads as 0.

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <string_view>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "alloc/allocation_trace_builder.h"
#include "alloc/csv.h"
#include "quire/alloc/status_macros.h"
#include "quire/alloc/trace_formats.h"

namespace quire {
namespace {

constexpr uint64_t kSecond = 1'000'000'000;
constexpr uint64_t kDay = 86'400 * kSecond;

// The columns have these names; in files they may stand in any order.
struct RmmColumns {
  size_t thread, time, action, pointer, size, stream;

  static absl::StatusOr<RmmColumns> Of(const CsvReader& csv) {
    std::array<size_t, 6> at;
    constexpr std::array<const char*, 6> kNames = {"Thread",  "Time", "Action",
                                                   "Pointer", "Size", "Stream"};
    for (size_t i = 0; i < kNames.size(); ++i) {
      const std::optional<size_t> column = csv.Find(kNames[i]);
      if (!column) {
        return csv.LineError(
            absl::StrCat("the header has no column \"", kNames[i], "\""));
      }
      at[i] = *column;
    }
    return RmmColumns{at[0], at[1], at[2], at[3], at[4], at[5]};
  }
};

// "14:21:19.998533" or "14:21:19:998533", as nanoseconds of the day.
std::optional<uint64_t> TimeOfDay(std::string_view text) {
  constexpr std::string_view kForm = "dd:dd:dd.dddddd";
  if (text.size() != kForm.size()) return std::nullopt;
  for (size_t i = 0; i < text.size(); ++i) {
    const bool fits = kForm[i] == 'd'   ? text[i] >= '0' && text[i] <= '9'
                      : kForm[i] == '.' ? text[i] == '.' || text[i] == ':'
                                        : text[i] == kForm[i];
    if (!fits) return std::nullopt;
  }
  const auto number = [&](size_t at, size_t length) {
    return ParseUnsigned(text.substr(at, length)).value_or(0);
  };
  // A leap second has the number 60.
  if (number(0, 2) > 23 || number(3, 2) > 59 || number(6, 2) > 60) {
    return std::nullopt;
  }
  return ((number(0, 2) * 60 + number(3, 2)) * 60 + number(6, 2)) * kSecond +
         number(9, 6) * 1000;
}

// Lines of several threads may be out of order by a little; a step back by
// hours is midnight.
class RmmClock {
 public:
  uint64_t SinceFirst(uint64_t time_of_day) {
    if (!first_) first_ = last_ = time_of_day;
    uint64_t now = days_ * kDay + time_of_day;
    if (now + kDay / 2 < last_) {
      ++days_;
      now += kDay;
    }
    last_ = std::max(last_, now);
    return last_ - *first_;
  }

 private:
  std::optional<uint64_t> first_;
  uint64_t last_ = 0;
  uint64_t days_ = 0;
};

std::optional<uint64_t> Pointer(std::string_view text) {
  if (text == "(nil)") return 0;
  if (text.substr(0, 2) != "0x") {
    return ParseUnsigned(absl::StrCat("0x", std::string(text)));
  }
  return ParseUnsigned(text);
}

absl::Status ReadLine(const CsvReader& csv, const RmmColumns& columns,
                      RmmClock* clock, AllocationTraceBuilder* trace) {
  AllocationEvent event;
  QUIRE_ASSIGN_OR_RETURN(event.thread, csv.Number(columns.thread));
  const std::optional<uint64_t> time = TimeOfDay(csv.Text(columns.time));
  if (!time) {
    return csv.FieldError(columns.time, "is not a time like 14:21:19.998533");
  }
  event.nanoseconds = clock->SinceFirst(*time);
  QUIRE_ASSIGN_OR_RETURN(const uint64_t size, csv.Number(columns.size));
  event.size = Bytes(size);
  const std::optional<uint64_t> stream =
      csv.Text(columns.stream) == "(nil)"
          ? 0
          : ParseUnsigned(csv.Text(columns.stream));
  if (!stream) return csv.FieldError(columns.stream, "is not a stream");
  event.stream = *stream;
  const std::optional<uint64_t> pointer = Pointer(csv.Text(columns.pointer));
  if (!pointer) return csv.FieldError(columns.pointer, "is not a pointer");

  const std::string& action = csv.Text(columns.action);
  if (action == "allocate failure") {
    event.action = AllocationAction::kFailure;
    trace->Add(event);
    return absl::OkStatus();
  }
  // RMM gives null for 0 bytes, as often as asked: nothing to follow.
  if (*pointer == 0 && size == 0 && (action == "allocate" || action == "free"))
    return absl::OkStatus();
  if (action == "allocate") {
    event.action = AllocationAction::kAllocate;
    if (trace->IsLive(*pointer)) {
      return csv.FieldError(columns.pointer, "is allocated already");
    }
    return trace->Begin(*pointer, event);
  }
  if (action == "free") {
    event.action = AllocationAction::kFree;
    trace->ContinueOlder(*pointer, event);
    return absl::OkStatus();
  }
  return csv.FieldError(columns.action,
                        "is none of allocate, allocate failure, free");
}

std::string TimeOfDayText(uint64_t nanoseconds) {
  const uint64_t us = nanoseconds % kDay / 1000;
  return absl::StrFormat("%02u:%02u:%02u.%06u", us / 3'600'000'000,
                         us / 60'000'000 % 60, us / 1'000'000 % 60,
                         us % 1'000'000);
}

}  // namespace

absl::StatusOr<AllocationTrace> ReadRmmCsv(std::string_view contents) {
  QUIRE_ASSIGN_OR_RETURN(CsvReader csv, CsvReader::Create(contents));
  QUIRE_ASSIGN_OR_RETURN(const RmmColumns columns, RmmColumns::Of(csv));
  AllocationTraceBuilder trace;
  RmmClock clock;
  for (;;) {
    QUIRE_ASSIGN_OR_RETURN(const bool more, csv.Next());
    if (!more) return trace.Finish();
    QUIRE_RETURN_IF_ERROR(ReadLine(csv, columns, &clock, &trace));
  }
}

std::string WriteRmmCsv(const AllocationTrace& trace) {
  // Distinct for each allocation, and never null.
  const auto pointer = [](uint64_t allocation) {
    return absl::StrFormat("%#x", (allocation + 1) * 256);
  };
  absl::flat_hash_map<uint64_t, Bytes> sizes;
  std::string out = "Thread,Time,Action,Pointer,Size,Stream\n";
  for (const AllocationEvent& event : trace.events) {
    const char* action = nullptr;
    std::string address = "(nil)";
    Bytes size = event.size;
    switch (event.action) {
      case AllocationAction::kLive:
      case AllocationAction::kAllocate:
        action = "allocate";
        address = pointer(event.allocation);
        sizes[event.allocation] = size;
        break;
      case AllocationAction::kFree:
        action = "free";
        address = pointer(event.allocation);
        size = sizes[event.allocation];
        break;
      case AllocationAction::kFailure:
        action = "allocate failure";
        break;
      case AllocationAction::kRecordStream:
      case AllocationAction::kReserve:
      case AllocationAction::kRelease:
      case AllocationAction::kMark:
        continue;
    }
    absl::StrAppendFormat(&out, "%u,%s,%s,%s,%u,%#x\n", event.thread,
                          TimeOfDayText(event.nanoseconds), action, address,
                          size.value(), event.stream);
  }
  return out;
}

}  // namespace quire
