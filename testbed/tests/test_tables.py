"""Tables from a made-up run whose right figures are known."""

from __future__ import annotations

import csv
import io
import json
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

import pytest

from testbed.analysis import tables
from testbed.analysis.charts import charts, processor_parts
from testbed.analysis.measure import measure, own_cpu_s
from testbed.analysis.report import tabulate
from testbed.analysis.rundir import OWN_METRIC
from testbed.analysis.samples import Group, load_run
from testbed.errors import TestbedError
from testbed.experiment.plan import make_plan
from testbed.experiment.runner import run_trials
from testbed.tests.experiments import WARMUP_STEPS, FakeExecutor, events_of, example, new_run


def made_up_run(folder: Path, statuses: Mapping[str, str] | None = None) -> Path:
    with new_run(folder, example()) as run:
        run_trials(make_plan(example(), "tcg"), FakeExecutor(statuses), run, lambda _: None)
    return run.path


def test_speed_and_counters_exclude_the_warm_up() -> None:
    metrics = measure(events_of("wormhole", 50.0), WARMUP_STEPS)
    assert metrics["steps_per_s"] == pytest.approx(50.0)
    assert metrics["measured_steps"] == 4
    assert metrics["api_calls_per_step"] == 200
    assert metrics["messages_per_step"] == 100
    assert metrics["notifications_to_host_per_step"] == 0
    assert metrics["worker_user_s"] == 2.0
    assert metrics["jail"] == "user"
    assert metrics["network"] == "loopback"


def test_a_trial_without_steps_has_no_speed() -> None:
    events = [e for e in events_of("native", 50.0) if e.get("event") != "step"]
    assert "steps_per_s" not in measure(events, WARMUP_STEPS)


def test_ratios_verdicts_and_ladder(tmp_path: Path) -> None:
    comparison = tables.compare(load_run(made_up_run(tmp_path)))[0]
    rows = {row.system: row for row in comparison.rows}
    assert comparison.group.title == "lenet-digits, replay, process placement"
    assert [row.system for row in comparison.rows] == [
        "native",
        "wormhole",
        "wormhole-spin0",
        "tcp-sync",
    ]
    ratio = rows["wormhole"].ratio
    assert ratio is not None
    # Rounds differ by a third, the same for all systems: pairing leaves no spread.
    assert (ratio.estimate, ratio.low, ratio.high) == pytest.approx((5.0, 5.0, 5.0), rel=1e-6)
    assert rows["wormhole"].verdict == "faster"
    assert rows["tcp-sync"].verdict == "baseline"
    native = rows["wormhole"].ratio_to_native
    assert native is not None and native.estimate == pytest.approx(100 / 120)
    steps = {(s.before, s.after): s.ratio.estimate for s in comparison.ladder if s.ratio}
    assert steps == pytest.approx(
        {("tcp-sync", "wormhole-spin0"): 2.5, ("wormhole-spin0", "wormhole"): 2.0}
    )


def test_a_group_is_compared_with_the_fastest_setting_of_the_baseline(tmp_path: Path) -> None:
    folder = made_up_run(tmp_path)
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["experiment"]["rivals"] = ["wormhole-spin0"]
    (folder / "manifest.json").write_text(json.dumps(manifest))
    comparison = tables.compare(load_run(folder))[0]
    rows = {row.system: row for row in comparison.rows}
    assert comparison.baseline == "wormhole-spin0"
    assert rows["wormhole-spin0"].verdict == "baseline"
    assert [r.estimate for s in ("wormhole", "tcp-sync") if (r := rows[s].ratio)] == pytest.approx(
        [2.0, 0.4]
    )


def test_native_is_not_compared_with_emulated_guests(tmp_path: Path) -> None:
    guest = next(
        c for c in tables.compare(load_run(made_up_run(tmp_path))) if c.group.placement == "guest"
    )
    assert guest.group.title.endswith("guest (TCG) placement")
    assert "native" not in [row.system for row in guest.rows]
    assert all(row.ratio_to_native is None for row in guest.rows)


@pytest.mark.parametrize("status", ["mismatch", "failed", "timeout"])
def test_a_wrong_system_has_no_speed_anywhere(tmp_path: Path, status: str) -> None:
    bad = "replay/process/r02/lenet-digits/wormhole"
    report = tabulate(made_up_run(tmp_path, {bad: status}))
    row = next(row for row in report.comparisons[0].rows if row.system == "wormhole")
    assert (row.speed, row.ratio, row.ok, row.trials) == (None, None, 2, 3)
    line = next(line for line in report.text.splitlines() if line.startswith("wormhole "))
    assert f"none: {status} (1 of 3)" in line
    records = json.loads((report.run.path / "tables" / "table.json").read_text())
    shown = next(s for s in records[0]["systems"] if s["system"] == "wormhole")
    assert shown["steps_per_s"] is None
    assert shown["status"] == f"{status} (1 of 3)"


