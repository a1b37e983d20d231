"""Where shared libraries lie: what the dynamic loader finds by itself, and what needs telling.

Drivers of GPUs are often mounted into a container at a place of their own, which the loader finds
only by `LD_LIBRARY_PATH`. A worker's environment is empty and its file view small, so the places
have to be known before it starts.
"""

from __future__ import annotations

import os
import re
import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path

LDCONFIG_LIMIT_S = 20.0
# What the loader looks through after its cache (ld.so(8), 64-bit).
STANDARD = tuple(
    Path(name)
    for name in ("/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu", "/lib64", "/usr/lib64")
)
# Where container runtimes and toolkits put what they bring.
USUAL = tuple(
    Path(name)
    for name in (
        *("/usr/local/nvidia/lib64", "/usr/local/nvidia/lib", "/usr/local/cuda/lib64"),
        *("/usr/lib/wsl/lib", "/usr/lib/nvidia", "/opt/nvidia/lib64"),
    )
)


@dataclass(frozen=True)
class Library:
    """A library found by its name; `by_itself` if the loader finds it without being told."""

    path: Path
    by_itself: bool


def find_library(name: str) -> Library | None:
    """Find a library by its SONAME or absolute path; None if it is nowhere that is looked."""
    if name.startswith("/"):
        return Library(Path(name), True) if Path(name).is_file() else None
    known = _loader_cache().get(name)
    if known is not None:
        return Library(known, True)
    told = os.environ.get("LD_LIBRARY_PATH", "").split(":")
    for by_itself, folders in (
        (True, STANDARD),
        (False, tuple(Path(text) for text in told if text.startswith("/"))),
        (False, USUAL),
    ):
        for folder in folders:
            if (folder / name).is_file():
                return Library(folder / name, by_itself)
    return None


@cache
def _loader_cache() -> dict[str, Path]:
    """What `ldconfig -p` lists for this processor; empty where there is no ldconfig."""
    env = {**os.environ, "PATH": f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"}
    try:
        done = subprocess.run(
            ["ldconfig", "-p"],
            capture_output=True,
            text=True,
            timeout=LDCONFIG_LIMIT_S,
            env=env,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return {}
    found = re.findall(r"^\s*(\S+) \(libc6,x86-64[^)]*\) => (\S+)$", done.stdout, re.MULTILINE)
    libraries: dict[str, Path] = {}
    for name, path in found:
        if Path(path).is_file():
            libraries.setdefault(name, Path(path))
    return libraries
