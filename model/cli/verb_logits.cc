// quire logits

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "model/cli/npy_writer.h"
#include "model/cli/option_rules.h"
#include "model/cli/options.h"
#include "model/cli/output.h"
#include "model/cli/runnable.h"
#include "model/cli/verbs.h"
#include "model/cli/verification.h"
#include "quire/alloc/status_macros.h"
#include "quire/model/ops.h"

namespace quire {
namespace {

struct LogitsOptions {
  std::string model;
  std::string tokens;
  std::string output;
  std::vector<std::string> adapters;  // one at most
  SessionOptions session;
};

absl::Status Logits(LogitsOptions options) {
  QUIRE_ASSIGN_OR_RETURN(const std::vector<TokenId> tokens,
                         ParseTokens(options.tokens));
  options.session.streaming.progress = LoadProgressLine();
  QUIRE_RETURN_IF_ERROR(ChooseOwnAdapter(options.model, &options.adapters));
  options.session.adapters = NameAdapters(options.adapters);
  QUIRE_ASSIGN_OR_RETURN(std::unique_ptr<Checkpoint> checkpoint,
                         Checkpoint::Open(options.model));
  QUIRE_ASSIGN_OR_RETURN(const std::unique_ptr<Session> session,
                         OpenVerified(std::move(checkpoint), options.session));
  PrintModelWarnings(*session);
  AdapterId adapter;
  if (!options.session.adapters.empty()) {
    QUIRE_ASSIGN_OR_RETURN(
        adapter, FindAdapter(session->adapters(), options.adapters.front()));
  }
  QUIRE_ASSIGN_OR_RETURN(const std::unique_ptr<NpyWriter> writer,
                         NpyWriter::Create(options.output, tokens.size(),
                                           session->config().vocab_size));
  uint64_t non_finite = 0;
  QUIRE_RETURN_IF_ERROR(session->ComputeLogits(
      tokens,
      [&](std::span<const float> rows) {
        non_finite += CountNonFinite(rows.data(), DType::kF32, rows.size());
        return writer->Append(rows);
      },
      adapter));
  // Whatever is wrong in the weights comes out here, also what no load looks
  // for.
  if (non_finite > 0)
    PrintWarning(
        absl::StrCat(non_finite,
                     " logit(s) are NaN or infinite; quire inspect tells "
                     "whether weights are"));
  return writer->Finish();
}

}  // namespace

void AddLogitsVerb(CLI::App* app, Action* chosen) {
  auto options = std::make_shared<LogitsOptions>();
  CLI::App* verb = app->add_subcommand(
      "logits", "The logits after every token, as a float32 .npy file");
  verb->add_option("MODEL", options->model,
                   "Folder, .safetensors or .gguf file")
      ->required();
  verb->add_option("--tokens", options->tokens, "1,2,3")
      ->required()
      ->check(kTokenList);
  verb->add_option("--output", options->output,
                   "File to write: [tokens, vocab]")
      ->required();
  AddAdapterOption(verb, &options->adapters,
                   "Folder of a LoRA adapter, or 'none': the base model")
      ->expected(1);
  AddSessionOptions(verb, &options->session);
  AddReadOptions(verb, &options->session.streaming);
  AddKvCacheOptions(verb, &options->session);
  verb->callback([=] {
    FinishSessionOptions(*verb, &options->session);
    *chosen = [=] {
      return WithAllThatIsMissing(Logits(*options), options->model,
                                  options->session, options->adapters);
    };
  });
}

}  // namespace quire
