// Quire's own CSV of allocation traces. docs/trace_formats.md describes it.

#include <array>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "alloc/allocation_trace_builder.h"
#include "alloc/csv.h"
#include "quire/alloc/status_macros.h"
#include "quire/alloc/trace_formats.h"

namespace quire {
namespace {

struct CsvOperation {
  std::string_view name;  // what the writer writes
  std::string_view letter;
  AllocationAction action;
};

constexpr std::array<CsvOperation, 8> kCsvOperations = {{
    {"live", "p", AllocationAction::kLive},
    {"alloc", "a", AllocationAction::kAllocate},
    {"free", "f", AllocationAction::kFree},
    {"record", "r", AllocationAction::kRecordStream},
    {"fail", "x", AllocationAction::kFailure},
    {"reserve", "s", AllocationAction::kReserve},
    {"release", "d", AllocationAction::kRelease},
    {"mark", "m", AllocationAction::kMark},
}};

// Where each column is in the file at hand. A name that is none of these is
// refused: a misspelt one would be lost without a word.
struct QuireColumns {
  std::optional<size_t> seq, t_us, t_ns, thread, op, id, bytes, alignment,
      stream, owner, phase;

  static absl::StatusOr<QuireColumns> Of(const CsvReader& csv);
};

absl::StatusOr<QuireColumns> QuireColumns::Of(const CsvReader& csv) {
  QuireColumns columns;
  const std::map<std::string, std::optional<size_t>*> known = {
      {"seq", &columns.seq},       {"t_us", &columns.t_us},
      {"t_ns", &columns.t_ns},     {"thread", &columns.thread},
      {"op", &columns.op},         {"id", &columns.id},
      {"bytes", &columns.bytes},   {"alignment", &columns.alignment},
      {"stream", &columns.stream}, {"owner", &columns.owner},
      {"phase", &columns.phase}};
  for (size_t i = 0; i < csv.columns().size(); ++i) {
    const auto column = known.find(csv.columns()[i]);
    if (column == known.end()) {
      return csv.LineError(
          absl::StrCat("column ", i + 1,
                       " of the header is none of seq, t_us, t_ns, thread, op, "
                       "id, bytes, alignment, stream, owner, phase"));
    }
    *column->second = i;
  }
  for (const char* name : {"op", "id", "bytes"}) {
    if (known.at(name)->has_value()) continue;
    return csv.LineError(
        absl::StrCat("the header has no column \"", name, "\""));
  }
  if (columns.t_us && columns.t_ns) {
    return csv.LineError("the header has both t_us and t_ns");
  }
  return columns;
}

absl::StatusOr<uint64_t> NumberOr0(const CsvReader& csv,
                                   std::optional<size_t> column) {
  if (!column) return 0;
  return csv.Number(*column);
}

absl::StatusOr<uint64_t> Nanoseconds(const CsvReader& csv,
                                     const QuireColumns& columns) {
  if (columns.t_ns) return csv.Number(*columns.t_ns);
  QUIRE_ASSIGN_OR_RETURN(const uint64_t us, NumberOr0(csv, columns.t_us));
  const auto ns = CheckedMultiply(us, 1000);
  if (!ns) return csv.FieldError(*columns.t_us, "is too late a time");
  return *ns;
}

absl::StatusOr<AllocationAction> Action(const CsvReader& csv, size_t column) {
  for (const CsvOperation& operation : kCsvOperations) {
    if (csv.Text(column) == operation.name ||
        csv.Text(column) == operation.letter) {
      return operation.action;
    }
  }
  return csv.FieldError(column, "is no operation");
}

// A mark's number counts steps within its phase.
std::string MarkText(const std::string& phase, uint64_t step) {
  return step == 0 ? phase : absl::StrCat(phase, " ", step);
}

absl::Status ReadLine(const CsvReader& csv, const QuireColumns& columns,
                      bool* recording, AllocationTraceBuilder* trace) {
  AllocationEvent event;
  QUIRE_ASSIGN_OR_RETURN(event.action, Action(csv, *columns.op));
  QUIRE_ASSIGN_OR_RETURN(event.nanoseconds, Nanoseconds(csv, columns));
  QUIRE_ASSIGN_OR_RETURN(const uint64_t id, csv.Number(*columns.id));
  QUIRE_ASSIGN_OR_RETURN(const uint64_t bytes, csv.Number(*columns.bytes));
  event.size = Bytes(bytes);
  QUIRE_ASSIGN_OR_RETURN(event.thread, NumberOr0(csv, columns.thread));
  QUIRE_ASSIGN_OR_RETURN(event.stream, NumberOr0(csv, columns.stream));
  QUIRE_ASSIGN_OR_RETURN(const uint64_t alignment,
                         NumberOr0(csv, columns.alignment));
  if (alignment != 0 && !IsPowerOfTwo(alignment)) {
    return csv.FieldError(*columns.alignment, "is not a power of two");
  }
  event.alignment = Bytes(alignment);
  if (event.action != AllocationAction::kMark && columns.owner) {
    event.label = trace->Label(csv.Text(*columns.owner));
  }
  absl::Status status;
  switch (event.action) {
    case AllocationAction::kLive:
      if (*recording) {
        return csv.FieldError(*columns.op, "comes after what was recorded");
      }
      [[fallthrough]];
    case AllocationAction::kAllocate:
      status = trace->Begin(id, event);
      break;
    case AllocationAction::kFree:
    case AllocationAction::kRecordStream:
      status = trace->Continue(id, event);
      break;
    case AllocationAction::kMark:
      if (columns.phase) {
        event.label = trace->Label(MarkText(csv.Text(*columns.phase), id));
      }
      event.size = Bytes(0);
      trace->Add(event);
      break;
    case AllocationAction::kFailure:
    case AllocationAction::kReserve:
    case AllocationAction::kRelease:
      trace->Add(event);
      break;
  }
  *recording = event.action != AllocationAction::kLive;
  if (!status.ok()) return csv.LineError(std::string(status.message()));
  return absl::OkStatus();
}

std::string_view Name(AllocationAction action) {
  for (const CsvOperation& operation : kCsvOperations) {
    if (operation.action == action) return operation.name;
  }
  return "mark";
}

}  // namespace

absl::StatusOr<AllocationTrace> ReadQuireCsv(std::string_view contents) {
  QUIRE_ASSIGN_OR_RETURN(CsvReader csv, CsvReader::Create(contents));
  QUIRE_ASSIGN_OR_RETURN(const QuireColumns columns, QuireColumns::Of(csv));
  AllocationTraceBuilder trace;
  bool recording = false;
  for (;;) {
    QUIRE_ASSIGN_OR_RETURN(const bool more, csv.Next());
    if (!more) return trace.Finish();
    QUIRE_RETURN_IF_ERROR(ReadLine(csv, columns, &recording, &trace));
  }
}

std::string WriteQuireCsv(const AllocationTrace& trace) {
  std::string out = "t_ns,thread,op,id,bytes,alignment,stream,owner,phase\n";
  for (const AllocationEvent& event : trace.events) {
    const bool mark = event.action == AllocationAction::kMark;
    const std::string label = CsvField(trace.labels[event.label]);
    const std::string_view name = Name(event.action);
    absl::StrAppend(&out, event.nanoseconds, ",", event.thread, ",",
                    std::string(name), ",", event.allocation, ",",
                    event.size.value(), ",", event.alignment.value(), ",");
    absl::StrAppend(&out, event.stream, ",", mark ? "" : label, ",",
                    mark ? label : "", "\n");
  }
  return out;
}

}  // namespace quire
