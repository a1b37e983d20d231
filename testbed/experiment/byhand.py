"""Recording and replaying by hand, as a user sees it: one call each, results in a few lines."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from testbed.errors import TestbedError
from testbed.experiment.prepare import prepare
from testbed.experiment.recording import Recording, record_bundle, record_command
from testbed.experiment.replaying import replay_recording
from testbed.experiment.systems import system
from testbed.experiment.workload import find_workload
from testbed.progress import say


def record(argv: Sequence[str], workload: str, out: Path | None) -> None:
    """Record a program or a workload and say what the recording holds.

    Raises TestbedError if neither or both are given, or if the run fails.
    """
    if bool(argv) == bool(workload):
        raise TestbedError(
            "record needs a program or a workload",
            "./inv record -- PROGRAM ARGUMENTS, or ./inv record --workload NAME",
        )
    path = (out or Path(f"{workload or Path(argv[0]).name}.whrec")).absolute()
    if workload:
        say(f"preparing and recording {workload}")
        made = record_bundle(prepare(find_workload(workload)))
        try:
            path.write_bytes(made.path.read_bytes())
        except OSError as error:
            raise TestbedError(f"cannot write {path}: {error.strerror}", "use --out") from error
    else:
        with tempfile.TemporaryDirectory(prefix="wormhole-record-") as logs:
            made = record_command(argv, path, Path(logs))
            sys.stdout.write((Path(logs) / "stdout.log").read_text(errors="replace"))
    print(f"{path}: {_summary(made)}")


def replay(path: Path, system_name: str, placement: str, as_json: bool) -> None:
    """Replay a recording under a system; a reply that differs is a failure."""
    with tempfile.TemporaryDirectory(prefix="wormhole-replay-") as logs:
        done = replay_recording(path, system(system_name), placement, Path(logs), say=say)
    if as_json:
        print(
            json.dumps(
                {
                    "system": system_name,
                    "placement": placement,
                    "passed": done.verdict.passed,
                    "compared": done.verdict.compared,
                    "reason": done.verdict.reason,
                    "wall_s": done.wall_s,
                    "result": next(e for e in done.events if e.get("event") == "result"),
                    "stub": list(done.stub)[-1:],
                },
                indent=2,
            )
        )
    else:
        print(f"{path}: {_summary(done.recording)}")
        print(
            f"{system_name} in {placement} placement: {done.wall_s:.2f} s, "
            f"{'every reply equal' if done.verdict.passed else done.verdict.reason}"
        )
    if not done.verdict.passed:
        raise TestbedError(
            f"the replay of {path} differs: {done.verdict.reason}",
            "try it with --system native; if that differs too, record it again",
        )


def bench_call(placement: str, as_json: bool, spin_us: int | None, network: str) -> None:
    """Measure calls with the null backend and print the figures; see bench.py."""
    from testbed.experiment import bench

    figures = bench.bench_call(placement, spin_us, say, network)
    print(json.dumps(figures, indent=2) if as_json else bench.table(figures))


def bench_copy(placement: str, sizes: str, rounds: int, as_json: bool) -> None:
    """Measure copies to the device and back and print the figures; see bench_copy.py."""
    from testbed.experiment import bench_copy  # with NumPy, which a bundle has not

    figures = bench_copy.bench_copy(placement, sizes, rounds, say)
    print(json.dumps(figures, indent=2) if as_json else bench_copy.table(figures))


def _summary(recording: Recording) -> str:
    return (
        f"{recording.calls} calls, {len(recording.marks)} marks, {recording.threads} thread(s), "
        f"{recording.request_bytes} bytes out, {recording.reply_bytes} bytes back"
    )
