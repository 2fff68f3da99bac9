// How many layers to a row: g = auto.
//
// Fewer layers to a row are more local for the attention kernel, but every
// group of a sequence ends in a partly used page. The choice is the smallest g
// whose waste is affordable at the lengths of the workload: tails, and what is
// backed before it is needed, which is no fault of the layout but leaves less
// for tails.

#ifndef QUIRE_PAGING_KV_LAYOUT_CHOICE_H_
#define QUIRE_PAGING_KV_LAYOUT_CHOICE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "quire/alloc/units.h"
#include "quire/paging/kv_layout.h"

namespace quire {

struct KvWorkload {
  // Of a sequence. Lengths are taken to spread evenly from 1 to twice the mean:
  // of any smooth distribution a tail is half a page in the mean, whichever it
  // is.
  uint64_t mean_tokens = 0;
  // What may be wasted, to what the layers keep.
  double waste_limit = 0.02;
  // Of a sequence in the mean: tokens that are backed and not computed yet, of
  // prompts that wait for their turn and of pages mapped ahead.
  double idle_tokens = 0;
};

struct KvLayoutChoice {
  struct Candidate {
    uint32_t layers_per_row = 0;
    uint32_t groups = 0;
    Bytes row;              // the largest one
    double tail_waste = 0;  // bytes in pages that keep nothing / bytes kept
    double waste = 0;       // the same, with those of idle tokens
    bool within_limit = false;
  };

  KvLayoutOptions options;
  // By rising layers_per_row: one for each number of groups that there can be,
  // with the fewest layers to a row that give it.
  std::vector<Candidate> candidates;
  // What was chosen and why, in a sentence.
  std::string reason;
};

// Where no candidate is within the limit, the one with the least waste.
// O(layers
// * candidates). Errors: those of KvLayout::Create; kInvalidArgument for a mean
// of 0 tokens, or whose sequences do not fit in 64 bits, and for a limit or
// idle tokens that are negative or no number. REQUIRES: page_size > 0.
absl::StatusOr<KvLayoutChoice> ChooseLayout(const KvModelShape& shape,
                                            const KvWorkload& workload,
                                            Bytes page_size,
                                            bool values_apart = false);

// The candidates as a table of text, the chosen one marked.
std::string FormatLayoutChoice(const KvLayoutChoice& choice);

}  // namespace quire

#endif  // QUIRE_PAGING_KV_LAYOUT_CHOICE_H_
