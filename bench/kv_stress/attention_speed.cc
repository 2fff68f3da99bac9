#include "bench/kv_stress/attention_speed.h"

#include <time.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <memory>
#include <random>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "quire/alloc/device_memory.h"
#include "quire/alloc/host_driver.h"
#include "quire/alloc/owner.h"
#include "quire/alloc/status_macros.h"
#include "quire/model/ops.h"
#include "quire/model/thread_pool.h"
#include "quire/paging/sequence_cache.h"

namespace quire {
namespace {

constexpr uint64_t kSequences = 4;
constexpr int kRounds = 9;
// Small ones serve: where rows lie within a page is the same.
constexpr Bytes kPageSize = MiB(2);

// Of this thread, so that what else runs takes no part of it.
double ProcessorMicroseconds() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) * 1e6 +
         static_cast<double>(time.tv_nsec) / 1e3;
}

// Keys and values of their own, of elements that need no scales.
bool IsMeasured(const KvLayerKind& kind) {
  return HasAttention(kind) && kind.value_dim > 0 &&
         kind.scale == KvScale::kNone;
}

// A cache with rows that are written, and the queries of one step.
class Subject {
 public:
  static absl::StatusOr<std::unique_ptr<Subject>> Create(
      const StressModel& model, KvDType dtype, const CacheKind& kind,
      uint64_t rows) {
    std::unique_ptr<Subject> subject(new Subject(model, dtype));
    QUIRE_RETURN_IF_ERROR(subject->Start(kind, rows));
    return subject;
  }

  double Microseconds() {
    const double start = ProcessorMicroseconds();
    for (const std::vector<AttentionQuery>& queries : layers_)
      Attention(queries, dtype_, model_.query_heads(), model_.kv_heads(),
                model_.head_dim(), 0.1f, &pool_);
    return ProcessorMicroseconds() - start;
  }

 private:
  Subject(const StressModel& model, KvDType dtype)
      : model_(model), dtype_(dtype), pool_(1) {}

  absl::Status Start(const CacheKind& kind, uint64_t rows);
  absl::Status Admit(uint64_t tokens);
  absl::Status AddQueries(uint64_t tokens);
  void WriteRow(DeviceAddress row) const;

  const StressModel model_;
  const KvDType dtype_;
  ThreadPool pool_;
  std::vector<float> query_;
  std::vector<float> output_;
  std::vector<std::vector<AttentionQuery>> layers_;
  std::vector<std::vector<uint32_t>> tables_;  // of layers_
  std::vector<SequenceId> sequences_;

  // Destroyed from the bottom up.
  std::unique_ptr<HostDriver> driver_;
  OwnerRegistry owners_;
  std::unique_ptr<DeviceMemory> memory_;
  std::unique_ptr<SequenceCache> cache_;
};

absl::Status Subject::Start(const CacheKind& kind, uint64_t rows) {
  const uint64_t tokens = std::max<uint64_t>(rows / kSequences, 1);
  CacheSettings settings;
  settings.shape = model_.Shape(dtype_);
  // A table of blocks takes all memory there is: what its sequences need, and a
  // block for the end of each.
  settings.max_sequence_length = tokens;
  settings.max_sequences = kSequences;
  settings.page_size = kPageSize;
  QUIRE_ASSIGN_OR_RETURN(const KvLayout layout,
                         KvLayout::Create(settings.shape, 1));
  const uint64_t row = layout.TokenBytes().value();
  const uint64_t block = std::max(kind.block_tokens, 1u);
  const uint64_t bytes = kSequences * (tokens + block) * row * 2;
  HostDriverOptions driver;
  // And a page for the end of each part.
  driver.memory_per_device = Bytes(
      bytes + kPageSize.value() * (kSequences + 1) * (2 * model_.layers() + 1));
  driver.memory_per_device = Bytes(driver.memory_per_device.value() /
                                   kPageSize.value() * kPageSize.value());
  QUIRE_ASSIGN_OR_RETURN(driver_, HostDriver::Create(driver));
  QUIRE_ASSIGN_OR_RETURN(settings.stream, driver_->CreateStream(DeviceId(0)));
  DeviceMemoryOptions memory;
  memory.page_size = kPageSize;
  QUIRE_ASSIGN_OR_RETURN(memory_,
                         DeviceMemory::Create(driver_.get(), &owners_, memory));
  QUIRE_ASSIGN_OR_RETURN(cache_,
                         MakeStressCache(kind, settings, memory_.get()));
  query_.assign(kSequences * model_.query_heads() * model_.head_dim(), 0.5f);
  output_.resize(query_.size());
  for (uint64_t i = 0; i < kSequences; ++i)
    QUIRE_RETURN_IF_ERROR(Admit(tokens));
  return AddQueries(tokens);
}

