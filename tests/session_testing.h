// Sessions and plans of small models, for tests that cross folders.

#ifndef QUIRE_TESTS_SESSION_TESTING_H_
#define QUIRE_TESTS_SESSION_TESTING_H_

#include <filesystem>

#include "quire/model/plan.h"
#include "quire/model/session.h"

namespace quire {

// Rows of f32, one thread, short batches, and pages so small that a small model
// takes many.
SessionOptions SmallSessionOptions();

// Throws where it cannot be planned.
ModelPlan PlanOf(const std::filesystem::path& model,
                 const SessionOptions& options);

}  // namespace quire

#endif  // QUIRE_TESTS_SESSION_TESTING_H_
