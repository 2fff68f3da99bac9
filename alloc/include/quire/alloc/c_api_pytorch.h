// PyTorch's pluggable allocator: the functions that it looks for in a library.
//
//   allocator = torch.cuda.memory.CUDAPluggableAllocator(
//       "libquire_alloc.so", "quire_pytorch_alloc", "quire_pytorch_free")
//   torch.cuda.memory.change_current_allocator(allocator)
//
// and, so that Tensor.record_stream is obeyed, whose default does nothing,
//
//   library = ctypes.CDLL("libquire_alloc.so")
//   record = ctypes.cast(library.quire_pytorch_record_stream, ctypes.c_void_p)
//   allocator.allocator().set_record_stream_fn(record.value)
//
// They serve one process from one runtime: that of quire_pytorch_use, or a CUDA
// runtime with default options that the first allocation creates. It is not
// destroyed when the process ends, since PyTorch frees tensors to the last.
// Memory of graphs that PyTorch captures is not told apart: do not capture.
//
// Include quire/alloc/c_api.h, which explains the conventions.

#ifndef QUIRE_ALLOC_C_API_PYTORCH_H_
#define QUIRE_ALLOC_C_API_PYTORCH_H_

#include <sys/types.h>

#include "quire/alloc/c_api_base.h"

#ifdef __cplusplus
extern "C" {
#endif

// Memory of `device` for work on `stream`, a cudaStream_t; NULL is the default
// stream. Where it cannot be had, an exception says why, of class
// std::bad_alloc, which PyTorch turns into one of Python's: this function is
// called from C++ alone.
QUIRE_C_FUNCTION void* quire_pytorch_alloc(ssize_t size, int device,
                                           void* stream);
// NULL does nothing. Free when what was queued on `stream`, and on streams that
// were recorded, is done. What is refused stays as it is: quire_last_error says
// why.
QUIRE_C_FUNCTION void quire_pytorch_free(void* memory, ssize_t size, int device,
                                         void* stream) QUIRE_C_NOEXCEPT;
// `stream` uses the memory too. What is refused is told by quire_last_error.
QUIRE_C_FUNCTION void quire_pytorch_record_stream(void* memory, void* stream)
    QUIRE_C_NOEXCEPT;

// Serves PyTorch from the runtime, which it keeps, from here on; NULL lets go
// of it. On a software device each pointer that is named stands for a stream of
// its own. QUIRE_FAILED_PRECONDITION, after which nothing has changed, while
// memory that was allocated here is live.
QUIRE_C_FUNCTION quire_status quire_pytorch_use(quire_runtime* runtime)
    QUIRE_C_NOEXCEPT;
// A handle of the runtime that serves PyTorch, for limits, reports and traces.
// QUIRE_FAILED_PRECONDITION where there is none yet.
QUIRE_C_FUNCTION quire_status quire_pytorch_get_runtime(quire_runtime** runtime)
    QUIRE_C_NOEXCEPT;

#ifdef __cplusplus
}  // extern "C"
#endif

#endif  // QUIRE_ALLOC_C_API_PYTORCH_H_
