"""The files of a program: an executable with its libraries, a Python package, a process."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from testbed.coverage.needs import elf_needs, is_elf
from testbed.coverage.surface import Surface
from testbed.errors import TestbedError

PYTHON_LIMIT_S = 60
FILES_MAX = 20000
SYSTEM_LIBRARIES = re.compile(
    r"(ld-linux|libc|libm|libdl|librt|libpthread|libstdc\+\+|libgcc_s|libutil)[.-]"
)
FIND_PACKAGE = """
import importlib.util, json, sys
spec = importlib.util.find_spec(sys.argv[1])
places = list(spec.submodule_search_locations or []) if spec else []
print(json.dumps(places or ([spec.origin] if spec and spec.origin else [])))
"""


def files_of(program: str, surface: Surface, python: str = "") -> list[Path]:
    """Files of a path, a command, a Python package or a process id.

    `python` is the interpreter that is asked for the package.  Raises TestbedError if there is no
    such thing.
    """
    if program.isdigit():
        return _of_process(int(program), surface)
    path = Path(program)
    found = path if path.exists() else Path(shutil.which(program) or "")
    if found.is_file():
        return _of_file(found.resolve(), surface)
    if found.is_dir() and program != "":
        return _below(found) if path.exists() else _of_package(program, python)
    return _of_package(program, python)


def _of_file(path: Path, surface: Surface) -> list[Path]:
    """An executable and the libraries that it is linked with, or a Python source alone."""
    if not is_elf(path):
        return [path]
    found = [path]
    for file in found:
        needs = elf_needs(file, surface)
        for name in needs.libraries:
            library = _find_library(name, file, needs.search)
            if library is not None and library not in found and _is_of_interest(library, surface):
                found.append(library)
    return found


def _is_of_interest(path: Path, surface: Surface) -> bool:
    """Neither the C library nor one that provides the API."""
    return not SYSTEM_LIBRARIES.match(path.name) and not path.name.startswith(surface.libraries)


def _find_library(name: str, user: Path, search: tuple[str, ...]) -> Path | None:
    """Where the dynamic linker would find a library, without its cache."""
    own = [place.replace("$ORIGIN", str(user.parent)) for place in search]
    own += os.environ.get("LD_LIBRARY_PATH", "").split(":")
    system = [f"{top}/{sub}" for top in ("/lib", "/usr/lib") for sub in ("x86_64-linux-gnu", "")]
    for place in (*own, *system, "/lib64", "/usr/local/lib"):
        candidate = Path(place) / name
        if place and candidate.is_file():
            return candidate.resolve()
    return None


def _of_process(pid: int, surface: Surface) -> list[Path]:
    try:
        text = Path(f"/proc/{pid}/maps").read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise TestbedError(
            f"cannot see the files of process {pid}: {error.strerror}", "is it running, and yours?"
        ) from error
    names = {line.split(maxsplit=5)[5] for line in text.splitlines() if line.count("/") > 0}
    paths = sorted(Path(name) for name in names if name.startswith("/"))
    return [path for path in paths if is_elf(path) and _is_of_interest(path, surface)]


def _of_package(name: str, python: str) -> list[Path]:
    if not re.fullmatch(r"[A-Za-z_][\w.]*", name):
        raise TestbedError(f"no program, package or process {name!r}", "give a path or a name")
    for interpreter in (python,) if python else (sys.executable, "python3"):
        places = _ask(interpreter, name)
        files = [file for place in places for file in _below(Path(place))]
        if files:
            return files
    raise TestbedError(
        f"no program and no Python package {name!r}",
        "give a path, or --python with the interpreter that has the package",
    )


def _ask(interpreter: str, package: str) -> list[str]:
    """Where an interpreter finds a package; nowhere if it cannot say."""
    program = shutil.which(interpreter)
    if program is None:
        raise TestbedError(f"no interpreter {interpreter}", "give its path with --python")
    done = subprocess.run(
        [program, "-c", FIND_PACKAGE, package],
        capture_output=True,
        text=True,
        timeout=PYTHON_LIMIT_S,
        check=False,
    )
    places: list[str] = json.loads(done.stdout) if done.returncode == 0 else []
    return places


def _below(place: Path) -> list[Path]:
    """Python sources and ELF files below a folder; a file is itself."""
    if place.is_file():
        return [place]
    found = []
    for path in sorted(place.rglob("*")):
        if path.is_file() and (path.suffix == ".py" or is_elf(path)):
            found.append(path)
        if len(found) == FILES_MAX:
            raise TestbedError(f"{place} has more than {FILES_MAX} files", "name a smaller folder")
    return found
