"""The run directory: what survives a crash, a full disk and a second run."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from testbed.analysis.rundir import read_lines
from testbed.errors import TestbedError
from testbed.experiment.record import RunDirectory, file_name
from testbed.tests.experiments import example, new_run


def test_two_runs_of_one_second_do_not_collide(tmp_path: Path) -> None:
    with new_run(tmp_path, example()) as first, new_run(tmp_path, example()) as second:
        assert first.path != second.path
        assert first.path.parent == second.path.parent == tmp_path / "example"


def test_a_run_is_held_by_one_process(tmp_path: Path) -> None:
    with new_run(tmp_path, example()) as run, pytest.raises(TestbedError, match="in use"):
        RunDirectory.resume(run.path)
    with RunDirectory.resume(run.path) as again:
        assert again.path == run.path


def test_torn_last_line_is_dropped_on_resume(tmp_path: Path) -> None:
    with new_run(tmp_path, example()) as run:
        run.append_trial({"id": "a"})
        run.append_trial({"id": "b"})
    trials = run.path / "trials.jsonl"
    with trials.open("ab") as sink:
        sink.write(b'{"id":"c","stat')
    assert [line["id"] for line in read_lines(trials)] == ["a", "b"]
    with RunDirectory.resume(run.path) as again:
        assert again.finished_ids() == {"a", "b"}
        again.append_trial({"id": "c"})
    assert [line["id"] for line in read_lines(trials)] == ["a", "b", "c"]


def test_damage_in_the_middle_is_an_error_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "trials.jsonl"
    path.write_text('{"id":"a"}\n{"id"\n{"id":"c"}\n')
    with pytest.raises(TestbedError, match=r"trials\.jsonl:2: damaged line"):
        read_lines(path)


def test_full_disk_is_one_clear_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with new_run(tmp_path, example()) as run:
        monkeypatch.setattr(os, "fsync", full)
        with pytest.raises(TestbedError, match=r"the disk of .* is full - .*--resume"):
            run.append_trial({"id": "a"})


def test_little_space_is_refused_before_anything_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("testbed.experiment.record.FREE_SPACE_NEEDED_BYTES", 1 << 60)
    with pytest.raises(TestbedError, match="MiB are free for results"):
        new_run(tmp_path, example())


def test_a_directory_without_manifest_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(TestbedError, match="not a run directory"):
        RunDirectory.resume(tmp_path)


def test_manifest_is_replaced_whole(tmp_path: Path) -> None:
    with new_run(tmp_path, example()) as run:
        run.write_manifest({"state": "running"})
        run.write_manifest({"state": "finished"})
        assert run.manifest() == {"state": "finished"}
    assert not list(run.path.glob(".manifest*"))


def test_a_second_attempt_replaces_events_and_logs(tmp_path: Path) -> None:
    with new_run(tmp_path, example()) as run:
        run.append_events("p/r01/s", [{"event": "step"}, {"event": "step"}])
        (run.log_directory("p/r01/s") / "old.log").write_text("old")
        path = run.append_events("p/r01/s", [{"event": "end"}])
        assert read_lines(path) == [{"event": "end"}]
        assert list(run.log_directory("p/r01/s").iterdir()) == []


def test_ids_become_distinct_file_names() -> None:
    assert file_name("replay/guest/r01/lenet-digits-b8/wormhole") == (
        "replay__guest__r01__lenet-digits-b8__wormhole"
    )
