"""`./inv suites`: runs suites natively and forwarded, compares, and keeps what was seen.

A run leaves `results/suites/<UTC>-<commit>/`: `suites.jsonl` (one line a suite, with versions and
every difference), `outcomes.jsonl` (one line a test), and the programs' output in `logs/`.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from testbed.errors import TestbedError
from testbed.experiment.provenance import commit, utc_now
from testbed.experiment.suites.catalogue import find_suites
from testbed.experiment.suites.compare import Comparison, Difference, compare, counts
from testbed.experiment.suites.fetch import Kit, fetch
from testbed.experiment.suites.places import place
from testbed.experiment.suites.suite import Outcome, Output, Step, Suite
from testbed.experiment.systems import System, check_placement, system
from testbed.machine.native_build import NativeBuild, native_build
from testbed.progress import format_duration
from testbed.root import ROOT

RESULTS = ROOT / "results"

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
    # Once, so that all is run with one build, even if the checkout changes meanwhile.
    built = native_build()
    folder = _run_folder(request.out)
    done = []
    for suite, steps in suites:
        run = _Run(suite, steps, fetch(suite), folder, say)
        if suite.name in kept:
            names = tuple(f"{step.name}:" for step in steps)
            native = {t: end for t, end in kept[suite.name].items() if t.startswith(names)}
        else:
            native = run.outcomes(system("native"), "process", None)
        ours = run.outcomes(chosen, request.placement, built)
        comparison = compare(suite.name, native, ours, suite.truths)
        conditions = {"system": chosen.name, "placement": request.placement}
        _append(
            folder / "suites.jsonl",
            [{**conditions, **as_json([comparison])[0], "versions": run.kit.versions}],
        )
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


@dataclass(frozen=True)
class _Run:
    """One suite with what it needs; `folder` is the run's directory."""

    suite: Suite
    steps: Sequence[Step]
    kit: Kit
    folder: Path
    say: Say

    def outcomes(
        self, chosen: System, placement: str, built: NativeBuild | None
    ) -> dict[str, Outcome]:
        """Every test under one system; names begin with the step's. They are kept at once."""
        outcomes: dict[str, Outcome] = {}
        with tempfile.TemporaryDirectory(prefix="wormhole-suite-") as temporary:
            top = Path(temporary)
            with place(chosen, placement, top, built) as runs:
                for number, step in enumerate(self.steps):
                    begin_s = time.monotonic()
                    output = runs.run(step, self.kit, top / f"work-{number}")
                    shutil.rmtree(top / f"work-{number}", ignore_errors=True)
                    found = {f"{step.name}: {t}": end for t, end in step.parse(output).items()}
                    self._keep(chosen.name, step, output, found)
                    outcomes |= found
                    where = "" if chosen.is_native else f" in {placement} placement"
                    numbers = "{} passed, {} failed, {} skipped".format(*counts(found))
                    took = format_duration(time.monotonic() - begin_s)
                    what = f"{self.suite.name} {step.name}, {chosen.name}{where}"
                    self.say(f"suites: {what}: {numbers} ({took})")
        return outcomes

    def _keep(
        self, system_name: str, step: Step, output: Output, found: Mapping[str, Outcome]
    ) -> None:
        about = {"suite": self.suite.name, "system": system_name}
        lines = [{**about, "test": test, **asdict(end)} for test, end in found.items()]
        _append(self.folder / "outcomes.jsonl", lines)
        step_folder = step.name.replace("/", "-")
        logs = self.folder / "logs" / self.suite.name / system_name / step_folder
        logs.mkdir(parents=True, exist_ok=True)
        (logs / "stdout").write_text(output.stdout, encoding="utf-8")
        (logs / "stderr").write_text(output.stderr, encoding="utf-8")
        if step.result:
            (logs / Path(step.result).name).write_bytes(output.result)


def _append(path: Path, lines: Iterable[Mapping[str, Any]]) -> None:
    with path.open("a", encoding="utf-8") as sink:
        sink.writelines(json.dumps(line) + "\n" for line in lines)


def _run_folder(out: Path) -> Path:
    folder = out / f"{utc_now().replace(':', '').replace('-', '')}-{commit().short}"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


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
