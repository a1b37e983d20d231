"""`./inv suites`: runs suites natively and forwarded, compares, and keeps what was seen.

A run leaves `results/suites/<UTC>-<commit>/`: `suites.jsonl` (one line a suite, with versions and
every difference), `outcomes.jsonl` (one line a test), and the programs' output in `logs/`.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from testbed.errors import TestbedError
from testbed.experiment.provenance import commit, utc_now
from testbed.experiment.suites.catalogue import find_suites
from testbed.experiment.suites.compare import Comparison, Difference, compare, counts
from testbed.experiment.suites.fetch import Kit, fetch
from testbed.experiment.suites.places import place
from testbed.experiment.suites.suite import Outcome, Step, Suite
from testbed.experiment.systems import check_placement, system
from testbed.progress import format_duration

RESULTS = Path(__file__).resolve().parent.parent.parent.parent / "results"

Say = Callable[[str], None]


@dataclass(frozen=True)
class Request:
    """What to run. `native` None runs natively too; else a native run's outcomes are read there."""

    only: str = ""
    system: str = "wormhole"
    placement: str = "process"
    out: Path = RESULTS / "suites"
    native: Path | None = None
    short: bool = False


def run_suites(request: Request, say: Say) -> tuple[list[Comparison], Path]:
    """Run and compare the suites; returns the comparisons and the run's directory.

    Raises TestbedError if something cannot be fetched or started; a test that fails is a result.
    """
    chosen = system(request.system)
    if chosen.is_native:
        raise TestbedError("native is what the others are compared with", "give another --system")
    check_placement(request.placement, chosen)
    suites = [(suite, _steps(suite, request)) for suite in find_suites(request.only)]
    suites = [(suite, steps) for suite, steps in suites if steps]
    if not suites:
        raise TestbedError("none of these suites runs there", "leave --only out")
    kept = _read_outcomes(request.native) if request.native else {}
    folder = _run_folder(request.out)
    done = []
    for suite, steps in suites:
        kit = fetch(suite)
        native = kept.get(suite.name)
        if native is None:
            native = _outcomes(suite, steps, kit, "native", "process", folder, say)
        else:
            names = tuple(f"{step.name}:" for step in steps)
            native = {test: end for test, end in native.items() if test.startswith(names)}
        ours = _outcomes(suite, steps, kit, request.system, request.placement, folder, say)
        comparison = compare(suite.name, native, ours, suite.truths)
        _keep(folder, request, kit, comparison)
        done.append(comparison)
    return done, folder


def as_json(comparisons: Iterable[Comparison]) -> list[dict[str, Any]]:
    """The table's figures and every difference."""
    return [
        {
            "suite": done.suite,
            "native": dict(zip(("passed", "failed", "skipped"), counts(done.native), strict=True)),
            "forwarded": dict(
                zip(("passed", "failed", "skipped"), counts(done.forwarded), strict=True)
            ),
            "truthful": [_difference(entry) for entry in done.truthful],
            "differences": [_difference(entry) for entry in done.differences],
        }
        for done in comparisons
    ]


def require_agreement(comparisons: Sequence[Comparison]) -> None:
    """Raises TestbedError if a test did something else forwarded."""
    wrong = {done.suite: len(done.differences) for done in comparisons if done.differences}
    if wrong:
        named = ", ".join(f"{suite} {number}" for suite, number in wrong.items())
        raise TestbedError(
            f"tests differ from native: {named}", "they are listed above with both outcomes"
        )


def _steps(suite: Suite, request: Request) -> tuple[Step, ...]:
    wanted = None
    if request.placement == "guest":
        wanted = suite.guest
    elif request.short:
        wanted = suite.short
    return tuple(step for step in suite.steps if wanted is None or step.name in wanted)


def _outcomes(
    suite: Suite,
    steps: Sequence[Step],
    kit: Kit,
    system_name: str,
    placement: str,
    folder: Path,
    say: Say,
) -> dict[str, Outcome]:
    """Every test of a suite under one system; names begin with the step's."""
    outcomes: dict[str, Outcome] = {}
    where = system_name if system_name == "native" else f"{system_name} in {placement} placement"
    with tempfile.TemporaryDirectory(prefix="wormhole-suite-") as temporary:
        top = Path(temporary)
        with place(system(system_name), placement, top) as runs:
            for number, step in enumerate(steps):
                begin_s = time.monotonic()
                work = top / f"work-{number}"
                output = runs.run(step, kit, work)
                found = step.parse(output)
                for test, end in found.items():
                    outcomes[f"{step.name}: {test}"] = end
                logs = folder / "logs" / suite.name / system_name / step.name.replace("/", "-")
                logs.mkdir(parents=True, exist_ok=True)
                (logs / "stdout").write_text(output.stdout, encoding="utf-8")
                (logs / "stderr").write_text(output.stderr, encoding="utf-8")
                shutil.rmtree(work, ignore_errors=True)
                took = format_duration(time.monotonic() - begin_s)
                passed, failed, skipped = counts(found)
                say(
                    f"suites: {suite.name} {step.name}, {where}: {passed} passed, "
                    f"{failed} failed, {skipped} skipped ({took})"
                )
    return outcomes


def _run_folder(out: Path) -> Path:
    folder = out / f"{utc_now().replace(':', '').replace('-', '')}-{commit().short}"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _keep(folder: Path, request: Request, kit: Kit, done: Comparison) -> None:
    conditions = {"system": request.system, "placement": request.placement}
    [entry] = as_json([done])
    with (folder / "suites.jsonl").open("a", encoding="utf-8") as sink:
        sink.write(json.dumps({**conditions, **entry, "versions": kit.versions}) + "\n")
    with (folder / "outcomes.jsonl").open("a", encoding="utf-8") as sink:
        for name, side in (("native", done.native), (request.system, done.forwarded)):
            for test, end in side.items():
                line = {"suite": done.suite, "system": name, "test": test, **asdict(end)}
                sink.write(json.dumps(line) + "\n")


def _read_outcomes(folder: Path) -> dict[str, dict[str, Outcome]]:
    """What an earlier run saw natively, by suite and test."""
    kept: dict[str, dict[str, Outcome]] = {}
    try:
        text = (folder / "outcomes.jsonl").read_text(encoding="utf-8")
    except OSError as error:
        raise TestbedError(
            f"{folder} is no run of the suites: {error.strerror}", "give one of results/suites/"
        ) from error
    for entry in map(json.loads, text.splitlines()):
        if entry["system"] == "native":
            outcome = Outcome(entry["status"], entry["value"], entry["detail"])
            kept.setdefault(entry["suite"], {})[entry["test"]] = outcome
    return kept


def _difference(entry: Difference) -> dict[str, str]:
    return {
        "test": entry.test,
        "native": entry.native.shown(),
        "forwarded": entry.forwarded.shown(),
        "reason": entry.reason,
    }
