// Writes a small model with random weights: what bench/demo runs where no
// model can be fetched.

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <string>
#include <system_error>

#include "bench/option_checks.h"
#include "bench/program.h"
#include "bench/synthetic_checkpoint.h"

namespace quire {
namespace {

int Main(int argc, char** argv) {
  CLI::App app("Writes a small Llama with random weights; its text is noise");
  std::string folder;
  uint64_t seed = 0;
  app.add_option("OUT", folder, "Folder to write; made where it is missing")
      ->required();
  app.add_option("--seed", seed, "Of the weights")
      ->check(WholeNumber())
      ->capture_default_str();
  if (const auto ended = ParseOptions(&app, argc, argv)) return *ended;
  std::error_code error;
  const bool made = std::filesystem::create_directories(folder, error);
  if (error) {
    std::fprintf(stderr, "synthetic_model: cannot make %s: %s\n",
                 folder.c_str(), error.message().c_str());
    return kFailed;
  }
  const absl::Status status = WriteSyntheticCheckpoint(folder, seed);
  if (status.ok()) return 0;
  if (made) std::filesystem::remove(folder, error);
  std::fprintf(stderr, "synthetic_model: %s\n",
               std::string(status.message()).c_str());
  return kFailed;
}

}  // namespace
}  // namespace quire

int main(int argc, char** argv) {
  return quire::FinishOutput("synthetic_model", quire::Main(argc, argv));
}
