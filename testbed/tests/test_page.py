"""The report of a run: one file, findings worded from verdicts, what failed linked and marked."""

from __future__ import annotations

import base64
import csv
import io
import json
from collections.abc import Sequence
from html.parser import HTMLParser
from pathlib import Path

import pytest

from testbed.analysis import breakdown
from testbed.analysis.findings import findings, speed_sentence
from testbed.analysis.page import page
from testbed.analysis.report import write_page
from testbed.analysis.samples import load_run
from testbed.analysis.statistics import Interval, verdict
from testbed.analysis.tables import Row, compare
from testbed.experiment.systems import DEFAULT_SPIN_US
from testbed.tests.test_figures import BREAKDOWN
from testbed.tests.test_tables import made_up_run

BAD = "replay/guest/r02/lenet-digits/wormhole-spin0"


class Reader(HTMLParser):
    """Collects links, images and text; complains of tags that do not match."""

    VOID = ("meta", "img", "link", "br")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.images: list[str] = []
        self.words: list[str] = []
        self._open: list[str] = []
        self.feed(text)
        assert not self._open

    def handle_starttag(self, tag: str, attrs: Sequence[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.links += [str(found["href"])] if "href" in found else []
        self.images += [str(found["src"])] if "src" in found else []
        self._open += [] if tag in self.VOID else [tag]

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag, tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def damaged_run(folder: Path) -> Path:
    """A run with a failed trial whose reason is no HTML, and a noisy one."""
    path = made_up_run(folder, {BAD: "failed"})
    trials = path / "trials.jsonl"
    lines = [json.loads(line) for line in trials.read_text().splitlines()]
    for line in lines:
        if line["id"] == BAD:
            line["detail"] = "it said <b>no</b> & ended"
        if line["id"] == "replay/guest/r01/lenet-digits/tcp-sync":
            line["noise"] = {"reasons": ["0.71 cores busy before"]}
    trials.write_text("".join(json.dumps(line) + "\n" for line in lines))
    (path / "breakdown.csv").write_text(BREAKDOWN)
    guest = path / "logs" / "vm-replay__r02"
    guest.mkdir()
    (guest / "console.log").write_text("panic\n")
    return path


def test_the_page_stands_alone_and_shows_everything(tmp_path: Path) -> None:
    path = damaged_run(tmp_path)
    done = write_page(path)
    text = (path / "report.html").read_text()
    assert done.files[-1] == path / "report.html"
    read = Reader(text)
    words = "".join(read.words)
    # Nothing is fetched: images are inline, links lead into the run's directory.
    assert read.images and all(i.startswith("data:image/svg+xml;base64,") for i in read.images)
    inline = [link for link in read.links if link.startswith("data:text/csv;base64,")]
    beside_it = [link for link in read.links if link not in inline]
    assert len(inline) == len(read.images)
    assert all((path / link).is_file() for link in beside_it)
    for kind in (".png", ".pdf", ".svg", ".csv", ".tex", ".md"):
        assert any(link.endswith(kind) for link in beside_it)
    # A figure's data are what it was drawn from.
    (ratios,) = [
        list(csv.DictReader(io.StringIO(data)))
        for data in (base64.b64decode(link.partition(",")[2]).decode() for link in inline)
        if data.startswith("workload,form,placement,system,ratio")
    ]
    assert {line["system"]: line["status"] for line in ratios if line["placement"] == "guest"}[
        "wormhole-spin0"
    ] == "failed (1 of 3)"
    # What failed and what was noisy.
    assert "it said <b>no</b> & ended" in words
    assert "<b>no</b>" not in text
    assert any(link.endswith("wormhole-spin0/program.log") for link in beside_it)
    assert "logs/vm-replay__r02/console.log" in beside_it
    assert "1 of" in words and "marked noisy" in words
    assert "0.71 cores busy before" in words
    # The manifest, the method, the published figures.
    assert '"cpu_model": "Made-up processor"' in words
    assert "expanded percentile interval" in words
    assert "extra cost in all forwarded time, Wormhole (%)" in read.words
    assert "18.75" in read.words
    assert "This run does not have the test of A2 to A5" in words


def test_a_page_needs_no_figures_and_no_logs(tmp_path: Path) -> None:
    run = load_run(damaged_run(tmp_path))
    for log in (run.path / "logs").rglob("*.log"):
        log.unlink()
    words = "".join(Reader(page(run, compare(run), (), (), (), ())).words)
    assert "no data for a figure" in words
    assert "not kept" in words


def test_findings_say_what_the_verdicts_say(tmp_path: Path) -> None:
    run = load_run(damaged_run(tmp_path))
    found = findings(run, compare(run), breakdown.read_breakdown(run.path))
    text = "\n".join(found.main)
    assert "ended with the right outputs; 1 are marked noisy; the run is not finished" in text
    assert (
        "lenet-digits, replay, process placement: wormhole is 5.000 times as fast as tcp-sync"
        " (95 % interval 5.000 to 5.000, 3 rounds)." in text
    )
    assert "wormhole reaches 83.3 % of native's speed" in text
    assert (
        "lenet-digits, replay, process placement: from tcp-sync to wormhole, factor by factor -"
        " shared memory for TCP, one-way calls, local answers,"
        f" spin us {DEFAULT_SPIN_US} to 0: 2.500" in text
    )
    assert "(TCG) placement: from tcp-sync" not in text, "a rung has no speed"
    assert "without noisy trials the verdict on wormhole would be 'undecided'" in text
    assert "18.8 % of the time of forwarded calls is extra cost under wormhole." in text
    further = "\n".join(found.further)
    assert "wormhole-spin0 has no speed (failed (1 of 3))." in further
    assert "application, process placement: native cannot be compared" in further


@pytest.mark.parametrize(
    ("ratio", "said"),
    [
        (Interval(3.0, 2.5, 3.5, 5), "x is 3.000 times as fast as tcp-sync (95 % interval 2.500"),
        (Interval(0.5, 0.4, 0.6, 5), "x is slower than tcp-sync, at 0.500 times its speed"),
        (Interval(1.005, 0.99, 1.015, 5), "x and tcp-sync are equally fast to within 2 %"),
        (Interval(1.2, 0.9, 1.6, 5), "undecided, at a ratio of 1.200 (95 % interval 0.900 to 1.60"),
        (Interval(1.2, 0.9, 1.6, 5), ": the interval holds 1."),
        (Interval(1.01, 1.005, 1.03, 5), ": less than the 2 % that matter."),
        (Interval(1.2, None, None, 1), "(1 round): an interval needs 3 rounds."),
        (None, "x cannot be compared, tcp-sync has no speed in its rounds."),
    ],
)
def test_every_verdict_has_its_sentence(tmp_path: Path, ratio: Interval | None, said: str) -> None:
    comparison = compare(load_run(made_up_run(tmp_path)))[0]
    row = Row(
        system="x",
        trials=5,
        ok=5,
        noisy=0,
        status="ok",
        speed=Interval(1.0, None, None, 1),
        ratio=ratio,
        ratio_to_native=None,
        quiet_ratio=ratio,
        verdict=verdict(ratio, 0.02),
        means={},
        facts={},
        own={},
    )
    assert said in speed_sentence(comparison, row, 0.02)


def test_a_failed_instrumented_trial_is_shown_though_it_is_in_no_table(tmp_path: Path) -> None:
    path = damaged_run(tmp_path)
    trials = path / "trials.jsonl"
    lines = [json.loads(line) for line in trials.read_text().splitlines()]
    more = {**lines[0], "id": "one+breakdown", "instrument": "breakdown", "status": "failed"}
    trials.write_text("".join(json.dumps(line) + "\n" for line in [*lines, more]))
    run = load_run(path)
    assert "one+breakdown" not in {s.id for group in run.groups for s in group.samples}
    read = Reader(page(run, compare(run), (), (), (), ()))
    assert "one+breakdown" in read.words
    assert "breakdown.csv" in read.links
