#include "tests/engine_testing.h"

#include <utility>

#include "tests/golden_cases.h"

namespace quire {

namespace fs = std::filesystem;

std::string SettingName(const testing::TestParamInfo<Setting>& info) {
  std::string name = KvCacheKindName(info.param.kind);
  if (info.param.kind == KvCacheKind::kPaged)
    name += std::to_string(info.param.block_size);
  return name + "_rows_of_" + std::to_string(info.param.layers_per_row);
}

std::vector<Setting> AllSettings() {
  return {{KvCacheKind::kContiguous, 16, 1}, {KvCacheKind::kContiguous, 16, 0},
          {KvCacheKind::kPaged, 1, 0},       {KvCacheKind::kPaged, 16, 1},
          {KvCacheKind::kPaged, 32, 0},      {KvCacheKind::kStatic, 16, 0}};
}

fs::path ModelFolder() {
  return FindGoldenCases(fs::path(QUIRE_SOURCE_DIR) / "tests/golden",
                         {"gptq-w4-sym"})
      .at(0);
}

SessionOptions OptionsOf(const Setting& setting) {
  SessionOptions options;
  options.device.device_memory = MiB(24);
  options.device.page_size = KiB(4);
  options.kv_dtype = KvDType::kF32;
  options.threads = 2;
  options.max_model_len = 128;
  options.kv_cache = setting.kind;
  options.block_size = setting.block_size;
  options.layers_per_row = setting.layers_per_row;
  return options;
}

SessionOptions TightOptions(const Setting& setting) {
  SessionOptions options = OptionsOf({KvCacheKind::kContiguous, 16, 0});
  Bytes needed;
  Bytes token;
  {
    const auto session = Open(options);
    needed = session->runtime().memory()->GetStatistics().in_use;
    token = session->cache().layout().TokenBytes();
  }
  options = OptionsOf(setting);
  options.device.memory_utilization = 1;
  options.device.device_memory = Bytes(needed.value() + 256 * token.value());
  return options;
}

std::unique_ptr<Session> Open(const SessionOptions& options) {
  auto session = Session::Open(ModelFolder(), options);
  EXPECT_TRUE(session.ok()) << session.status();
  return session.ok() ? *std::move(session) : nullptr;
}

Outcome Continue(Session& session, const Texts& prompts,
                 std::span<const uint64_t> new_tokens,
                 const EngineOptions& options) {
  const auto engine =
      Engine::Create(&session.decoder(), &session.cache(), options);
  EXPECT_TRUE(engine.ok()) << engine.status();
  if (!engine.ok()) return {};
  for (size_t i = 0; i < prompts.size(); ++i) {
    Request request;
    request.prompt = prompts[i];
    request.max_new_tokens = new_tokens[i];
    EXPECT_TRUE((*engine)->Add(std::move(request)).ok());
  }
  const absl::Status status = (*engine)->RunToCompletion();
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_TRUE(session.cache().CheckInvariants().ok())
      << session.cache().CheckInvariants();
  Outcome run;
  for (const Completion& completion : (*engine)->completions())
    run.continuations.push_back(completion.tokens);
  run.statistics = (*engine)->statistics();
  return run;
}

Outcome Continue(Session& session, const Texts& prompts, uint64_t new_tokens,
                 const EngineOptions& options) {
  return Continue(session, prompts,
                  std::vector<uint64_t>(prompts.size(), new_tokens), options);
}

Outcome Continue(Session& session, const Texts& prompts, uint64_t new_tokens,
                 uint32_t max_sequences) {
  return Continue(session, prompts, new_tokens,
                  EngineOptions{.max_sequences = max_sequences});
}

Texts Prompts(size_t vocab, size_t common) {
  Texts prompts(8);
  for (size_t i = 0; i < prompts.size(); ++i) {
    for (size_t t = 0; t < common; ++t)
      prompts[i].push_back(static_cast<TokenId>((t * 61 + 5) % vocab));
    for (size_t t = 0; t < 3 + 5 * i; ++t)
      prompts[i].push_back(
          static_cast<TokenId>((i * 37 + t * 101 + 3) % vocab));
  }
  return prompts;
}

Texts Expected(const Texts& prompts, uint64_t new_tokens) {
  Texts continuations;
  for (const auto& prompt : prompts) {
    const auto session = Open(OptionsOf({KvCacheKind::kContiguous, 16, 0}));
    continuations.push_back(
        Continue(*session, {prompt}, new_tokens).continuations[0]);
  }
  return continuations;
}

}  // namespace quire
