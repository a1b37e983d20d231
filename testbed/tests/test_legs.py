"""Programs that measure several workloads one after another: gate, samples, the table of CUDA's."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from testbed.analysis.breakdown import CLIENT, WORKER
from testbed.analysis.cuda_table import cuda_rows
from testbed.analysis.measure import legs_of, measure
from testbed.analysis.report import tabulate, write_page
from testbed.analysis.samples import load_run
from testbed.errors import TestbedError
from testbed.experiment.events import read_events
from testbed.experiment.outcome import Expectation, assemble
from testbed.experiment.plan import Trial, make_plan
from testbed.experiment.runner import TrialFiles, TrialOutcome, run_trials
from testbed.experiment.subject import Subject, described
from testbed.experiment.workload import WORKLOADS, Command, find_workload
from testbed.protocol.spec import load_api
from testbed.tests.experiments import example, manifest_of, new_run
from testbed.tests.test_outcome import attempt, trial

#: Name, warm-up steps, steps in all.
LEGS = (("small", 2, 6), ("large", 1, 4))
INNER = 5
SPEEDS = {"native": 100.0, "native-b": 102.0, "wormhole": 110.0, "tcp-sync": 20.0}
TEXT = """\
name: legs
seed: 7
baseline: native
systems:
  - native
  - {name: native-b, preset: native}
  - wormhole
  - tcp-sync
parts:
  - {name: models, form: application, workloads: [torch-models], placements: [process], rounds: 3}
  - name: counts
    form: application
    workloads: [torch-counts]
    systems: [wormhole]
    placements: [process]
    rounds: 1
    instrument: breakdown
"""


def program(speed: float, legs: Sequence[tuple[str, int, int]] = LEGS) -> list[dict[str, Any]]:
    """What such a program prints; a leg's first steps are slow, the second leg has half the speed.

    `speed` is in steps a second.
    """
    events: list[dict[str, Any]] = [
        {"event": "start", "import_ns": 4_000_000_000, "context_ns": 1_000_000_000}
    ]
    first, t_ns = 0, 10**9
    for place, (name, warmup, count) in enumerate(legs):
        events.append(
            {
                "event": "leg",
                "leg": name,
                "first_step": first,
                "steps": count,
                "warmup_steps": warmup,
                "optimiser_steps": INNER,
                "first_optimiser_step_ns": 300_000_000,
                "data_sha256": f"data of {name}",
            }
        )
        for step in range(first, first + count):
            t_ns += 10**9 if step - first < warmup else int(1e9 / speed * (place + 1))
            bits = f"3f80000{step:x}"
            events.append({"event": "step", "step": step, "t_ns": t_ns, "loss_bits": bits})
        first += count
    return events


def row(opcode: int, **values: int) -> list[int]:
    """A row of the client's times."""
    return [opcode, *(values.get(key, 0) for key in CLIENT)]


def stub(rows: bool = False) -> list[dict[str, Any]]:
    """Marks: 40 calls and 10 messages a step; with `rows` by function, 8 of them launches."""
    apis = (load_api(name) for name in ("core", "cudart"))
    names = {f.name: f.opcode for api in apis for f in api.functions}
    found: list[dict[str, Any]] = []
    total = {"api_calls": 0, "messages": 0, "round_trips": 0, "bytes_sent": 0}

    def mark(label: str, **more: int) -> None:
        for key, value in more.items():
            total[key] += value
        found.append({"event": "mark", "label": label, "bytes_received": 0, **total})

    mark("context", messages=3, bytes_sent=1000)
    step = 0
    for name, _, count in LEGS:
        mark(f"ready {name}", messages=50, bytes_sent=5000)
        mark(f"first {name}", messages=20, bytes_sent=700)
        for _ in range(count):
            mark(f"step {step}", api_calls=40, messages=10, round_trips=1, bytes_sent=64)
            launches, copies, asked = 8 * (step + 1), 2 * (step + 1), step + 1
            client = [
                row(names["cudaLaunchKernelExC"], sends=launches, send=1000 * launches),
                row(names["cudaMemcpyAsync"], waits=copies),
                row(names["whTimes"], waits=asked),
            ]
            if rows:
                worker = [[names["cudaLaunchKernelExC"], *(0 for _ in WORKER)]]
                times = {"event": "times", "transport": "shm", "client": client, "worker": worker}
                found.append({**times, "label": f"step {step}"})
            step += 1
    return [*found, {"event": "exit", "label": "", "api_calls": 999}]


