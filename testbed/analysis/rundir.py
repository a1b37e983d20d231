"""Reading a run directory: names of its files, the manifest, JSON lines."""

from __future__ import annotations

import gzip
import json
import zlib
from pathlib import Path
from typing import Any

from testbed.errors import TestbedError

MANIFEST = "manifest.json"
TRIALS = "trials.jsonl"
EVENTS = "events"
LOGS = "logs"
OWN_METRIC = "program."  # before the name of a metric that a program prints itself
COMPRESSED = ".gz"  # behind the name of events in a run that was published
#: One object a comparison of bench.call: {"comparison": 0, "ns": {"name": [a figure a round]}}.
CALLS = "calls.jsonl"


def read_manifest(run: Path) -> dict[str, Any]:
    """The manifest of a run.  Raises TestbedError if it is missing or damaged."""
    try:
        manifest = json.loads((run / MANIFEST).read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError) as error:
        raise TestbedError(
            f"{run} is not a run directory (it has no {MANIFEST})",
            "give a directory of the form results/<experiment>/<time>-<commit>",
        ) from error
    except ValueError as error:
        raise TestbedError(f"{run / MANIFEST} is damaged: {error}", "restore it") from error
    if not isinstance(manifest, dict):
        raise TestbedError(f"{run / MANIFEST} is not an object", "restore it")
    return manifest


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The objects of a JSON-lines file; a torn last line is left out, a damaged one is an error.

    Where there is no such file, one of its name that is compressed is read.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        data = _read_compressed(path.with_name(f"{path.name}{COMPRESSED}"))
    lines = data.split(b"\n")
    # What follows the last newline is empty, or was being written when the writer died.
    objects = []
    for number, line in enumerate(lines[:-1], start=1):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except ValueError as error:
            raise TestbedError(
                f"{path}:{number}: damaged line: {error}", "restore the file or remove that line"
            ) from error
        if not isinstance(value, dict):
            raise TestbedError(f"{path}:{number}: not an object", "remove that line")
        objects.append(value)
    return objects


def _read_compressed(path: Path) -> bytes:
    """The content of a compressed file; nothing if there is none."""
    try:
        return gzip.decompress(path.read_bytes())
    except FileNotFoundError:
        return b""
    except (OSError, EOFError, zlib.error) as error:
        raise TestbedError(f"{path} is damaged: {error}", "restore the file") from error
