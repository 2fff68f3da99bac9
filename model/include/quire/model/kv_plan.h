// What keys and values take, to the byte and in pages, from the kinds of a
// model's layers alone: of models that the decoder does not run, too.

#ifndef QUIRE_MODEL_KV_PLAN_H_
#define QUIRE_MODEL_KV_PLAN_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "quire/alloc/units.h"
#include "quire/model/kv_config.h"
#include "quire/model/session.h"
#include "quire/paging/kv_layout.h"
#include "quire/paging/kv_layout_choice.h"

namespace quire {

// Layers of one kind, and what they take.
struct KvKindSize {
  KvLayerKind kind;
  uint32_t layers = 0;
  Bytes token;  // of one token, over these layers
  // How that comes about: "12 layers x 2 x 8 heads x 64 x 2 bytes".
  std::string formula;
};
// In the order of KvLayout::kinds(); the tokens' sum is TokenBytes().
std::vector<KvKindSize> SizesByKind(const KvLayout& layout);

// The lengths that plans show: powers of two from 256 up to `longest`, and
// that.
std::vector<uint64_t> PlannedLengths(uint64_t longest);

// Sequences of one length, once their prompts are computed: behind windows and
// limits nothing is kept.
struct KvLengthPlan {
  uint64_t tokens = 0;
  Bytes kept;              // of one: what its layers keep
  Bytes mapped;            // of one: the pages under that
  uint64_t room = 0;       // sequences that memory holds at once
  uint64_t sequences = 0;  // that run at once: of these, --max-num-seqs at most
};
struct KvPlan {
  std::string model_type;
  std::string why_not_decoded;
  std::optional<Bytes> weights;  // nullopt: nobody knows

  Bytes device_memory;
  Bytes usable;  // in whole pages
  Bytes page_size;
  Bytes kv;  // what weights leave of it, as far as they are known

  std::vector<KvKindSize> kinds;
  Bytes token;  // of all layers
  // Of the KV layout: at most those of the kind that has most of them.
  uint32_t layers_per_row = 0;
  KvLayoutChoice layouts;  // that there are, and their waste
  uint64_t max_model_len = 0;
  std::vector<KvLengthPlan> lengths;
  // Whether there is room for a sequence beside the weights; nullopt where
  // nobody knows what these are.
  std::optional<bool> fits;
};

// Of a model that is not run here, for the reason given. Errors are those of
// the options: kInvalidArgument for what only a model that runs can have.
absl::StatusOr<KvPlan> PlanKv(const KvConfig& config,
                              std::optional<Bytes> weights,
                              std::string why_not_decoded,
                              const SessionOptions& options);

}  // namespace quire

#endif  // QUIRE_MODEL_KV_PLAN_H_
