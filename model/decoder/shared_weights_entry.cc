#include "model/decoder/shared_weights_entry.h"

#include <chrono>
#include <utility>

#include "quire/alloc/status_macros.h"

namespace quire {
namespace {

// How often one that waits looks at its cancel flag.
constexpr auto kCancelInterval = std::chrono::milliseconds(50);

}  // namespace

SharedWeightsEntry::SharedWeightsEntry(Runtime* runtime,
                                       const std::string& owner,
                                       const WeightPlacement& placement,
                                       const WeightOptions& options)
    : view_(Runtime::CreateView(runtime, owner)),
      placement_(placement),
      options_(options) {}

absl::StatusOr<std::unique_ptr<ModelWeights>> SharedWeightsEntry::MakeUser(
    const std::shared_ptr<SharedWeightsEntry>& entry,
    const WeightSource& source) {
  std::unique_ptr<ModelWeights> user(new ModelWeights(view_.get()));
  user->shared_ = entry;
  QUIRE_ASSIGN_OR_RETURN(user->load_report_, Join(user.get(), source));
  const ModelWeights& all = *weights_;
  user->owner_ = all.owner_;
  user->files_ = all.files_;
  user->options_ = all.options_;
  user->residences_ = all.residences_;
  user->stores_.resize(all.stores_.size());
  user->embedding_ = all.embedding_;
  user->layers_ = all.layers_;
  user->output_norm_ = all.output_norm_;
  user->output_ = all.output_;
  user->tied_head_ = all.tied_head_;
  user->inverse_frequencies_ = all.inverse_frequencies_;
  user->parts_ = all.parts_;
  user->warnings_ = all.warnings_;
  return user;
}

absl::StatusOr<LoadReport> SharedWeightsEntry::Fill(
    const WeightSource& source) {
  if (weights_ != nullptr)
    return weights_->Reload(source.checkpoint, source.config, source.options,
                            source.pool);
  QUIRE_ASSIGN_OR_RETURN(
      weights_,
      ModelWeights::Load(view_.get(), source.checkpoint, source.config,
                         source.options, source.pool, placement_, options_));
  return weights_->load_report();
}

absl::StatusOr<LoadReport> SharedWeightsEntry::Join(
    ModelWeights* user, const WeightSource& source) {
  {
    MutexLock lock(&mutex_);
    while (busy_) {
      idle_.WaitFor(&mutex_, kCancelInterval);
      if (source.options.cancelled != nullptr &&
          source.options.cancelled->load())
        return absl::CancelledError(
            "the load was cancelled while another one of the same weights was "
            "under way");
    }
    if (users_ > 0) {
      ++users_;
      user->resident_ = true;
      return LoadReport();
    }
    busy_ = true;
  }
  absl::StatusOr<LoadReport> report = Fill(source);
  {
    MutexLock lock(&mutex_);
    busy_ = false;
    if (report.ok()) {
      ++users_;
      user->resident_ = true;
    }
  }
  idle_.NotifyAll();
  return report;
}

absl::StatusOr<Bytes> SharedWeightsEntry::Leave(ModelWeights* user,
                                                bool for_good) {
  if (!user->resident()) return Bytes(0);
  {
    MutexLock lock(&mutex_);
    while (busy_) idle_.Wait(&mutex_);
    if (users_ > 1) {
      --users_;
      user->resident_ = false;
      return Bytes(0);
    }
    busy_ = true;
  }
  absl::StatusOr<Bytes> given_back = weights_->Drop();
  {
    MutexLock lock(&mutex_);
    busy_ = false;
    if (!weights_->resident() || for_good) {
      --users_;
      user->resident_ = false;
    }
  }
  idle_.NotifyAll();
  return given_back;
}

}  // namespace quire
