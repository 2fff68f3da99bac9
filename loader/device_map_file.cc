// Device maps that users write, and that plans print.

#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "loader/json_file.h"
#include "quire/alloc/quote.h"
#include "quire/alloc/status_macros.h"
#include "quire/loader/device_map.h"

namespace quire {
namespace {

using nlohmann::json;

constexpr char kMapField[] = "device_map";

// Whether `prefix` names the module `name` or one that contains it.
bool Covers(std::string_view prefix, std::string_view name) {
  if (prefix.empty() || prefix == name) return true;
  return name.size() > prefix.size() && name.starts_with(prefix) &&
         name[prefix.size()] == '.';
}

absl::Status Refuse(const std::string& where, std::string_view module,
                    std::string_view problem) {
  return absl::InvalidArgumentError(absl::StrCat(
      where, ": module ", Quoted(module), " ", std::string(problem)));
}

std::optional<MemoryPlace> PlaceOf(const json& value) {
  if (value.is_string()) return ParsePlace(value.get<std::string>());
  if (!value.is_number_unsigned()) return std::nullopt;
  return ParsePlace(std::to_string(value.get<uint64_t>()));
}

absl::Status RefuseUnknown(const std::string& where, std::string_view prefix,
                           std::span<const PlacementBlock> blocks) {
  for (const PlacementBlock& block : blocks) {
    if (Covers(block.name, prefix))
      return Refuse(where, prefix,
                    absl::StrCat("is a part of ", Quoted(block.name),
                                 ", which is not split"));
  }
  return Refuse(where, prefix, "is none of this model");
}

}  // namespace

absl::StatusOr<DeviceMap> ReadDeviceMap(const std::string& path,
                                        std::span<const PlacementBlock> blocks,
                                        int devices) {
  QUIRE_ASSIGN_OR_RETURN(const JsonFile file, ReadJsonFile(path));
  const std::string where = Printable(path);
  const auto inner = file.value.find(kMapField);
  const json& entries =
      inner != file.value.end() && inner->is_object() ? *inner : file.value;
  if (!file.repeated_fields.empty())
    return Refuse(where, file.repeated_fields.front(), "is there twice");

  DeviceMap map;
  map.places.resize(blocks.size());
  std::vector<std::optional<std::string>> covered_by(blocks.size());
  for (const auto& item : entries.items()) {
    const std::string& prefix = item.key();
    const auto place = PlaceOf(item.value());
    if (!place.has_value())
      return Refuse(
          where, prefix,
          absl::StrCat("is placed on ",
                       Printable(item.value().dump(
                           -1, ' ', false, json::error_handler_t::replace)),
                       ": a device number, \"cpu\" or \"disk\" is "
                       "expected"));
    if (place->tier == MemoryTier::kDevice && place->device.value() >= devices)
      return Refuse(where, prefix,
                    absl::StrCat("is placed on device ", PlaceName(*place),
                                 ", there are ", devices));
    bool known = false;
    for (size_t i = 0; i < blocks.size(); ++i) {
      if (!Covers(prefix, blocks[i].name)) continue;
      known = true;
      if (covered_by[i].has_value())
        return Refuse(
            where, blocks[i].name,
            absl::StrCat("is covered twice, by ", Quoted(*covered_by[i]),
                         " and by ", Quoted(prefix)));
      covered_by[i] = prefix;
      map.places[i] = *place;
    }
    if (!known) return RefuseUnknown(where, prefix, blocks);
  }
  for (size_t i = 0; i < blocks.size(); ++i) {
    if (!covered_by[i].has_value())
      return Refuse(where, blocks[i].name, "has no place");
    const auto tied = blocks[i].tied_to;
    if (tied.has_value() && map.places[*tied] != map.places[i])
      return Refuse(
          where, blocks[i].name,
          absl::StrCat("shares its weights with ", Quoted(blocks[*tied].name),
                       ", which is placed elsewhere"));
  }
  return map;
}

}  // namespace quire
