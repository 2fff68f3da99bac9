#include "loader/gguf_reader.h"

#include <algorithm>
#include <array>
#include <bit>
#include <numeric>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "loader/gguf_cursor.h"
#include "quire/alloc/quote.h"
#include "quire/alloc/status_macros.h"

namespace quire {
namespace {

using nlohmann::json;

// The cursor copies values as they lie in the file.
static_assert(std::endian::native == std::endian::little);

constexpr std::array<char, 4> kMagic = {'G', 'G', 'U', 'F'};
constexpr uint32_t kMinVersion = 2;
constexpr uint32_t kMaxVersion = 3;
constexpr uint64_t kMaxNameSize = 65535;    // the format's limit for keys
constexpr uint32_t kMaxGgufDimensions = 4;  // ggml's
constexpr int kMaxArrayDepth = 8;
constexpr uint64_t kDefaultGgufAlignment = 32;
// What one entry costs beyond the text of its name: nodes, small buffers.
constexpr uint64_t kPairMemory = 160;
constexpr uint64_t kStringMemory = 48;
constexpr uint64_t kArrayMemory = 64;
// An element counts twice: nlohmann's destructor moves all of them to a second
// array.
constexpr uint64_t kElementMemory = 2 * sizeof(json);
constexpr uint64_t kTensorMemory = sizeof(TensorInfo) + 64;

// ---- Metadata ---------------------------------------------------------------

enum class ValueType : uint32_t {
  kUint8,
  kInt8,
  kUint16,
  kInt16,
  kUint32,
  kInt32,
  kFloat32,
  kBool,
  kString,
  kArray,
  kUint64,
  kInt64,
  kFloat64,
};
constexpr uint32_t kValueTypes = 13;

// The fewest bytes that a value takes in the file.
constexpr std::array<uint64_t, kValueTypes> kMinValueSizes = {
    1, 1, 2, 2, 4, 4, 4, 1, 8, 12, 8, 8, 8};

template <typename T>
absl::StatusOr<json> ReadNumber(GgufCursor& cursor) {
  QUIRE_ASSIGN_OR_RETURN(const T value, cursor.Read<T>());
  return json(value);
}

absl::StatusOr<ValueType> ReadValueType(GgufCursor& cursor) {
  QUIRE_ASSIGN_OR_RETURN(const uint32_t type, cursor.Read<uint32_t>());
  if (type >= kValueTypes)
    return cursor.Error(absl::StrCat("value type ", type, " is unknown"));
  return static_cast<ValueType>(type);
}

absl::StatusOr<json> ReadArray(GgufCursor& cursor, int depth);

absl::StatusOr<json> ReadValue(GgufCursor& cursor, ValueType type, int depth) {
  switch (type) {
    case ValueType::kUint8:
      return ReadNumber<uint8_t>(cursor);
    case ValueType::kInt8:
      return ReadNumber<int8_t>(cursor);
    case ValueType::kUint16:
      return ReadNumber<uint16_t>(cursor);
    case ValueType::kInt16:
      return ReadNumber<int16_t>(cursor);
    case ValueType::kUint32:
      return ReadNumber<uint32_t>(cursor);
    case ValueType::kInt32:
      return ReadNumber<int32_t>(cursor);
    case ValueType::kFloat32:
      return ReadNumber<float>(cursor);
    case ValueType::kUint64:
      return ReadNumber<uint64_t>(cursor);
    case ValueType::kInt64:
      return ReadNumber<int64_t>(cursor);
    case ValueType::kFloat64:
      return ReadNumber<double>(cursor);
    case ValueType::kBool: {
      QUIRE_ASSIGN_OR_RETURN(const uint8_t value, cursor.Read<uint8_t>());
      if (value > 1)
        return cursor.Error(
            absl::StrCat("a boolean is ", value, ", neither 0 nor 1"));
      return json(value == 1);
    }
    case ValueType::kString: {
      QUIRE_RETURN_IF_ERROR(cursor.Charge(kStringMemory));
      QUIRE_ASSIGN_OR_RETURN(std::string text, cursor.ReadString());
      return json(std::move(text));
    }
    case ValueType::kArray:
      return ReadArray(cursor, depth + 1);
  }
  return cursor.Error("unknown value type");
}

absl::StatusOr<json> ReadArray(GgufCursor& cursor, int depth) {
  if (depth > kMaxArrayDepth)
    return cursor.Error(
        absl::StrCat("arrays are nested deeper than ", kMaxArrayDepth));
  QUIRE_ASSIGN_OR_RETURN(const ValueType type, ReadValueType(cursor));
  QUIRE_ASSIGN_OR_RETURN(const uint64_t count, cursor.Read<uint64_t>());
  const uint64_t min_size = kMinValueSizes[static_cast<size_t>(type)];
  if (count > cursor.remaining() / min_size)
    return cursor.Error(absl::StrCat("an array of ", count,
                                     " values does not fit in the ",
                                     cursor.remaining(),
                                     " bytes that follow: the file is "
                                     "truncated"));
  const auto memory = CheckedMultiply(count, kElementMemory);
  QUIRE_RETURN_IF_ERROR(cursor.Charge(kArrayMemory));
  QUIRE_RETURN_IF_ERROR(cursor.Charge(memory.value_or(UINT64_MAX)));
  json::array_t values;
  values.reserve(count);
  for (uint64_t i = 0; i < count; ++i) {
    QUIRE_ASSIGN_OR_RETURN(json value, ReadValue(cursor, type, depth));
    values.push_back(std::move(value));
  }
  return json(std::move(values));
}

absl::StatusOr<json> ReadMetadata(GgufCursor& cursor, uint64_t pairs) {
  json::object_t metadata;
  for (uint64_t i = 0; i < pairs; ++i) {
    cursor.SetSubject(absl::StrCat("metadata pair ", i, " of ", pairs));
    QUIRE_RETURN_IF_ERROR(cursor.Charge(kPairMemory));
    QUIRE_ASSIGN_OR_RETURN(std::string key, cursor.ReadString(kMaxNameSize));
    if (key.empty()) return cursor.Error("the key is empty");
    cursor.SetSubject(absl::StrCat("key ", Quoted(key)));
    if (metadata.contains(key)) return cursor.Error("occurs twice");
    QUIRE_ASSIGN_OR_RETURN(const ValueType type, ReadValueType(cursor));
    QUIRE_ASSIGN_OR_RETURN(json value, ReadValue(cursor, type, 0));
    metadata.emplace(std::move(key), std::move(value));
  }
  return json(std::move(metadata));
}

absl::StatusOr<uint64_t> AlignmentOf(GgufCursor& cursor, const json& metadata) {
  const auto found = metadata.find("general.alignment");
  if (found == metadata.end()) return kDefaultGgufAlignment;
  cursor.SetSubject("key \"general.alignment\"");
  if (!found->is_number_unsigned() || !IsPowerOfTwo(found->get<uint64_t>()) ||
      found->get<uint64_t>() > UINT32_MAX)
    return cursor.Error(absl::StrCat("is ", Printable(found->dump(), 40),
                                     ", not a power of two of type uint32"));
  return found->get<uint64_t>();
}

absl::Status CheckNotSplit(GgufCursor& cursor, const json& metadata) {
  const auto found = metadata.find("split.count");
  if (found == metadata.end() || !found->is_number_integer() ||
      found->get<int64_t>() <= 1)
    return absl::OkStatus();
  cursor.SetSubject("key \"split.count\"");
  return cursor.Error(
      absl::StrCat("the model is split into ", found->get<int64_t>(),
                   " files, which is not supported: join them with "
                   "\"llama-gguf-split --merge\""));
}

// ---- Tensors ----------------------------------------------------------------

struct GgmlType {
  uint32_t number;
  const char* name;
  std::optional<DType> dtype;  // nullopt: known, but not read here
};

constexpr GgmlType kGgmlTypes[] = {
    {0, "F32", DType::kF32},        {1, "F16", DType::kF16},
    {2, "Q4_0", DType::kQ4_0},      {3, "Q4_1", DType::kQ4_1},
    {6, "Q5_0", DType::kQ5_0},      {7, "Q5_1", DType::kQ5_1},
    {8, "Q8_0", DType::kQ8_0},      {9, "Q8_1", std::nullopt},
    {10, "Q2_K", DType::kQ2_K},     {11, "Q3_K", DType::kQ3_K},
    {12, "Q4_K", DType::kQ4_K},     {13, "Q5_K", DType::kQ5_K},
    {14, "Q6_K", DType::kQ6_K},     {15, "Q8_K", std::nullopt},
    {16, "IQ2_XXS", std::nullopt},  {17, "IQ2_XS", std::nullopt},
    {18, "IQ3_XXS", std::nullopt},  {19, "IQ1_S", std::nullopt},
    {20, "IQ4_NL", DType::kIQ4_NL}, {21, "IQ3_S", std::nullopt},
    {22, "IQ2_S", std::nullopt},    {23, "IQ4_XS", DType::kIQ4_XS},
    {24, "I8", std::nullopt},       {25, "I16", std::nullopt},
    {26, "I32", std::nullopt},      {27, "I64", std::nullopt},
    {28, "F64", std::nullopt},      {29, "IQ1_M", std::nullopt},
    {30, "BF16", DType::kBF16},     {34, "TQ1_0", std::nullopt},
    {35, "TQ2_0", std::nullopt},    {39, "MXFP4", DType::kMxfp4},
    {40, "NVFP4", std::nullopt},    {41, "Q1_0", std::nullopt},
};

std::string ReadableTypes() {
  std::vector<const char*> names;
  for (const GgmlType& type : kGgmlTypes) {
    if (type.dtype) names.push_back(type.name);
  }
  return absl::StrJoin(names, ", ");
}

absl::StatusOr<DType> ReadTensorType(GgufCursor& cursor) {
  QUIRE_ASSIGN_OR_RETURN(const uint32_t number, cursor.Read<uint32_t>());
  const auto* type =
      std::find_if(std::begin(kGgmlTypes), std::end(kGgmlTypes),
                   [number](const GgmlType& t) { return t.number == number; });
  if (type == std::end(kGgmlTypes))
    return cursor.Error(absl::StrCat("type number ", number, " is unknown"));
  if (!type->dtype)
    return cursor.Error(absl::StrCat(
        "type ", type->name, " is not supported: ", ReadableTypes(),
        " are; \"llama-quantize\" makes one of these from the original "
        "model"));
  return *type->dtype;
}

// The offset is still relative to the begin of the data.
absl::StatusOr<TensorInfo> ReadTensorInfo(GgufCursor& cursor) {
  TensorInfo tensor;
  QUIRE_RETURN_IF_ERROR(cursor.Charge(kTensorMemory));
  QUIRE_ASSIGN_OR_RETURN(tensor.name, cursor.ReadString(kMaxNameSize));
  if (tensor.name.empty()) return cursor.Error("the name is empty");
  cursor.SetSubject(absl::StrCat("tensor ", Quoted(tensor.name)));
  QUIRE_ASSIGN_OR_RETURN(const uint32_t rank, cursor.Read<uint32_t>());
  if (rank > kMaxGgufDimensions)
    return cursor.Error(absl::StrCat(
        "has ", rank, " dimensions; the format allows ", kMaxGgufDimensions));
  for (uint32_t i = 0; i < rank; ++i) {
    QUIRE_ASSIGN_OR_RETURN(const uint64_t dimension, cursor.Read<uint64_t>());
    tensor.shape.insert(tensor.shape.begin(), dimension);
  }
  QUIRE_ASSIGN_OR_RETURN(tensor.dtype, ReadTensorType(cursor));
  QUIRE_ASSIGN_OR_RETURN(tensor.offset, cursor.Read<uint64_t>());

  const uint64_t row = tensor.shape.empty() ? 1 : tensor.shape.back();
  if (row % BlockElements(tensor.dtype) != 0)
    return cursor.Error(absl::StrCat(
        "a row of ", row, " elements is no whole number of ",
        DTypeName(tensor.dtype), " blocks of ", BlockElements(tensor.dtype)));
  const auto size = BytesOf(tensor.dtype, tensor.shape);
  if (!size)
    return cursor.Error(absl::StrCat("[", absl::StrJoin(tensor.shape, ", "),
                                     "] has more bytes than 64 bits can "
                                     "count"));
  tensor.size = *size;
  return tensor;
}

absl::Status CheckNames(GgufCursor& cursor,
                        const std::vector<TensorInfo>& tensors) {
  std::vector<std::string_view> names;
  names.reserve(tensors.size());
  for (const TensorInfo& tensor : tensors) names.push_back(tensor.name);
  std::sort(names.begin(), names.end());
  const auto twice = std::adjacent_find(names.begin(), names.end());
  if (twice == names.end()) return absl::OkStatus();
  cursor.SetSubject(absl::StrCat("tensor ", Quoted(*twice)));
  return cursor.Error("occurs twice");
}

// Makes the offsets absolute, sorts by them, and checks that the tensors are
// aligned, do not overlap and lie in the file.
absl::Status PlaceTensors(GgufCursor& cursor, uint64_t alignment,
                          uint64_t file_size, GgufFile* gguf) {
  if (gguf->tensors.empty()) return absl::OkStatus();
  const auto data_begin = CheckedAlignUp(cursor.position(), alignment);
  for (TensorInfo& tensor : gguf->tensors) {
    cursor.SetSubject(absl::StrCat("tensor ", Quoted(tensor.name)));
    if (tensor.offset % alignment != 0)
      return cursor.Error(absl::StrCat("offset ", tensor.offset,
                                       " is no multiple of the alignment, ",
                                       alignment));
    const auto begin =
        data_begin ? CheckedAdd(*data_begin, tensor.offset) : std::nullopt;
    const auto end =
        begin ? CheckedAdd(*begin, tensor.size.value()) : std::nullopt;
    if (!end || *end > file_size)
      return cursor.Error(absl::StrCat(
          tensor.size.value(), " bytes at offset ", tensor.offset,
          " of the data, which begins at byte ", data_begin.value_or(0),
          ", do not fit in a file of ", file_size, " bytes: it is truncated"));
    tensor.offset = *begin;
  }
  std::sort(gguf->tensors.begin(), gguf->tensors.end(),
            [](const TensorInfo& a, const TensorInfo& b) {
              return std::tie(a.offset, a.size) < std::tie(b.offset, b.size);
            });
  uint64_t previous_end = 0;
  for (const TensorInfo& tensor : gguf->tensors) {
    if (tensor.offset < previous_end) {
      cursor.SetSubject(absl::StrCat("tensor ", Quoted(tensor.name)));
      return cursor.Error(absl::StrCat("begins at byte ", tensor.offset,
                                       ", within the tensor before, which ends "
                                       "at ",
                                       previous_end));
    }
    previous_end = tensor.offset + tensor.size.value();
  }
  if (file_size - previous_end >= alignment)
    gguf->warnings.push_back(absl::StrCat(file_size - previous_end,
                                          " bytes follow the last tensor"));
  return absl::OkStatus();
}

absl::Status CheckVersion(GgufCursor& cursor) {
  QUIRE_ASSIGN_OR_RETURN(const uint32_t version, cursor.Read<uint32_t>());
  if (version >= kMinVersion && version <= kMaxVersion) return absl::OkStatus();
  if (const uint32_t swapped = __builtin_bswap32(version);
      swapped >= 1 && swapped <= kMaxVersion)
    return cursor.Error(
        "the file is big-endian, which is not supported: convert it with "
        "\"gguf-convert-endian\"");
  return cursor.Error(absl::StrCat(
      "GGUF version ", version, " is not supported: versions ", kMinVersion,
      " and ", kMaxVersion, " are; convert the original model again"));
}

}  // namespace

absl::StatusOr<bool> IsGguf(const RandomAccessFile& file) {
  std::array<char, kMagic.size()> start;
  if (file.size() < Bytes(start.size())) return false;
  QUIRE_RETURN_IF_ERROR(file.Read(0, std::as_writable_bytes(std::span(start))));
  return start == kMagic;
}

absl::StatusOr<GgufFile> ReadGguf(const RandomAccessFile& file) {
  QUIRE_ASSIGN_OR_RETURN(const bool lfs_pointer, IsGitLfsPointer(file));
  if (lfs_pointer) return GitLfsPointerError(file);
  QUIRE_ASSIGN_OR_RETURN(const bool is_gguf, IsGguf(file));
  GgufCursor cursor(file, kMaxGgufHeaderMemory);
  if (!is_gguf)
    return cursor.Error("does not begin with \"GGUF\": this is no GGUF file");
  QUIRE_RETURN_IF_ERROR(cursor.Read<uint32_t>().status());  // the magic number
  QUIRE_RETURN_IF_ERROR(CheckVersion(cursor));
  QUIRE_ASSIGN_OR_RETURN(const uint64_t tensors, cursor.Read<uint64_t>());
  QUIRE_ASSIGN_OR_RETURN(const uint64_t pairs, cursor.Read<uint64_t>());

  GgufFile gguf;
  QUIRE_ASSIGN_OR_RETURN(gguf.metadata, ReadMetadata(cursor, pairs));
  QUIRE_RETURN_IF_ERROR(CheckNotSplit(cursor, gguf.metadata));
  QUIRE_ASSIGN_OR_RETURN(const uint64_t alignment,
                         AlignmentOf(cursor, gguf.metadata));
  for (uint64_t i = 0; i < tensors; ++i) {
    cursor.SetSubject(absl::StrCat("tensor ", i, " of ", tensors));
    QUIRE_ASSIGN_OR_RETURN(TensorInfo tensor, ReadTensorInfo(cursor));
    gguf.tensors.push_back(std::move(tensor));
  }
  gguf.header_size = Bytes(cursor.position());
  QUIRE_RETURN_IF_ERROR(CheckNames(cursor, gguf.tensors));
  QUIRE_RETURN_IF_ERROR(
      PlaceTensors(cursor, alignment, file.size().value(), &gguf));
  return gguf;
}

}  // namespace quire
