// What a plan says of memory before a load, and what the load was then measured
// to take: pages of every device, and anonymous memory of the process. Memory
// that is to go is counted before each munmap, this program's own: a sampler
// beside the load could miss a block that is there for less than a millisecond.

#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "loader/checkpoint_test_util.h"
#include "quire/loader/process_memory.h"
#include "quire/model/plan.h"
#include "quire/model/session.h"
#include "tests/session_testing.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define QUIRE_TEST_SANITIZED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define QUIRE_TEST_SANITIZED 1
#endif
#endif

namespace quire {
namespace {

// While it is counted.
std::atomic<bool> counting{false};
std::atomic<uint64_t> anonymous_peak{0};

void CountAnonymous() {
  if (!counting.load()) return;
  const auto memory = ReadProcessMemory();
  if (!memory.ok()) return;
  uint64_t peak = anonymous_peak.load();
  while (peak < memory->anonymous.value() &&
         !anonymous_peak.compare_exchange_weak(peak, memory->anonymous.value()))
    continue;
}

// A Llama of zeros: large enough that a hundredth of it is more than what the
// program takes and gives back by the way.
constexpr uint64_t kHidden = 512;
constexpr uint64_t kIntermediate = 2048;
constexpr uint64_t kVocabulary = 4096;
constexpr uint64_t kHeads = 8;
constexpr uint64_t kLayers = 8;
constexpr uint64_t kBits = 4;
constexpr uint64_t kGroup = 128;

struct Tensor {
  std::string name;
  std::string dtype;
  std::vector<uint64_t> shape;
  uint64_t element_size = 0;
  std::string data = {};  // empty: zeros

