#include "alloc/hook_dispatcher.h"

#include <cstddef>

#include "quire/alloc/limit_raiser.h"

namespace quire {
namespace {

// The innermost: hooks of one device memory may call another one.
thread_local HookScope* current_scope = nullptr;

void Call(MemoryHooks* hooks, const MemoryEvent& event) {
  if (const auto* pressure = std::get_if<PressureChange>(&event)) {
    hooks->OnPressure(*pressure);
  } else if (const auto* mapped = std::get_if<PagesMapped>(&event)) {
    hooks->OnPagesMapped(mapped->change);
  } else if (const auto* unmapped = std::get_if<PagesUnmapped>(&event)) {
    hooks->OnPagesUnmapped(unmapped->change);
  }
}

// To which the hooks may raise the limit.
Bytes HighestLimit(const MemoryHooks* hooks) {
  const auto* const raiser = dynamic_cast<const LimitRaiser*>(hooks);
  return raiser == nullptr ? Bytes(0) : raiser->HighestLimit();
}

}  // namespace

HookScope* HookScope::Find(const HookDispatcher* dispatcher) {
  for (HookScope* scope = current_scope; scope != nullptr;
       scope = scope->enclosing_) {
    if (scope->dispatcher_ == dispatcher && scope->is_outermost_) return scope;
  }
  return nullptr;
}

HookScope::HookScope(HookDispatcher* dispatcher)
    : dispatcher_(dispatcher),
      enclosing_(current_scope),
      is_outermost_(Find(dispatcher) == nullptr) {
  current_scope = this;
}

HookScope::~HookScope() {
  // Hooks may add to the queue while it is worked off.
  for (size_t next = 0; next < queue_.size(); ++next) {
    const MemoryEvent event = queue_[next];
    dispatcher_->hooks().ForEach([&](MemoryHooks* hooks) {
      Call(hooks, event);
      return true;
    });
  }
  current_scope = enclosing_;
}

void HookDispatcher::Deliver(std::vector<MemoryEvent> events) {
  if (events.empty()) return;
  const HookScope scope(this);
  std::vector<MemoryEvent>& queue = HookScope::Find(this)->queue_;
  queue.insert(queue.end(), events.begin(), events.end());
}

Bytes HookDispatcher::OutOfMemory(const OutOfMemoryVerdict& verdict) {
  Bytes freed;
  if (HookScope::Find(this) != nullptr) return freed;
  const HookScope scope(this);
  // An owner's limit is not the memory's: who asks has looked at it.
  const bool beyond_limit =
      !verdict.owner_limit && verdict.requested > verdict.limit;
  hooks_.ForEach([&](MemoryHooks* hooks) {
    if (beyond_limit && HighestLimit(hooks) < verdict.requested) return true;
    freed = SaturatingAdd(freed, hooks->OnOutOfMemory(verdict));
    return true;
  });
  return freed;
}

}  // namespace quire
