// The chat templates of a model, as text: Jinja sources that make one prompt of
// a conversation.
//
// Where they stand (transformers' tokenization_utils_base.py and its
// PreTrainedTokenizerBase.save_chat_templates; llama.cpp's gguf-py):
//   chat_template.jinja, and additional_chat_templates/NAME.jinja beside it
//   tokenizer_config.json: "chat_template", a string or a list of objects
//     {"name": ..., "template": ...}
//   GGUF: tokenizer.chat_template, and tokenizer.chat_template.NAME
// A file counts before what tokenizer_config.json says.

#ifndef QUIRE_MODEL_CHAT_TEMPLATE_H_
#define QUIRE_MODEL_CHAT_TEMPLATE_H_

#include <map>
#include <string>

#include "absl/status/statusor.h"
#include "quire/loader/checkpoint.h"

namespace quire {

// By name; the one that is used where none is asked for is "default". Empty
// where a model has none. Errors name file and field.
absl::StatusOr<std::map<std::string, std::string>> ReadChatTemplates(
    const Checkpoint& checkpoint);

}  // namespace quire

#endif  // QUIRE_MODEL_CHAT_TEMPLATE_H_
