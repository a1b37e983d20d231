"""Comparing two runs: like with like, every unlike field named, the exit status honest."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from testbed.analysis.compare import SLOWER_STATUS, compare_runs, run_compare
from testbed.analysis.statistics import unpaired_ratio
from testbed.errors import TestbedError
from testbed.experiment.plan import make_plan
from testbed.experiment.runner import run_trials
from testbed.tests import experiments
from testbed.tests.experiments import SPEEDS, FakeExecutor, example, manifest_of, new_run

SWITCHES = {"transport": "shm", "oneway": True, "spin_us": 50}


def made_up(
    folder: Path,
    speeds: Mapping[str, float] | None = None,
    statuses: Mapping[str, str] | None = None,
    placements: tuple[str, ...] = ("process",),
    manifest: Mapping[str, Any] | None = None,
) -> Path:
    """A run of the example with speeds of our choice and parts of the manifest replaced."""
    with new_run(folder, example()) as run:
        executor = FakeExecutor(statuses, speeds)
        run_trials(make_plan(example(), "tcg", placements), executor, run, lambda _: None)
        run.write_manifest(
            {**manifest_of(example()), "systems": {"wormhole": SWITCHES}, **(manifest or {})}
        )
    return run.path


def test_equal_runs_are_compared_and_nothing_is_slower(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = made_up(tmp_path / "a"), made_up(tmp_path / "b")
    assert run_compare(*runs, as_json=False) == 0
    shown = capsys.readouterr().out
    assert "lenet-digits" in shown
    assert "1.000 [" in shown
    done = compare_runs(*runs)
    assert {pair.system for pair in done.pairs} == set(SPEEDS)
    assert all(pair.ratio is not None and pair.ratio.count in (1, 3) for pair in done.pairs)


def test_a_slower_second_run_has_a_status_of_its_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = made_up(tmp_path / "a"), made_up(tmp_path / "b", {**SPEEDS, "wormhole": 2.0})
    assert run_compare(*runs, as_json=True) == SLOWER_STATUS
    found = json.loads(capsys.readouterr().out)
    verdicts = {
        pair["system"]: pair["verdict"] for pair in found["pairs"] if pair["form"] == "replay"
    }
    assert verdicts["wormhole"] == "slower"
    assert verdicts["tcp-sync"] != "slower"
    assert run_compare(runs[1], runs[0], as_json=True) == 0


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        (
            {"host": {"cpu_model": "Another processor", "cores": 2}},
            "host.cpu_model: Made-up processor in the first, Another processor in the second",
        ),
        ({"opencl": {"device": "a GPU"}}, "opencl.device: not recorded in the first, a GPU in the"),
        (
            {"systems": {"wormhole": {**SWITCHES, "spin_us": 0}}},
            "systems.wormhole.spin_us: 50 in the first, 0 in the second",
        ),
        (
            {"systems": {"wormhole": {**SWITCHES, "local": False}}},
            "systems.wormhole.local: not recorded in the first, False in the second",
        ),
        (
            {"workloads": {"lenet-digits": {"name": "lenet-digits", "batch": 8}}},
            "workloads.lenet-digits.batch: 64 in the first, 8 in the second",
        ),
    ],
)
def test_unlike_runs_are_refused_and_the_field_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], changed: dict[str, Any], said: str
) -> None:
    runs = made_up(tmp_path / "a"), made_up(tmp_path / "b", manifest=changed)
    with pytest.raises(TestbedError, match="were not measured alike") as error:
        run_compare(*runs, as_json=True)
    assert said in str(error.value)
    found = json.loads(capsys.readouterr().out)
    assert found["comparable"] is False
    assert found["pairs"] == []
    assert found["refused_for"][0]["field"] in said


def test_the_accelerator_matters_only_where_there_are_guests(tmp_path: Path) -> None:
    other = {"accelerator": {"kind": "kvm"}}
    process = made_up(tmp_path / "a"), made_up(tmp_path / "b", manifest=other)
    assert run_compare(*process, as_json=False) == 0
    both = ("process", "guest")
    guests = (
        made_up(tmp_path / "c", placements=both),
        made_up(tmp_path / "d", placements=both, manifest=other),
    )
    with pytest.raises(TestbedError, match=r"accelerator\.kind: tcg in the first, kvm in the"):
        run_compare(*guests, as_json=False)


def test_other_network_paths_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = made_up(tmp_path / "a")
    events_of = experiments.events_of

    def over_tap(system: str, speed: float) -> list[dict[str, Any]]:
        trial, *others = events_of(system, speed)
        return [{**trial, "network": "tap"}, *others]

    monkeypatch.setattr(experiments, "events_of", over_tap)
    second = made_up(tmp_path / "b")
    assert run_compare(second, made_up(tmp_path / "c"), as_json=False) == 0
    with pytest.raises(TestbedError, match="loopback in the first, tap in the second"):
        run_compare(first, second, as_json=False)


def test_commits_may_differ_and_are_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    later = {"commit": {"short": "1234567"}}
    runs = made_up(tmp_path / "a"), made_up(tmp_path / "b", manifest=later)
    assert run_compare(*runs, as_json=False) == 0
    assert "commit.short: abcdef0 in the first, 1234567 in the second" in capsys.readouterr().out


def test_a_system_with_failed_trials_is_not_passed_over(tmp_path: Path) -> None:
    bad = {"replay/process/r02/lenet-digits/wormhole": "mismatch"}
    runs = made_up(tmp_path / "a"), made_up(tmp_path / "b", statuses=bad)
    with pytest.raises(TestbedError, match=r"wormhole: ok in the first run, mismatch \(1 of 3\)"):
        run_compare(*runs, as_json=False)


def test_no_run_and_nothing_in_common_are_clear_errors(tmp_path: Path) -> None:
    run = made_up(tmp_path / "a")
    with pytest.raises(TestbedError, match="is not a run directory"):
        compare_runs(run, tmp_path)
    trials = run / "trials.jsonl"
    other = made_up(tmp_path / "b")
    (other / "trials.jsonl").write_text(trials.read_text().replace("lenet-digits", "mlp-digits"))
    with pytest.raises(TestbedError, match="in common"):
        compare_runs(run, other)


def test_ratio_of_runs_is_wider_than_one_of_paired_rounds() -> None:
    rates = [1.0, 0.5, 1.0, 0.5, 1.0]
    found = unpaired_ratio([3 * rate for rate in rates], rates)
    assert found is not None and found.low is not None and found.high is not None
    assert found.estimate == pytest.approx(3.0)
    assert found.low < 2.0 < 4.0 < found.high
    few = unpaired_ratio([3.0, 3.0], rates)
    assert few is not None and (few.low, few.high) == (None, None)
    assert unpaired_ratio([], rates) is None


def test_interval_of_two_runs_covers_as_often_as_it_says() -> None:
    import numpy as np

    generator = np.random.default_rng(3)
    covered = 0
    for _ in range(400):
        found = unpaired_ratio(
            np.exp(generator.normal(size=6)).tolist(),
            np.exp(generator.normal(scale=2.0, size=5)).tolist(),
        )
        assert found is not None and found.low is not None and found.high is not None
        covered += found.low <= 1.0 <= found.high
    assert 0.90 <= covered / 400 <= 0.99