def expectation() -> Expectation:
    workload = replace(find_workload("torch-models"), steps=10, warmup_steps=3)
    return Expectation(workload, reference=read_events(map(json.dumps, program(100.0))))


def judged(events: list[dict[str, Any]], **changes: Any) -> TrialOutcome:
    return assemble(trial("application"), expectation(), attempt(events, **changes), {})


def statuses(outcome: TrialOutcome) -> dict[str, str]:
    return {name: leg["status"] for name, leg in outcome.extra["legs"].items()}


def test_each_leg_has_its_own_warm_up_and_speed() -> None:
    outcome = judged(program(100.0), stub=stub())
    assert (outcome.result.status, outcome.extra["gate"]["compared"]) == ("ok", 10)
    assert outcome.result.metrics["small.steps_per_s"] == pytest.approx(100.0)
    assert outcome.result.metrics["large.steps_per_s"] == pytest.approx(50.0)
    assert outcome.result.metrics["client_user_s"] == 1.0
    # What the device of a guest counts is a whole trial's, and stands beside the senders' totals.
    assert outcome.result.metrics["trial_api_calls"] == 999
    legs = {name: measure(of, warmup) for name, warmup, of in legs_of(outcome.events, "", 3)}
    assert list(legs) == ["small", "large"]
    assert legs["large"]["measured_steps"] == 3
    assert legs["large"]["messages_per_step"] == 10
    assert legs["large"]["first_step_bytes_sent"] == 700
    assert legs["large"]["start_bytes_sent"] == 1000
    # What is the whole process's is no leg's.
    assert not {"client_user_s", "trial_api_calls"} & set(legs["large"])


def test_a_wrong_leg_leaves_the_others_right() -> None:
    events = program(100.0)
    events[-1]["loss_bits"] = "3f800000"
    outcome = judged(events)
    assert outcome.result.status == "mismatch"
    assert outcome.result.detail.startswith("large: step 3: loss")
    assert statuses(outcome) == {"small": "ok", "large": "mismatch"}
    other = [{**e, "data_sha256": "x"} if e.get("leg") == "small" else e for e in program(100.0)]
    assert statuses(judged(other)) == {"small": "mismatch", "large": "ok"}


def test_what_ran_before_a_crash_counts() -> None:
    died = judged(program(100.0)[:-1], status=-11)
    assert (died.result.status, statuses(died)) == ("failed", {"small": "ok", "large": "failed"})
    hung = judged(program(100.0, LEGS[:1]), status=-9, timed_out=True)
    assert (hung.result.status, statuses(hung)) == ("timeout", {"small": "ok", "large": "timeout"})
    silent = judged([], status=1)
    assert statuses(silent) == {"small": "failed", "large": "failed"}


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"leg": "Not a name"}, "cannot be"),
        ({"warmup_steps": 6}, "cannot be"),
        ({"steps": True}, "cannot be"),
        ({"first_step": 1}, "at step 1, not at 0"),
    ],
)
def test_a_leg_that_cannot_be_names_its_line(change: dict[str, Any], named: str) -> None:
    events = program(100.0)
    events[1].update(change)
    with pytest.raises(TestbedError, match=f"^line 2 .*{named}"):
        read_events(map(json.dumps, events))


class LegsExecutor:
    """Runs nothing: judges what such programs would have printed."""

    def __init__(self, wrong: str = "") -> None:
        self._wrong = wrong

    def run(self, trial: Trial, files: TrialFiles) -> TrialOutcome:
        events = program(SPEEDS[trial.system.name])
        if trial.id == self._wrong:
            events[-1]["loss_bits"] = "3f800000"
        ours = [] if trial.system.is_native else stub(bool(trial.instrument))
        return assemble(trial, expectation(), attempt(events, stub=ours), {})

    def close(self) -> None:
        pass


