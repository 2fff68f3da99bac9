// How the parts work together.
//
// Reader threads take chunks in the order of the plan; chunk k goes through
// buffer k % buffers. A reader waits until the copies of chunk k - buffers were
// queued and have completed, reads, checksums, and marks the chunk as staged.
// The calling thread takes the staged chunks in order, queues their copies and
// seals the buffer. The lowest chunk that is not queued is never waited for by
// anybody but its own reader, so the ring cannot lock up.
//
// Locking: mutex_ guards what readers and caller hand to each other; it is held
// for bookkeeping only, never over a read, a driver call or the progress
// callback. A chunk belongs to its reader until it is staged and to the caller
// afterwards.

#include "quire/loader/streaming_loader.h"

#include <zlib.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "loader/checkpoint_file.h"
#include "loader/chunk_plan.h"
#include "loader/posix_file.h"
#include "loader/staging_ring.h"
#include "quire/alloc/mutex.h"
#include "quire/alloc/quote.h"
#include "quire/alloc/status_macros.h"

namespace quire {
namespace {

using Clock = std::chrono::steady_clock;

constexpr auto kProgressInterval = std::chrono::milliseconds(250);
// How often a caller that waits for the disk looks at the cancel flag.
constexpr auto kCancelInterval = std::chrono::milliseconds(50);

double SecondsSince(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// Two readers keep the disk busy while one of them checksums; beyond that half
// of the ring reads while the other half empties.
size_t ReaderCount(size_t buffers) {
  return std::min(buffers, std::max<size_t>(2, buffers / 2));
}

absl::Status CheckMilestones(const StreamingOptions& options) {
  if (options.milestones.empty()) return absl::OkStatus();
  if (options.order != LoadOrder::kGiven || options.arrived == nullptr)
    return absl::InvalidArgumentError(
        "milestones need the order of the placements, and somebody to tell");
  if (!std::is_sorted(options.milestones.begin(), options.milestones.end()))
    return absl::InvalidArgumentError("milestones do not ascend");
  return absl::OkStatus();
}

absl::Status CheckOptions(const StreamingOptions& options) {
  const auto ring =
      options.buffers > 0
          ? CheckedMultiply(options.buffer_size,
                            static_cast<uint64_t>(options.buffers))
          : std::nullopt;
  if (!ring || ring->zero() || *ring > kMaxStagingBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("a staging ring of ", options.buffers, " buffers of ",
                     options.buffer_size.value(), " bytes: it takes 1 to ",
                     kMaxStagingBytes.value(), " bytes in all"));
  }
  if (options.direct && options.buffer_size.value() % kDirectAlignment != 0)
    return absl::InvalidArgumentError(absl::StrCat(
        "direct reads into buffers of ", options.buffer_size.value(),
        " bytes: they take multiples of ", kDirectAlignment));
  return CheckMilestones(options);
}

// The bytes that a direct read of a chunk fetches: whole blocks of the disk.
struct DirectSpan {
  uint64_t begin;  // in the file
  uint64_t lead;   // of which so many come before the chunk
  uint64_t size;
};
DirectSpan DirectSpanOf(const Chunk& chunk) {
  const uint64_t lead = chunk.offset % kDirectAlignment;
  const uint64_t end = lead + chunk.size;
  return {chunk.offset - lead, lead,
          (end + kDirectAlignment - 1) / kDirectAlignment * kDirectAlignment};
}

// By buffer, the most that a chunk has there. Chunks end at multiples of the
// size of a buffer, so that the blocks of one fit where it fits.
// REQUIRES: the first chunk is the next one; it is afterwards.
std::vector<Bytes> BufferSizes(ChunkPlan* plan,
                               const StreamingOptions& options) {
  std::vector<Bytes> sizes;
  const auto buffers = static_cast<size_t>(options.buffers);
  while (const std::optional<Chunk> chunk = plan->Next()) {
    const size_t buffer = chunk->index % buffers;
    if (buffer == sizes.size()) sizes.emplace_back();
    const Bytes size(options.direct ? DirectSpanOf(*chunk).size : chunk->size);
    sizes[buffer] = std::max(sizes[buffer], size);
  }
  plan->Rewind();
  return sizes;
}

// The files of a checkpoint, each open from its first chunk to its last, so
// that a checkpoint of any number of shards holds a few descriptors.
// Thread-safe.
class OpenFiles {
 public:
  OpenFiles(const Checkpoint& checkpoint, bool direct)
      : checkpoint_(checkpoint),
        direct_(direct),
        files_(checkpoint.files().size()) {}

