"""Which OpenCL libraries a worker may load: the real ones, never our own stub.

A worker that loaded the stub would forward to itself without end. So the worker gets a private
copy of the vendor files, without any that names our library. What else it must reach to load them,
and whether they are a GPU's, is decided here too.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from host_server.libraries import find_library
from testbed.errors import TestbedError

SYSTEM_VENDORS = Path("/etc/OpenCL/vendors")
OUR_LIBRARY = "libwormhole_opencl"
OUR_SYMBOL = b"wormhole_mark"
LIBRARY_BYTES_MAX = 64 << 20
LOADER = "libOpenCL.so.1"
DRIVER = "libcuda.so.1"  # what NVIDIA's other libraries load by name
NVIDIA = re.compile(r"nvidia|cuda")
OPEN_DIRECTORIES = re.compile(r"/usr/lib[^/]*/|/usr/local/lib[^/]*/|/lib(32|64)?/")
# Vendors whose libraries open device files; PoCL and Oclgrind use the processor.
GPU_VENDORS = re.compile(r"nvidia|cuda|amdocl|rusticl|opencl-intel|igdrcl|intel-opencl")


def real_vendors(source: Path) -> dict[str, str]:
    """File name -> library of every vendor in a directory or a single `.icd` file, but ours.

    Raises TestbedError if the path does not exist or nothing but our own library is left.
    """
    files = [source] if source.is_file() else sorted(source.glob("*.icd"))
    if not files:
        raise TestbedError(
            f"no OpenCL vendor file (*.icd) at {source}",
            "install an OpenCL driver, for example the package pocl-opencl-icd",
        )
    found = {}
    for file in files:
        library = file.read_text(encoding="utf-8", errors="replace").strip()
        if library and not is_our_library(library):
            found[file.name if file.suffix == ".icd" else f"{file.name}.icd"] = library
    if not found:
        raise TestbedError(
            f"{source} names only the testbed's own OpenCL library; a worker must load a real one",
            "give the real driver's vendor file, for example /etc/OpenCL/vendors/pocl.icd",
        )
    return found


def is_our_library(library: str) -> bool:
    """Whether an ICD's library is our stub, by its name or by what it exports."""
    if OUR_LIBRARY in Path(library).name:
        return True
    path = Path(library)
    if not path.is_absolute() or not path.is_file() or path.stat().st_size > LIBRARY_BYTES_MAX:
        return False
    return OUR_LIBRARY in path.resolve().name or OUR_SYMBOL in path.read_bytes()


def wants_gpu(backend: str, vendors: Mapping[str, str]) -> bool:
    """Whether workers need a GPU's device files: for CUDA, or for a GPU's OpenCL."""
    names = (Path(library).name.lower() for library in vendors.values())
    return backend == "cuda" or any(GPU_VENDORS.search(name) for name in names)


def library_directories(vendors: Mapping[str, str], backend: str = "opencl") -> list[Path]:
    """Directories that a worker must be told of to load its libraries, and be able to read.

    They are where the loader does not look by itself, or where the jail has no rule of its own:
    those of the vendors' libraries, of the OpenCL loader and of NVIDIA's driver, and those to which
    links there lead (a container's driver often lies elsewhere, with links in /usr/lib).
    """
    names = list(vendors.values())
    if backend == "opencl":
        names.append(LOADER)
    if backend == "cuda" or any(NVIDIA.search(Path(name).name) for name in vendors.values()):
        names.append(DRIVER)
    found = set()
    for name in names:
        library = find_library(name)
        if library is not None:
            places = {library.path.parent, library.path.resolve().parent}
            found |= {place for place in places if not library.by_itself or not _is_open(place)}
    return sorted(found)


def _is_open(place: Path) -> bool:
    """Whether the jail lets every worker read this directory (`readable` in worker/jail.c)."""
    return OPEN_DIRECTORIES.match(f"{place}/") is not None


def write_vendors(vendors: Mapping[str, str], directory: Path) -> None:
    """Write vendor files into a directory of the worker."""
    directory.mkdir(mode=0o755)
    for name, library in vendors.items():
        (directory / name).write_text(library + "\n", encoding="utf-8")
