#include "bench/run_description.h"

#include <filesystem>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace quire {
namespace {

bool IsFlag(const CLI::Option& option) {
  return option.get_items_expected_max() == 0;
}

// CLI11 writes a list that is a default as "[1,4,36]".
std::vector<std::string> DefaultList(const std::string& text) {
  absl::string_view inner = text;
  absl::ConsumePrefix(&inner, "[");
  absl::ConsumeSuffix(&inner, "]");
  if (inner.empty()) return {};
  return absl::StrSplit(inner, ',');
}

nlohmann::json ValueOf(const CLI::Option& option) {
  if (IsFlag(option)) return option.count() > 0;
  const bool several = option.get_items_expected_max() > 1;
  if (option.count() > 0) {
    if (several) return option.results();
    return option.results().back();
  }
  const std::string text = option.get_default_str();
  if (text.empty()) return nullptr;
  if (several) return DefaultList(text);
  return text;
}

}  // namespace

nlohmann::json DescribeRun(const CLI::App& app, int argc,
                           const char* const* argv) {
  std::vector<std::string> command(argv, argv + argc);
  if (!command.empty()) {
    command[0] = std::filesystem::path(command[0]).filename();
  }
  nlohmann::json options = nlohmann::json::object();
  for (const CLI::Option* const option : app.get_options()) {
    if (option == app.get_help_ptr()) continue;
    options[option->get_single_name()] = ValueOf(*option);
  }
  return {{"command", std::move(command)}, {"options", std::move(options)}};
}

}  // namespace quire