  uint64_t bytes() const {
    uint64_t total = element_size;
    for (const uint64_t size : shape) total *= size;
    return total;
  }
};

enum class Format { kPlain, kGptq, kGptqActOrder, kFp8, kAwq };

struct Kind {
  Format format = Format::kPlain;
  bool tied = false;
  size_t shards = 1;
};

// Input k is of the group of k * 5, so that the rows are put in another order.
std::string ShuffledGroups(uint64_t in) {
  std::string data;
  for (uint64_t k = 0; k < in; ++k) {
    const auto group = static_cast<uint32_t>(k * 5 % in / kGroup);
    data.append(reinterpret_cast<const char*>(&group), sizeof(group));
  }
  return data;
}

void AddLinear(const std::string& name, uint64_t out, uint64_t in,
               Format format, std::vector<Tensor>* tensors) {
  if (format == Format::kPlain) {
    tensors->push_back({name + ".weight", "F32", {out, in}, 4});
    return;
  }
  if (format == Format::kFp8) {
    tensors->push_back({name + ".weight", "F8_E4M3", {out, in}, 1});
    tensors->push_back(
        {name + ".weight_scale_inv", "F32", {out / kGroup, in / kGroup}, 4});
    return;
  }
  constexpr uint64_t kCodesInWord = 32 / kBits;
  if (format == Format::kAwq) {
    tensors->insert(
        tensors->end(),
        {{name + ".qweight", "I32", {in, out / kCodesInWord}, 4},
         {name + ".qzeros", "I32", {in / kGroup, out / kCodesInWord}, 4},
         {name + ".scales", "F16", {in / kGroup, out}, 2}});
    return;
  }
  tensors->insert(
      tensors->end(),
      {{name + ".qweight", "I32", {in / kCodesInWord, out}, 4},
       {name + ".qzeros", "I32", {in / kGroup, out / kCodesInWord}, 4},
       {name + ".scales", "F16", {in / kGroup, out}, 2}});
  if (format == Format::kGptqActOrder)
    tensors->push_back({name + ".g_idx", "I32", {in}, 4, ShuffledGroups(in)});
}

std::vector<Tensor> TensorsOf(const Kind& kind) {
  std::vector<Tensor> tensors = {
      {"model.embed_tokens.weight", "F32", {kVocabulary, kHidden}, 4}};
  for (uint64_t i = 0; i < kLayers; ++i) {
    const std::string layer = absl::StrCat("model.layers.", i, ".");
    for (const char* norm : {"input_layernorm", "post_attention_layernorm"})
      tensors.push_back({layer + norm + ".weight", "F32", {kHidden}, 4});
    for (const char* projection : {"q_proj", "k_proj", "v_proj", "o_proj"})
      AddLinear(layer + "self_attn." + projection, kHidden, kHidden,
                kind.format, &tensors);
    for (const char* projection : {"gate_proj", "up_proj"})
      AddLinear(layer + "mlp." + projection, kIntermediate, kHidden,
                kind.format, &tensors);
    AddLinear(layer + "mlp.down_proj", kHidden, kIntermediate, kind.format,
              &tensors);
  }
  tensors.push_back({"model.norm.weight", "F32", {kHidden}, 4});
  if (!kind.tied)
    tensors.push_back({"lm_head.weight", "F32", {kVocabulary, kHidden}, 4});
  return tensors;
}

// Zeros take no room on disk.
void WriteFile(const std::string& path, const std::vector<Tensor>& tensors) {
  std::string header = "{";
  uint64_t end = 0;
  for (const Tensor& tensor : tensors) {
    const uint64_t begin = end;
    end += tensor.bytes();
    absl::StrAppend(
        &header, header.size() == 1 ? "" : ",",
        Entry(tensor.name, tensor.dtype,
              absl::StrCat("[", absl::StrJoin(tensor.shape, ","), "]"),
              Offsets(begin, end)));
  }
  const std::string file = Safetensors(header + "}");
  std::ofstream(path, std::ios::binary) << file;
  std::filesystem::resize_file(path, file.size() + end);
  std::fstream written(path, std::ios::binary | std::ios::in | std::ios::out);
  uint64_t at = file.size();
  for (const Tensor& tensor : tensors) {
    written.seekp(static_cast<std::streamoff>(at));
    written << tensor.data;
    at += tensor.bytes();
  }
}

void WriteCheckpoint(const TemporaryFolder& folder, const Kind& kind) {
  std::string config = absl::StrCat(
      R"({"architectures": ["LlamaForCausalLM"], "model_type": "llama",
          "hidden_act": "silu", "hidden_size": )",
      kHidden, R"(, "intermediate_size": )", kIntermediate,
      R"(, "num_attention_heads": )", kHeads, R"(, "num_key_value_heads": )",
      kHeads, R"(, "num_hidden_layers": )", kLayers, R"(, "vocab_size": )",
      kVocabulary, R"(, "max_position_embeddings": 128, "rms_norm_eps": 1e-5,
          "tie_word_embeddings": )",
      kind.tied ? "true" : "false");
  if (kind.format == Format::kFp8)
    absl::StrAppend(&config,
                    R"(, "quantization_config": {"quant_method": "fp8",
          "activation_scheme": "dynamic", "weight_block_size": [)",
                    kGroup, ", ", kGroup, "]}");
  if (kind.format == Format::kAwq)
    absl::StrAppend(&config,
                    R"(, "quantization_config": {"quant_method": "awq",
          "version": "gemm", "zero_point": true, "bits": )",
                    kBits, R"(, "group_size": )", kGroup, "}");
  if (kind.format == Format::kGptq || kind.format == Format::kGptqActOrder)
    absl::StrAppend(&config,
                    R"(, "quantization_config": {"quant_method": "gptq",
          "bits": )",
                    kBits, R"(, "group_size": )", kGroup, R"(, "desc_act": )",
                    kind.format == Format::kGptqActOrder ? "true" : "false",
                    R"(, "sym": true})");
  folder.Write("config.json", config + "}");
  const std::vector<Tensor> tensors = TensorsOf(kind);
  if (kind.shards == 1)
    return WriteFile(folder.File("model.safetensors"), tensors);
  std::string map;
  for (size_t shard = 0; shard < kind.shards; ++shard) {
    const size_t begin = tensors.size() * shard / kind.shards;
    const size_t end = tensors.size() * (shard + 1) / kind.shards;
    const std::string name = absl::StrCat("part-", shard, ".safetensors");
    WriteFile(folder.File(name), {tensors.begin() + static_cast<long>(begin),
                                  tensors.begin() + static_cast<long>(end)});
    for (size_t i = begin; i < end; ++i)
      absl::StrAppend(&map, map.empty() ? "" : ",", "\"", tensors[i].name,
                      "\":\"", name, "\"");
  }
  folder.Write("model.safetensors.index.json",
               absl::StrCat(R"({"metadata":{},"weight_map":{)", map, "}}"));
}

