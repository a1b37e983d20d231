"""Recordings: what is in one, and that a damaged or foreign one is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from testbed.errors import TestbedError
from testbed.experiment import recording
from testbed.experiment.prepare import Bundle
from testbed.experiment.recording import read_recording
from testbed.experiment.workload import Command, find_workload
from testbed.protocol.wire import hash_of_specs


def opcode(name: str) -> int:
    return next(code for code, known in recording.function_names().items() if known == name)


def entry(kind: int, body: bytes, thread: int = 0) -> bytes:
    head = recording.ENTRY.pack(kind, thread, len(body), 1)
    return head + body + bytes(-len(body) % recording.ALIGNMENT)


def request(name: str, sequence: int, thread: int = 0, data: bytes = b"") -> bytes:
    size = recording.REQUEST.size + len(data)
    head = recording.REQUEST.pack(size, opcode(name), 1, 0, sequence)
    return entry(recording.TYPE_REQUEST, head + data, thread)


def reply(sequence: int, data: bytes = b"") -> bytes:
    head = recording.REPLY.pack(sequence, recording.REPLY.size + len(data), 0, 0, 0, 0)
    return entry(recording.TYPE_REPLY, head + data)


def mark(label: str) -> bytes:
    return entry(recording.TYPE_MARK, label.encode())


def header(version: int = recording.VERSION, spec: int | None = None) -> bytes:
    spec = hash_of_specs() if spec is None else spec
    return recording.HEADER.pack(recording.MAGIC, version, 0, spec, 0)


GOOD = [
    header(),
    request("clFlush", 1, data=b"12345"),
    reply(1),
    mark("step 0"),
    request("clFinish", 2),
    request("clFlush", 3, thread=1),
    reply(3, b"abc"),
    reply(2),
]


def written(tmp_path: Path, *parts: bytes) -> Path:
    path = tmp_path / "calls.whrec"
    path.write_bytes(b"".join(parts))
    return path


def test_a_recording_is_counted(tmp_path: Path) -> None:
    found = read_recording(written(tmp_path, *GOOD))
    assert found.calls == 3
    assert found.functions == {"clFlush": 2, "clFinish": 1}
    assert found.marks == ("step 0",)
    assert found.calls_at_marks == (1,)
    assert found.threads == 2
    assert found.request_bytes == 3 * recording.REQUEST.size + 5
    assert found.reply_bytes == 3 * recording.REPLY.size + 3


def test_a_cut_inside_an_entry_is_noticed(tmp_path: Path) -> None:
    ends = {sum(len(part) for part in GOOD[:count]) for count in range(len(GOOD) + 1)}
    whole = b"".join(GOOD)
    for length in set(range(len(whole))) - ends:
        with pytest.raises(TestbedError):
            read_recording(written(tmp_path, whole[:length]))


@pytest.mark.parametrize(
    ("parts", "named"),
    [
        ([header(version=9)], "version 9"),
        ([header(spec=1), *GOOD[1:]], "specs 0000000000000001"),
        ([b"\0" * 64], "no recording"),
        ([header()], "no calls"),
        ([header(), mark("ready")], "no calls"),
        ([header(), reply(7)], "unknown request 7"),
        ([header(), request("clFlush", 1), reply(1), reply(1)], "entry 2"),
        ([header(), request("clFlush", 1)], "clFlush (request 1) has no answer"),
        ([header(), entry(9, b"")], "unknown type 9"),
        ([header(), entry(recording.TYPE_REQUEST, b"12345678")], "impossible size 8"),
        ([header(), recording.ENTRY.pack(3, 0, 1 << 60, 1)], "impossible size"),
    ],
)
def test_what_is_no_recording_is_refused(tmp_path: Path, parts: list[bytes], named: str) -> None:
    with pytest.raises(TestbedError) as caught:
        read_recording(written(tmp_path, *parts))
    assert named in caught.value.what
    assert "calls.whrec" in caught.value.what


def test_a_recording_of_another_accelerator_is_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made_for: list[str] = []
    now = {"device": ""}

    def record(argv: object, environment: object, path: Path, *_: object) -> None:
        made_for.append(now["device"])
        path.write_bytes(b"".join(GOOD))

    monkeypatch.setenv("WORMHOLE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(recording, "native_build", lambda: SimpleNamespace(directory=tmp_path))
    monkeypatch.setattr(recording, "record_program", record)
    monkeypatch.setattr(recording, "reference", lambda bundle: None)
    monkeypatch.setattr(recording, "opencl", lambda: now)
    task = Command(argv=("program",), files=(), step_pattern=None)
    workload = replace(find_workload("mlp-digits"), task=task, environment=())
    for now["device"] in ("one", "other", "one"):
        recording.record_bundle(Bundle(workload, tmp_path, "key", ""))
    assert made_for == ["one", "other"]


def test_a_missing_recording_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(TestbedError, match="No such file"):
        read_recording(tmp_path / "absent")