def test_all_forms_say_the_same(tmp_path: Path) -> None:
    report = tabulate(made_up_run(tmp_path))
    folder = report.run.path / "tables"
    records = list(csv.DictReader(io.StringIO((folder / "table.csv").read_text())))
    wormhole = next(r for r in records if r["system"] == "wormhole" and r["placement"] == "process")
    assert float(wormhole["ratio_to_tcp-sync"]) == pytest.approx(5.0)
    assert "| wormhole | " in (folder / "table.md").read_text()
    assert "5.000 [5.000, 5.000]" in (folder / "table.txt").read_text()


def test_tables_are_rebuilt_from_raw_events_not_from_stored_numbers(tmp_path: Path) -> None:
    path = made_up_run(tmp_path)
    before = tabulate(path).text
    trials = path / "trials.jsonl"
    trials.write_text(trials.read_text().replace('"metrics":{}', '"metrics":{"steps_per_s":9e9}'))
    assert tabulate(path).text == before


def test_an_empty_run_is_a_clear_error(tmp_path: Path) -> None:
    with new_run(tmp_path, example()) as run:
        pass
    with pytest.raises(TestbedError, match="has no finished trial"):
        load_run(run.path)


def test_latex_escapes_what_latex_would_read(tmp_path: Path) -> None:
    path = made_up_run(tmp_path, {"replay/process/r01/lenet-digits/wormhole": "failed"})
    tabulate(path)
    text = (path / "tables" / "table.tex").read_text()
    assert text.count("\\begin{tabular}") == text.count("\\end{tabular}") == text.count("\\label{")
    assert "none: failed (1 of 3) & - &" in text
    assert tables._latex_text("50 % & a_b") == "50 \\% \\& a\\_b"
    widths = [line.count(" & ") for line in text.splitlines() if line.startswith("wormhole ")]
    headings = [line.count(" & ") for line in text.splitlines() if line.startswith("system ")]
    assert set(widths) == set(headings)


def test_noisy_trials_count_and_what_would_be_without_them_stands_beside(tmp_path: Path) -> None:
    path = made_up_run(tmp_path)
    assert "without noisy trials" not in tabulate(path).text
    trials = path / "trials.jsonl"
    lines = [json.loads(line) for line in trials.read_text().splitlines()]
    for line in lines:
        if line["id"] == "replay/process/r02/lenet-digits/wormhole":
            line["noise"] = {"noisy": True, "reasons": ["0.71 cores busy before"]}
    trials.write_text("".join(json.dumps(line) + "\n" for line in lines))
    report = tabulate(path)
    rows = {row.system: row for row in report.comparisons[0].rows}
    ratio, quiet = rows["wormhole"].ratio, rows["wormhole"].quiet_ratio
    assert ratio is not None and quiet is not None
    assert (ratio.count, quiet.count) == (3, 2)
    assert "without noisy trials" in report.text
    assert "3/3 (1 noisy)" in report.text


def test_what_runs_in_a_server_guest_is_counted_once_as_its_vm() -> None:
    events = [
        {"source": "client", "where": "guest", "user_s": 50.0, "system_s": 0.0},
        {"source": "worker", "user_s": 40.0, "system_s": 0.0},
        {"source": "host", "what": "supervisor", "user_s": 30.0, "system_s": 0.0},
        {"source": "host", "what": "vm", "user_s": 2.0, "system_s": 0.5},
    ]
    assert own_cpu_s(events) == 72.5
    serving = {"source": "host", "what": "server-vm", "user_s": 3.0, "system_s": 0.25}
    assert own_cpu_s([*events, serving]) == 5.75
    metrics = measure([*events, serving], 0)
    row = tables.Row(
        *("x", 1, 1, 0, "ok", None, None, None, None, "undecided"),
        means={key: metrics.get(key) for pair in tables.PROCESSOR.values() for key in pair},  # type: ignore[misc]
        facts={},
        own={},
    )
    assert processor_parts(row) == {"VM": (2.0, 0.5), "server VM": (3.0, 0.25)}


