#include <algorithm>
#include <atomic>
#include <utility>

#include "absl/strings/str_cat.h"
#include "model/adapters/adapter.h"
#include "model/adapters/adapter_builder.h"
#include "quire/alloc/quote.h"
#include "quire/alloc/status_macros.h"
#include "quire/model/adapters.h"

namespace quire {

Adapter::Adapter(Runtime* runtime, std::string name, std::string folder,
                 uint32_t max_tokens)
    : runtime_(runtime),
      name_(std::move(name)),
      folder_(std::move(folder)),
      max_tokens_(max_tokens),
      owner_(runtime->RegisterOwner("adapters/" + name_)) {}

Adapter::~Adapter() {
  // Nobody refers to it, so no step uses it, and the address is this
  // allocator's: what Free could report, nobody could act on.
  if (!memory_.null()) runtime_->allocator()->Free(memory_).IgnoreError();
}

absl::StatusOr<DeviceAddress> Adapter::Allocate(Bytes size) {
  QUIRE_ASSIGN_OR_RETURN(
      memory_, runtime_->allocator()->Allocate(size, {.owner = owner_}));
  bytes_ = size;
  return memory_;
}

TokenId Adapter::PrefixKey(TokenId first_token) const {
  static std::atomic<TokenId> last_key{0};
  MutexLock lock(&mutex_);
  const auto [key, is_new] = prefix_keys_.try_emplace(first_token, 0);
  if (is_new) key->second = --last_key;
  return key->second;
}

AdapterSet::AdapterSet(Runtime* runtime, const ModelConfig& config,
                       bool tied_head, uint32_t max_batch_tokens)
    : runtime_(runtime),
      config_(config),
      tied_head_(tied_head),
      max_batch_tokens_(max_batch_tokens) {}

absl::StatusOr<AdapterId> AdapterSet::Load(const std::string& name,
                                           const std::string& folder,
                                           const StreamingOptions& streaming) {
  return Add(name, folder, &streaming);
}

absl::StatusOr<AdapterId> AdapterSet::Reserve(const std::string& name,
                                              const std::string& folder) {
  return Add(name, folder, nullptr);
}

absl::StatusOr<AdapterId> AdapterSet::Add(const std::string& name,
                                          const std::string& folder,
                                          const StreamingOptions* streaming) {
  if (name.empty() || name.find('/') != std::string::npos)
    return absl::InvalidArgumentError(
        absl::StrCat("an adapter cannot be called ", Quoted(name),
                     ": a name is not empty and has no slash"));
  if (Find(name).ok())
    return absl::AlreadyExistsError(
        absl::StrCat("an adapter called ", Quoted(name), " is resident"));
  QUIRE_ASSIGN_OR_RETURN(const std::unique_ptr<LoraAdapter> source,
                         LoraAdapter::Open(folder));
  auto adapter =
      std::make_shared<Adapter>(runtime_, name, folder, max_batch_tokens_);
  QUIRE_RETURN_IF_ERROR(
      AdapterBuilder(config_, tied_head_, *source, adapter.get())
          .Build(streaming));
  const AdapterId id(++last_id_);
  adapters_.emplace(id, std::move(adapter));
  return id;
}

absl::Status AdapterSet::Unload(AdapterId id) {
  const auto found = adapters_.find(id);
  if (found == adapters_.end()) return NotResident(id);
  if (found->second.use_count() > 1)
    return absl::FailedPreconditionError(
        absl::StrCat("adapter ", Quoted(found->second->name()),
                     " is in use by ", found->second.use_count() - 1,
                     " sequence(s), and stays resident until they end"));
  adapters_.erase(found);
  return absl::OkStatus();
}

absl::StatusOr<AdapterId> AdapterSet::Find(std::string_view name) const {
  for (const auto& [id, adapter] : adapters_)
    if (adapter->name() == name) return id;
  return absl::NotFoundError(
      absl::StrCat("no adapter called ", Quoted(name), " is resident"));
}

absl::StatusOr<AdapterRef> AdapterSet::Use(AdapterId id) const {
  if (id == AdapterId()) return AdapterRef();
  const auto found = adapters_.find(id);
  if (found == adapters_.end()) return NotResident(id);
  return found->second;
}

std::vector<AdapterInfo> AdapterSet::List() const {
  std::vector<AdapterInfo> list;
  for (const auto& [id, adapter] : adapters_)
    list.push_back({.id = id,
                    .name = adapter->name(),
                    .folder = adapter->folder(),
                    .bytes = adapter->bytes(),
                    .modules = adapter->modules(),
                    .rank = adapter->rank(),
                    .in_use = adapter.use_count() > 1,
                    .warnings = adapter->warnings()});
  return list;
}

absl::Status AdapterSet::NotResident(AdapterId id) {
  return absl::NotFoundError(
      absl::StrCat("no adapter with the id ", id.value(), " is resident"));
}

}  // namespace quire
