#include "alloc/testing/test_driver.h"

#include <cstdlib>
#include <string_view>

#include "absl/memory/memory.h"
#include "absl/strings/str_format.h"
#include "quire/alloc/status_macros.h"

namespace quire {

absl::StatusOr<std::unique_ptr<TestDriver>> TestDriver::Create(
    const HostDriverOptions& options) {
  const char* const wanted = std::getenv("QUIRE_TEST_DRIVER");
  if (wanted != nullptr && std::string_view(wanted) != "host") {
    return absl::InvalidArgumentError(
        absl::StrFormat("QUIRE_TEST_DRIVER is \"%s\", not \"host\"", wanted));
  }
  QUIRE_ASSIGN_OR_RETURN(std::unique_ptr<HostDriver> host,
                         HostDriver::Create(options));
  return absl::WrapUnique(new TestDriver(std::move(host)));
}

}  // namespace quire
