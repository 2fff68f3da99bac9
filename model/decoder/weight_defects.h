// Counts what is wrong in the data of weights, and says it in a few sentences:
// nothing of it stops a load, and none of it should pass unseen.

#ifndef QUIRE_MODEL_DECODER_WEIGHT_DEFECTS_H_
#define QUIRE_MODEL_DECODER_WEIGHT_DEFECTS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "quire/loader/gptq.h"
#include "quire/loader/scaled_modules.h"
#include "quire/model/ops.h"

namespace quire {

class WeightDefects {
 public:
  // `matrix` as finished, its bytes on the host.
  void AddGptq(const GptqModule& module, const GptqMatrix& matrix);
  void AddScaled(const ScaledModule& module, const NonFiniteCounts& counts);
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
  Kind codes_;          // NaN
  Kind wrapped_zeros_;  // v1 zero points of 2^bits - 1
  Kind biases_;
};

}  // namespace quire

#endif  // QUIRE_MODEL_DECODER_WEIGHT_DEFECTS_H_
