// Sessions of one small model on each kind of KV cache, and what an engine
// makes of prompts there.

#ifndef QUIRE_TESTS_ENGINE_TESTING_H_
#define QUIRE_TESTS_ENGINE_TESTING_H_

#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "quire/model/engine.h"
#include "quire/model/session.h"

namespace quire {

using Texts = std::vector<std::vector<TokenId>>;

struct Setting {
  KvCacheKind kind;
  uint32_t block_size;
  uint32_t layers_per_row;
};
std::string SettingName(const testing::TestParamInfo<Setting>& info);
// Each kind of cache, with rows of one layer and of all.
std::vector<Setting> AllSettings();

std::filesystem::path ModelFolder();
// Rows of f32 on pages of 4 KiB, of which there are plenty.
SessionOptions OptionsOf(const Setting& setting);
// Of a device with what is there beside the cache, and 256 tokens more: two
// sequences of the longest length, or a half of all that the sequences get.
SessionOptions TightOptions(const Setting& setting);
// Null, and a failure of the test, where it cannot be opened.
std::unique_ptr<Session> Open(const SessionOptions& options);

struct Outcome {
  Texts continuations;
  EngineStatistics statistics;
};
// Continues all prompts to the end, and looks whether the cache is as it should
// be.
// `new_tokens`: of each prompt.
Outcome Continue(Session& session, const Texts& prompts,
                 std::span<const uint64_t> new_tokens,
                 const EngineOptions& options);
Outcome Continue(Session& session, const Texts& prompts, uint64_t new_tokens,
                 const EngineOptions& options);
Outcome Continue(Session& session, const Texts& prompts, uint64_t new_tokens,
                 uint32_t max_sequences = 64);

// Of unequal lengths. `common` tokens are the same in all.
Texts Prompts(size_t vocab, size_t common);
// What each prompt gives alone, on contiguous rows of all layers.
Texts Expected(const Texts& prompts, uint64_t new_tokens);

}  // namespace quire

#endif  // QUIRE_TESTS_ENGINE_TESTING_H_
