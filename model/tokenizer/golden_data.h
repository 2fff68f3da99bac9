// The tokenizers under tests/golden, for tests.

#ifndef QUIRE_MODEL_TOKENIZER_GOLDEN_DATA_H_
#define QUIRE_MODEL_TOKENIZER_GOLDEN_DATA_H_

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

namespace quire {

// A JSON file under tests/golden; an exception, which fails the test, where it
// is not there.
inline nlohmann::json ReadGolden(const std::string& path) {
  std::ifstream file(std::string(QUIRE_SOURCE_DIR) + "/tests/golden/" + path);
  return nlohmann::json::parse(file);
}

}  // namespace quire

#endif  // QUIRE_MODEL_TOKENIZER_GOLDEN_DATA_H_
