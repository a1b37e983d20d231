"""Which OpenCL libraries a worker may load: the real ones, never our own stub.

A worker that loaded the stub would forward to itself without end. So the worker gets a private
copy of the vendor files, without any that names our library.
"""

from __future__ import annotations

from pathlib import Path

from testbed.errors import TestbedError

SYSTEM_VENDORS = Path("/etc/OpenCL/vendors")
OUR_LIBRARY = "libwormhole_opencl"
OUR_SYMBOL = b"wormhole_mark"
LIBRARY_BYTES_MAX = 64 << 20


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


def library_directories(vendors: dict[str, str]) -> list[Path]:
    """Directories outside /usr that a worker must be able to read to load its libraries."""
    paths = (Path(library).resolve() for library in vendors.values() if library.startswith("/"))
    found = {path.parent for path in paths if not path.is_relative_to("/usr")}
    return sorted(found)


def write_vendors(vendors: dict[str, str], directory: Path) -> None:
    """Write vendor files into a directory of the worker."""
    directory.mkdir(mode=0o755)
    for name, library in vendors.items():
        (directory / name).write_text(library + "\n", encoding="utf-8")
