"""An OpenCL program that does system calls and touches memory from inside a kernel.

On a CPU device a kernel is native code in the worker's process. This program reads requests as JSON
lines and answers each with what its kernel got: {"call": [number, arguments...]} does a system call
(a text among the arguments becomes its address), {"peek": address}, {"poke": [address, value]},
{"build": [source, options]}, {"local": "buffer"} tells an address of its own memory.
"""

from __future__ import annotations

import ctypes
import json
import sys
from typing import Any

KERNEL = """
kernel void attack(global long *v, global uchar *text) {
  long n = v[0];
  for (int i = 1; i < 7; i++) if (v[8] & (1 << i)) v[i] += (long)text;
  if (n == -1) { v[7] = *(volatile long *)v[1]; return; }
  if (n == -2) { *(volatile long *)v[1] = v[2]; v[7] = 0; return; }
  if (n == -3) { for (;;) v[9]++; }
  if (n == -4) { v[7] = (long)text; return; }
  long result;
  __asm__ volatile("movq %5, %%r10\\n\\tmovq %6, %%r8\\n\\tmovq %7, %%r9\\n\\tsyscall"
    : "=a"(result)
    : "0"(n), "D"(v[1]), "S"(v[2]), "d"(v[3]), "r"(v[4]), "r"(v[5]), "r"(v[6])
    : "rcx", "r11", "r10", "r8", "r9", "memory");
  v[7] = result;
}
"""
WORDS = 16
TEXT_BYTES = 65536
PEEK, POKE, LOOP, ADDRESS = -1, -2, -3, -4
MEM_READ_WRITE, DEVICE_ALL = 1, 0xFFFFFFFF

cl = ctypes.CDLL("libOpenCL.so.1")
for name in (
    *("clCreateContext", "clCreateCommandQueue", "clCreateProgramWithSource"),
    *("clCreateKernel", "clCreateBuffer"),
):
    getattr(cl, name).restype = ctypes.c_void_p


class Attacker:
    """A context with the kernel and its two buffers."""

    def __init__(self) -> None:
        error = ctypes.c_int()
        platform, device = ctypes.c_void_p(), ctypes.c_void_p()
        check(cl.clGetPlatformIDs(1, ctypes.byref(platform), None))
        check(
            cl.clGetDeviceIDs(platform, ctypes.c_ulong(DEVICE_ALL), 1, ctypes.byref(device), None)
        )
        self.device = device
        self.context = ctypes.c_void_p(
            cl.clCreateContext(None, 1, ctypes.byref(device), None, None, ctypes.byref(error))
        )
        self.queue = ctypes.c_void_p(
            cl.clCreateCommandQueue(self.context, device, ctypes.c_ulong(0), ctypes.byref(error))
        )
        check(error.value)
        program = self.program(KERNEL)
        check(cl.clBuildProgram(program, 0, None, b"", None, None))
        self.kernel = ctypes.c_void_p(cl.clCreateKernel(program, b"attack", ctypes.byref(error)))
        check(error.value)
        self.words = self.buffer(WORDS * 8)
        self.text = self.buffer(TEXT_BYTES)
        for index, memory in enumerate((self.words, self.text)):
            check(cl.clSetKernelArg(self.kernel, index, ctypes.c_size_t(8), ctypes.byref(memory)))

    def program(self, source: str) -> ctypes.c_void_p:
        text = ctypes.c_char_p(source.encode())
        return ctypes.c_void_p(
            cl.clCreateProgramWithSource(self.context, 1, ctypes.byref(text), None, None)
        )

    def buffer(self, size_bytes: int) -> ctypes.c_void_p:
        return ctypes.c_void_p(
            cl.clCreateBuffer(
                self.context,
                ctypes.c_ulong(MEM_READ_WRITE),
                ctypes.c_size_t(size_bytes),
                None,
                None,
            )
        )

    def run(self, number: int, arguments: list[int | str]) -> int:
        """What the kernel left as its result."""
        words = (ctypes.c_long * WORDS)(number)
        text = bytearray()
        for place, argument in enumerate(arguments, 1):
            if isinstance(argument, str):
                words[8] |= 1 << place
                words[place] = len(text)
                text += argument.encode("latin-1") + b"\0"
                text += bytes(-len(text) % 8)
            else:
                words[place] = argument
        raw = (ctypes.c_char * TEXT_BYTES).from_buffer_copy(bytes(text).ljust(TEXT_BYTES, b"\0"))
        self.copy(cl.clEnqueueWriteBuffer, self.text, raw, TEXT_BYTES)
        self.copy(cl.clEnqueueWriteBuffer, self.words, words, WORDS * 8)
        one = ctypes.c_size_t(1)
        check(
            cl.clEnqueueNDRangeKernel(
                self.queue, self.kernel, 1, None, ctypes.byref(one), None, 0, None, None
            )
        )
        if number == LOOP:
            check(cl.clFlush(self.queue))
            return 0
        self.copy(cl.clEnqueueReadBuffer, self.words, words, WORDS * 8)
        self.copy(cl.clEnqueueReadBuffer, self.text, raw, TEXT_BYTES)
        self.seen = bytes(raw)
        return words[7]

    def copy(self, function: Any, memory: ctypes.c_void_p, host: Any, size_bytes: int) -> None:
        size = ctypes.c_size_t(size_bytes)
        check(function(self.queue, memory, 1, ctypes.c_size_t(0), size, host, 0, None, None))

    def build(self, source: str, options: str) -> dict[str, Any]:
        """The build's error code and log."""
        program = self.program(source)
        error = cl.clBuildProgram(program, 0, None, options.encode(), None, None)
        text = ctypes.create_string_buffer(TEXT_BYTES)
        cl.clGetProgramBuildInfo(
            program, self.device, 0x1183, ctypes.c_size_t(TEXT_BYTES), text, None
        )
        return {"error": error, "log": text.value.decode("latin-1")}

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Do what one line asks."""
        if "call" in request:
            number, *arguments = request["call"]
            result = self.run(number, arguments)
            return {"result": result, "text": self.seen.rstrip(b"\0")[:4096].decode("latin-1")}
        if "peek" in request:
            return {"result": self.run(PEEK, [request["peek"]])}
        if "poke" in request:
            return {"result": self.run(POKE, list(request["poke"]))}
        if "loop" in request:
            return {"result": self.run(LOOP, [])}
        if "build" in request:
            return self.build(*request["build"])
        return {"result": self.run(ADDRESS, [])}


def check(error: int) -> None:
    """End on an error of the API."""
    if error != 0:
        print(json.dumps({"lost": error}), flush=True)
        sys.exit(3)


def main() -> None:
    """Answer until the input ends."""
    attacker = Attacker()
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        print(json.dumps(attacker.answer(json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
