"""Figures: each exists where its data does, says what it shows, and is the same drawn again."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from testbed.analysis import breakdown
from testbed.analysis.causes import causes, same_systems
from testbed.analysis.charts import Chart, charts
from testbed.analysis.figures import FORMATS, caption, draw, system_looks
from testbed.analysis.report import plot
from testbed.analysis.samples import load_run
from testbed.analysis.tables import compare
from testbed.errors import TestbedError
from testbed.experiment.plan import make_plan
from testbed.experiment.runner import run_trials
from testbed.experiment.systems import DEFAULT_SPIN_US
from testbed.tests.experiments import TEXT, FakeExecutor, example, new_run
from testbed.tests.test_tables import made_up_run

SWEEP = TEXT.replace(
    "workloads: [lenet-digits]",
    "workloads: [lenet-digits, {name: lenet-digits, batch: 8}, {name: lenet-digits, batch: 16}]",
)

BREAKDOWN = """\
workload,form,placement,system,function,part,calls,seconds
lenet-digits,replay,process,wormhole,clFinish,encode,10,0.5
lenet-digits,replay,process,wormhole,clFinish,backend,10,3
lenet-digits,replay,process,wormhole,clFlush,publish,2,0.25
lenet-digits,replay,process,wormhole,clFlush,backend,2,0.25
lenet-digits,replay,process,wormhole,clBuildProgram,compile,1,9
lenet-digits,replay,process,tcp-sync,clFinish,publish,10,9
lenet-digits,replay,process,tcp-sync,clFinish,backend,10,3
"""


def charts_of(path: Path) -> dict[str, Chart]:
    run = load_run(path)
    found = charts(run, compare(run), breakdown.read_breakdown(path))
    return {chart.kind: chart for chart in found}


def test_every_figure_is_written_in_every_format_beside_its_data(tmp_path: Path) -> None:
    with new_run(tmp_path, example(SWEEP)) as run:
        plan = make_plan(example(SWEEP), "tcg", ("process",))
        run_trials(plan, FakeExecutor(), run, lambda _: None)
    (run.path / "breakdown.csv").write_text(BREAKDOWN)
    figures = run.path / "figures"
    figures.mkdir()
    (figures / "ladder-2.png").write_bytes(b"of data that the run no longer has")
    plot(run.path)
    assert {file.name for file in figures.iterdir()} == {
        f"{name}.{kind}"
        for name in (
            "speedup",
            "ladder",
            "breakdown",
            "functions",
            "notifications",
            "processor_time",
            "latency",
            "batch",
        )
        for kind in (*FORMATS, "csv")
    }
    assert (figures / "batch.png").read_bytes().startswith(b"\x89PNG")
    assert (figures / "batch.pdf").read_bytes().startswith(b"%PDF")
    with (figures / "ladder.csv").open(newline="") as source:
        lines = [line for line in csv.DictReader(source) if line["workload"] == "lenet-digits"]
    assert [line["cause"] for line in lines] == [
        f"shared memory for TCP, one-way calls, local answers, spin us {DEFAULT_SPIN_US} to 0",
        f"spin us 0 to {DEFAULT_SPIN_US}",
    ]
    assert [float(line["factor"]) for line in lines] == pytest.approx([2.5, 2.0])
    assert float(lines[-1]["speed_after"]) == pytest.approx(5.0)


def test_a_figure_is_the_same_when_drawn_again(tmp_path: Path) -> None:
    bad = [f"replay/{where}/r01/lenet-digits/wormhole-spin0" for where in ("process", "guest")]
    path = made_up_run(tmp_path, dict.fromkeys(bad, "mismatch"))
    found = charts_of(path)
    assert "ladder" not in found, "a ladder with a rung that has no speed"
    run, folder = load_run(path), tmp_path / "figures"
    (first,) = draw(run, [found["speedup"]], folder)
    before = {file: file.read_bytes() for file in first.files}
    (again,) = draw(run, [found["speedup"]], folder)
    assert {file: file.read_bytes() for file in again.files} == before


def test_caption_names_trials_machine_and_commit(tmp_path: Path) -> None:
    path = made_up_run(tmp_path)
    text = caption(load_run(path), charts_of(path)["speedup"])
    for part in (
        "n = 3 trials a system; bars: geometric mean",
        "Made-up processor, 2 cores",
        "guests: TCG",
        "commit abcdef0",
    ):
        assert part in text


def test_a_batch_sweep_has_its_figure_and_others_do_not(tmp_path: Path) -> None:
    with new_run(tmp_path, example(SWEEP)) as run:
        plan = make_plan(example(SWEEP), "tcg", ("process",))
        run_trials(plan, FakeExecutor(), run, lambda _: None)
    chart = charts_of(run.path)["batch"]
    (panel,) = chart.panels
    assert panel.title == "lenet-digits, replay, process placement"
    sizes = [record["batch"] for record in panel.records if record["system"] == "wormhole"]
    assert sorted(sizes) == [8, 16, 64]
    rates = {r["batch"]: r["samples_per_s"] for r in panel.records if r["system"] == "wormhole"}
    assert rates[16] == pytest.approx(2 * rates[8])
    # Workloads stand in the experiment's order, not in that of the rounds.
    speedup = charts_of(run.path)["speedup"].panels[0]
    assert list(dict.fromkeys(record["workload"] for record in speedup.records)) == [
        "lenet-digits",
        "lenet-digits-b8",
        "lenet-digits-b16",
    ]
    assert "batch" not in charts_of(made_up_run(tmp_path / "other"))


def test_breakdown_leaves_compilation_out_of_the_share(tmp_path: Path) -> None:
    path = made_up_run(tmp_path)
    assert "breakdown" not in charts_of(path)
    (path / "breakdown.csv").write_text(BREAKDOWN)
    (panel,) = charts_of(path)["breakdown"].panels
    shares = {record["system"]: record["extra_share"] for record in panel.records}
    assert shares == pytest.approx({"wormhole": 0.75 / 4, "tcp-sync": 0.75})
    wormhole = {r["part"]: r["seconds"] for r in panel.records if r["system"] == "wormhole"}
    assert wormhole == {
        "stub: encode": 0.5,
        "publish and wait": 0.25,
        "backend": 3.25,
        "compilation": 9.0,
    }


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("encode,10,0.5", "encode,ten,0.5", r"breakdown\.csv:2: invalid literal"),
        ("encode,10,0.5", "encode,10", r"breakdown\.csv:2: "),
        ("encode,10,0.5", "encode,10,nan", r"breakdown\.csv:2: 10 calls in nan s cannot be"),
        (",seconds", ",time", "has no column seconds"),
    ],
)
def test_a_damaged_breakdown_is_a_clear_error(
    tmp_path: Path, old: str, new: str, said: str
) -> None:
    (tmp_path / "breakdown.csv").write_text(BREAKDOWN.replace(old, new, 1))
    with pytest.raises(TestbedError, match=said):
        breakdown.read_breakdown(tmp_path)


def test_systems_look_alike_in_every_figure_and_never_like_another(tmp_path: Path) -> None:
    run = load_run(made_up_run(tmp_path))
    looks = system_looks(run)
    assert list(looks) == ["native", "wormhole", "wormhole-spin0", "tcp-sync"]
    assert len({(look.colour, look.hatch) for look in looks.values()}) == len(looks)
    assert len({look.hatch for look in looks.values()}) == len(looks)


def test_causes_come_from_the_switches() -> None:
    manifest = {
        "systems": {
            "a": {"transport": "tcp", "local": False, "notifications": "always"},
            "b": {"transport": "shm", "local": True, "notifications": "always"},
            "b-again": {"transport": "shm", "local": True, "notifications": "always"},
        }
    }
    assert causes(manifest, "a", "b") == "shared memory for TCP, local answers"
    assert causes(manifest, "b", "a") == "TCP for shared memory, no local answers"
    assert causes({}, "a", "b") == ""
    assert same_systems(manifest) == [("b", "b-again")]
    assert same_systems({}) == []


def test_the_functions_that_take_most_time_are_shown_and_the_others_together(
    tmp_path: Path,
) -> None:
    path = made_up_run(tmp_path)
    head = BREAKDOWN.splitlines()[0]
    place = "lenet-digits,replay,process,wormhole"
    lines = [f"{place},cl{n:02},backend,1,{n}" for n in range(1, 11)]
    lines += [f"{place},cl10,publish,1,2", f"{place},cl10,kernel,1,99"]
    (path / "breakdown.csv").write_text("\n".join([head, *lines]) + "\n")
    (panel,) = charts_of(path)["functions"].panels
    shown = {(r["function"], r["part"]): r["seconds"] for r in panel.records}
    assert shown["cl10", "publish and wait"] == 2.0
    assert shown["all others", "backend"] == 1.0 + 2.0
    assert "cl02" not in {function for function, _ in shown}
    assert not any(part == "wait for kernels" for _, part in shown)
    assert sum(r["share"] for r in panel.records) == pytest.approx(1.0)


def test_parts_that_measure_the_same_are_told_apart_and_drawn_once_over_batches(
    tmp_path: Path,
) -> None:
    with new_run(tmp_path, example(SWEEP)) as run:
        plan = make_plan(example(SWEEP), "tcg", ("process",))
        run_trials(plan, FakeExecutor(), run, lambda _: None)
    trials = run.path / "trials.jsonl"
    text = trials.read_text()
    again = text.replace('"part": "', '"part": "more-').replace('"part":"', '"part":"more-')
    trials.write_text(text + again)
    found = charts_of(run.path)
    titles = [panel.title for panel in found["latency"].panels]
    assert len(titles) == len(set(titles)) and any("(more-" in title for title in titles)
    for panel in found["latency"].panels:
        steps = [r for r in panel.records if r["system"] == "wormhole"]
        assert len(steps) <= 101
    for panel in found["batch"].panels:
        points = [(r["system"], r["batch"]) for r in panel.records]
        assert len(points) == len(set(points))
    # In the experiment's order of parts.
    manifest = json.loads((run.path / "manifest.json").read_text())
    parts = manifest["experiment"]["parts"]
    parts[0]["name"], parts[1]["name"] = "more-replay", "replay"
    (run.path / "manifest.json").write_text(json.dumps(manifest))
    chart = charts_of(run.path)["speedup"]
    assert [panel.title for panel in chart.panels] == [
        "more-replay: replay, process placement",
        "replay: replay, process placement",
    ]
    # A title names the baseline that all of a figure's panels have, and no other.
    of_parts = draw(load_run(run.path), [chart], tmp_path / "figures")
    assert [figure.title for figure in of_parts] == ["Speed relative to tcp-sync"]
    parts[1]["baseline"] = "native"
    (run.path / "manifest.json").write_text(json.dumps(manifest))
    chart = charts_of(run.path)["speedup"]
    of_parts = draw(load_run(run.path), [chart], tmp_path / "figures")
    assert [figure.title for figure in of_parts] == ["Speed relative to each part's baseline"]
