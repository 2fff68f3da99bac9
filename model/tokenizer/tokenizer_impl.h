// The parts of a tokenizer.

#ifndef QUIRE_MODEL_TOKENIZER_TOKENIZER_IMPL_H_
#define QUIRE_MODEL_TOKENIZER_TOKENIZER_IMPL_H_

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "model/tokenizer/added_tokens.h"
#include "model/tokenizer/bpe.h"
#include "model/tokenizer/decoder.h"
#include "model/tokenizer/normalizer.h"
#include "model/tokenizer/post_processor.h"
#include "model/tokenizer/pre_tokenizer.h"
#include "quire/model/tokenizer.h"

namespace quire {

class Tokenizer::Impl {
 public:
  // What a decoder sees of this id; null where it does not exist.
  // `*is_special` tells whether it is a special token.
  const std::string* DecodedForm(TokenId id, bool* is_special) const {
    const std::string* form = added.DecodedForm(id);
    if (form == nullptr) form = bpe->Token(id);
    *is_special = form != nullptr && added.IsSpecial(*form);
    return form;
  }

  std::unique_ptr<Bpe> bpe;
  std::unique_ptr<Normalizer> normalizer;       // may be null
  std::unique_ptr<PreTokenizer> pre_tokenizer;  // may be null
  AddedTokens added;
  PostProcessor post_processor;
  TokenDecoder decoder;
  // normalizer, pre_tokenizer, post_processor and decoder as they were read.
  nlohmann::json description;
};

}  // namespace quire

#endif  // QUIRE_MODEL_TOKENIZER_TOKENIZER_IMPL_H_
