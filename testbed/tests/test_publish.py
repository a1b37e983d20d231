"""Publishing: a kept run gives the same tables from its compressed record, and is never half."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from testbed.analysis.publish import publish
from testbed.analysis.report import plot
from testbed.analysis.rundir import read_lines
from testbed.errors import TestbedError
from testbed.tests.test_tables import made_up_run


def finished_run(folder: Path) -> Path:
    path = made_up_run(folder)
    manifest = json.loads((path / "manifest.json").read_text())
    (path / "manifest.json").write_text(json.dumps({**manifest, "state": "finished"}))
    return path


def test_a_published_run_has_the_same_tables_from_a_compressed_record(tmp_path: Path) -> None:
    run, out = finished_run(tmp_path / "results"), tmp_path / "published" / "example"
    plot(run)
    size = publish(run, out)
    files = [file for file in out.rglob("*") if file.is_file()]
    assert size == sum(file.stat().st_size for file in files)
    # Nothing of the record as it was, nothing that is large and made again.
    assert {file.suffix for file in (out / "events").iterdir()} == {".gz"}
    assert not {".svg", ".pdf", ".html", ".log"} & {file.suffix for file in files}
    assert (out / "figures" / "speedup.png").is_file()
    for trial in read_lines(out / "trials.jsonl"):
        assert read_lines(out / trial["events"]) == read_lines(run / trial["events"])
    for table in (run / "tables").iterdir():
        assert (out / "tables" / table.name).read_text() == table.read_text()
    # Published once more from the copy, or from the run: the same bytes.
    publish(out, tmp_path / "again")
    for file in files:
        assert (tmp_path / "again" / file.relative_to(out)).read_bytes() == file.read_bytes()


def test_what_is_not_whole_is_not_published(tmp_path: Path) -> None:
    stopped = made_up_run(tmp_path / "stopped")
    out = tmp_path / "out"
    with pytest.raises(TestbedError, match="is not finished") as told:
        publish(stopped, out)
    assert f"--resume {stopped}" in str(told.value)
    run = finished_run(tmp_path / "results")
    (lost, *_) = (run / "events").iterdir()
    content = lost.read_text()
    lost.unlink()
    with pytest.raises(
        TestbedError, match=f"lacks the events of 1 trials, first events/{lost.name}"
    ):
        publish(run, out)
    lost.write_text("no JSON\n" + content)
    with pytest.raises(TestbedError, match="damaged line"):
        publish(run, out)
    assert not out.exists()
    lost.write_text(content)
    out.mkdir()
    with pytest.raises(TestbedError, match="exists"):
        publish(run, out)


def test_damaged_compressed_events_are_named(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl.gz").write_bytes(b"\x1f\x8b\x08nothing")
    with pytest.raises(TestbedError, match=r"a\.jsonl\.gz is damaged"):
        read_lines(tmp_path / "a.jsonl")
