"""A/A experiments: what counts as one, how false alarms are counted, and a small real one."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
import scipy.stats

from testbed import yamlfile
from testbed.analysis.false_alarms import false_alarms, sentences
from testbed.analysis.report import tabulate
from testbed.analysis.rundir import CALLS
from testbed.analysis.samples import load_run
from testbed.errors import TestbedError
from testbed.experiment import same
from testbed.experiment.experiment import Experiment, load_experiment, parse_experiment
from testbed.experiment.plan import Trial, make_plan
from testbed.experiment.runner import TrialFiles, TrialOutcome, run_trials
from testbed.root import ROOT
from testbed.tests.experiments import PRESETS, FakeExecutor, manifest_of, new_run

TEXT = """\
name: same
seed: 7
baseline: wormhole-a
systems:
  - {name: wormhole-a, preset: wormhole}
  - {name: wormhole-b, preset: wormhole}
same: {rounds: 5, calls: 3}
parts:
  - form: replay
    workloads: [lenet-digits]
    placements: [process]
    rounds: 100
"""


def made(text: str = TEXT) -> Experiment:
    return parse_experiment(yamlfile.parse(text, Path("same.yaml")), PRESETS)


class Chance(FakeExecutor):
    """Every trial's speed is chance alone, with a spread of a tenth."""

    def run(self, trial: Trial, files: TrialFiles) -> TrialOutcome:
        spread = random.Random(trial.id).gauss(0.0, 0.1)
        self._speeds = {trial.system.name: 50.0 * 2.718**spread}
        return super().run(trial, files)


def chance_run(folder: Path) -> Path:
    experiment = made()
    with new_run(folder, experiment) as run:
        run_trials(make_plan(experiment, "tcg"), Chance(), run, lambda _: None)
        manifest: dict[str, Any] = manifest_of(experiment)
        manifest["experiment"]["same"] = {"rounds": 5, "calls": 3}
        run.write_manifest(manifest)
    return run.path


def test_the_shipped_experiment_makes_as_many_comparisons_as_it_says() -> None:
    experiment = load_experiment(ROOT / "workloads" / "experiments" / "aa.yaml")
    assert experiment.same is not None
    assert experiment.same.calls == 400
    assert experiment.parts[0].rounds / experiment.same.rounds == 40
    assert same.sessions(experiment) == 4000


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("{name: wormhole-b, preset: wormhole}", "tcp-sync", "differ in their names alone"),
        ("preset: wormhole}\nsame", "preset: wormhole, spin_us: 0}\nsame", "in their names alone"),
        ("  - {name: wormhole-b, preset: wormhole}\n", "", "needs exactly two"),
        ("rounds: 100", "rounds: 99", "cut the 99 rounds of part `replay` into comparisons of 5"),
        ("rounds: 5, calls", "rounds: 2, calls", "rounds"),
        ("calls: 3", "cals: 3", "cals"),
    ],
)
def test_what_is_no_comparison_of_a_system_with_itself_is_refused(
    old: str, new: str, said: str
) -> None:
    assert old in TEXT
    with pytest.raises(TestbedError, match=said):
        made(TEXT.replace(old, new))


def test_false_alarms_of_chance_are_counted_with_their_interval(tmp_path: Path) -> None:
    path = chance_run(tmp_path)
    (path / CALLS).write_text(
        # Never different; always different; five rounds missing one: no comparison.
        json.dumps({"ns": {"wormhole-a": [100.0] * 5, "wormhole-b": [100.0] * 5}})
        + "\n"
        + json.dumps({"ns": {"wormhole-a": [100.0] * 5, "wormhole-b": [50.0] * 5}})
        + "\n"
        + json.dumps({"ns": {"wormhole-a": [100.0] * 5, "wormhole-b": [50.0] * 4}})
        + "\n"
    )
    replay, calls = false_alarms(load_run(path))
    assert replay.what == "lenet-digits, replay, process placement"
    assert (replay.comparisons, replay.rounds) == (20, 5)
    assert replay.alarms == replay.verdicts.get("faster", 0) + replay.verdicts.get("slower", 0)
    assert 0 <= replay.alarms <= 4, "5 % are expected"
    assert dict(calls.verdicts) == {"no difference": 1, "faster": 1}
    # The limits of Clopper and Pearson are quantiles of the beta distribution.
    assert calls.rate == 0.5
    assert calls.low == pytest.approx(scipy.stats.beta.ppf(0.025, 1, 2))
    assert calls.high == pytest.approx(scipy.stats.beta.ppf(0.975, 2, 1))
    assert "of 2 comparisons of a system with itself, 1 found a difference" in sentences([calls])[0]
    report = tabulate(path)
    assert "bench.call, process placement" in report.text
    kept = json.loads((path / "tables" / "false_alarms.json").read_text())
    assert [line["comparisons"] for line in kept] == [20, 2]


def test_a_real_difference_is_no_chance(tmp_path: Path) -> None:
    experiment = made()
    with new_run(tmp_path, experiment) as run:
        executor = FakeExecutor(speeds={"wormhole-a": 50.0, "wormhole-b": 60.0})
        run_trials(make_plan(experiment, "tcg"), executor, run, lambda _: None)
        manifest: dict[str, Any] = manifest_of(experiment)
        manifest["experiment"]["same"] = {"rounds": 5, "calls": 0}
        run.write_manifest(manifest)
    (found,) = false_alarms(load_run(run.path))
    assert (found.comparisons, found.alarms) == (20, 20)


def test_a_run_of_different_systems_has_no_false_alarms(tmp_path: Path) -> None:
    from testbed.tests.test_tables import made_up_run

    assert false_alarms(load_run(made_up_run(tmp_path))) == ()


@pytest.mark.native
def test_real_calls_are_recorded_one_comparison_at_a_time(tmp_path: Path) -> None:
    experiment = made()
    (tmp_path / CALLS).write_text('{"comparison":0,"ns":{}}\n{"comparison":1,"n')
    said: list[str] = []
    same.measure_calls(experiment, tmp_path, said.append)
    lines = [json.loads(line) for line in (tmp_path / CALLS).read_text().splitlines()]
    # The torn line of a killed run is made again; what was complete stays.
    assert [line["comparison"] for line in lines] == [0, 1, 2]
    assert said == ["bench.call: 2 comparisons of 5 rounds"]
    for line in lines[1:]:
        assert set(line["ns"]) == {"wormhole-a", "wormhole-b"}
        assert all(len(times) == 5 and min(times) > 0 for times in line["ns"].values())
    same.measure_calls(experiment, tmp_path, said.append)
    assert len(said) == 1, "nothing is left to do"
