// One model, ready to run: checkpoint, runtime, weights, KV cache and decoder,
// put together and torn down in the right order.

#ifndef QUIRE_MODEL_SESSION_H_
#define QUIRE_MODEL_SESSION_H_

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "quire/alloc/leak_report.h"
#include "quire/alloc/runtime.h"
#include "quire/loader/checkpoint.h"
#include "quire/loader/device_map.h"
#include "quire/loader/offload_store.h"
#include "quire/loader/streaming_loader.h"
#include "quire/model/adapters.h"
#include "quire/model/decoder.h"
#include "quire/model/model_config.h"
#include "quire/model/model_weights.h"
#include "quire/model/shared_weights.h"
#include "quire/paging/batch_limit.h"
#include "quire/paging/kv_layout_choice.h"
#include "quire/paging/sequence_cache.h"

namespace quire {

struct DeviceOptions {
  std::string driver = "host";  // "host" or "cuda"
  // Of the software device; 0: the machine's memory.
  Bytes device_memory;
  // The part of the device that Quire may use, in (0, 1].
  double memory_utilization = 0.9;
  Bytes page_size = MiB(2);
  bool backing = true;   // false: the software device's pages carry no memory
  int device_count = 1;  // of the software driver
  // By device, what may be used at most, beside memory_utilization; devices
  // beyond the end have no such limit.
  std::vector<Bytes> limits;
};

// The driver and its pools. Errors name the option at fault.
absl::StatusOr<std::unique_ptr<Runtime>> CreateRuntime(
    const DeviceOptions& options);

// Which cache holds keys and values. All give the same tokens.
enum class KvCacheKind : uint8_t {
  kContiguous,  // KvCache: pages under contiguous rows, as sequences grow
  kPaged,       // BlockTableCache: the PagedAttention baseline
  kStatic,      // StaticCache: slots of the longest length
};
const char* KvCacheKindName(KvCacheKind kind);  // "contiguous", "paged", ...

// A device that several processes use: memory is claimed in a ledger before it
// is taken (memory_ledger.h). Only with the contiguous cache, as the others
// take theirs at the start.
inline constexpr char kDefaultLedger[] = "default";
struct SharingOptions {
  // Of the ledger; kDefaultLedger: the one of this user and device; empty: the
  // session has the device to itself.
  std::string ledger;
  Bytes min;  // kept for this session by the others
};

struct AdapterSource {
  std::string name;
  std::string folder;
};

// Which memory the parts of the model go to. Beside the devices that a map
// names, the software driver has none.
struct PlacementOptions {
  // Empty: device 0 has all, or, where there are limits, "auto". Else "auto",
  // "balanced", "balanced_low_0", "sequential" or a file (device_map.h).
  std::string device_map;
  // Sorted by place. Empty: what each device has, and what the host has left.
  std::vector<MemoryLimit> max_memory;
  OffloadOptions offload;
  bool embedding_by_rows = true;  // as WeightPlacement has it

  bool in_use() const { return !device_map.empty() || !max_memory.empty(); }
};

// g = auto: the fewest layers to a row whose expected waste is affordable.
inline constexpr uint32_t kAutoLayersPerRow = UINT32_MAX;

// As many as kv_stress is measured with; how many of them it is follows from
// measured times.
inline constexpr uint32_t kDefaultPageAhead = 8;

struct EngineOptions;

struct SessionOptions {
  DeviceOptions device;
  // Instead of a device of its own: one that other sessions of this process are
  // on as well. It outlives the session, all of whose memory is below `owner`
  // there, so that DeviceAllocator::Sleep puts the session to sleep by that
  // name. With `sharing` and `on_leaks`, which are of the device as a whole,
  // use a device of its own.
  Runtime* runtime = nullptr;
  std::string owner = "model";
  // On such a runtime, for the same one: a model that is loaded there already,
  // from the same files, lends its weights, and nothing is read. Outlives the
  // session. Null: weights of its own.
  SharedWeights* shared_weights = nullptr;
  PlacementOptions placement;
  SharingOptions sharing;
  StreamingOptions streaming;
  WeightOptions weights;
  DecoderOptions decoder;
  // Loaded before the cache takes its memory.
  std::vector<AdapterSource> adapters;
  // 0: one per core, and one less where weights come from the host or from
  // disk.
  int threads = 0;
  uint32_t max_sequences = 64;
  uint64_t max_model_len = 0;  // tokens of a sequence; 0: the model's own limit
  KvCacheKind kv_cache = KvCacheKind::kContiguous;
  uint32_t block_size = 16;  // tokens of a block of kPaged, a power of two
  // Pinned host memory for sequences that are preempted, with kContiguous; 0:
  // they are computed again.
  Bytes swap_space;
  KvDType kv_dtype = KvDType::kF16;  // of 8 bits: with scales
  KvTokenLimit kv_limit;  // max_cache_len and attention sinks, of each sequence
  // The KV layout's g, or kAutoLayersPerRow; 0: all layers, the least waste.
  uint32_t layers_per_row = 0;
  // What g = auto is chosen by; without a mean length, half of the longest.
  KvWorkload kv_workload;
  // Steps that pages are mapped ahead, at most, with kContiguous, by engines
  // that prepare the next step while the device computes (EngineOptions); 0: a
  // step maps what it needs, and engines prepare nothing. None:
  // kDefaultPageAhead with kContiguous, else 0.
  std::optional<uint32_t> page_ahead;
  // Of the memory that the cache finds free when it is made, the part that
  // stays mapped behind sequences that have ended, with kContiguous, beside
  // what is kept for prompts: KvCacheOptions::max_parked, and eager_reclaim for
  // 0. None: 0 with page_ahead, which gives the rest back while the device
  // computes, else 1.
  std::optional<double> max_parked;
  // Who gives way where memory is short, and how full the cache may be: of
  // engines.
  std::string victim_policy = "youngest";  // or "lru", "page-aware"
  BatchLimitOptions batch_limit;
  // Told at the end of a session of what decoder, cache and weights did not
  // give back, where there is anything; null: nobody.
  std::function<void(const std::vector<LeakReport>&)> on_leaks;

