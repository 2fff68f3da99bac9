// Whatever the bytes of a memory snapshot, it is refused or can be shown in
// every form there is, and played again.

#include <nlohmann/json.hpp>
#include <string>

#include "quire/alloc/memory_snapshot.h"
#include "quire/alloc/status_macros.h"
#include "quire/alloc/trace_formats.h"
#include "quire/loader/json_text.h"
#include "tests/fuzz/fuzz_util.h"
#include "tests/fuzz/targets.h"

namespace quire {

absl::Status FuzzMemorySnapshot(std::string_view input) {
  const auto snapshot = ParseJsonText(input, "snapshot.json");
  if (!snapshot.ok()) return CheckRefusal(snapshot.status());
  const absl::Status readable = CheckMemorySnapshot(*snapshot);
  const std::string report = FormatMemoryReport(*snapshot);
  if (!readable.ok()) {
    QUIRE_RETURN_IF_ERROR(CheckRefusal(readable));
    QUIRE_RETURN_IF_ERROR(Property(!RenderMemoryHtml(*snapshot).ok(),
                                   "no page of what cannot be read"));
    return Property(!RenderPyTorchSnapshot(*snapshot).ok(),
                    "no pickle of what cannot be read");
  }
  QUIRE_RETURN_IF_ERROR(RenderMemoryHtml(*snapshot).status());
  QUIRE_ASSIGN_OR_RETURN(const std::string pickle,
                         RenderPyTorchSnapshot(*snapshot));
  const auto trace = ReadPyTorchSnapshot(pickle);
  if (!trace.ok()) return CheckRefusal(trace.status());
  return absl::OkStatus();
}

}  // namespace quire
