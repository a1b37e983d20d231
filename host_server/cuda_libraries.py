"""Where a machine has its own CUDA libraries: what a worker may load, never our stubs.

They lie in NVIDIA's installation or in a Python environment (the wheels that PyTorch needs).
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

CUDA_VARIABLE = "WORMHOLE_CUDA_LIBRARIES"
RUNTIME = "libcudart.so.13"
OUR_LIBRARY = "libwormhole_cuda.so"
WANTED = (RUNTIME, "libcublas.so.13", "libcublasLt.so.13", "libcudnn.so.9")
INSTALLED = ("/usr/local/cuda*/lib64", "/usr/local/cuda*/targets/x86_64-linux/lib")
WHEELS = "nvidia/*/lib"


def cuda_libraries(environment: Mapping[str, str] = os.environ) -> list[Path]:
    """Directories with CUDA libraries, best first; empty where there are none.

    The variable WORMHOLE_CUDA_LIBRARIES (directories with colons between) decides if it is set.
    """
    chosen = environment.get(CUDA_VARIABLE, "")
    if chosen:
        return [Path(text) for text in chosen.split(":") if text]
    return _useful([*_wheels(environment), *_installed()])


def _installed() -> list[Path]:
    return [path for pattern in INSTALLED for path in sorted(Path("/").glob(pattern[1:]))]


def _wheels(environment: Mapping[str, str]) -> list[Path]:
    """Of this Python and of the one that programs would start."""
    folders = [Path(entry) for entry in sys.path if entry.endswith("-packages")]
    python = shutil.which("python3", path=environment.get("PATH"))
    if python is not None:
        folders += sorted(Path(python).parent.parent.glob("lib/python3*/site-packages"))
    return [path for folder in folders for path in sorted(folder.glob(WHEELS))]


def _useful(folders: Iterable[Path]) -> list[Path]:
    """Those that have a library which no directory before them has."""
    kept: list[Path] = []
    seen: set[str] = set()
    for folder in folders:
        if (folder / OUR_LIBRARY).exists():
            continue
        new = {name for name in WANTED if (folder / name).exists()} - seen
        if new:
            kept.append(folder.resolve())
            seen |= new
    return kept
