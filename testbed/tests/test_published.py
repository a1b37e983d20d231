"""The published figures beside ours: right counterparts, intervals, notes, and every format."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest

from testbed.analysis import paper_table
from testbed.analysis.breakdown import CLIENT, WORKER, read_breakdown
from testbed.analysis.published import (
    FILE,
    Beside,
    beside,
    load_published,
)
from testbed.analysis.report import tabulate, write_page
from testbed.analysis.rundir import read_lines
from testbed.analysis.samples import load_run
from testbed.analysis.tables import compare
from testbed.errors import TestbedError
from testbed.experiment.experiment import EXPERIMENTS, load_experiment
from testbed.protocol.spec import load_api
from testbed.tests.experiments import STEPS, WARMUP_STEPS
from testbed.tests.test_page import damaged_run
from testbed.tests.test_tables import made_up_run

SPEEDUP = "training, speed of Wormhole over GVirtuS (ratio)"
EXTRA = "extra cost in all forwarded time"
PROCESS = "lenet-digits, replay"


def rows_of(path: Path) -> tuple[Beside, ...]:
    run = load_run(path)
    return beside(load_published(), run, compare(run), read_breakdown(path))


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (path / "trials.jsonl").read_text().splitlines()]


def write_lines(path: Path, lines: list[dict[str, Any]]) -> None:
    (path / "trials.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def find(rows: tuple[Beside, ...], what: str, where: str = PROCESS) -> Beside:
    (row,) = [row for row in rows if row.figure.what == what and row.where in (where, "")]
    return row


def test_ours_stand_beside_what_was_published(tmp_path: Path) -> None:
    rows = rows_of(damaged_run(tmp_path))
    speed = find(rows, SPEEDUP).ours["process"]
    assert speed.text == "5.000 [5.000, 5.000]"
    best = find(rows, f"{SPEEDUP}, the best model", "replay")
    assert (best.published, best.ours["guest"].text) == (
        "up to 5",
        "5.000 [5.000, 5.000] (lenet-digits)",
    )
    assert find(rows, f"{EXTRA}, GVirtuS (%)").ours["process"].text == "75.00"
    ratio = find(rows, "extra cost of GVirtuS over that of Wormhole (ratio)")
    assert (ratio.published, ratio.ours["process"].text) == ("53", "12.00")
    # The run has no exits put back: the figure has its row, and nothing of ours.
    assert find(rows, "exits put back, total time over that without (ratio)").ours == {}


def test_every_figure_says_where_it_stands_and_how_it_is_measured_again() -> None:
    publication = load_published()
    assert all(figure.source for figure in publication.figures)
    assert {f.id for f in publication.figures} == {"A1", "A2", "A3", "A4", "A5"}
    assert {f.note for f in publication.figures} - {""} <= set(publication.notes)
    for name in publication.experiments:
        parts = load_experiment(EXPERIMENTS / f"{name}.yaml").parts
        assert {part.name.split("-")[0] for part in parts} == {name.split("-")[0]}, name


def instrument(path: Path, encode_ns: dict[str, list[int]]) -> None:
    """Add instrumented trials: one call with 1000 ns in the backend, and so much for encoding."""
    opcode = next(f.opcode for f in load_api("opencl").functions if f.name == "clFinish")
    lines = lines_of(path)
    client, worker = dict.fromkeys(CLIENT, 0), dict.fromkeys(WORKER, 0)
    for line in list(lines):
        extra_ns = encode_ns.get(line["system"])
        if (
            line["warmup"]
            or line["placement"] != "process"
            or line["form"] != "replay"
            or not extra_ns
        ):
            continue
        first, last = WARMUP_STEPS - 1, STEPS - 1
        times = [
            {
                "source": "stub",
                "event": "times",
                "label": f"step {step}",
                "transport": "shm",
                "client": [[opcode, *{**client, "stub": stub, "calls": 1}.values()]],
                "worker": [[opcode, *{**worker, "backend": backend, "messages": 1}.values()]],
            }
            for step, stub, backend in (
                (first, 0, 0),
                (last, extra_ns[line["round"] - 1], 1000),
            )
        ]
        more = {**line, "id": line["id"] + "+breakdown", "instrument": "breakdown"}
        more["events"] = line["events"].replace(".jsonl", "+breakdown.jsonl")
        slower = 2 if line["system"] == "wormhole" else 1
        events = "".join(
            json.dumps({**e, "t_ns": slower * e["t_ns"]} if "t_ns" in e else e) + "\n"
            for e in read_lines(path / line["events"])
        )
        (path / more["events"]).write_text(events + "".join(json.dumps(t) + "\n" for t in times))
        lines.append(more)
    write_lines(path, lines)


def test_shares_and_their_ratios_have_intervals_over_rounds(tmp_path: Path) -> None:
    path = made_up_run(tmp_path)
    instrument(path, {"wormhole": [200, 250, 300], "tcp-sync": [2000, 2500, 3000]})
    rows = tabulate(path).published
    share = find(rows, f"{EXTRA}, Wormhole (%)").ours["process"].value
    assert share.estimate == pytest.approx(100 * 750 / 3750)
    assert share.low is not None and share.high is not None and share.count == 3
    assert share.low < 100 * 200 / 1200 and share.high > 100 * 300 / 1300
    # The rounds differ, their ratio does not: it is paired.
    ratio = find(rows, "extra cost of GVirtuS over that of Wormhole (ratio)").ours["process"].value
    assert (ratio.estimate, ratio.low, ratio.high) == pytest.approx((10.0, 10.0, 10.0))
    # What measuring costs is a ratio of the same rounds too.
    for name, expected in (
        ("Wormhole", "2.000 [2.000, 2.000]"),
        ("GVirtuS", "1.000 [1.000, 1.000]"),
    ):
        what = f"measuring the parts itself, time of a step over that without, {name} (ratio)"
        assert find(rows, what).ours["process"].text == expected


def test_no_interval_of_a_share_is_beyond_what_a_share_can_be(tmp_path: Path) -> None:
    path = made_up_run(tmp_path)
    instrument(path, {"wormhole": [20, 2000, 300]})
    share = find(tabulate(path).published, f"{EXTRA}, Wormhole (%)").ours["process"].value
    assert (share.low, share.high) == (0.0, 100.0)


def test_with_the_papers_own_test_other_workloads_are_no_counterpart(tmp_path: Path) -> None:
    path = damaged_run(tmp_path)
    lines = lines_of(path)
    more = [
        {**line, "workload": "neuron-layer", "id": line["id"].replace("lenet-digits", "neuron")}
        for line in lines
    ]
    write_lines(path, [*lines, *more])
    found = [row for row in rows_of(path) if row.ours]
    assert {row.where.split(",")[0] for row in found if row.figure.id == "A4"} == {"neuron-layer"}
    a1 = [row for row in found if row.figure.what == SPEEDUP]
    assert {row.where.split(",")[0] for row in a1} == {"neuron-layer", "lenet-digits"}
    # The best model is none that only tests layers; and A1 was published for training.
    (best,) = [row for row in found if row.figure.ours == "speedup-best"]
    assert {ours.on for ours in best.ours.values()} == {"lenet-digits"}
    manifest = json.loads((path / "manifest.json").read_text())
    manifest["workloads"]["lenet-digits"]["mode"] = "inference"
    (path / "manifest.json").write_text(json.dumps(manifest))
    a1 = [row for row in rows_of(path) if row.ours and row.figure.id == "A1"]
    assert {row.where.split(",")[0] for row in a1} == {"neuron-layer"}


def test_the_part_of_the_results_own_experiment_counts(tmp_path: Path) -> None:
    path = made_up_run(tmp_path)
    lines = lines_of(path)
    write_lines(
        path,
        [{**line, "part": "ladder"} for line in lines]
        + [{**line, "part": "a1-replay"} for line in lines],
    )
    row = find(rows_of(path), SPEEDUP)
    assert {ours.part for ours in row.ours.values()} == {"a1-replay"}
    assert row.command == "./inv run a1-training"


def test_exits_are_counted_for_each_api_call(tmp_path: Path) -> None:
    path = made_up_run(tmp_path)
    for events in (path / "events").glob("replay__guest__*__wormhole.jsonl"):
        counted = {"exits": 500, "io_exits": 120, "mmio_exits": 0, "halt_poll_success_ns": 9}
        more = [
            {"source": "runner", "event": "trial", "exits": counted, "device": {"wakes": 50}},
            {"source": "stub", "event": "exit", "api_calls": 1000},
        ]
        events.write_text(events.read_text() + "".join(json.dumps(e) + "\n" for e in more))
    done = tabulate(path)
    assert (
        find(done.published, "VM exits for each API call, Wormhole")
        .ours["guest"]
        .text.startswith("0.500 [")
    )
    table = (path / "tables" / "table.txt").read_text()
    assert "-- VM exits for each API call, by reason (KVM)\nsystem     exits  io_exits\n" in table
    assert "halt_poll" not in table
    row = next(r for c in done.comparisons for r in c.rows if r.exits)
    assert row.exits == {"exits": 0.5, "io_exits": 0.12, "mmio_exits": 0.0}
    assert row.notified["in, device, a call"] == pytest.approx(0.05)


def test_all_formats_have_every_row_and_the_notes(tmp_path: Path) -> None:
    path = damaged_run(tmp_path)
    done = write_page(path)
    folder = path / "tables"
    text = (folder / "published.txt").read_text()
    records = list(csv.DictReader(io.StringIO((folder / "published.csv").read_text())))
    assert json.loads((folder / "published.json").read_text())[0]["published"] == "up to 5"
    publication = load_published()
    for figure in publication.figures:
        if figure.figure != "not reported":
            assert figure.what in text and figure.figure in text
            assert any(
                r["what"] == figure.what and figure.figure == r["published"] for r in records
            )
    assert "An installed GVirtuS was not measured." in text
    assert "An installed GVirtuS was not measured." in (folder / "published.md").read_text()
    assert "94.705" in (folder / "published.tex").read_text()
    assert "not measured in this run" in text
    assert done.paper + "\n" == text
    table = paper_table.table_of(publication, done.published)
    assert len(records) == sum(max(len(row.ours), 1) for row in done.published)
    assert table[0][3:5] == ["process", "guest"]


def test_a_mistake_in_the_published_figures_is_named(tmp_path: Path) -> None:
    path = tmp_path / "published.yaml"
    path.write_text(FILE.read_text().replace("ours: speedup\n", "ours: speedupp\n"))
    with pytest.raises(TestbedError, match=r"published\.yaml:\d+: .*speedup"):
        load_published(path)
