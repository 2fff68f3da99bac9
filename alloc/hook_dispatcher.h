// Calls hooks: in order, without a lock, and never one inside another.
//
// What happens under the lock of a device memory is put into an EventLog there,
// and handed to Deliver when the lock was released. Where the thread has a
// HookScope open (a hook that runs, or a caller with locks of its own), events
// wait until the outermost scope closes.

#ifndef QUIRE_ALLOC_HOOK_DISPATCHER_H_
#define QUIRE_ALLOC_HOOK_DISPATCHER_H_

#include <utility>
#include <variant>
#include <vector>

#include "alloc/callback_list.h"
#include "quire/alloc/memory_hooks.h"
#include "quire/alloc/units.h"
#include "quire/alloc/verdict.h"

namespace quire {

struct PagesMapped {
  MappingChange change;
};
struct PagesUnmapped {
  MappingChange change;
};
using MemoryEvent = std::variant<PressureChange, PagesMapped, PagesUnmapped>;

// Guarded by the lock of its device memory. Free where nobody listens.
class EventLog {
 public:
  void set_enabled(bool enabled) { enabled_ = enabled; }
  void Add(MemoryEvent event) {
    if (enabled_) events_.push_back(std::move(event));
  }
  std::vector<MemoryEvent> Take() { return std::exchange(events_, {}); }

 private:
  bool enabled_ = false;
  std::vector<MemoryEvent> events_;
};

// Thread-safe.
class HookDispatcher {
 public:
  CallbackList<MemoryHooks>& hooks() { return hooks_; }

  void Deliver(std::vector<MemoryEvent> events);
  // What the hooks say they gave up. Nothing, and nobody is asked, where this
  // thread has a scope open; beyond the limit only a LimitRaiser is asked.
  Bytes OutOfMemory(const OutOfMemoryVerdict& verdict);

 private:
  CallbackList<MemoryHooks> hooks_;
};

// Holds back what this thread would deliver, until it is destroyed on the same
// thread. Scopes nest: the outermost one of a dispatcher delivers.
class HookScope {
 public:
  explicit HookScope(HookDispatcher* dispatcher);
  ~HookScope();
  HookScope(const HookScope&) = delete;
  HookScope& operator=(const HookScope&) = delete;

 private:
  friend class HookDispatcher;
  // The outermost open scope of this thread, or null.
  static HookScope* Find(const HookDispatcher* dispatcher);

  HookDispatcher* const dispatcher_;
  HookScope* const enclosing_;  // of any dispatcher
  const bool is_outermost_;
  std::vector<MemoryEvent> queue_;
};

}  // namespace quire

#endif  // QUIRE_ALLOC_HOOK_DISPATCHER_H_
