// Copies that leave the caches to others: for a device's copy engine, played by
// a processor.
//
// An ordinary copy reads every line that it is about to overwrite, and throws
// what others are using out of the caches, for bytes that are wanted later or
// by somebody else. A streaming one does neither: 30 MiB go at 17 GB/s instead
// of 10 (AMD EPYC), and what runs beside it is held up less.

#ifndef QUIRE_ALLOC_STREAMING_COPY_H_
#define QUIRE_ALLOC_STREAMING_COPY_H_

#include <cstddef>

namespace quire {

// As std::memcpy: the two do not overlap. What is small is copied in the
// ordinary way, since it may well be in the caches, and stay there. On return
// the bytes are there for all threads that this one synchronises with.
void StreamingCopy(void* to, const void* from, size_t size);

}  // namespace quire

#endif  // QUIRE_ALLOC_STREAMING_COPY_H_
