// quire memory: reads a memory snapshot.

#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/strings/str_cat.h"
#include "model/cli/output.h"
#include "model/cli/verbs.h"
#include "quire/alloc/memory_snapshot.h"
#include "quire/alloc/status_macros.h"
#include "quire/loader/json_text.h"
#include "quire/loader/output_file.h"

namespace quire {
namespace {

struct MemoryOptions {
  std::string snapshot;
  std::string html;
  std::string pytorch;
};

absl::Status Memory(const MemoryOptions& options) {
  QUIRE_ASSIGN_OR_RETURN(const nlohmann::json snapshot,
                         ReadJsonText(options.snapshot));
  const absl::StatusOr<std::string> html = RenderMemoryHtml(snapshot);
  if (!html.ok())
    return absl::Status(html.status().code(),
                        absl::StrCat(options.snapshot, ": ",
                                     std::string(html.status().message())));
  QUIRE_RETURN_IF_ERROR(PrintText(FormatMemoryReport(snapshot)));
  if (!options.html.empty()) {
    QUIRE_RETURN_IF_ERROR(WriteFile(options.html, *html));
  }
  if (options.pytorch.empty()) return absl::OkStatus();
  QUIRE_ASSIGN_OR_RETURN(const std::string pickle,
                         RenderPyTorchSnapshot(snapshot));
  return WriteFile(options.pytorch, pickle);
}

}  // namespace

void AddMemoryVerb(CLI::App* app, Action* chosen) {
  auto options = std::make_shared<MemoryOptions>();
  CLI::App* verb = app->add_subcommand(
      "memory", "Where the device's memory went, from a snapshot");
  verb->add_option("SNAPSHOT", options->snapshot,
                   "File that --memory-snapshot wrote")
      ->required();
  verb->add_option("--html", options->html,
                   "Write a page with the page map and the timeline");
  verb->add_option("--pytorch", options->pytorch,
                   "Write the snapshot for PyTorch's memory viewers");
  verb->callback([=] { *chosen = [=] { return Memory(*options); }; });
}

}  // namespace quire
