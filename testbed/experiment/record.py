"""The run directory: an append-only record of what happened, from which everything is rebuilt.

    results/<experiment>/<UTC>-<commit>/
      manifest.json      what ran, on what, with which versions and switches
      experiment.yaml    the experiment as it was read
      trials.jsonl       one object for each finished trial, appended and synced
      events/<trial>.jsonl   raw events of each trial
      logs/<trial>/      output of the programs of each trial
      references/        what programs printed natively, which trials must equal

A run is held by one process at a time (a lock that the kernel drops when the holder dies).  A trial
that was interrupted leaves no line in trials.jsonl and is run again when the run is resumed.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from testbed.analysis.rundir import EVENTS, LOGS, MANIFEST, TRIALS, read_lines, read_manifest
from testbed.errors import TestbedError

SPECIFICATION = "experiment.yaml"
REFERENCES = "references"
LOCK = ".lock"

FREE_SPACE_NEEDED_BYTES = 256 << 20
NAME_ATTEMPTS = 100
STATUSES = ("ok", "failed", "mismatch", "timeout")


@dataclass(frozen=True)
class TrialResult:
    """How a trial ended.

    ok: it ran and its outputs were right.  mismatch: it ran and they were wrong.  failed: it did
    not run to its end; `detail` says why.  timeout: it was ended at its limit.
    """

    status: str
    detail: str = ""
    wall_s: float = 0.0
    metrics: Mapping[str, float | int | str | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        assert self.status in STATUSES, self.status


class RunDirectory:
    """A run directory held by this process.  Use as a context manager: it holds the run's lock."""

    def __init__(self, path: Path, lock_fd: int) -> None:
        self.path = path
        self._lock_fd = lock_fd

    def __enter__(self) -> RunDirectory:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let another process have the run."""
        if self._lock_fd >= 0:
            os.close(self._lock_fd)
            self._lock_fd = -1

    @classmethod
    def create(cls, results: Path, experiment: str, commit: str) -> RunDirectory:
        """Make a new, empty run directory; two runs made in the same second do not collide.

        Raises TestbedError if the disk is full or not writable.
        """
        parent = results / experiment
        with _disk_errors(parent):
            parent.mkdir(parents=True, exist_ok=True)
            _check_free_space(parent)
            path = _make_directory(parent, commit)
            (path / EVENTS).mkdir()
            (path / LOGS).mkdir()
            (path / TRIALS).touch()
            return cls(path, _lock(path))

    @classmethod
    def resume(cls, path: Path) -> RunDirectory:
        """Take up a run that was stopped; drops what a kill left half written.

        Raises TestbedError if this is no run directory or another process holds it.
        """
        if not (path / MANIFEST).is_file():
            raise TestbedError(
                f"{path} is not a run directory (it has no {MANIFEST})",
                "give a directory of the form results/<experiment>/<time>-<commit>",
            )
        with _disk_errors(path):
            _check_free_space(path)
            lock_fd = _lock(path)
            try:
                drop_torn_line(path / TRIALS)
            except BaseException:
                os.close(lock_fd)
                raise
            return cls(path, lock_fd)

    def require_space(self) -> None:
        """Raises TestbedError if the disk is nearly full; finished trials are kept."""
        with _disk_errors(self.path):
            _check_free_space(self.path)

    def write_manifest(self, manifest: Mapping[str, Any]) -> None:
        """Replace the manifest; a reader sees the old or the new one, never half of it."""
        with _disk_errors(self.path):
            partial = self.path / f".{MANIFEST}.partial"
            try:
                with partial.open("w", encoding="utf-8") as sink:
                    json.dump(manifest, sink, indent=2, ensure_ascii=False)
                    sink.write("\n")
                    sink.flush()
                    os.fsync(sink.fileno())
                partial.replace(self.path / MANIFEST)
            except BaseException:
                partial.unlink(missing_ok=True)
                raise

    def keep_specification(self, source: Path) -> None:
        """Copy the experiment file into the run."""
        with _disk_errors(self.path):
            shutil.copyfile(source, self.path / SPECIFICATION)

    def manifest(self) -> dict[str, Any]:
        """The manifest as it stands."""
        return read_manifest(self.path)

    @property
    def references(self) -> Path:
        """Where native runs of programs are kept, so that a run that goes on compares with them."""
        path = self.path / REFERENCES
        with _disk_errors(self.path):
            path.mkdir(exist_ok=True)
        return path

    def finished_ids(self) -> frozenset[str]:
        """Ids of the trials that need not run again."""
        return frozenset(str(line["id"]) for line in read_lines(self.path / TRIALS))

    def events_path(self, trial_id: str, attempt_clean: bool = True) -> Path:
        """Where the trial's raw events go; events of an interrupted attempt are removed."""
        path = self.path / EVENTS / f"{file_name(trial_id)}.jsonl"
        if attempt_clean:
            path.unlink(missing_ok=True)
        return path

    def log_directory(self, trial_id: str) -> Path:
        """A directory for the logs of the trial's programs, empty."""
        path = self.path / LOGS / file_name(trial_id)
        with _disk_errors(self.path):
            shutil.rmtree(path, ignore_errors=True)
            path.mkdir(parents=True)
        return path

    def append_events(self, trial_id: str, events: Sequence[Mapping[str, Any]]) -> Path:
        """Write the trial's raw events and sync them; returns the file."""
        path = self.events_path(trial_id)
        with _disk_errors(self.path), path.open("w", encoding="utf-8") as sink:
            for event in events:
                sink.write(_line(event))
            sink.flush()
            os.fsync(sink.fileno())
        return path

    def append_trial(self, entry: Mapping[str, Any]) -> None:
        """Add a finished trial.  When this returns, it survives a crash of the machine."""
        with _disk_errors(self.path):
            fd = os.open(self.path / TRIALS, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
            try:
                data = _line(entry).encode()
                while data:
                    data = data[os.write(fd, data) :]
                os.fsync(fd)
            finally:
                os.close(fd)


def file_name(trial_id: str) -> str:
    """A trial id as one file name: ids use `/`, and nothing else that a file name may not hold."""
    return re.sub(r"[^A-Za-z0-9._-]", "__", trial_id)


def vm_log_name(vm: str) -> str:
    """The folder, among a run's logs, of the guest that a VM session boots."""
    return f"vm-{file_name(vm)}"


def _line(value: Mapping[str, Any]) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")) + "\n"


def _make_directory(parent: Path, commit: str) -> Path:
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    base = f"{stamp}-{commit}"
    for attempt in range(NAME_ATTEMPTS):
        path = parent / (base if attempt == 0 else f"{base}-{attempt + 1}")
        try:
            path.mkdir()
        except FileExistsError:
            continue
        return path
    raise TestbedError(f"{parent / base} and its like exist already", "try again in a second")


def _lock(run: Path) -> int:
    fd = os.open(run / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(fd)
        raise TestbedError(
            f"{run} is in use by another process", "wait until it ends, or start a run of its own"
        ) from error
    except BaseException:
        os.close(fd)
        raise
    return fd


def drop_torn_line(path: Path) -> None:
    """Cut off a last line without its newline, so that the next line starts clean."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        path.touch()
        return
    if data and not data.endswith(b"\n"):
        os.truncate(path, data.rfind(b"\n") + 1)


def _check_free_space(path: Path) -> None:
    free = shutil.disk_usage(path).free
    if free < FREE_SPACE_NEEDED_BYTES:
        raise TestbedError(
            f"only {free >> 20} MiB are free for results in {path}",
            f"free {FREE_SPACE_NEEDED_BYTES >> 20} MiB there or choose another place with --out",
        )


@contextmanager
def _disk_errors(place: Path) -> Iterator[None]:
    """Turn the operating system's refusals to write into the one clear line."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise TestbedError(
                f"the disk of {place} is full",
                "free space there and go on with --resume; finished trials are kept",
            ) from error
        raise TestbedError(
            f"cannot write results to {place}: {error.strerror or error}",
            "check permissions, or choose another place with --out",
        ) from error