def test_vcpus_are_a_part_of_their_vm() -> None:
    events = [
        {"source": "client", "where": "guest", "user_s": 1.0, "system_s": 0.5, "wall_s": 4.0},
        {"source": "host", "what": "vm", "user_s": 3.0, "system_s": 0.5},
        {"source": "part", "what": "vcpus", "user_s": 2.0, "system_s": 0.25},
    ]
    assert own_cpu_s(events) == 3.5
    metrics = measure(events, 0)
    row = tables.Row(
        *("x", 1, 1, 0, "ok", None, None, None, None, "undecided"),
        means=defaultdict(lambda: None, metrics),  # type: ignore[arg-type]
        facts=dict.fromkeys(tables.FACTS, "x"),
        own={},
    )
    assert processor_parts(row) == {"VM: vCPUs": (2.0, 0.25), "VM: other threads": (1.0, 0.25)}
    group = Group("p", "replay", "w", "guest", "tcg", ("x",), (), {})
    found = dict(tables.tables_of(tables.Comparison(group, "x", (row,), ())))
    assert found["utilisation: processor time by the client's wall time"] == [
        ["system", "wall (s)", "client", "VM", "VM: vCPUs", "VM: other threads"],
        ["x", "4.00", "38%", "88%", "56%", "31%"],
    ]


def test_what_a_program_measured_itself_has_its_table(tmp_path: Path) -> None:
    path = made_up_run(tmp_path)
    manifest = json.loads((path / "manifest.json").read_text())
    manifest["workloads"]["lenet-digits"]["metrics"] = {"bandwidth": "GB/s", "error": ""}
    (path / "manifest.json").write_text(json.dumps(manifest))
    trials = path / "trials.jsonl"
    lines = [json.loads(line) for line in trials.read_text().splitlines()]
    for line in lines:
        if line["system"] == "wormhole":
            # A figure of any sign; one that a trial lacks is left out.
            line["metrics"] = {
                f"{OWN_METRIC}bandwidth": 10.0 + line["round"],
                f"{OWN_METRIC}error": -0.5,
            }
    trials.write_text("".join(json.dumps(line) + "\n" for line in lines))
    report = tabulate(path)
    rows = {row.system: row for row in report.comparisons[0].rows}
    assert rows["wormhole"].own["bandwidth"].estimate == pytest.approx(12.0)
    assert rows["tcp-sync"].own == {}
    assert "what the program measured itself" in report.text
    assert "bandwidth (GB/s)" in report.text
    assert "-0.500 [-0.500, -0.500]" in report.text
    (shown,) = [
        line
        for line in csv.DictReader(io.StringIO((path / "tables" / "table.csv").read_text()))
        if (line["system"], line["placement"], line["form"]) == ("wormhole", "process", "replay")
    ]
    assert float(shown["bandwidth"]) == pytest.approx(12.0)


def test_every_order_of_the_switches_is_shown_and_how_far_they_are_apart(tmp_path: Path) -> None:
    path = made_up_run(tmp_path)
    manifest = json.loads((path / "manifest.json").read_text())
    ladders = [["tcp-sync", "wormhole-spin0", "wormhole"], ["tcp-sync", "wormhole"]]
    manifest["experiment"]["parts"][0] |= {"name": "replay", "ladders": ladders}
    spin = {**manifest["systems"]["wormhole-spin0"], "spin_us": 50}
    manifest["systems"]["wormhole"] = spin
    (path / "manifest.json").write_text(json.dumps(manifest))
    comparison = next(c for c in tables.compare(load_run(path)) if c.group.part == "replay")
    found = dict(tables.tables_of(comparison))
    assert [row[:2] for row in found["where the gain comes from, order 2"][1:]] == [
        ["tcp-sync", "wormhole"]
    ]
    head, *rows = found["the factor of each switch, by order"]
    assert head == ["switched", "order 1", "order 2", "least to most"]
    by_switch = {row[0]: row[1:] for row in rows}
    assert by_switch["spin us 0 to 50"] == ["2.000 [2.000, 2.000]", "-", "2.000 to 2.000"]
    chart = {c.kind: c for c in charts(load_run(path), [comparison], ())}["ladder"]
    # A single step is no waterfall.
    (panel,) = chart.panels
    assert panel.title.endswith("process placement, order 1")
    assert panel.records[-1]["speed_after"] == pytest.approx(5.0)
    # What remains of a ladder where a group lacks its systems is shown once, and not as one step.
    part = {"name": "replay", "ladders": [[*ladders[0], "x"], [*ladders[0], "y"], ["x", "y", "z"]]}
    manifest["experiment"]["parts"][0] |= part
    (path / "manifest.json").write_text(json.dumps(manifest))
    comparison = next(c for c in tables.compare(load_run(path)) if c.group.part == "replay")
    assert [[step.after for step in steps] for steps in comparison.orders] == [
        ["wormhole-spin0", "wormhole"]
    ]
