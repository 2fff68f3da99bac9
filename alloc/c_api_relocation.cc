// The C interface of relocation passes.
//
// RelocationPass is for one thread at a time and must not be used once it has
// ended; here whoever breaks that is refused. No lock: callbacks run inside.

#include <atomic>
#include <cstddef>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "alloc/c_api_internal.h"
#include "alloc/c_api_listener.h"

// Members are destroyed from the bottom up: a pass that was not ended is given
// up in its section.
struct quire_relocation_pass {
  std::shared_ptr<const quire::QuiescentSection> section;
  std::shared_ptr<quire::DeviceAllocator> allocator;
  std::vector<quire::RelocationMove> moves;
  // A thread is in a call that changes what is below.
  std::atomic<bool> in_use{false};
  std::optional<quire::RelocationPass> pass;  // none once it has ended
};

using quire::Bytes;
using quire::CompactionReport;
using quire::MoveAction;
using quire::OwnerId;
using quire::c_api::Call;
using quire::c_api::CheckArguments;
using quire::c_api::ReadOptions;

namespace {

// Calls `function` with the RelocationPass, which nobody else has meanwhile.
template <typename Function>
absl::Status WithOpenPass(quire_relocation_pass* pass, Function function) {
  if (pass->in_use.exchange(true, std::memory_order_acquire)) {
    return absl::FailedPreconditionError(
        "another call on this relocation pass is under way");
  }
  // Also where `function` throws.
  struct Leave {
    ~Leave() { in_use->store(false, std::memory_order_release); }
    std::atomic<bool>* const in_use;
  } const leave{&pass->in_use};
  if (!pass->pass) {
    return absl::FailedPreconditionError("the relocation pass has ended");
  }
  return function(*pass->pass);
}

absl::Status CheckIndex(const quire_relocation_pass& pass, uint64_t index) {
  if (index < pass.moves.size()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrFormat(
      "move %u of a relocation pass that has %u", index, pass.moves.size()));
}

absl::StatusOr<MoveAction> ActionFrom(quire_move_action action) {
  switch (action) {
    case QUIRE_MOVE_COPY:
      return MoveAction::kCopy;
    case QUIRE_MOVE_IGNORE:
      return MoveAction::kIgnore;
    case QUIRE_MOVE_DESTROY:
      return MoveAction::kDestroy;
    default:
      return absl::InvalidArgumentError(absl::StrFormat(
          "%d is not one of the values of quire_move_action", action));
  }
}

}  // namespace

quire_status quire_relocation_pass_begin(
    quire_allocator* allocator, const quire_quiescent_section* section,
    const quire_relocation_limits* limits,
    quire_relocation_pass** pass) noexcept {
  return Call([&]() -> absl::Status {
    QUIRE_RETURN_IF_ERROR(CheckArguments(
        {{"allocator", allocator}, {"section", section}, {"pass", pass}}));
    QUIRE_ASSIGN_OR_RETURN(const quire_relocation_limits known,
                           ReadOptions("quire_relocation_limits", limits));
    quire::RelocationLimits pass_limits;
    if (known.max_bytes != 0) pass_limits.max_bytes = Bytes(known.max_bytes);
    if (known.max_moves != 0) pass_limits.max_moves = known.max_moves;
    if (known.of_one_owner != 0) pass_limits.owner = OwnerId(known.owner);
    auto begun = std::make_unique<quire_relocation_pass>();
    begun->section = section->section;
    begun->allocator = allocator->allocator;
    QUIRE_ASSIGN_OR_RETURN(begun->pass, allocator->allocator->BeginRelocation(
                                            *section->section, pass_limits));
    begun->moves.assign(begun->pass->moves().begin(),
                        begun->pass->moves().end());
    *pass = begun.release();
    return absl::OkStatus();
  });
}

void quire_relocation_pass_destroy(quire_relocation_pass* pass) noexcept {
  delete pass;
}

quire_status quire_relocation_pass_get_move_count(
    const quire_relocation_pass* pass, uint64_t* count) noexcept {
  return Call([&]() -> absl::Status {
    QUIRE_RETURN_IF_ERROR(CheckArguments({{"pass", pass}, {"count", count}}));
    *count = pass->moves.size();
    return absl::OkStatus();
  });
}

quire_status quire_relocation_pass_get_move(
    const quire_relocation_pass* pass, uint64_t index,
    quire_relocation_move* move) noexcept {
  return Call([&]() -> absl::Status {
    QUIRE_RETURN_IF_ERROR(CheckArguments({{"pass", pass}, {"move", move}}));
    QUIRE_RETURN_IF_ERROR(CheckIndex(*pass, index));
    return quire::c_api::WriteResult("quire_relocation_move",
                                     quire::c_api::MoveOf(pass->moves[index]),
                                     move);
  });
}

quire_status quire_relocation_pass_set_action(
    quire_relocation_pass* pass, uint64_t index,
    quire_move_action action) noexcept {
  return Call([&]() -> absl::Status {
    QUIRE_RETURN_IF_ERROR(CheckArguments({{"pass", pass}}));
    QUIRE_RETURN_IF_ERROR(CheckIndex(*pass, index));
    QUIRE_ASSIGN_OR_RETURN(const MoveAction known, ActionFrom(action));
    return WithOpenPass(pass, [&](quire::RelocationPass& open) {
      open.SetAction(index, known);
      return absl::OkStatus();
    });
  });
}

quire_status quire_relocation_pass_copy(quire_relocation_pass* pass) noexcept {
  return Call([&]() -> absl::Status {
    QUIRE_RETURN_IF_ERROR(CheckArguments({{"pass", pass}}));
    return WithOpenPass(
        pass, [](quire::RelocationPass& open) { return open.Copy(); });
  });
}

quire_status quire_relocation_pass_finish(
    quire_relocation_pass* pass, quire_compaction_report* report) noexcept {
  return Call([&]() -> absl::Status {
    QUIRE_RETURN_IF_ERROR(CheckArguments({{"pass", pass}}));
    QUIRE_RETURN_IF_ERROR(
        quire::c_api::CheckOptionalResult("quire_compaction_report", report));
    return WithOpenPass(pass, [&](quire::RelocationPass& open) {
      const CompactionReport done = open.End();
      pass->pass.reset();
      return quire::c_api::WriteOptionalResult(
          "quire_compaction_report", quire::c_api::ReportOf(done), report);
    });
  });
}
