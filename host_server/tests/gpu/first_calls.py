"""The first calls of a CUDA program, a line each: for `./inv exec --backend cuda -- python3 ...`.

Through the C interface of the runtime alone, without PyTorch: a second tells whether a worker in
its jail can use the GPU. Exit status 0 if every call succeeded and the bytes came back.
"""

from __future__ import annotations

import ctypes
import os
import sys
import time

RUNTIME = "libcudart.so.13"
BYTES = 1 << 20
TO_DEVICE, TO_HOST = 1, 2


def main() -> int:
    """Entry point."""
    cuda = ctypes.CDLL(RUNTIME)
    cuda.cudaGetErrorName.restype = ctypes.c_char_p
    failed = 0

    def call(name: str, *arguments: object) -> None:
        nonlocal failed
        begin_s = time.monotonic()
        status = getattr(cuda, name)(*arguments)
        said = cuda.cudaGetErrorName(status).decode()
        print(f"{name}: {status} {said}, {(time.monotonic() - begin_s) * 1e3:.1f} ms", flush=True)
        failed += status != 0

    count = ctypes.c_int(-1)
    call("cudaGetDeviceCount", ctypes.byref(count))
    device = ctypes.c_void_p()
    call("cudaMalloc", ctypes.byref(device), ctypes.c_size_t(BYTES))
    sent = os.urandom(BYTES)
    back = ctypes.create_string_buffer(BYTES)
    size = ctypes.c_size_t(BYTES)
    call("cudaMemcpy", device, sent, size, TO_DEVICE)
    call("cudaMemcpy", back, device, size, TO_HOST)
    call("cudaDeviceSynchronize")
    call("cudaFree", device)
    same = back.raw == sent
    print(f"devices {count.value}, bytes {'the same' if same else 'DIFFERENT'}")
    return 0 if failed == 0 and same and count.value > 0 else 1


if __name__ == "__main__":
    sys.exit(main())
