"""The functions whose generated code is committed, and that code."""

from __future__ import annotations

from pathlib import Path

from testbed.protocol.emit_skeleton import opencl_skeleton
from testbed.protocol.emit_stub import opencl_stub
from testbed.protocol.spec import load_api

GOLDEN_DIR = Path(__file__).resolve().parent
FUNCTIONS = ("clFlush", "clCreateKernel")


def specimens() -> dict[str, str]:
    """Text of every specimen by its file name."""
    api = load_api("opencl")
    chosen = [function for function in api.functions if function.name in FUNCTIONS]
    return {
        "stub.c.txt": "\n".join(opencl_stub(api, function) for function in chosen),
        "skeleton.c.txt": "\n".join(opencl_skeleton(function) for function in chosen),
    }
