"""The host's own Python for programs in a guest: which folders it takes, and where they are seen.

A guest sees them read-only, at their own places below `GUEST_ROOT`, on a disk that is made of this
machine's files as they lie (erofs.py); programs run with that as their root. So they have the C
library, the Python and the packages that a program on the host has, unmodified, and need neither
network nor installation in the guest. See ARCHITECTURE.md, section 6.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterable
from functools import cache
from pathlib import Path, PurePosixPath

from testbed.errors import TestbedError
from testbed.machine.erofs import Tree, host_tree

GUEST_ROOT = PurePosixPath("/opt/wormhole/host")
#: Of the guest itself, at the same places in that root; of the host's there is nothing in them.
OWN_FOLDERS = tuple(map(PurePosixPath, ("/dev", "/proc", "/sys", "/opt/wormhole")))
#: The guest's, too; folders of the host's are shown beside what the guest has there.
SHARED_FOLDERS = (PurePosixPath("/tmp"),)
GUEST_FOLDERS = (*OWN_FOLDERS, *SHARED_FOLDERS)
MEMORY_MIB = 6144  # of a guest that runs PyTorch; taken from the host only as it is used
ASK_LIMIT_S = 60.0

# What every program needs: the loader, the C library, and the libraries that are found by name.
SYSTEM = (
    *("/bin", "/lib64", "/usr/bin", "/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/local/lib"),
    *("/lib/x86_64-linux-gnu", "/lib/ld-linux-x86-64.so.2", "/lib64/ld-linux-x86-64.so.2"),
    *("/etc/alternatives", "/etc/ld.so.cache", "/etc/localtime", "/usr/share/zoneinfo"),
)
SYSTEM_PREFIX = "/usr"  # of whose folders `SYSTEM` has those that matter
PREFIX_PARTS = ("bin", "lib", "lib64", "pyvenv.cfg")
ASK = """
import json, sys
print(json.dumps([[sys.prefix, sys.exec_prefix, sys.base_prefix, sys.base_exec_prefix], sys.path]))
"""


@cache
def python_tree(python: str, more: tuple[str, ...] = ()) -> Tree:
    """What a program of this Python needs, and the folders `more`, as a disk for a guest.

    It shows the files as they are now, and they must stay as they are while a guest uses it.
    Raises TestbedError if the Python does not answer, or lies where the guest has its own files.
    """
    paths = [*map(Path, SYSTEM), *python_paths(python), *(Path(text).absolute() for text in more)]
    _check(paths)
    return host_tree(paths, GUEST_FOLDERS)


def python_paths(python: str) -> list[Path]:
    """The program and the folders from which it takes what it imports."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    try:
        done = subprocess.run(
            [python, "-c", ASK],
            env={**environment, "PYTHONNOUSERSITE": "1"},
            cwd="/",
            capture_output=True,
            text=True,
            timeout=ASK_LIMIT_S,
            check=True,
        )
        prefixes, imported = json.loads(done.stdout)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        raise TestbedError(
            f"{python} does not say where its packages are: {error}",
            "use a Python that runs on this machine",
        ) from error
    own = [Path(prefix) for prefix in dict.fromkeys(prefixes) if prefix != SYSTEM_PREFIX]
    parts = [prefix / part for prefix in own for part in PREFIX_PARTS]
    # Some entries are names of hooks, and no folders.
    folders = [path for path in map(Path, imported) if path.is_absolute()]
    return [Path(python).absolute(), *parts, *folders]


def _check(paths: Iterable[Path]) -> None:
    for path in paths:
        for folder in GUEST_FOLDERS:
            inside = (
                path == Path(folder) if folder in SHARED_FOLDERS else path.is_relative_to(folder)
            )
            if inside and path.exists():
                raise TestbedError(
                    f"a guest cannot see {path}: it has a {folder} of its own",
                    "move the folder, or use a Python that lies elsewhere",
                )
