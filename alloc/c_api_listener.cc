#include "alloc/c_api_listener.h"

#include "alloc/c_api_internal.h"

namespace quire::c_api {
namespace {

quire_compaction_level LevelOf(CompactionLevel level) {
  switch (level) {
    case CompactionLevel::kTrim:
      return QUIRE_COMPACTION_TRIM;
    case CompactionLevel::kMesh:
      return QUIRE_COMPACTION_MESH;
    case CompactionLevel::kRelocation:
      return QUIRE_COMPACTION_RELOCATION;
    case CompactionLevel::kSleep:
      return QUIRE_COMPACTION_SLEEP;
    case CompactionLevel::kWake:
      return QUIRE_COMPACTION_WAKE;
  }
  return -1;
}

quire_move_action ActionOf(MoveAction action) {
  switch (action) {
    case MoveAction::kCopy:
      return QUIRE_MOVE_COPY;
    case MoveAction::kIgnore:
      return QUIRE_MOVE_IGNORE;
    case MoveAction::kDestroy:
      return QUIRE_MOVE_DESTROY;
  }
  return -1;
}

class Listener final : public CompactionListener {
 public:
  explicit Listener(const quire_compaction_listener& callbacks)
      : callbacks_(callbacks) {}

  void BeforeCompaction(CompactionLevel level) override {
    if (callbacks_.before_compaction == nullptr) return;
    callbacks_.before_compaction(callbacks_.context, LevelOf(level));
  }
  void AfterCompaction(CompactionLevel level,
                       const CompactionReport& report) override {
    if (callbacks_.after_compaction == nullptr) return;
    const quire_compaction_report values = ReportOf(report);
    callbacks_.after_compaction(callbacks_.context, LevelOf(level), &values);
  }
  void BeforeMove(const RelocationMove& move) override {
    if (callbacks_.before_move == nullptr) return;
    const quire_relocation_move values = MoveOf(move);
    callbacks_.before_move(callbacks_.context, &values);
  }
  void AfterMove(const RelocationMove& move, MoveAction action) override {
    if (callbacks_.after_move == nullptr) return;
    const quire_relocation_move values = MoveOf(move);
    callbacks_.after_move(callbacks_.context, &values, ActionOf(action));
  }

 private:
  const quire_compaction_listener callbacks_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<CompactionListener>> CreateListener(
    const quire_compaction_listener* listener) {
  if (listener == nullptr) return nullptr;
  QUIRE_ASSIGN_OR_RETURN(const quire_compaction_listener known,
                         ReadOptions("quire_compaction_listener", listener));
  return std::make_unique<Listener>(known);
}

quire_relocation_move MoveOf(const RelocationMove& move) {
  quire_relocation_move values = QUIRE_RELOCATION_MOVE_INIT;
  values.from = move.from.value();
  values.to = move.to.value();
  values.bytes = move.size.value();
  values.owner = move.owner.value();
  return values;
}

quire_compaction_report ReportOf(const CompactionReport& report) {
  quire_compaction_report values = QUIRE_COMPACTION_REPORT_INIT;
  values.moves = report.moves;
  values.bytes_moved = report.bytes_moved.value();
  values.pages_freed = report.pages_freed.value();
  values.driver_calls = report.driver_calls;
  values.seconds = report.seconds;
  return values;
}

}  // namespace quire::c_api
