#include "bench/serving/traces.h"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "bench/serving/servegen_trace.h"
#include "bench/serving/trace_lines.h"
#include "nlohmann/json.hpp"
#include "quire/alloc/status_macros.h"
#include "quire/loader/json_text.h"

namespace quire {
namespace {

// Statistics give as many requests as are asked for.
constexpr uint64_t kDrawnRequests = 10'000;

using Requests = std::vector<StressRequest>;

// Where a table of requests has what is needed of it, by the names of its
// columns.
struct Columns {
  size_t count = 0;
  std::optional<size_t> timestamp;  // azure
  std::optional<size_t> seconds;    // vidur, where it has times
  std::optional<size_t> prompt;
  std::optional<size_t> output;
};

Columns ReadColumns(const std::string& header) {
  const std::vector<std::string> names = absl::StrSplit(header, ',');
  const auto find = [&](std::string_view name) -> std::optional<size_t> {
    const auto found = std::find(names.begin(), names.end(), name);
    if (found == names.end()) return std::nullopt;
    return static_cast<size_t>(found - names.begin());
  };
  Columns columns = {names.size(), find("TIMESTAMP"), find("arrived_at"),
                     find("ContextTokens"), find("GeneratedTokens")};
  if (!columns.timestamp) {
    columns.prompt = find("num_prefill_tokens");
    columns.output = find("num_decode_tokens");
  }
  return columns;
}

absl::StatusOr<Requests> ReadTable(TraceLines lines, const Columns& columns,
                                   const TraceOptions& options) {
  Requests requests;
  StressRandom random(options.seed);
  double drawn = 0;
  while (requests.size() < options.max_requests && lines.Next()) {
    QUIRE_ASSIGN_OR_RETURN(const auto fields, lines.Fields(columns.count));
    StressRequest request;
    if (columns.timestamp) {
      QUIRE_ASSIGN_OR_RETURN(request.arrival,
                             lines.Timestamp(fields[*columns.timestamp]));
    } else if (columns.seconds) {
      QUIRE_ASSIGN_OR_RETURN(request.arrival,
                             lines.Number(fields[*columns.seconds]));
    } else {
      drawn += random.Exponential(1 / options.arrivals_per_second);
      request.arrival = drawn;
    }
    QUIRE_ASSIGN_OR_RETURN(request.prompt,
                           lines.Length(fields[*columns.prompt]));
    QUIRE_ASSIGN_OR_RETURN(request.output,
                           lines.Length(fields[*columns.output]));
    requests.push_back(std::move(request));
  }
  return requests;
}

absl::StatusOr<uint64_t> Entry(const TraceLines& lines,
                               const nlohmann::json& object, const char* key) {
  const auto it = object.find(key);
  if (it == object.end() || !it->is_number_unsigned())
    return lines.Error(
        absl::StrCat(key, " is not there as a number from 0 on"));
  return it->get<uint64_t>();
}

absl::StatusOr<StressRequest> MooncakeRequest(const TraceLines& lines) {
  const absl::StatusOr<nlohmann::json> parsed =
      ParseJsonText(lines.text(), "line");
  if (!parsed.ok() || !parsed->is_object())
    return lines.Error("is no JSON object");
  const nlohmann::json& object = *parsed;
  StressRequest request;
  QUIRE_ASSIGN_OR_RETURN(const uint64_t milliseconds,
                         Entry(lines, object, "timestamp"));
  QUIRE_ASSIGN_OR_RETURN(request.prompt, Entry(lines, object, "input_length"));
  QUIRE_ASSIGN_OR_RETURN(request.output, Entry(lines, object, "output_length"));
  request.arrival = static_cast<double>(milliseconds) / 1e3;
  constexpr uint64_t kLongest = uint64_t{1} << 32;
  if (request.prompt == 0 || request.output == 0 ||
      std::max(request.prompt, request.output) > kLongest)
    return lines.Error(absl::StrCat("lengths of ", request.prompt, " and ",
                                    request.output, " tokens"));

  const auto ids = object.find("hash_ids");
  if (ids == object.end() || !ids->is_array())
    return lines.Error("hash_ids is not there as a list");
  const uint64_t blocks = (request.prompt - 1) / kPrefixBlock + 1;
  if (ids->size() != blocks)
    return lines.Error(absl::StrCat(ids->size(), " hash_ids for ", blocks,
                                    " blocks of ", kPrefixBlock, " tokens"));
  for (const auto& id : *ids) {
    // A token's number is made of it.
    if (!id.is_number_unsigned() ||
        id.get<uint64_t>() >= INT32_MAX / kPrefixBlock)
      return lines.Error(
          absl::StrCat("the hash id ", id.dump(), " is too large"));
    request.blocks.push_back(id.get<uint32_t>());
  }
  return request;
}

absl::StatusOr<Requests> ReadMooncake(TraceLines lines, uint64_t most) {
  Requests requests;
  do {
    QUIRE_ASSIGN_OR_RETURN(StressRequest request, MooncakeRequest(lines));
    requests.push_back(std::move(request));
  } while (requests.size() < most && lines.Next());
  return requests;
}

bool IsServegen(const std::filesystem::path& path) {
  const std::string name = path.filename().string();
  constexpr std::string_view kEnd = "-trace.csv";
  return std::filesystem::is_directory(path) ||
         (name.starts_with("chunk-") && name.ends_with(kEnd));
}

absl::StatusOr<Requests> ReadAny(const std::string& path,
                                 const TraceOptions& options) {
  if (IsServegen(path)) {
    TraceOptions drawn = options;
    if (drawn.max_requests == UINT64_MAX) drawn.max_requests = kDrawnRequests;
    return ReadServegen(path, drawn);
  }
  QUIRE_ASSIGN_OR_RETURN(TraceLines lines, TraceLines::Open(path));
  if (!lines.Next())
    return absl::InvalidArgumentError(absl::StrCat(path, ": is empty"));
  const Columns columns = ReadColumns(lines.text());
  if (columns.prompt && columns.output)
    return ReadTable(std::move(lines), columns, options);
  if (lines.text().starts_with('{'))
    return ReadMooncake(std::move(lines), options.max_requests);
  return lines.Error(
      "is not the first line of a trace of azure, mooncake or vidur");
}

}  // namespace

absl::StatusOr<Requests> ReadTrace(const std::string& path,
                                   const TraceOptions& options) {
  QUIRE_ASSIGN_OR_RETURN(Requests requests, ReadAny(path, options));
  if (requests.empty())
    return absl::InvalidArgumentError(absl::StrCat(path, ": has no requests"));
  std::stable_sort(requests.begin(), requests.end(),
                   [](const StressRequest& a, const StressRequest& b) {
                     return a.arrival < b.arrival;
                   });
  const double start = requests.front().arrival;
  for (StressRequest& request : requests) request.arrival -= start;
  return requests;
}

}  // namespace quire
