"""Copies a finished run to where it is kept: the raw record compressed, tables and figures anew.

What can be made again from the record and is large - the page, figures as SVG and PDF - and the
logs are left out.  Tables and figures are built from the copy, so that a copy that lacks something
for them is never kept.
"""

from __future__ import annotations

import gzip
import shutil
from pathlib import Path

from testbed.analysis.report import FIGURES, plot
from testbed.analysis.rundir import (
    CALLS,
    COMPRESSED,
    EVENTS,
    MANIFEST,
    TRIALS,
    read_lines,
    read_manifest,
)
from testbed.errors import TestbedError

SPECIFICATION = "experiment.yaml"
#: To its end, to its time limit, or to where somebody ended it in order: what is missing is missing
#: from its tables, and the manifest says so.
WHOLE = ("finished", "limited", "stopped")
LEFT_OUT = (".svg", ".pdf")


def publish(run: Path, out: Path) -> int:
    """Copy a run to `out`, a directory that must not exist; returns the bytes that it takes.

    Raises TestbedError if the run is not finished or a trial's events are missing.
    """
    manifest = read_manifest(run)
    if manifest.get("state") not in WHOLE:
        raise TestbedError(
            f"{run} is not finished ({manifest.get('state', 'unknown')})",
            f"go on with: ./inv run {manifest.get('experiment', {}).get('name', '?')}"
            f" --resume {run}",
        )
    if out.exists():
        raise TestbedError(f"{out} exists", "remove it, or give another directory")
    events = [str(trial["events"]) for trial in read_lines(run / TRIALS) if trial.get("events")]
    missing = [name for name in events if not stored(run / name)]
    if missing:
        raise TestbedError(
            f"{run} lacks the events of {len(missing)} trials, first {missing[0]}", "restore them"
        )
    try:
        (out / EVENTS).mkdir(parents=True)
        for name in (MANIFEST, SPECIFICATION, TRIALS, CALLS):
            if (run / name).is_file():
                shutil.copyfile(run / name, out / name)
        for name in events:
            _compress(run / name, out / f"{name}{COMPRESSED}")
        plot(out)
        for figure in (out / FIGURES).iterdir():
            if figure.suffix in LEFT_OUT:
                figure.unlink()
    except BaseException as error:
        shutil.rmtree(out, ignore_errors=True)
        if isinstance(error, OSError):
            raise TestbedError(
                f"cannot copy {run} to {out}: {error.strerror or error}",
                "check free space and permissions there",
            ) from error
        raise
    return sum(file.stat().st_size for file in out.rglob("*") if file.is_file())


def run_publish(run: Path, out: Path) -> None:
    """Publish and say how large it is."""
    size = publish(run, out)
    print(f"{out}: {size / 1e6:.1f} MB; ./inv report {out} makes the page and all figures again")


def stored(path: Path) -> bool:
    """Whether a file of the record is there, as it is or compressed."""
    return path.is_file() or path.with_name(f"{path.name}{COMPRESSED}").is_file()


def _compress(source: Path, target: Path) -> None:
    """The same bytes give the same file: neither time nor name is written into it."""
    target.parent.mkdir(parents=True, exist_ok=True)
    packed = source.with_name(f"{source.name}{COMPRESSED}")
    if packed.is_file() and not source.is_file():
        shutil.copyfile(packed, target)
        return
    with target.open("wb") as raw, gzip.GzipFile("", "wb", 9, raw, mtime=0) as sink:
        sink.write(source.read_bytes())
