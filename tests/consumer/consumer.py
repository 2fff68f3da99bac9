#!/usr/bin/env python3
"""The allocator from Python, without a compiler: ctypes on the shared library.

usage: consumer.py LIBQUIRE_ALLOC_SO
"""

import ctypes
import json
import sys

OK, INVALID_ARGUMENT, FAILED_PRECONDITION, OUT_OF_DEVICE_MEMORY = 0, 1, 3, 4


class RuntimeOptions(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t),
                ("driver", ctypes.c_int32),
                ("host_device_count", ctypes.c_int32),
                ("host_memory_per_device", ctypes.c_uint64),
                ("page_size", ctypes.c_uint64),
                ("limit", ctypes.c_uint64),
                ("trace_capacity", ctypes.c_uint64),
                ("disable_trace", ctypes.c_uint32),
                ("padding", ctypes.c_uint32)]


def use_as_pytorch_does(quire, runtime):
    """Through the addresses that CUDAPluggableAllocator takes."""
    def function(name, *types):
        address = ctypes.cast(getattr(quire, name), ctypes.c_void_p).value
        return ctypes.CFUNCTYPE(*types)(address)

    stream = ctypes.c_void_p
    allocate = function("quire_pytorch_alloc", ctypes.c_void_p,
                        ctypes.c_ssize_t, ctypes.c_int, stream)
    free = function("quire_pytorch_free", None, ctypes.c_void_p,
                    ctypes.c_ssize_t, ctypes.c_int, stream)
    record = function("quire_pytorch_record_stream", None, ctypes.c_void_p,
                      stream)
    quire.quire_pytorch_use.argtypes = [ctypes.c_void_p]
    if quire.quire_pytorch_use(runtime) != OK:
        sys.exit("PyTorch cannot use the runtime")
    memory = allocate(5 << 20, 0, None)
    ctypes.memset(memory, 0x5a, 5 << 20)
    record(memory, None)
    if quire.quire_pytorch_use(None) != FAILED_PRECONDITION:
        sys.exit("PyTorch lost a runtime with live memory")
    free(memory, 5 << 20, 0, None)
    if quire.quire_pytorch_use(None) != OK:
        sys.exit("PyTorch keeps a runtime that it has nothing of")


def main():
    quire = ctypes.CDLL(sys.argv[1])
    quire.quire_last_error.restype = ctypes.c_char_p
    # Python would take a pointer for a 32-bit number.
    for name in ("quire_runtime_destroy", "quire_allocator_destroy",
                 "quire_string_free"):
        function = getattr(quire, name)
        function.argtypes, function.restype = [ctypes.c_void_p], None
    quire.quire_runtime_get_allocator.argtypes = [
        ctypes.c_void_p, ctypes.c_int32, ctypes.c_void_p]
    quire.quire_runtime_get_snapshot_json.argtypes = [
        ctypes.c_void_p, ctypes.c_int32, ctypes.c_void_p]
    quire.quire_allocator_allocate.argtypes = [
        ctypes.c_void_p, ctypes.c_uint64, ctypes.c_void_p, ctypes.c_void_p]
    quire.quire_allocator_free.argtypes = [
        ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint64]

    def expect(status, expected=OK):
        if status != expected:
            error = quire.quire_last_error().decode(errors="replace")
            sys.exit(f"status {status} instead of {expected}: {error}")

    runtime = ctypes.c_void_p()
    options = RuntimeOptions(size=ctypes.sizeof(RuntimeOptions),
                             host_memory_per_device=64 << 20)
    expect(quire.quire_runtime_create(ctypes.byref(options),
                                      ctypes.byref(runtime)))
    allocator = ctypes.c_void_p()
    expect(quire.quire_runtime_get_allocator(runtime, 0,
                                             ctypes.byref(allocator)))
    address = ctypes.c_uint64()
    expect(quire.quire_allocator_allocate(allocator, 3 << 20, None,
                                          ctypes.byref(address)))
    ctypes.memset(address.value, 0x5a, 3 << 20)
    if ctypes.string_at(address.value + (3 << 20) - 1, 1) != b"\x5a":
        sys.exit("the memory does not hold what was written")

    text = ctypes.c_void_p()
    expect(quire.quire_runtime_get_snapshot_json(runtime, 0,
                                                 ctypes.byref(text)))
    json.loads(ctypes.string_at(text.value))
    quire.quire_string_free(text)

    refused = ctypes.c_uint64()
    expect(quire.quire_allocator_allocate(allocator, 1 << 40, None,
                                          ctypes.byref(refused)),
           OUT_OF_DEVICE_MEMORY)
    if b"1.00 TiB" not in quire.quire_last_error():
        sys.exit(f"no verdict: {quire.quire_last_error()}")
    expect(quire.quire_allocator_free(allocator, address, 0))
    expect(quire.quire_allocator_free(allocator, address, 0),
           FAILED_PRECONDITION)
    expect(quire.quire_allocator_free(None, address, 0), INVALID_ARGUMENT)
    use_as_pytorch_does(quire, runtime)
    quire.quire_allocator_destroy(allocator)
    quire.quire_runtime_destroy(runtime)
    print("quire from Python")


if __name__ == "__main__":
    main()
