// Published models by name: what their configurations say of their keys and
// values, and what their weights take. For plans and simulations of models that
// are not on this machine.

#ifndef QUIRE_MODEL_PUBLISHED_MODELS_H_
#define QUIRE_MODEL_PUBLISHED_MODELS_H_

#include <span>
#include <string_view>

#include "absl/status/statusor.h"
#include "quire/alloc/units.h"
#include "quire/model/kv_config.h"

namespace quire {

struct PublishedModel {
  const char* name;          // "gpt-oss-20b"
  const char* config;        // of its config.json, what ParseKvConfig reads
  Bytes weights;             // of its checkpoint's tensors
  double active_parameters;  // that one token is multiplied with

  absl::StatusOr<KvConfig> ParseKv() const;
};

std::span<const PublishedModel> PublishedModels();
// Null where there is none of that name.
const PublishedModel* FindPublishedModel(std::string_view name);

}  // namespace quire

#endif  // QUIRE_MODEL_PUBLISHED_MODELS_H_
