// The border of the C interface: errors of each thread, arguments, structs with
// a size, text.

#include <cstdlib>
#include <optional>

#include "absl/strings/str_cat.h"
#include "alloc/c_api_internal.h"

#define QUIRE_STRINGIFY_INNER_(x) #x
#define QUIRE_STRINGIFY_(x) QUIRE_STRINGIFY_INNER_(x)

namespace quire::c_api {
namespace {

// The last failure of a thread. `text` points to `storage` or to static text:
// there may be no memory to copy the message to.
struct LastError {
  std::string storage;
  const char* text = "";
  std::optional<quire_shortage> shortage;
};
thread_local LastError last_error;

quire_status StatusOf(absl::StatusCode code) {
  switch (code) {
    case absl::StatusCode::kOk:
      return QUIRE_OK;
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kOutOfRange:
      return QUIRE_INVALID_ARGUMENT;
    case absl::StatusCode::kNotFound:
      return QUIRE_NOT_FOUND;
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kAlreadyExists:
      return QUIRE_FAILED_PRECONDITION;
    case absl::StatusCode::kResourceExhausted:
      return QUIRE_OUT_OF_DEVICE_MEMORY;
    case absl::StatusCode::kDataLoss:
      return QUIRE_DATA_LOSS;
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kUnimplemented:
      return QUIRE_UNAVAILABLE;
    default:
      return QUIRE_INTERNAL;
  }
}

quire_shortage_kind KindOf(ShortageKind kind) {
  switch (kind) {
    case ShortageKind::kCapacity:
      return QUIRE_SHORTAGE_CAPACITY;
    case ShortageKind::kFragmentation:
      return QUIRE_SHORTAGE_FRAGMENTATION;
    case ShortageKind::kLimit:
      return QUIRE_SHORTAGE_LIMIT;
    case ShortageKind::kCooling:
      return QUIRE_SHORTAGE_COOLING;
    case ShortageKind::kAddressSpace:
      return QUIRE_SHORTAGE_ADDRESS_SPACE;
    case ShortageKind::kOtherProcess:
      return QUIRE_SHORTAGE_OTHER_PROCESS;
    case ShortageKind::kMappings:
      return QUIRE_SHORTAGE_MAPPINGS;
  }
  return 0;
}

void KeepStaticText(const char* text) {
  last_error.text = text;
  last_error.shortage.reset();
}

void KeepText(std::string_view text) {
  last_error.storage.assign(text);
  last_error.text = last_error.storage.c_str();
}

}  // namespace

quire_shortage ShortageOf(const OutOfMemoryVerdict& verdict) {
  quire_shortage shortage = QUIRE_SHORTAGE_INIT;
  shortage.kind = KindOf(verdict.kind);
  shortage.requested = verdict.requested.value();
  shortage.free = verdict.free.value();
  shortage.largest_possible = verdict.largest_possible.value();
  shortage.limit = verdict.limit.value();
  shortage.device_total = verdict.device_total.value();
  shortage.cooling = verdict.cooling.value();
  shortage.held_as_slack = verdict.held_as_slack.value();
  shortage.reserved_for_others = verdict.reserved_for_others.value();
  shortage.mesh_frees = verdict.mesh_frees.value();
  shortage.relocation_frees = verdict.relocation_frees.value();
  shortage.sleep_frees = verdict.sleep_frees.value();
  if (verdict.owner_limit) {
    shortage.owner_limit = verdict.owner_limit->limit.value();
    shortage.owner_live = verdict.owner_limit->live.value();
  }
  return shortage;
}

quire_status KeepError(const absl::Status& status) noexcept {
  try {
    KeepStaticText("no memory for the message of this error");
    const absl::string_view message = status.message();
    KeepText({message.data(), message.size()});
    if (const auto verdict = OutOfMemoryVerdict::FromStatus(status)) {
      last_error.shortage = ShortageOf(*verdict);
    }
  } catch (...) {
    // The text above stands.
  }
  return StatusOf(status.code());
}

quire_status KeepOutOfHostMemory() noexcept {
  KeepStaticText("out of host memory");
  return QUIRE_OUT_OF_HOST_MEMORY;
}

quire_status KeepException(const char* what) noexcept {
  try {
    KeepStaticText("an exception, and no memory for its message");
    KeepText(what);
  } catch (...) {
    // The text above stands.
  }
  return QUIRE_INTERNAL;
}

absl::Status CheckArguments(std::initializer_list<Argument> arguments) {
  for (const Argument& argument : arguments) {
    if (argument.pointer == nullptr) {
      return absl::InvalidArgumentError(
          absl::StrCat(argument.name, " is NULL"));
    }
    if (argument.guard != nullptr) {
      QUIRE_RETURN_IF_ERROR(argument.guard->Check());
    }
  }
  return absl::OkStatus();
}

absl::Status CheckDevice(const Runtime& runtime, int32_t device) {
  if (device >= 0 && device < runtime.device_count()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("device ", device, " is not one of the ",
                   runtime.device_count(), " that there are"));
}

absl::Status CheckStructSize(const char* name, size_t size, size_t first_size) {
  if (size >= first_size && size <= kMaxStructSize) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrCat(name, ".size is ", size, ", not sizeof(", name,
                   "), which is at least ", first_size));
}

