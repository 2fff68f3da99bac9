#include "model/decoder/weight_defects.h"

#include "absl/strings/str_cat.h"
#include "quire/alloc/quote.h"

namespace quire {

void WeightDefects::Kind::Add(uint64_t found, const std::string& module) {
  if (found == 0) return;
  if (modules == 0) first = module;
  count += found;
  ++modules;
}

std::string WeightDefects::Kind::Where() const {
  return absl::StrCat("in ", modules, " module(s), the first is ",
                      Quoted(first));
}

void WeightDefects::AddGptq(const GptqModule& module,
                            const GptqMatrix& matrix) {
  scales_.Add(CountNonFinite(matrix.scales, matrix.scales_dtype,
                             matrix.groups * matrix.out_features),
              module.name);
  if (module.packing == GptqPacking::kGptq && matrix.zero_offset == 1)
    wrapped_zeros_.Add(CountWrappedZeros(matrix.qzeros, matrix.groups,
                                         matrix.out_features, matrix.bits),
                       module.name);
}

void WeightDefects::AddScaled(const ScaledModule& module,
                              const NonFiniteCounts& counts) {
  scales_.Add(counts.scales, module.name);
  codes_.Add(counts.codes, module.name);
}

void WeightDefects::AppendTo(std::vector<std::string>* warnings) const {
  if (scales_.count > 0)
    warnings->push_back(absl::StrCat(
        scales_.count, " scale(s) are NaN or infinite, ", scales_.Where()));
  if (codes_.count > 0)
    warnings->push_back(
        absl::StrCat(codes_.count, " weight(s) are NaN, ", codes_.Where()));
  if (wrapped_zeros_.count > 0)
    warnings->push_back(absl::StrCat(
        wrapped_zeros_.count,
        " zero point(s) are stored as -1 modulo 2^bits and read as 0, ",
        wrapped_zeros_.Where(),
        ": some readers take them for 2^bits, and writers that do not mask "
        "have lost the ones after them"));
  if (biases_.count > 0)
    warnings->push_back(absl::StrCat(
        "biases that are not 0, and that the configuration does not give the "
        "model, are added ",
        biases_.Where(), ": other readers leave them out"));
}

}  // namespace quire
