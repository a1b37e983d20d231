"""An experiment from its file to its figures, with a program that needs no accelerator."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from testbed.analysis.publish import publish
from testbed.analysis.rundir import read_lines
from testbed.errors import TestbedError
from testbed.experiment import conduct, provenance, runner
from testbed.experiment.executor import Executor
from testbed.experiment.plan import Trial
from testbed.experiment.reproduce import run_experiment
from testbed.experiment.runner import Summary
from testbed.root import ROOT

PROGRAM = """\
import json, pathlib, sys, time
if pathlib.Path(sys.argv[1]).exists():
    raise SystemExit("stopped on request")
for step in range(5):
    time.sleep(0.005)
    print(json.dumps({"event": "step", "step": step, "t_ns": time.monotonic_ns()}))
"""

WORKLOAD = """\
name: ticks
doc: Five steps of five milliseconds.
command:
  argv: [python3, "{{dir}}/ticks.py", {flag}]
  files: [ticks.py]
steps: 5
warmup_steps: 1
"""

EXPERIMENT = """\
name: ticking
seed: 3
baseline: native
systems: [native]
parts:
  - form: application
    workloads: [{workload}]
    placements: [process]
    rounds: 3
    warmup_rounds: 1
"""


@pytest.fixture
def experiment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("WORMHOLE_CACHE", str(tmp_path / "cache"))
    # The source may be edited while the tests run.
    monkeypatch.setattr(provenance, "commit", lambda: provenance.Commit("c" * 40, ""))
    (tmp_path / "ticks.py").write_text(PROGRAM)
    (tmp_path / "ticks.yaml").write_text(WORKLOAD.format(flag=tmp_path / "stop"))
    path = tmp_path / "ticking.yaml"
    path.write_text(EXPERIMENT.format(workload=tmp_path / "ticks.yaml"))
    return path


def test_dry_run_lists_the_plan_and_runs_nothing(experiment: Path, tmp_path: Path) -> None:
    text = conduct.dry_run(conduct.Request(str(experiment)))
    assert "ticking: 4 trials, 0 guest boots" in text
    assert "application/process/w01/ticks/native  (warm-up)" in text
    assert not (tmp_path / "out").exists()


def test_run_leaves_tables_figures_manifest_and_raw_data(experiment: Path, tmp_path: Path) -> None:
    printed: list[str] = []
    request = conduct.Request(str(experiment), out=tmp_path / "out")
    done = run_experiment(request, printed.append)
    assert done.summary.by_status == {"ok": 4}
    manifest = json.loads((done.path / "manifest.json").read_text())
    assert manifest["state"] == "finished"
    assert manifest["workloads"]["ticks"]["steps"] == 5
    assert manifest["systems"] == {"native": {}}
    assert done.report is not None
    assert {file.suffix for file in done.report.files} == {
        ".txt",
        ".md",
        ".csv",
        ".tex",
        ".json",
        ".png",
        ".svg",
        ".pdf",
        ".html",
    }
    assert "ticks, application, process placement" in printed[0]
    assert str(done.path) in printed[-1]
    row = done.report.comparisons[0].rows[0]
    assert (row.trials, row.ok, row.status) == (3, 3, "ok")


def test_a_run_is_resumed_where_it_stopped(
    experiment: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Executor.run
    calls: list[str] = []

    def interrupted(self: Executor, trial: object, files: object) -> object:
        calls.append("trial")
        if len(calls) == 3:
            raise KeyboardInterrupt
        return real(self, trial, files)  # type: ignore[arg-type]

    monkeypatch.setattr(Executor, "run", interrupted)
    request = conduct.Request(str(experiment), out=tmp_path / "out")
    with pytest.raises(KeyboardInterrupt):
        run_experiment(request, lambda _: None)
    (run,) = (tmp_path / "out" / "ticking").iterdir()
    assert json.loads((run / "manifest.json").read_text())["state"] == "stopped"
    assert len(read_lines(run / "trials.jsonl")) == 2
    # The file may change meanwhile: the run goes on with its own copy.
    experiment.write_text("name: other\n")
    left = conduct.dry_run(conduct.Request("", resume=run))
    assert left.startswith("ticking: 2 trials")
    assert "r03" in left and "w01" not in left
    done = run_experiment(conduct.Request("", resume=run), lambda _: None)
    assert (done.path, done.summary.ran, done.summary.skipped) == (run, 2, 2)
    assert len(read_lines(run / "trials.jsonl")) == 4
    assert json.loads((run / "manifest.json").read_text())["state"] == "finished"


KILLED = """\
import pathlib, sys
from testbed.experiment import conduct, provenance
from testbed.experiment.reproduce import run_experiment
provenance.commit = lambda: provenance.Commit("c" * 40, "")
run_experiment(conduct.Request(sys.argv[1], out=pathlib.Path(sys.argv[2])), print)
"""


def test_a_kill_loses_at_most_the_trial_in_flight(experiment: Path, tmp_path: Path) -> None:
    experiment.write_text(experiment.read_text().replace("rounds: 3", "rounds: 6"))
    out = tmp_path / "out"
    argv = [sys.executable, "-c", KILLED, str(experiment), str(out)]
    with subprocess.Popen(argv, cwd=ROOT, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        # It says when a trial is recorded; then the next begins, and is killed at once.
        seen = next(line for line in process.stderr if "[3/7]" in line)
        process.kill()
        process.wait(30)
    assert ": ok" in seen
    (run,) = (out / "ticking").iterdir()
    kept = read_lines(run / "trials.jsonl")
    assert len(kept) >= 3
    assert json.loads((run / "manifest.json").read_text())["state"] == "running"
    with (run / "trials.jsonl").open("a") as sink:
        sink.write('{"id": "torn')
    done = run_experiment(conduct.Request("", resume=run), lambda _: None)
    lines = read_lines(run / "trials.jsonl")
    assert lines[: len(kept)] == kept
    assert len({line["id"] for line in lines}) == len(lines) == 7
    assert (done.summary.ran, done.summary.skipped) == (7 - len(kept), len(kept))


def test_a_time_limit_leaves_whole_rounds_that_go_on_and_can_be_published(
    experiment: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workload = tmp_path / "ticks.yaml"
    workload.write_text(workload.read_text().replace("  files", "  deterministic: true\n  files"))
    (tmp_path / "ticks.py").write_text(
        PROGRAM.replace('"t_ns"', '"loss": 1.0, "t_ns"')
        + "pathlib.Path(sys.argv[1]).with_name('ran').open('a').write('x')\n"
    )
    limited: list[str] = []

    def at_the_limit(
        trials: Sequence[Trial], executor: Executor, run: Any, say: Any, deadline_s: float
    ) -> Summary:
        assert deadline_s > time.monotonic()
        done = runner.run_trials(trials[:2], executor, run, say)
        return Summary(done.ran, done.skipped, done.by_status, left=2)

    monkeypatch.setattr(conduct, "run_trials", at_the_limit)
    request = conduct.Request(str(experiment), out=tmp_path / "out", limit_s=600.0)
    done = run_experiment(request, limited.append)
    manifest = json.loads((done.path / "manifest.json").read_text())
    assert (manifest["state"], done.report) == ("limited", None)
    assert "2 trials are left, as the time limit said" in limited[-1]
    assert f"./inv run ticking --resume {done.path}" in limited[-1]
    assert not (done.path / "report.html").exists()
    publish(done.path, tmp_path / "published")
    # The reference is the run's own: natively once, then the trials.
    assert (tmp_path / "ran").read_text() == "x" * 3
    monkeypatch.undo()
    monkeypatch.setenv("WORMHOLE_CACHE", str(tmp_path / "another-cache"))
    monkeypatch.setattr(provenance, "commit", lambda: provenance.Commit("c" * 40, ""))
    rest = run_experiment(conduct.Request("", resume=done.path, report=False), limited.append)
    assert (tmp_path / "ran").read_text() == "x" * 5
    assert (rest.summary.ran, rest.summary.left, rest.report) == (2, 0, None)
    manifest = json.loads((done.path / "manifest.json").read_text())
    assert manifest["state"] == "finished"
    assert [sitting["after_trials"] for sitting in manifest["sittings"]] == [0, 2]
    assert not (done.path / "report.html").exists()


def test_a_full_disk_stops_the_run_before_the_next_trial(
    experiment: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from testbed.experiment import record

    real = Executor.run

    def fill(self: Executor, trial: object, files: object) -> object:
        monkeypatch.setattr(record, "FREE_SPACE_NEEDED_BYTES", 1 << 62)
        return real(self, trial, files)  # type: ignore[arg-type]

    monkeypatch.setattr(Executor, "run", fill)
    with pytest.raises(TestbedError, match="are free for results in"):
        run_experiment(conduct.Request(str(experiment), out=tmp_path / "out"), lambda _: None)
    (run,) = (tmp_path / "out" / "ticking").iterdir()
    assert len(read_lines(run / "trials.jsonl")) == 1


def test_a_run_of_another_machine_is_not_resumed(experiment: Path, tmp_path: Path) -> None:
    done = run_experiment(conduct.Request(str(experiment), out=tmp_path / "out"), lambda _: None)
    path = done.path / "manifest.json"
    manifest = json.loads(path.read_text())
    manifest["host"]["cpu_model"] = "another"
    path.write_text(json.dumps(manifest))
    with pytest.raises(TestbedError, match=r"other conditions: host\.cpu_model: another, now "):
        run_experiment(conduct.Request("", resume=done.path), lambda _: None)


def test_a_placement_that_the_experiment_lacks_is_a_clear_error(
    experiment: Path, tmp_path: Path
) -> None:
    request = conduct.Request(str(experiment), out=tmp_path / "out", placements=("guest",))
    with pytest.raises(TestbedError, match="ticking has no trial in guest placement"):
        run_experiment(request, lambda _: None)


def test_failing_trials_are_shown_with_their_reason(experiment: Path, tmp_path: Path) -> None:
    (tmp_path / "stop").touch()
    request = conduct.Request(str(experiment), out=tmp_path / "out")
    done = run_experiment(request, lambda _: None)
    assert done.summary.by_status == {"failed": 4}
    assert done.report is not None
    assert "none: failed (3 of 3)" in done.report.text
    (first, *_) = read_lines(done.path / "trials.jsonl")
    assert first["detail"] == "the program ended with exit status 1: stopped on request"


def test_a_run_goes_on_with_a_changed_source_only_if_told_to_and_says_so(
    experiment: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = run_experiment(conduct.Request(str(experiment), out=tmp_path / "out"), lambda _: None)
    monkeypatch.setattr(provenance, "commit", lambda: provenance.Commit("d" * 40, ""))
    with pytest.raises(TestbedError, match=r"commit\.id: c+, now d+.*--changed-source"):
        run_experiment(conduct.Request("", resume=done.path), lambda _: None)
    request = conduct.Request("", resume=done.path, changed_source=True)
    run_experiment(request, lambda _: None)
    manifest = json.loads((done.path / "manifest.json").read_text())
    assert manifest["commit"]["id"] == "c" * 40
    (later,) = manifest["continued_by"]
    assert (later["id"], later["after_trials"]) == ("d" * 40, 4)
    assert f"after 4 trials {'d' * 40}" in (done.path / "report.html").read_text()
    manifest["host"]["cores"] = 99
    (done.path / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(TestbedError, match=r"host\.cores: 99"):
        run_experiment(request, lambda _: None)


def test_a_placement_gets_the_workloads_of_its_own_trials_alone(
    experiment: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "tocks.yaml"
    other.write_text((tmp_path / "ticks.yaml").read_text().replace("name: ticks", "name: tocks"))
    experiment.write_text(
        experiment.read_text().replace("systems: [native]", "systems: [native, wormhole]")
        + f"  - form: application\n    name: elsewhere\n    workloads: [{other}]\n"
        + "    systems: [wormhole]\n    placements: [server-vm]\n    rounds: 1\n"
    )
    seen: list[list[str]] = []

    def fit(subjects: conduct.Subjects) -> conduct.Subjects:
        seen.append(list(subjects))
        return subjects

    @contextlib.contextmanager
    def guests(*_: object) -> Iterator[conduct._Guests]:
        yield conduct._Guests(lambda _: pytest.fail("nothing is to boot"), "tcg", fit)

    file = tmp_path / "ticks.py"
    native = SimpleNamespace(worker=file, library=file, replay=file)
    nothing = Summary(ran=0, skipped=0, by_status={})
    monkeypatch.setattr(conduct, "_native_code", lambda *_: native)
    monkeypatch.setattr(conduct, "_guests", guests)
    monkeypatch.setattr(conduct, "run_trials", lambda *_: nothing)
    monkeypatch.setattr(conduct, "_jail", lambda _: {})
    monkeypatch.setattr("testbed.analysis.report.tabulate", lambda _: None)
    monkeypatch.setattr("testbed.analysis.report.write_page", lambda _: None)
    request = conduct.Request(str(experiment), out=tmp_path / "out")
    conduct.conduct(request, lambda _: None, lambda *_: None)
    assert seen == [["tocks"]]
