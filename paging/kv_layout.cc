#include "quire/paging/kv_layout.h"

namespace quire {

const char* KvDTypeName(KvDType dtype) {
  switch (dtype) {
    case KvDType::kF32:
      return "f32";
    case KvDType::kF16:
      return "f16";
    case KvDType::kBF16:
      return "bf16";
  }
  return "?";
}

Bytes KvElementSize(KvDType dtype) {
  return Bytes(dtype == KvDType::kF32 ? 4 : 2);
}

}  // namespace quire
