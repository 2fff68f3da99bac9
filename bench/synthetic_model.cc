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

#include "bench/synthetic_checkpoint.h"

int main(int argc, char** argv) {
  CLI::App app("Writes a small Llama with random weights; its text is noise");
  std::string folder;
  uint64_t seed = 0;
  app.add_option("OUT", folder, "Folder to write; made where it is missing")
      ->required();
  app.add_option("--seed", seed, "Of the weights")->capture_default_str();
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) {
    std::fprintf(stderr, "synthetic_model: cannot make %s: %s\n",
                 folder.c_str(), error.message().c_str());
    return 1;
  }
  const absl::Status status = quire::WriteSyntheticCheckpoint(folder, seed);
  if (status.ok()) return 0;
  std::fprintf(stderr, "synthetic_model: %s\n",
               std::string(status.message()).c_str());
  return 1;
}
