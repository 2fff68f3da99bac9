#include "tests/golden_cases.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <regex>
#include <span>
#include <stdexcept>

namespace quire {
namespace {

namespace fs = std::filesystem;

std::string ReadAll(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::runtime_error("cannot open " + path.string());
  return {std::istreambuf_iterator<char>(file), {}};
}

// A float32 matrix in NumPy's format, version 1.
void ReadNpy(const fs::path& path, GoldenCase* result) {
  const std::string bytes = ReadAll(path);
  if (bytes.size() < 10 || bytes.compare(0, 6, "\x93NUMPY") != 0)
    throw std::runtime_error(path.string() + " is no .npy file");
  const size_t header_size = static_cast<unsigned char>(bytes[8]) +
                             256 * static_cast<unsigned char>(bytes[9]);
  const std::string header = bytes.substr(10, header_size);
  std::smatch shape;
  if (header.find("'<f4'") == std::string::npos ||
      !std::regex_search(header, shape, std::regex(R"(\((\d+), (\d+)\))")))
    throw std::runtime_error(path.string() + ": unexpected header " + header);
  const size_t elements = std::stoul(shape[1]) * std::stoul(shape[2]);
  if (bytes.size() != 10 + header_size + elements * sizeof(float))
    throw std::runtime_error(path.string() + ": has the wrong size");
  result->vocab = std::stoul(shape[2]);
  result->logits.resize(elements);
  std::memcpy(result->logits.data(), bytes.data() + 10 + header_size,
              elements * sizeof(float));
}

}  // namespace

std::vector<fs::path> FindGoldenCases(
    const fs::path& root, const std::vector<std::string>& prefixes) {
  std::vector<fs::path> cases;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(root, error)) {
    const std::string name = entry.path().filename();
    const bool wanted =
        std::any_of(prefixes.begin(), prefixes.end(),
                    [&](const auto& p) { return name.starts_with(p); });
    if (wanted && fs::exists(entry.path() / "expect.json") &&
        fs::exists(entry.path() / "logits.npy"))
      cases.push_back(entry.path());
  }
  std::sort(cases.begin(), cases.end());
  return cases;
}

GoldenCase ReadGoldenCase(const fs::path& folder) {
  const auto expect = nlohmann::json::parse(ReadAll(folder / "expect.json"));
  GoldenCase result;
  result.name = folder.filename();
  result.folder = folder;
  result.model = expect.contains("model")
                     ? folder / expect.at("model").get<std::string>()
                     : folder;
  if (expect.contains("adapter"))
    result.adapter = folder / expect.at("adapter").get<std::string>();
  result.prompt = expect.at("prompt").get<std::vector<TokenId>>();
  result.greedy = expect.at("greedy").get<std::vector<TokenId>>();
  result.rtol = expect.at("rtol").get<double>();
  const std::string quantization = expect.value("quantization", "none");
  for (const LoadQuantization known :
       {LoadQuantization::kInt8, LoadQuantization::kNf4})
    if (quantization == LoadQuantizationName(known))
      result.quantization = known;
  ReadNpy(folder / expect.at("logits").get<std::string>(), &result);
  return result;
}

std::vector<float> AllLogits(Session& session,
                             const std::vector<TokenId>& tokens,
                             AdapterId adapter) {
  std::vector<float> logits;
  const absl::Status status = session.ComputeLogits(
      tokens,
      [&](std::span<const float> rows) {
        logits.insert(logits.end(), rows.begin(), rows.end());
        return absl::OkStatus();
      },
      adapter);
  if (!status.ok()) throw std::runtime_error(status.ToString());
  return logits;
}

double RelativeError(const std::vector<float>& actual,
                     const std::vector<float>& expected) {
  if (actual.size() != expected.size())
    throw std::runtime_error("logits of different shapes");
  double largest = 0;
  double difference = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    largest = std::max(largest, std::fabs(double{expected[i]}));
    difference =
        std::max(difference, std::fabs(double{actual[i]} - expected[i]));
  }
  return difference / largest;
}

}  // namespace quire