  uint32_t PageAhead() const {
    return page_ahead.value_or(
        kv_cache == KvCacheKind::kContiguous ? kDefaultPageAhead : 0);
  }
  // What is for an engine (quire/model/engine.h) on the session.
  EngineOptions ForEngine() const;
  // Errors: kInvalidArgument for what no model can have, by the names of the
  // command line.
  absl::Status Validate() const;
};

// How a model's keys and values lie, and the longest sequence, as the options
// say. Errors name the option.
KvShape MakeKvShape(const ModelConfig& config, const SessionOptions& options);
absl::StatusOr<KvLayout> MakeKvLayout(const ModelConfig& config,
                                      const SessionOptions& options);
absl::StatusOr<uint64_t> LongestSequence(const ModelConfig& config,
                                         const SessionOptions& options);

class SharedDevice;

// Not thread-safe.
class Session {
 public:
  static absl::StatusOr<std::unique_ptr<Session>> Open(
      const std::string& model_path, const SessionOptions& options);
  // Of a checkpoint that was looked at before.
  static absl::StatusOr<std::unique_ptr<Session>> Open(
      std::unique_ptr<Checkpoint> checkpoint, const SessionOptions& options);

  ~Session();

  const Checkpoint& checkpoint() const { return *checkpoint_; }
  const ModelConfig& config() const { return config_; }
  Runtime& runtime() { return *runtime_; }
  const Runtime& runtime() const { return *runtime_; }
  const ModelWeights& weights() const { return *weights_; }
  SequenceCache& cache() { return *cache_; }
  Decoder& decoder() { return *decoder_; }
  AdapterSet& adapters() { return *adapters_; }
  const AdapterSet& adapters() const { return *adapters_; }
  ThreadPool& pool() { return *pool_; }
  // Layers to a row of the cache, and why, in a sentence for each device.
  const std::string& kv_layout() const { return kv_layout_; }
  // Why a device map left a device empty, in a sentence for each.
  const std::vector<std::string>& empty_devices() const {
    return empty_devices_;
  }

  // ---- Sleep without a copy ----
  // The weights' pages go back, and what was in them is read again from the
  // checkpoint, into the same addresses: ModelWeights::Drop and Reload. What is
  // in the cache stays, and the sequences go on after the reload; to put that
  // away as well, DeviceAllocator::Sleep puts the whole owner to sleep, of
  // which the dropped weights are a part that costs nothing.
  absl::StatusOr<Bytes> DropWeights() { return weights_->Drop(); }
  absl::StatusOr<LoadReport> ReloadWeights(
      const StreamingOptions& options = {}) {
    return weights_->Reload(*checkpoint_, config_, options, pool_.get());
  }

  // Where the device is shared: has other processes make room, for
  // Engine::set_make_room. kFailedPrecondition where it is not.
  absl::Status MakeRoom(Bytes missing);

  // Logits of every token of `tokens`, [tokens, vocab_size], in chunks:
  // `sink` is called with the rows of each chunk, in order. The sequence is a
  // new one and is released at the end.
  absl::Status ComputeLogits(
      std::span<const TokenId> tokens,
      const std::function<absl::Status(std::span<const float> rows)>& sink,
      AdapterId adapter = {});

 private:
  Session();

  // Destroyed from the bottom up.
  std::unique_ptr<Checkpoint> checkpoint_;
  ModelConfig config_;
  std::unique_ptr<Runtime> runtime_;
  std::unique_ptr<SharedDevice> shared_;  // null: not shared
  std::unique_ptr<ThreadPool> pool_;
  std::unique_ptr<ModelWeights> weights_;
  std::unique_ptr<Decoder> decoder_;
  std::unique_ptr<AdapterSet> adapters_;
  std::unique_ptr<SequenceCache> cache_;
  std::string kv_layout_;
  std::vector<std::string> empty_devices_;
  std::function<void(const std::vector<LeakReport>&)> on_leaks_;
};

}  // namespace quire

#endif  // QUIRE_MODEL_SESSION_H_
