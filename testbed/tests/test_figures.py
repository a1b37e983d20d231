"""Figures: the files exist, say what they show, and are the same when drawn again."""

from __future__ import annotations

from pathlib import Path

from testbed.analysis.report import plot
from testbed.tests.test_tables import made_up_run


def test_figures_are_written_and_repeatable(tmp_path: Path) -> None:
    path = made_up_run(tmp_path, {"replay/process/r01/lenet-digits/wormhole-spin0": "mismatch"})
    report = plot(path)
    names = sorted(file.name for file in report.files if file.parent.name == "figures")
    assert names == ["processor_time.png", "processor_time.svg", "speedup.png", "speedup.svg"]
    first = (path / "figures" / "speedup.svg").read_bytes()
    assert (path / "figures" / "speedup.png").read_bytes().startswith(b"\x89PNG")
    plot(path)
    assert (path / "figures" / "speedup.svg").read_bytes() == first


def test_caption_names_trials_machine_and_commit(tmp_path: Path) -> None:
    from testbed.analysis.figures import caption

    report = plot(made_up_run(tmp_path), with_figures=False)
    text = caption(report.run, report.comparisons[:1], "bars: something")
    for part in (
        "n = 3 trials a system; bars: something.",
        "Made-up processor, 2 cores",
        "guests: TCG",
        "commit abcdef0",
    ):
        assert part in text