// A LoRA adapter of rank 8 of every query and down projection, of zeros.
std::string WriteAdapter(const TemporaryFolder& folder) {
  constexpr uint64_t kRank = 8;
  folder.Write("adapter_config.json",
               absl::StrCat(R"({"peft_type": "LORA", "r": )", kRank,
                            R"(, "lora_alpha": 16,
          "target_modules": ["q_proj", "down_proj"], "bias": "none"})"));
  std::vector<Tensor> tensors;
  for (uint64_t i = 0; i < kLayers; ++i) {
    const std::string layer =
        absl::StrCat("base_model.model.model.layers.", i, ".");
    for (const auto& [module, in] :
         {std::pair("self_attn.q_proj", kHidden),
          std::pair("mlp.down_proj", kIntermediate)}) {
      tensors.push_back(
          {layer + module + ".lora_A.weight", "F32", {kRank, in}, 4});
      tensors.push_back(
          {layer + module + ".lora_B.weight", "F32", {kHidden, kRank}, 4});
    }
  }
  WriteFile(folder.File("adapter_model.safetensors"), tensors);
  return folder.path();
}

SessionOptions Options() {
  SessionOptions options;
  options.device.device_memory = GiB(1);
  options.device.page_size = KiB(64);
  options.decoder = {.max_batch_tokens = 4, .max_logit_rows = 1};
  options.threads = 1;
  return options;
}

// Opens a session and lets it compute once.
std::unique_ptr<Session> OpenAndCompute(const std::string& folder,
                                        const SessionOptions& options) {
  auto session = Session::Open(folder, options);
  EXPECT_TRUE(session.ok()) << session.status();
  if (!session.ok()) return nullptr;
  const std::vector<TokenId> tokens = {1};
  EXPECT_TRUE(
      (*session)
          ->ComputeLogits(
              tokens, [](std::span<const float>) { return absl::OkStatus(); })
          .ok());
  return *std::move(session);
}

void ExpectWithinOnePercent(Bytes planned, Bytes measured, const char* what,
                            Bytes own = Bytes(0)) {
  const double allowed = static_cast<double>(planned.value()) / 100 +
                         static_cast<double>(own.value());
  EXPECT_NEAR(static_cast<double>(measured.value()),
              static_cast<double>(planned.value()), allowed)
      << what;
}

struct Case {
  std::string name;
  Kind kind;
  std::string device_map;  // empty: all on device 0
  LoadQuantization quantization = LoadQuantization::kNone;
  bool adapter = false;
};

class PlanPeakTest : public testing::TestWithParam<Case> {};

TEST_P(PlanPeakTest, IsWhatALoadTakes) {
  const TemporaryFolder folder;
  WriteCheckpoint(folder, GetParam().kind);
  SessionOptions options = Options();
  options.weights.quantization = GetParam().quantization;
  if (!GetParam().device_map.empty())
    options.placement.device_map =
        folder.Write("map.json", GetParam().device_map);
  options.placement.offload.folder = folder.path();
  const TemporaryFolder adapter;
  if (GetParam().adapter)
    options.adapters = {{"adapter", WriteAdapter(adapter)}};
  const ModelPlan plan = PlanOf(folder.path(), options);
  ASSERT_TRUE(plan.fits);
  // What is taken once and for all is not the load's.
  OpenAndCompute(folder.path(), options);

  const auto before = ReadProcessMemory();
  ASSERT_TRUE(before.ok()) << before.status();
  anonymous_peak = 0;
  counting = true;
  const auto session = OpenAndCompute(folder.path(), options);
  CountAnonymous();
  counting = false;
  ASSERT_NE(session, nullptr);
  EXPECT_EQ(session->weights().load_report().staging_peak, plan.staging_peak);
  for (size_t i = 0; i < plan.devices.size(); ++i)
    ExpectWithinOnePercent(plan.devices[i].peak,
                           session->runtime()
                               .memory(DeviceId(static_cast<int>(i)))
                               ->GetStatistics()
                               .peak_in_use,
                           "pages of a device");
#ifndef QUIRE_TEST_SANITIZED
  // A sanitizer's own memory is anonymous as well. What a session takes for
  // itself, beside weights and buffers: tables, stacks.
  constexpr Bytes kOwnMemory = MiB(1);
  ExpectWithinOnePercent(SaturatingAdd(before->anonymous, plan.host_peak),
                         Bytes(anonymous_peak.load()), "anonymous memory",
                         kOwnMemory);
#endif
}