  // Valid until Close of the same file.
  absl::StatusOr<const PosixFile*> Get(uint32_t file)
      ABSL_LOCKS_EXCLUDED(mutex_) {
    MutexLock lock(&mutex_);
    if (files_[file] != nullptr) return files_[file].get();
    QUIRE_ASSIGN_OR_RETURN(auto opened,
                           OpenUnchanged(checkpoint_.files()[file]));
    opened->ReadNothingAhead();
    if (!direct_ || !opened->ReadDirectly())
      all_direct_.store(false, std::memory_order_relaxed);
    files_[file] = std::move(opened);
    return files_[file].get();
  }

  // REQUIRES: nobody reads the file any more.
  absl::Status CheckAndClose(uint32_t file) ABSL_LOCKS_EXCLUDED(mutex_) {
    std::unique_ptr<PosixFile> closing;
    {
      MutexLock lock(&mutex_);
      closing = std::move(files_[file]);
    }
    retries_.fetch_add(closing->retries(), std::memory_order_relaxed);
    return closing->CheckUnchanged();
  }
  // Of the files that are closed.
  uint64_t retries() const { return retries_.load(std::memory_order_relaxed); }
  // Of the files so far.
  bool all_direct() const {
    return all_direct_.load(std::memory_order_relaxed);
  }

 private:
  const Checkpoint& checkpoint_;
  const bool direct_;
  Mutex mutex_;
  std::vector<std::unique_ptr<PosixFile>> files_ ABSL_GUARDED_BY(mutex_);
  std::atomic<uint64_t> retries_{0};
  std::atomic<bool> all_direct_{true};
};

absl::Status AtTensorOf(const Chunk& chunk, const absl::Status& status) {
  return absl::Status(
      status.code(),
      absl::StrCat(status.message(), " (tensor ",
                   Quoted(chunk.pieces.front().tensor->name), ")"));
}

// A chunk that is in its buffer, or the reason why it is not.
struct StagedChunk {
  Chunk chunk;
  uint64_t begin = 0;  // in the buffer
  absl::Status status;
  std::vector<uint32_t> crc32;  // of each piece; empty without checksums
};

class StreamingLoad {
 public:
  StreamingLoad(Driver* driver, DeviceId device, const Checkpoint& checkpoint,
                ChunkPlan plan, const StreamingOptions& options)
      : options_(options),
        total_(plan.total()),
        start_(Clock::now()),
        ring_(driver, device, BufferSizes(&plan, options)),
        files_(checkpoint, options.direct),
        plan_(std::move(plan)),
        staged_(ring_.buffers()) {}

  // Once. Whatever it returns, nothing of the driver is held afterwards.
  absl::StatusOr<LoadReport> Run() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  // ---- The calling thread ----
  absl::Status StartReaders();
  void StopReaders() ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status CopyChunks() ABSL_LOCKS_EXCLUDED(mutex_);
  absl::StatusOr<StagedChunk> TakeStaged(size_t buffer)
      ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status CopyChunk(size_t buffer, const StagedChunk& staged);
  absl::Status CheckCancelled() const;
  void ReportProgress();
  absl::Status ReportArrivals(size_t placements);
  void AddChecksums(const StagedChunk& staged);

  // ---- The reader threads ----
  void ReadChunks() ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status ReadChunk(size_t buffer, StagedChunk* staged);
  // The bytes of the file from `offset` on, which are those of the chunk from
  // `at` on.
  absl::Status ReadRun(const PosixFile& file, const Chunk& chunk,
                       uint64_t offset, std::span<std::byte> bytes, size_t at);
  // The whole chunk, with the rest of its first and its last block.
  absl::Status ReadDirectly(const PosixFile& file, const Chunk& chunk,
                            std::byte* memory);
  // `got` bytes of the chunk are all that the file has.
  static absl::Status BecameShorter(const PosixFile& file, const Chunk& chunk,
                                    uint64_t end_of_file, size_t got);

  const StreamingOptions& options_;
  const Bytes total_;
  const Clock::time_point start_;
  StagingRing ring_;
  OpenFiles files_;
  std::vector<std::thread> readers_;
  // Set under mutex_; readers in the middle of a chunk look at it without.
  std::atomic<bool> stop_{false};

