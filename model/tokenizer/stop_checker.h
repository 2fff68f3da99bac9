// When a sequence is done, and which of its text to show.
//
// Text that may be the start of a stop string is held back until it is clear
// that it is not; a stop string is never shown, not even a part of it, however
// tokens cut it. Cost per token: O(text held back x stop strings).

#ifndef QUIRE_MODEL_TOKENIZER_STOP_CHECKER_H_
#define QUIRE_MODEL_TOKENIZER_STOP_CHECKER_H_

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "quire/model/tokenizer.h"

namespace quire {

struct StopConditions {
  int64_t max_new_tokens = 16;  // >= 0
  std::vector<TokenId> eos_ids;
  std::vector<std::string> stop_strings;  // none empty

  // kInvalidArgument that names what is out of range.
  absl::Status Validate() const;
};

enum class StopReason {
  kNone,        // go on
  kEos,         // the token is an EOS
  kStopString,  // the text reached a stop string
  kLength,      // max_new_tokens are there
};

// One per sequence.
class StopChecker {
 public:
  // REQUIRES: conditions.Validate() is OK.
  explicit StopChecker(const StopConditions& conditions);

  struct Step {
    // To show now.
    std::string text;
    StopReason reason;
  };
  // `text` is what TextStream gave for `token`; that of an EOS is not shown.
  // Where several reasons hold, EOS comes first, then the stop string. Of stop
  // strings that of which the last byte comes first ends the text; of those the
  // longest. REQUIRES: no earlier step had a reason to stop.
  Step Push(TokenId token, std::string_view text);

  // The text that is left when the sequence ends, with `text` from
  // TextStream::Finish. It, too, may reach a stop string.
  Step Finish(std::string_view text);

  // max_new_tokens is 0: there is nothing to generate.
  bool DoneAtStart() const { return conditions_.max_new_tokens == 0; }

 private:
  // Adds text; returns what can be shown, and whether a stop string ended it.
  Step Advance(std::string_view text);

  const StopConditions conditions_;
  const absl::flat_hash_set<TokenId> eos_ids_;
  int64_t tokens_ = 0;
  std::string held_;
};

// The EOS ids that a model's files give, joined: eos_token_id (a number or a
// list) of `config` and `generation_config`, eos_token (a string or an object
// with `content`) of `tokenizer_config`, eos_token_id and eot_token_id of
// `gguf_metadata`. Each may be {}. Without a tokenizer (null) `eos_token`,
// which is text, is left out. kInvalidArgument names the field that is neither,
// and its file: `origin` is the folder of the files, or the GGUF file.
absl::StatusOr<std::vector<TokenId>> EosTokenIds(
    const std::string& origin, const nlohmann::json& config,
    const nlohmann::json& generation_config,
    const nlohmann::json& tokenizer_config, const nlohmann::json& gguf_metadata,
    const Tokenizer* tokenizer);

}  // namespace quire

#endif  // QUIRE_MODEL_TOKENIZER_STOP_CHECKER_H_