// The tensors account for every byte of the parts, and of the files.
TEST_P(PlanPeakTest, TensorsAddUp) {
  const TemporaryFolder folder;
  WriteCheckpoint(folder, GetParam().kind);
  SessionOptions options = Options();
  options.weights.quantization = GetParam().quantization;
  const ModelPlan plan = PlanOf(folder.path(), options);
  std::vector<Bytes> parts(plan.parts.size());
  Bytes file;
  for (const WeightTensor& tensor : plan.tensors) {
    parts[tensor.part] = SaturatingAdd(
        parts[tensor.part], SaturatingAdd(tensor.memory, tensor.workspace));
    file = SaturatingAdd(file, tensor.file);
  }
  for (size_t i = 0; i < parts.size(); ++i)
    EXPECT_EQ(parts[i], plan.parts[i].size) << plan.parts[i].name;
  uint64_t written = 0;
  size_t read = 0;
  for (const Tensor& tensor : TensorsOf(GetParam().kind)) {
    // Tables are made of these, which are in the plan.
    if (tensor.name.ends_with(".g_idx")) continue;
    written += tensor.bytes();
    ++read;
  }
  EXPECT_EQ(file, Bytes(written));
  EXPECT_EQ(plan.tensors.size(), read);
}

std::string HalfElsewhere(const std::string& place,
                          const std::string& embedding = "0") {
  std::string map = absl::StrCat(R"({"model.embed_tokens": )", embedding,
                                 R"(, "model.norm": 0, "lm_head": 0)");
  for (uint64_t i = 0; i < kLayers; ++i)
    absl::StrAppend(&map, ", \"model.layers.", i,
                    "\": ", i % 2 == 0 ? "0" : place);
  return map + "}";
}
std::string HalfOnTheHost() { return HalfElsewhere("\"cpu\""); }

std::string TwoDevices() {
  std::string map =
      R"({"model.embed_tokens": 0, "model.norm": 1, "lm_head": 1)";
  for (uint64_t i = 0; i < kLayers; ++i)
    absl::StrAppend(&map, ", \"model.layers.", i, "\": ", i < 3 ? 0 : 1);
  return map + "}";
}

INSTANTIATE_TEST_SUITE_P(
    Synthetic, PlanPeakTest,
    testing::Values(
        Case{"Plain", {}, "", {}},
        Case{"Gptq", {.format = Format::kGptq}, "", {}},
        Case{"GptqActOrder", {.format = Format::kGptqActOrder}, "", {}},
        Case{"Fp8", {.format = Format::kFp8}, "", {}},
        Case{"Tied", {.tied = true}, "", {}},
        Case{"Sharded", {.shards = 3}, "", {}},
        Case{"OnTheHost", {}, HalfOnTheHost(), {}},
        Case{"GptqOnTheHost", {.format = Format::kGptq}, R"({"": "cpu"})", {}},
        Case{"GptqActOrderOnTheHost",
             {.format = Format::kGptqActOrder},
             HalfOnTheHost(),
             {}},
        Case{"TwoDevices", {}, TwoDevices(), {}},
        Case{"EmbeddingOnTheHost", {}, HalfElsewhere("\"cpu\"", "\"cpu\""), {}},
        Case{"OnDisk", {}, HalfElsewhere("\"disk\""), {}},
        Case{"GptqActOrderOnDisk",
             {.format = Format::kGptqActOrder},
             HalfElsewhere("\"disk\""),
             {}},
        Case{"HostAndDisk", {}, HalfElsewhere("\"disk\"", "\"cpu\""), {}},
        Case{"Awq", {.format = Format::kAwq}, "", {}},
        Case{"Adapter", {}, "", {}, /*adapter=*/true},
        Case{"Int8", {}, "", LoadQuantization::kInt8},
        Case{"Nf4", {}, "", LoadQuantization::kNf4}),
    [](const auto& param) { return param.param.name; });

}  // namespace
}  // namespace quire

#ifndef QUIRE_TEST_SANITIZED
// Takes the place of the C library's in this program.
extern "C" int munmap(void* memory, size_t size) {
  quire::CountAnonymous();
  return static_cast<int>(syscall(SYS_munmap, memory, size));
}
#endif
