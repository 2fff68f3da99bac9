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

void WeightDefects::AddGptq(const GptqModule& module, const GptqMatrix& matrix,
                            ZeroLabel label) {
  AddNonFinite(module.name,
               {.scales = CountNonFinite(matrix.scales, matrix.scales_dtype,
                                         matrix.groups * matrix.out_features)});
  AddZeros(module, {matrix.zero_offset, label},
           CountWrappedZeros(matrix.qzeros, matrix.groups, matrix.out_features,
                             matrix.bits));
}

void WeightDefects::AddZeros(const GptqModule& module, const ZeroReading& zeros,
                             uint64_t wrapped) {
  if (module.packing == GptqPacking::kGptq && zeros.offset == 1)
    wrapped_zeros_.Add(wrapped, module.name);
  switch (zeros.label) {
    case ZeroLabel::kRight:
      return;
    case ZeroLabel::kV1AsV2:
      return v1_as_v2_.Add(1, module.name);
    case ZeroLabel::kV2AsV1:
      return v2_as_v1_.Add(1, module.name);
    case ZeroLabel::kNotSymmetric:
      return not_symmetric_.Add(1, module.name);
  }
}

void WeightDefects::AddGroupIndex(const GptqModule& module,
                                  GroupIndexOddity oddity) {
  switch (oddity) {
    case GroupIndexOddity::kNone:
      return;
    case GroupIndexOddity::kAllZero:
      return all_zero_index_.Add(1, module.name);
    case GroupIndexOddity::kUnequalGroups:
      return unequal_groups_.Add(1, module.name);
  }
}

void WeightDefects::AddNonFinite(const std::string& module,
                                 const NonFiniteCounts& counts) {
  scales_.Add(counts.scales, module);
  weights_.Add(counts.codes, module);
}

void WeightDefects::AppendTo(std::vector<std::string>* warnings) const {
  const auto say = [warnings](const Kind& kind, const auto&... sentence) {
    if (kind.count > 0) warnings->push_back(absl::StrCat(sentence...));
  };
  say(scales_, scales_.count, " scale(s) are NaN or infinite, ",
      scales_.Where());
  say(weights_, weights_.count, " weight(s) are NaN or infinite, ",
      weights_.Where());
  say(wrapped_zeros_, wrapped_zeros_.count,
      " zero point(s) are stored as -1 modulo 2^bits and read as 0, ",
      wrapped_zeros_.Where(),
      ": some readers take them for 2^bits, and writers that do not mask have "
      "lost the ones after them");
  say(v1_as_v2_, "zero points labelled gptq_v2 are those of symmetric v1 ",
      v1_as_v2_.Where(), "; read as v1");
  say(v2_as_v1_, "zero points labelled gptq (v1) are those of symmetric v2 ",
      v2_as_v1_.Where(), "; read as v2");
  say(not_symmetric_, "zero points labelled symmetric are not ",
      not_symmetric_.Where(), "; read as stored");
  say(all_zero_index_, "g_idx is all zero, though there are several groups, ",
      all_zero_index_.Where(), "; rows are taken to be in order");
  say(unequal_groups_,
      "g_idx makes groups of other sizes than the configuration says ",
      unequal_groups_.Where(), "; read as stored");
  say(biases_,
      "biases that are not 0, and that the configuration does not give the "
      "model, are added ",
      biases_.Where(), ": other readers leave them out");
}

}  // namespace quire
