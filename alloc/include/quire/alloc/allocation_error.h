// The exception that adapters throw where an interface knows no other way to
// say that memory could not be had. Nothing else of the library throws.

#ifndef QUIRE_ALLOC_ALLOCATION_ERROR_H_
#define QUIRE_ALLOC_ALLOCATION_ERROR_H_

#include <memory>
#include <new>
#include <string>

#include "absl/status/status.h"

namespace quire {

class AllocationError : public std::bad_alloc {
 public:
  // REQUIRES: !status.ok().
  explicit AllocationError(const absl::Status& status)
      : status_(status),
        text_(std::make_shared<const std::string>(status.message())) {}

  // The message: of a shortage, its verdict.
  const char* what() const noexcept override { return text_->c_str(); }
  // OutOfMemoryVerdict::FromStatus has the figures.
  const absl::Status& status() const { return status_; }

 private:
  absl::Status status_;
  std::shared_ptr<const std::string> text_;  // copies of exceptions throw none
};

}  // namespace quire

#endif  // QUIRE_ALLOC_ALLOCATION_ERROR_H_
