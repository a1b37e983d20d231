"""Experiments as YAML, and the plan made from them."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from testbed.errors import TestbedError
from testbed.experiment.conduct import Request, dry_run
from testbed.experiment.experiment import EXPERIMENTS, find_experiment, load_experiment
from testbed.experiment.plan import describe, estimate_s, make_plan, pace_of, vm_sessions
from testbed.experiment.workload import find_workload
from testbed.tests.experiments import PRESETS, TEXT, example


def test_plan_is_the_same_every_time() -> None:
    assert make_plan(example(), "tcg") == make_plan(example(), "tcg")


def test_every_system_runs_once_a_round() -> None:
    plan = make_plan(example(), "tcg", ["process"])
    replays = [trial for trial in plan if trial.form == "replay"]
    counts = Counter((trial.round, trial.system.name) for trial in replays)
    assert set(counts.values()) == {1}
    assert sorted({trial.round for trial in replays}) == [0, 1, 2, 3]
    assert len({trial.id for trial in plan}) == len(plan)


def test_rounds_are_not_mixed_and_warmups_come_first() -> None:
    plan = [t for t in make_plan(example(), "tcg", ["process"]) if t.form == "replay"]
    assert [trial.round for trial in plan] == sorted(trial.round for trial in plan)
    assert [trial.warmup for trial in plan] == [True] * 4 + [False] * 12
    assert all(trial.id.startswith("replay/process/w01/") for trial in plan[:4])


def test_order_differs_between_rounds_and_seeds() -> None:
    many = example(TEXT.replace("rounds: 3", "rounds: 30"))
    orders = {
        tuple(t.system.name for t in make_plan(many, "tcg") if t.round == k and t.form == "replay")
        for k in range(1, 31)
    }
    assert len(orders) > 5
    assert make_plan(replace(many, seed=8), "tcg") != make_plan(many, "tcg")


def test_more_rounds_only_add_to_the_plan() -> None:
    few = [t.id for t in make_plan(example(), "tcg", ["process"]) if t.form == "replay"]
    many = example(TEXT.replace("rounds: 3", "rounds: 5"))
    longer = [t.id for t in make_plan(many, "tcg", ["process"]) if t.form == "replay"]
    assert longer[: len(few)] == few
    assert len(longer) == len(few) + 8


def test_native_stands_beside_guests_only_under_kvm() -> None:
    for accelerator, expected in (("tcg", set()), ("kvm", {""})):
        guests = make_plan(example(), accelerator, ["guest"])
        assert {trial.vm for trial in guests if trial.system.is_native} == expected


def test_guests_are_restarted_as_asked() -> None:
    restart = {"round": 4, "part": 1, "trial": 12}
    for word, boots in restart.items():
        experiment = replace(example(), restart_guest=word)
        plan = make_plan(experiment, "tcg", ["guest"])
        assert len(vm_sessions(plan)) == boots
        # A guest's trials are adjacent, so that one is up at a time.
        runs = [t.vm for k, t in enumerate(plan) if k == 0 or plan[k - 1].vm != t.vm]
        assert len(runs) == boots


def test_process_placement_comes_first() -> None:
    plan = make_plan(example(), "tcg")
    places = [trial.placement for trial in plan]
    assert places == sorted(places, key=["process", "guest"].index)


def test_dry_run_names_every_trial_and_the_seed() -> None:
    plan = make_plan(example(), "tcg")
    text = describe(example(), plan)
    assert "seed 7" in text
    assert all(trial.id in text for trial in plan)
    assert f"{len(plan)} trials, 4 guest boots" in text


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("rounds: 3", "round: 3", ":15: unknown key `parts[0].round` - did you mean `rounds`?"),
        ("seed: 7", "seed: 7\nseeds: 8", ":4: unknown key `seeds` - did you mean `seed`?"),
        ("  - wormhole\n", "  - wormhol\n", "unknown system `wormhol` - did you mean `wormhole`?"),
        ("form: replay", "form: replai", "`parts[0].form` has the unknown value `replai`"),
        ("placements: [process]", "placements: []", "`parts[1].placements` is empty"),
        ("spin_us: 0", "spin: 0", ":8: unknown key `systems[2].spin` - did you mean `spin_us`?"),
        ("baseline: tcp-sync", "baseline: tcp", "did you mean `tcp-sync`?"),
        ("rounds: 1", "rounds: 1\n    name: replay", "has two parts named `replay`"),
        ("wormhole-spin0, preset", "tcp-sync, preset", "is the name of another preset"),
        ("name: example", "name: ../example", "`name` is `../example`"),
    ],
)
def test_a_mistake_names_line_and_key(old: str, new: str, expected: str) -> None:
    assert old in TEXT
    with pytest.raises(TestbedError) as caught:
        example(TEXT.replace(old, new))
    assert expected in str(caught.value)


def test_experiment_is_found_by_name_or_path_and_hashed(tmp_path: Path) -> None:
    path = tmp_path / "small.yaml"
    path.write_text(TEXT)
    assert find_experiment("small", tmp_path) == path
    assert find_experiment(str(path), Path("elsewhere")) == path
    assert len(load_experiment(path, PRESETS).sha256) == 64
    with pytest.raises(TestbedError, match=r"no experiment `smal` in .* one of: small"):
        find_experiment("smal", tmp_path)


def test_the_estimate_follows_the_pace_of_an_earlier_run() -> None:
    trials = make_plan(example(), "tcg", ("process",))
    guess_s = estimate_s(trials)
    ends = ("00:00:00", "00:00:50", "00:01:40", "09:00:00")  # it was stopped for a night
    records = [
        {
            "part": "replay",
            "placement": "process",
            "workload": "lenet-digits",
            "system": "native",
            "ended_utc": f"2026-12-01T{end}Z",
        }
        for end in ends
    ]
    pace = pace_of(records)
    assert pace == {("replay", "process", "lenet-digits", "native"): 50.0}
    like = [trial for trial in trials if trial.kind in pace]
    assert len(like) == 4
    assert estimate_s(trials, pace) == guess_s - estimate_s(like) + 4 * 50.0
    assert "at the pace of the last run" in describe(example(), trials, pace)
    assert pace_of(records[:1]) == {}


def test_the_estimate_knows_that_tcp_is_slow_in_guests() -> None:
    def of(placement: str, name: str) -> float:
        plan = make_plan(example(), "tcg", [placement])
        found = [t for t in plan if t.system.name == name and t.form == "replay"]
        return estimate_s(found[:1])

    assert of("guest", "tcp-sync") > of("guest", "wormhole") > of("process", "wormhole")
    assert of("process", "tcp-sync") == of("process", "wormhole")
    (guest,) = [t for t in make_plan(example(), "tcg", ["guest"]) if t.form == "replay"][:1]
    assert estimate_s([replace(guest, placement="server-vm")]) > of("guest", "tcp-sync")


OTHER = """\
name: together
doc: Two experiments in one run.
seed: 7
baseline: tcp-sync
experiments: [a5-ablation, ladder]
"""


def test_several_experiments_make_one_plan(tmp_path: Path) -> None:
    path = tmp_path / "together.yaml"
    path.write_text(OTHER, encoding="utf-8")
    together = load_experiment(path)
    ablation, ladder = (
        load_experiment(find_experiment(name, EXPERIMENTS)) for name in ("a5-ablation", "ladder")
    )
    assert together.parts == (*ablation.parts, *ladder.parts)
    assert [part.baseline for part in together.parts] == ["wormhole", "tcp-sync"]
    assert len(together.parts[1].ladders) == 5
    plan = make_plan(together, "tcg")
    assert len(plan) == sum(len(make_plan(alone, "tcg")) for alone in (ablation, ladder))
    assert together.trial_timeout_s == ablation.trial_timeout_s


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("ladder]", "leader]", "there is no experiment `leader`"),
        ("ladder]", "ladder, ladder]", "two parts named `ladder`"),
        ("ladder]", "aa]", "of a kind of its own"),
        ("[a5-ablation, ladder]", "[]", "is empty"),
        ("baseline: tcp-sync", "baseline: tcp-none", "tcp-none"),
    ],
)
def test_experiments_that_cannot_go_together(
    tmp_path: Path, old: str, new: str, complaint: str
) -> None:
    path = tmp_path / "together.yaml"
    path.write_text(OTHER.replace(old, new), encoding="utf-8")
    with pytest.raises(TestbedError, match=complaint):
        load_experiment(path)


@pytest.mark.parametrize("name", sorted(path.stem for path in EXPERIMENTS.glob("*.yaml")))
def test_every_experiment_of_the_project_has_a_plan_and_workloads(
    name: str, tmp_path: Path
) -> None:
    experiment = load_experiment(find_experiment(name, EXPERIMENTS))
    assert experiment.name == name
    plan = make_plan(experiment, "tcg")
    assert plan
    for choice in {trial.workload for trial in plan}:
        workload = find_workload(choice.name).resized(choice.batch, choice.steps, choice.mode)
        assert workload.warmup_steps < workload.steps
    text = dry_run(Request(name, out=tmp_path))
    assert text.splitlines()[1:][: len(plan)] == [
        f"{number:5d}  {trial.id}{'  (warm-up)' if trial.warmup else ''}"
        for number, trial in enumerate(plan, start=1)
    ]


def test_a_ladder_in_another_order_names_known_systems() -> None:
    text = TEXT.replace("parts:\n", "other_ladders: [{steps: [tcp-sync, wormhole]}]\nparts:\n")
    assert example(text).parts[0].ladders[1] == ("tcp-sync", "wormhole")
    with pytest.raises(TestbedError, match="wormhol"):
        example(text.replace("steps: [tcp-sync, wormhole]", "steps: [tcp-sync, wormhol]"))


def test_a_workload_of_an_experiment_can_have_another_mode_and_batch() -> None:
    text = TEXT.replace("batch: 8}", "batch: 8, mode: inference}")
    choice = example(text).parts[-1].workloads[0]
    assert (choice.mode, choice.label) == ("inference", "lenet-digits-b8-inference")
    with pytest.raises(TestbedError, match="did you mean `inference`"):
        example(text.replace("inference", "inferense"))


def test_a_part_chooses_the_path_of_its_guests_tcp() -> None:
    text = TEXT.replace("    rounds: 3\n", "    rounds: 3\n    network: user\n")
    assert [part.network for part in example(text).parts] == ["user", "auto"]
    with pytest.raises(TestbedError, match="network"):
        example(text.replace("network: user", "network: slirp"))