absl::Status UnknownField(const char* name, size_t offset) {
  return absl::InvalidArgumentError(absl::StrCat(
      name, " has a field at byte ", offset, " that this library (",
      quire_alloc_version(), ") does not know"));
}

absl::Status CheckUnknownFields(const char* name, const void* from, size_t size,
                                size_t known_size) {
  const char* const bytes = static_cast<const char*>(from);
  for (size_t i = known_size; i < size; ++i) {
    if (bytes[i] != 0) return UnknownField(name, i);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<StreamId>> ReadStreams(const uint64_t* streams,
                                                  uint64_t count) {
  std::vector<StreamId> read;
  if (count == 0) return read;
  QUIRE_RETURN_IF_ERROR(CheckArguments({{"streams", streams}}));
  read.reserve(count);
  for (uint64_t i = 0; i < count; ++i) read.emplace_back(streams[i]);
  return read;
}

absl::Status WriteText(std::string_view text, char** result) {
  char* const copy = static_cast<char*>(std::malloc(text.size() + 1));
  if (copy == nullptr) throw std::bad_alloc();
  std::memcpy(copy, text.data(), text.size());
  copy[text.size()] = '\0';
  *result = copy;
  return absl::OkStatus();
}

}  // namespace quire::c_api

using quire::c_api::last_error;

const char* quire_alloc_version() noexcept {
  return QUIRE_STRINGIFY_(QUIRE_ALLOC_VERSION_MAJOR) "." QUIRE_STRINGIFY_(
      QUIRE_ALLOC_VERSION_MINOR) "." QUIRE_STRINGIFY_(QUIRE_ALLOC_VERSION_PATCH);
}

const char* quire_status_name(quire_status status) noexcept {
  switch (status) {
    case QUIRE_OK:
      return "OK";
    case QUIRE_INVALID_ARGUMENT:
      return "INVALID_ARGUMENT";
    case QUIRE_NOT_FOUND:
      return "NOT_FOUND";
    case QUIRE_FAILED_PRECONDITION:
      return "FAILED_PRECONDITION";
    case QUIRE_OUT_OF_DEVICE_MEMORY:
      return "OUT_OF_DEVICE_MEMORY";
    case QUIRE_OUT_OF_HOST_MEMORY:
      return "OUT_OF_HOST_MEMORY";
    case QUIRE_DATA_LOSS:
      return "DATA_LOSS";
    case QUIRE_UNAVAILABLE:
      return "UNAVAILABLE";
    case QUIRE_INTERNAL:
      return "INTERNAL";
    default:
      return "UNKNOWN";
  }
}

const char* quire_last_error() noexcept { return last_error.text; }

quire_status quire_last_shortage(quire_shortage* shortage) noexcept {
  using quire::c_api::CheckArguments;
  // Without a shortage this is an answer, not an error to keep.
  if (shortage != nullptr && !last_error.shortage) return QUIRE_NOT_FOUND;
  return quire::c_api::Call([&]() -> absl::Status {
    QUIRE_RETURN_IF_ERROR(CheckArguments({{"shortage", shortage}}));
    return quire::c_api::WriteResult("quire_shortage", *last_error.shortage,
                                     shortage);
  });
}

void quire_string_free(char* text) noexcept { std::free(text); }