  Mutex mutex_;
  CondVar staged_or_stopped_;
  CondVar queued_or_stopped_;
  ChunkPlan plan_ ABSL_GUARDED_BY(mutex_);
  // By buffer: the chunk that waits there to be copied.
  std::vector<std::optional<StagedChunk>> staged_ ABSL_GUARDED_BY(mutex_);
  uint64_t queued_ ABSL_GUARDED_BY(mutex_) = 0;  // chunks that were sealed

  // Of the calling thread.
  LoadReport report_;
  Clock::time_point last_progress_;
  size_t next_milestone_ = 0;
};

absl::StatusOr<LoadReport> StreamingLoad::Run() {
  ReportProgress();
  absl::Status status = CheckCancelled();
  if (status.ok() && !total_.zero()) {
    status = ring_.Open();
    if (status.ok()) status = StartReaders();
    if (status.ok()) status = CopyChunks();
    StopReaders();
    if (status.ok()) status = ring_.Drain();
    report_.staging_peak = ring_.pinned();
    const absl::Status closed = ring_.Close();
    if (status.ok()) {
      status = closed;
    } else if (!closed.ok()) {
      status = absl::Status(status.code(), absl::StrCat(status.message(), "; ",
                                                        closed.message()));
    }
  }
  // Where nothing is streamed, all of it has arrived.
  if (status.ok() && total_.zero()) status = ReportArrivals(SIZE_MAX);
  if (!status.ok()) return status;
  report_.read_retries = files_.retries();
  report_.direct = !total_.zero() && files_.all_direct();
  report_.seconds = SecondsSince(start_);
  if (!total_.zero()) ReportProgress();
  return std::move(report_);
}

absl::Status StreamingLoad::StartReaders() {
  const size_t count = ReaderCount(ring_.buffers());
  readers_.reserve(count);
  for (size_t i = 0; i < count; ++i) {
    try {
      readers_.emplace_back([this] { ReadChunks(); });
    } catch (const std::system_error& error) {
      return absl::ResourceExhaustedError(
          absl::StrCat("cannot start reader thread ", i + 1, " of ", count,
                       ": ", error.what()));
    }
  }
  return absl::OkStatus();
}

void StreamingLoad::StopReaders() {
  {
    MutexLock lock(&mutex_);
    stop_.store(true, std::memory_order_relaxed);
  }
  queued_or_stopped_.NotifyAll();
  for (std::thread& reader : readers_) reader.join();
  readers_.clear();
}

absl::Status StreamingLoad::CopyChunks() {
  for (uint64_t index = 0; report_.bytes < total_; ++index) {
    const size_t buffer = index % ring_.buffers();
    QUIRE_ASSIGN_OR_RETURN(const StagedChunk staged, TakeStaged(buffer));
    QUIRE_RETURN_IF_ERROR(staged.status);
    QUIRE_RETURN_IF_ERROR(CopyChunk(buffer, staged));
    {
      MutexLock lock(&mutex_);
      ++queued_;
    }
    queued_or_stopped_.NotifyAll();
    if (staged.chunk.last_of_file)
      QUIRE_RETURN_IF_ERROR(files_.CheckAndClose(staged.chunk.file));
    AddChecksums(staged);
    QUIRE_RETURN_IF_ERROR(ReportArrivals(staged.chunk.placements_done));
    report_.bytes = Bytes(report_.bytes.value() + staged.chunk.size);
    ++report_.chunks;
    // The last bytes are reported when they have arrived.
    if (report_.bytes < total_ &&
        Clock::now() - last_progress_ >= kProgressInterval)
      ReportProgress();
  }
  return absl::OkStatus();
}

absl::StatusOr<StagedChunk> StreamingLoad::TakeStaged(size_t buffer) {
  MutexLock lock(&mutex_);
  std::optional<StagedChunk>& staged = staged_[buffer];
  while (true) {
    QUIRE_RETURN_IF_ERROR(CheckCancelled());
    if (staged.has_value()) break;
    staged_or_stopped_.WaitFor(&mutex_, kCancelInterval);
  }
  StagedChunk taken = *std::move(staged);
  staged.reset();
  return taken;
}

absl::Status StreamingLoad::CopyChunk(size_t buffer,
                                      const StagedChunk& staged) {
  for (const ChunkPiece& piece : staged.chunk.pieces) {
    const absl::Status copied =
        ring_.Copy(buffer, staged.begin + piece.offset_in_chunk, piece.size,
                   piece.destination);
    if (!copied.ok()) {
      return absl::Status(
          copied.code(),
          absl::StrCat("tensor ", Quoted(piece.tensor->name), ", copy of ",
                       piece.size, " bytes from offset ",
                       staged.chunk.offset + piece.offset_in_chunk, ": ",
                       copied.message()));
    }
  }
  return ring_.Seal(buffer);
}

absl::Status StreamingLoad::CheckCancelled() const {
  if (options_.cancelled == nullptr || !options_.cancelled->load())
    return absl::OkStatus();
  return absl::CancelledError(absl::StrCat("the load was cancelled after ",
                                           report_.bytes.value(), " of ",
                                           total_.value(), " bytes"));
}

void StreamingLoad::ReportProgress() {
  last_progress_ = Clock::now();
  if (options_.progress)
    options_.progress({report_.bytes, total_, SecondsSince(start_)});
}

absl::Status StreamingLoad::ReportArrivals(size_t placements) {
  const std::vector<size_t>& milestones = options_.milestones;
  if (next_milestone_ == milestones.size() ||
      milestones[next_milestone_] > placements)
    return absl::OkStatus();
  // The readers go on meanwhile, as far as the ring reaches.
  if (!total_.zero()) QUIRE_RETURN_IF_ERROR(ring_.Drain());
  for (; next_milestone_ < milestones.size() &&
         milestones[next_milestone_] <= placements;
       ++next_milestone_)
    options_.arrived(milestones[next_milestone_]);
  return absl::OkStatus();
}

void StreamingLoad::AddChecksums(const StagedChunk& staged) {
  for (size_t i = 0; i < staged.crc32.size(); ++i) {
    const ChunkPiece& piece = staged.chunk.pieces[i];
    uint32_t& crc = report_.crc32[piece.tensor->name];
    const uint64_t offset_in_tensor =
        staged.chunk.offset + piece.offset_in_chunk - piece.tensor->offset;
    // A tensor that is placed twice passes twice, and starts afresh.
    crc = offset_in_tensor == 0
              ? staged.crc32[i]
              : JoinCrc32(crc, staged.crc32[i], Bytes(piece.size));
  }
}

void StreamingLoad::ReadChunks() {
  while (true) {
    StagedChunk staged;
    {
      MutexLock lock(&mutex_);
      if (stop_.load(std::memory_order_relaxed)) return;
      std::optional<Chunk> chunk = plan_.Next();
      if (!chunk.has_value()) return;
      while (queued_ + ring_.buffers() <= chunk->index) {
        queued_or_stopped_.Wait(&mutex_);
        if (stop_.load(std::memory_order_relaxed)) return;
      }
      staged.chunk = *std::move(chunk);
    }
    const size_t buffer = staged.chunk.index % ring_.buffers();
    staged.status = ReadChunk(buffer, &staged);
    const bool ok = staged.status.ok();
    {
      MutexLock lock(&mutex_);
      staged_[buffer] = std::move(staged);
    }
    staged_or_stopped_.NotifyAll();
    if (!ok) return;
  }
}

absl::Status StreamingLoad::ReadChunk(size_t buffer, StagedChunk* staged) {
  const Chunk& chunk = staged->chunk;
  QUIRE_ASSIGN_OR_RETURN(const PosixFile* file, files_.Get(chunk.file));
  QUIRE_ASSIGN_OR_RETURN(std::byte * memory, ring_.Acquire(buffer));
  if (file->direct()) {
    QUIRE_RETURN_IF_ERROR(ReadDirectly(*file, chunk, memory));
    staged->begin = DirectSpanOf(chunk).lead;
    memory += staged->begin;
  } else {
    absl::Status status;
    uint64_t end = chunk.offset;
    ForEachRun(chunk, [&](uint64_t offset, size_t at, uint64_t size) {
      if (!status.ok()) return;
      status = ReadRun(*file, chunk, offset, {memory + at, size}, at);
      end = offset + size;
    });
    QUIRE_RETURN_IF_ERROR(status);
    file->DropCache(chunk.offset, end - chunk.offset);
  }
  if (options_.checksum) {
    staged->crc32.reserve(chunk.pieces.size());
    for (const ChunkPiece& piece : chunk.pieces) {
      staged->crc32.push_back(static_cast<uint32_t>(crc32_z(
          0, reinterpret_cast<const Bytef*>(memory + piece.offset_in_chunk),
          piece.size)));
    }
  }
  return absl::OkStatus();
}

absl::Status StreamingLoad::ReadRun(const PosixFile& file, const Chunk& chunk,
                                    uint64_t offset, std::span<std::byte> bytes,
                                    size_t at) {
  const auto got = file.ReadUpTo(offset, bytes, &stop_);
  if (!got.ok()) return AtTensorOf(chunk, got.status());
  if (*got == bytes.size()) return absl::OkStatus();
  return BecameShorter(file, chunk, offset + *got, at + *got);
}

absl::Status StreamingLoad::ReadDirectly(const PosixFile& file,
                                         const Chunk& chunk,
                                         std::byte* memory) {
  const DirectSpan span = DirectSpanOf(chunk);
  const auto read = file.ReadUpTo(span.begin, {memory, span.size}, &stop_);
  if (!read.ok()) return AtTensorOf(chunk, read.status());
  if (*read >= span.lead + chunk.size) return absl::OkStatus();
  return BecameShorter(file, chunk, span.begin + *read,
                       *read > span.lead ? *read - span.lead : 0);
}

absl::Status StreamingLoad::BecameShorter(const PosixFile& file,
                                          const Chunk& chunk,
                                          uint64_t end_of_file, size_t got) {
  const auto piece = std::find_if(
      chunk.pieces.begin(), chunk.pieces.end(),
      [&](const ChunkPiece& p) { return got < p.offset_in_chunk + p.size; });
  return absl::DataLossError(absl::StrCat(
      file.display_name(),
      ": the file became shorter while it was being read: it ends at byte ",
      end_of_file, ", inside tensor ", Quoted(piece->tensor->name), " (",
      piece->tensor->size.value(), " bytes at ", piece->tensor->offset, ")"));
}

template <typename Placement>
absl::StatusOr<LoadReport> Stream(Driver* driver, DeviceId device,
                                  const Checkpoint& checkpoint,
                                  std::span<const Placement> placements,
                                  const StreamingOptions& options) {
  QUIRE_RETURN_IF_ERROR(CheckOptions(options));
  QUIRE_ASSIGN_OR_RETURN(ChunkPlan plan,
                         ChunkPlan::Create(checkpoint, placements,
                                           options.buffer_size, options.order));
  StreamingLoad load(driver, device, checkpoint, std::move(plan), options);
  return load.Run();
}

}  // namespace

uint32_t JoinCrc32(uint32_t first, uint32_t second, Bytes second_size) {
  return static_cast<uint32_t>(
      crc32_combine(first, second, static_cast<z_off_t>(second_size.value())));
}

absl::StatusOr<LoadReport> StreamSlices(
    Driver* driver, DeviceId device, const Checkpoint& checkpoint,
    std::span<const SlicePlacement> placements,
    const StreamingOptions& options) {
  if (options.checksum)
    return absl::InvalidArgumentError(
        "checksums are of whole tensors, and slices are parts of them");
  if (options.direct)
    return absl::InvalidArgumentError(
        "direct reads are of whole tensors: the runs of slices begin anywhere");
  return Stream(driver, device, checkpoint, placements, options);
}

absl::StatusOr<Bytes> StagingBytes(const Checkpoint& checkpoint,
                                   std::span<const TensorPlacement> placements,
                                   const StreamingOptions& options) {
  QUIRE_RETURN_IF_ERROR(CheckOptions(options));
  QUIRE_ASSIGN_OR_RETURN(ChunkPlan plan,
                         ChunkPlan::Create(checkpoint, placements,
                                           options.buffer_size, options.order));
  Bytes total;
  for (const Bytes size : BufferSizes(&plan, options))
    total = SaturatingAdd(total, size);
  return total;
}

absl::StatusOr<LoadReport> StreamTensors(
    Driver* driver, DeviceId device, const Checkpoint& checkpoint,
    std::span<const TensorPlacement> placements,
    const StreamingOptions& options) {
  QUIRE_ASSIGN_OR_RETURN(LoadReport report, Stream(driver, device, checkpoint,
                                                   placements, options));
  if (options.checksum) {
    for (const TensorPlacement& placement : placements)
      if (placement.tensor->size.zero()) report.crc32[placement.tensor->name];
  }
  return report;
}

}  // namespace quire
