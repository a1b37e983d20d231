"""Which OpenCL of the host is used: all that its loader finds, or the one that was chosen.

`--opencl nvidia` (of `run`, `exec`, `record` ...) chooses for everything that a command does:
native runs see that vendor alone, and workers load that alone.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from host_server.libraries import find_library
from host_server.vendors import DRIVER, LOADER, SYSTEM_VENDORS, real_vendors, wants_gpu
from testbed.errors import TestbedError
from testbed.machine.artifacts import cache_dir
from testbed.machine.prebuilt import has_prebuilt, prebuilt

# Vendors whose library is known, for machines that have it without a vendor file.
KNOWN = {
    "nvidia": "libnvidia-opencl.so.1",
    "pocl": "libpocl.so.2",
    "oclgrind": "/usr/lib/oclgrind/liboclgrind-rt-icd.so",
}

_chosen: str = ""


def choose_opencl(name: str) -> None:
    """Use only the vendor of this name from here on; an empty name is all that there are.

    Raises TestbedError, saying what this machine has, if there is none or no single one.
    """
    global _chosen
    if name:
        _write_vendor(name, vendor_library(name))
    _chosen = name


def chosen_opencl() -> str:
    """The name that was chosen, or an empty text."""
    return _chosen


def chosen_vendors() -> Path | None:
    """The folder whose vendor file names the chosen library; None if nothing was chosen."""
    return _folder(_chosen) if _chosen else None


def vendor_library(name: str, system: Path = SYSTEM_VENDORS) -> str:
    """The library of a vendor, by a word in its vendor file's name or library.

    Raises TestbedError if no vendor has the word, or several have.
    """
    there: dict[str, str] = {}
    if any(system.glob("*.icd")):
        there = real_vendors(system)
    word = name.lower()
    fitting = {library for file, library in there.items() if word in f"{file} {library}".lower()}
    if len(fitting) > 1:
        raise TestbedError(
            f"{name!r} fits several OpenCL libraries: {', '.join(sorted(fitting))}",
            "give a longer part of the name",
        )
    if fitting:
        return fitting.pop()
    library = KNOWN.get(word)
    if library is not None and find_library(library) is not None:
        return library
    raise TestbedError(
        f"no OpenCL library of this machine is called {name!r}",
        f"there are: {', '.join(sorted(there.values())) or 'none'} (in {system})",
    )


def opencl_is_a_gpus() -> bool:
    """Whether the OpenCL that workers load is a GPU's, so that their jail is open to its files."""
    vendors = chosen_vendors() or SYSTEM_VENDORS
    return any(vendors.glob("*.icd")) and wants_gpu("opencl", real_vendors(vendors))


def native_variables(cuda: bool = False) -> dict[str, str]:
    """What leads a program on the host to its own OpenCL, or to the chosen one alone.

    With `cuda` also to NVIDIA's driver, which containers often have in a place of its own.
    """
    variables = loader_variables(cuda)
    vendors = chosen_vendors()
    if vendors is None:
        return variables
    # The loader takes a name without the slash for a single file.
    return {**variables, "OCL_ICD_VENDORS": f"{vendors}/"}


def loader_variables(cuda: bool = False) -> dict[str, str]:
    """What leads a program to libraries that are not where the dynamic loader looks.

    Empty on most machines: it is for a driver in a place of its own, and for a machine without an
    OpenCL loader, where a bundle's is used.
    """
    directories = []
    variables = {}
    loader = _loader()
    if loader is not None:
        directories.append(loader.parent)
        variables["OPENCL_PATH"] = str(loader)  # tinygrad looks in fixed places otherwise
    for name in [*([vendor_library(_chosen)] if _chosen else []), *([DRIVER] if cuda else [])]:
        library = find_library(name)
        if library is not None and not library.by_itself:
            directories.append(library.path.parent)
    if directories:
        variables["LD_LIBRARY_PATH"] = ":".join(str(path) for path in dict.fromkeys(directories))
    return variables


def clinfo_program() -> str | None:
    """The clinfo of this machine, or of the bundle."""
    own = shutil.which("clinfo")
    ready = prebuilt("opencl") if own is None and has_prebuilt("opencl") else None
    return own if ready is None else str(ready / "clinfo")


def _loader() -> Path | None:
    """The OpenCL loader, if it is not found without being told."""
    library = find_library(LOADER)
    if library is not None:
        return None if library.by_itself else library.path
    ready = prebuilt("opencl") if has_prebuilt("opencl") else None
    return None if ready is None else ready / LOADER


def _folder(name: str) -> Path:
    return cache_dir() / "opencl" / name.lower()


def _write_vendor(name: str, library: str) -> None:
    found = find_library(library)
    text = f"{library if found is None or found.by_itself else found.path}\n"
    folder = _folder(name)
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{name.lower()}.icd"
    if not file.is_file() or file.read_text(encoding="utf-8") != text:
        partial = folder / f".{name.lower()}.partial"
        partial.write_text(text, encoding="utf-8")
        partial.rename(file)
