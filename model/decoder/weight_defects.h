// Counts what is wrong in the data of weights, and says it in a few sentences:
// nothing of it stops a load, and none of it should pass unseen.

#ifndef QUIRE_MODEL_DECODER_WEIGHT_DEFECTS_H_
#define QUIRE_MODEL_DECODER_WEIGHT_DEFECTS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "model/decoder/gptq_weights.h"
#include "quire/loader/gptq.h"
#include "quire/model/ops.h"

namespace quire {

class WeightDefects {
 public:
  // `matrix` as finished, its bytes on the host; how its zeros are read.
  void AddGptq(const GptqModule& module, const GptqMatrix& matrix,
               ZeroLabel label);
  // `wrapped`: CountWrappedZeros of what is stored.
  void AddZeros(const GptqModule& module, const ZeroReading& zeros,
                uint64_t wrapped);
  void AddGroupIndex(const GptqModule& module, GroupIndexOddity oddity);
  // Scales and weights of a module that are NaN or infinite.
  void AddNonFinite(const std::string& module, const NonFiniteCounts& counts);
  // A bias that is not 0, where the model has none.
  void AddBias(const std::string& module) { biases_.Add(1, module); }

  // A sentence for each kind that there was.
  void AppendTo(std::vector<std::string>* warnings) const;

 private:
  struct Kind {
    uint64_t count = 0;
    uint64_t modules = 0;
    std::string first;  // module

    void Add(uint64_t found, const std::string& module);
    std::string Where() const;  // "in 3 module(s), the first is m"
  };

  Kind scales_;         // NaN or infinite
  Kind weights_;        // NaN or infinite
  Kind wrapped_zeros_;  // v1 zero points of 2^bits - 1
  // Modules whose zero points contradict their label.
  Kind v1_as_v2_;
  Kind v2_as_v1_;
  Kind not_symmetric_;
  // Modules whose g_idx is odd.
  Kind all_zero_index_;
  Kind unequal_groups_;
  Kind biases_;
};

}  // namespace quire

#endif  // QUIRE_MODEL_DECODER_WEIGHT_DEFECTS_H_