def run_of(folder: Path, wrong: str = "") -> Path:
    experiment = example(TEXT)
    with new_run(folder, experiment) as run:
        manifest = manifest_of(experiment)
        for entry, chosen in zip(
            manifest["experiment"]["systems"], experiment.systems, strict=True
        ):
            entry["preset"] = chosen.preset
        run.write_manifest(manifest)
        run_trials(make_plan(experiment, "tcg"), LegsExecutor(wrong), run, lambda _: None)
    return run.path


def test_the_table_has_every_figure_of_a_workload(tmp_path: Path) -> None:
    path = run_of(tmp_path)
    small, large = cuda_rows(load_run(path))
    assert (small.workload, large.workload, small.placement) == ("small", "large", "process")
    assert small.native is not None and large.native is not None
    assert small.native.estimate == pytest.approx(100.0 * INNER)
    assert large.native.estimate == pytest.approx(50.0 * INNER)
    for row in (small, large):
        ratios = [row.ratio, row.again, row.over_tcp]
        assert [r.estimate for r in ratios if r] == pytest.approx([1.1, 1.02, 5.5])
        assert row.crossing == {"API calls": 8.0, "messages": 2.0, "round trips": 0.2}
        assert (row.executions, row.per_execution) == pytest.approx((1.6, 1.25))
        assert row.beginning["wormhole"]["first_step_ms"] == 300.0
        assert row.beginning["native"]["start_ms"] == 5000.0
        assert row.beginning["wormhole"]["first_step_out"] == 700.0
        assert row.beginning["wormhole"]["first_step_out_most"] == 700.0
        assert row.beginning["native"]["first_step_out"] is None
        # Three rounds of two forwarded systems, and the plain trial of the counts.
        assert row.losses == "equal in 7 of 7"
    report = tabulate(path)
    assert "small" in (path / "tables" / "cuda.md").read_text()
    assert "messages for each" in report.text
    assert json.loads((path / "tables" / "cuda.json").read_text())[0]["workload"] == "small"
    # Instrumented trials are divided leg by leg.
    assert {line.split(",")[0] for line in (path / "breakdown.csv").read_text().split()[1:]} <= {
        "small",
        "large",
    }
    write_page(path)
    assert "CUDA programs" in (path / "report.html").read_text()


def test_a_wrong_leg_has_no_speed_and_says_so(tmp_path: Path) -> None:
    path = run_of(tmp_path, "models/process/r02/torch-models/wormhole")
    small, large = cuda_rows(load_run(path))
    assert small.ratio is not None and small.losses.startswith("equal in")
    assert large.ratio is None and large.losses == "mismatch (1 of 7)"
    bad = [sample for sample in load_run(path).trials if sample.status != "ok"]
    assert [sample.id for sample in bad] == ["models/process/r02/torch-models/wormhole#large"]


def test_the_manifest_tells_of_legs_as_of_workloads() -> None:
    wanted = expectation()
    bundle: Any = type("Bundle", (), {"key": "k", "data_sha256": ""})()
    subjects = {
        label: Subject(wanted.workload, bundle, wanted.reference, None) for label in ("a", "b")
    }
    facts = described(subjects)
    assert facts["small"]["steps"] == 6
    assert facts["small"]["data_sha256"] == "data of small"
    # Two programs have it: what differs is not said.
    assert facts["small"]["program"] is None


@pytest.mark.parametrize("name", ["models", "rivals", "counts", "inference"])
def test_the_steps_of_the_committed_programs_are_those_of_their_legs(name: str) -> None:
    workload = find_workload(f"torch-{name}")
    assert isinstance(workload.task, Command) and workload.task.api == "cuda"
    pattern = re.search(
        r'LEG = re\.compile\(r"(.+)"\)', (WORKLOADS / "programs" / "train_torch.py").read_text()
    )
    assert pattern is not None
    legs = workload.task.argv[workload.task.argv.index("--legs") + 1 :]
    found = [re.fullmatch(pattern[1], leg) for leg in legs]
    counts = [(int(leg[6]), int(leg[7])) for leg in found if leg is not None]
    assert len(counts) == len(legs)
    assert workload.warmup_steps == sum(warmup for warmup, _ in counts)
    assert workload.steps == sum(warmup + steps for warmup, steps in counts)