void Subject::WriteRow(DeviceAddress row) const {
  std::memset(row.host_pointer<std::byte>(), 0x11,
              uint64_t{model_.kv_heads()} * model_.head_dim() *
                  KvElementSize(dtype_).value());
}

absl::Status Subject::Admit(uint64_t tokens) {
  QUIRE_ASSIGN_OR_RETURN(const SequenceId sequence, cache_->Admit(tokens));
  sequences_.push_back(sequence);
  for (uint32_t layer = 0; layer < model_.layers(); ++layer) {
    QUIRE_ASSIGN_OR_RETURN(const KvLayerView view,
                           cache_->View(sequence, layer));
    for (uint64_t token = 0; token < tokens; ++token) {
      WriteRow(view.KeyRow(token));
      WriteRow(view.ValueRow(token));
    }
  }
  return absl::OkStatus();
}

// Blocks of a pool that has served for a while lie anywhere.
absl::Status Subject::AddQueries(uint64_t tokens) {
  std::mt19937 random(1);
  const size_t head_floats = model_.query_heads() * model_.head_dim();
  for (uint32_t layer = 0; layer < model_.layers(); ++layer) {
    std::vector<AttentionQuery> queries(kSequences);
    std::vector<uint32_t> blocks;
    size_t blocks_each = 0;
    for (size_t s = 0; s < kSequences; ++s) {
      QUIRE_ASSIGN_OR_RETURN(const KvLayerView view,
                             cache_->View(sequences_[s], layer));
      AttentionQuery& query = queries[s];
      query.query = query_.data() + s * head_floats;
      query.output = output_.data() + s * head_floats;
      query.keys = view.keys.host_pointer<void>();
      query.values = view.values.host_pointer<void>();
      query.row_stride = view.row_stride.value();
      query.value_stride = view.value_stride.value();
      query.length = tokens;
      query.window = view.window;
      query.sinks = view.sinks;
      if (view.block_table == nullptr) continue;
      query.block_shift = view.block_shift;
      query.block_stride = view.block_stride.value();
      query.value_block_stride = view.value_block_stride.value();
      blocks_each = ((tokens - 1) >> view.block_shift) + 1;
      blocks.insert(blocks.end(), view.block_table,
                    view.block_table + blocks_each);
    }
    std::shuffle(blocks.begin(), blocks.end(), random);
    tables_.push_back(std::move(blocks));
    for (size_t s = 0; s < kSequences && blocks_each > 0; ++s)
      queries[s].blocks = tables_.back().data() + s * blocks_each;
    layers_.push_back(std::move(queries));
  }
  return absl::OkStatus();
}

double Median(std::vector<double> values) {
  const auto middle =
      values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace

absl::StatusOr<std::vector<AttentionSpeed>> MeasureAttention(
    const StressModel& model, KvDType dtype,
    const std::vector<CacheKind>& kinds, uint64_t rows) {
  std::vector<AttentionSpeed> speeds(kinds.size());
  const KvModelShape shape = model.Shape(dtype);
  if (!std::all_of(shape.layers.begin(), shape.layers.end(), IsMeasured))
    return speeds;
  CacheKind per_layer;
  per_layer.name = "contiguous:1";
  std::vector<CacheKind> measured = {per_layer};
  measured.insert(measured.end(), kinds.begin(), kinds.end());
  std::vector<std::unique_ptr<Subject>> subjects;
  for (const CacheKind& kind : measured) {
    auto subject = Subject::Create(model, dtype, kind, rows);
    if (!subject.ok())
      return absl::Status(
          subject.status().code(),
          absl::StrCat("attention over ", kind.name, ": ",
                       std::string(subject.status().message())));
    subjects.push_back(*std::move(subject));
  }
  std::vector<std::vector<double>> times(measured.size());
  for (int round = 0; round < kRounds; ++round) {
    for (size_t i = 0; i < subjects.size(); ++i)
      times[i].push_back(subjects[i]->Microseconds());
  }
  const double base = Median(times[0]);
  for (size_t i = 0; i < kinds.size(); ++i) {
    speeds[i].microseconds = Median(times[i + 1]);
    speeds[i].relative = speeds[i].microseconds / base;
  }
  return speeds;
}

}  // namespace quire
