// OneComp's tables of bits and group sizes per module ("mixed_gptq", and the
// copy of them that plain "gptq" files carry).
//
// bits:  quantization_bits[layer][suffix], then module_wbits[name], then
//        mlp_wbits for names with "mlp", then `bits`
// group: quantization_bits[layer][suffix], then mlp_groupsize for names with
//        "mlp", then `group_size`

#ifndef QUIRE_LOADER_ONECOMP_SETTINGS_H_
#define QUIRE_LOADER_ONECOMP_SETTINGS_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "quire/loader/gptq.h"
#include "quire/loader/json_fields.h"

namespace quire {

// Immutable.
class OneCompSettings {
 public:
  // `config` is the quantisation configuration; without any of the fields above
  // the result changes nothing.
  static absl::StatusOr<OneCompSettings> Parse(const JsonFields& config);

  GptqSettings Apply(std::string_view module, GptqSettings settings) const;

 private:
  struct Setting {
    std::optional<int> bits;
    std::optional<int64_t> group_size;
  };
  // By the name within the layer: "mlp.down_proj". A key may also be the begin
  // of names, or "_all".
  using Layer = std::map<std::string, Setting, std::less<>>;

  static absl::StatusOr<Layer> ParseLayer(const JsonFields& layer);
  const Setting* FindInLayers(std::string_view module) const;

  std::vector<Layer> layers_;
  std::map<std::string, int, std::less<>> module_bits_;
  std::optional<int> mlp_bits_;
  std::optional<int64_t> mlp_group_size_;
};

}  // namespace quire

#endif  // QUIRE_LOADER_ONECOMP_SETTINGS_H_
