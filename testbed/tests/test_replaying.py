"""Recording a real training and replaying it under every system, on this machine's OpenCL."""

from __future__ import annotations

from pathlib import Path

import pytest

from testbed.errors import TestbedError
from testbed.experiment import recording
from testbed.experiment.prepare import prepare
from testbed.experiment.recording import Recording, record_bundle, record_command
from testbed.experiment.replaying import replay_recording
from testbed.experiment.systems import PRESETS, system
from testbed.experiment.workload import find_workload

STEPS = 12

pytestmark = [pytest.mark.opencl, pytest.mark.native]


@pytest.fixture(scope="module")
def recorded() -> Recording:
    return record_bundle(prepare(find_workload("mlp-digits").resized(steps=STEPS)))


def test_a_training_is_recorded_call_by_call(recorded: Recording) -> None:
    assert recorded.marks == ("ready", *(f"step {step}" for step in range(STEPS)))
    assert recorded.functions["clFinish"] == STEPS  # one per loss that was read
    assert recorded.functions["clEnqueueReadBuffer"] == STEPS
    assert recorded.functions["clEnqueueNDRangeKernel"] % STEPS == 0
    assert recorded.calls == sum(recorded.functions.values())


@pytest.mark.parametrize("name", [p.name for p in PRESETS.values() if not p.is_gvirtus])
def test_a_replay_gives_the_recorded_bytes(name: str, recorded: Recording, tmp_path: Path) -> None:
    replayed = replay_recording(recorded.path, system(name), "process", tmp_path)
    assert replayed.verdict.passed, replayed.verdict.reason
    steps = [event for event in replayed.events if event["event"] == "step"]
    assert len(steps) == STEPS
    counted = {line["label"]: line for line in replayed.stub if "label" in line}
    assert bool(counted) != system(name).is_native
    if counted:
        # Between two marks the application's calls and no others: the loader makes some at first.
        first, last = counted["ready"], counted[f"step {STEPS - 1}"]
        calls = recorded.calls_at_marks[-1] - recorded.calls_at_marks[0]
        assert last["api_calls"] - first["api_calls"] == calls
        if name == "tcp-sync":
            assert last["round_trips"] - first["round_trips"] == calls


def test_one_wrong_byte_in_an_answer_is_found(recorded: Recording, tmp_path: Path) -> None:
    """The last loss that was read, changed in one bit."""
    raw = bytearray(recorded.path.read_bytes())
    place = _last_read(raw)
    raw[place] ^= 1
    changed = tmp_path / "changed.whrec"
    changed.write_bytes(raw)
    replayed = replay_recording(changed, system("native"), "process", tmp_path)
    assert not replayed.verdict.passed
    assert "clEnqueueReadBuffer" in replayed.verdict.reason or "clFinish" in replayed.verdict.reason


def test_a_damaged_recording_is_refused_before_anything_runs(
    recorded: Recording, tmp_path: Path
) -> None:
    cut = tmp_path / "cut.whrec"
    cut.write_bytes(recorded.path.read_bytes()[:-9])
    with pytest.raises(TestbedError, match=r"cut\.whrec is damaged"):
        replay_recording(cut, system("native"), "process", tmp_path)


def test_native_in_a_guest_is_refused(recorded: Recording, tmp_path: Path) -> None:
    with pytest.raises(TestbedError, match="native runs on the host"):
        replay_recording(recorded.path, system("native"), "guest", tmp_path)


def test_any_program_can_be_recorded(tmp_path: Path) -> None:
    made = record_command(["clinfo", "--raw"], tmp_path / "calls.whrec", tmp_path)
    assert made.functions["clGetDeviceInfo"] > 10
    replayed = replay_recording(made.path, system("native"), "process", tmp_path)
    assert replayed.verdict.passed, replayed.verdict.reason


@pytest.mark.parametrize(
    ("argv", "named"),
    [
        (["true"], "no OpenCL call"),
        (["false"], "status 1"),
        (["no-such-program"], "no-such-program"),
    ],
)
def test_what_cannot_be_recorded_is_one_clear_error(
    argv: list[str], named: str, tmp_path: Path
) -> None:
    with pytest.raises(TestbedError) as caught:
        record_command(argv, tmp_path / "calls.whrec", tmp_path)
    assert named in str(caught.value)


def _last_read(raw: bytearray) -> int:
    """The place of the last byte of data in the last answer that carries any."""
    at, found = recording.HEADER.size, 0
    while at < len(raw):
        kind, _, size, _ = recording.ENTRY.unpack_from(raw, at)
        body = at + recording.ENTRY.size
        # A read of one float32: the header of the reply, then 8 bytes with 4 of data.
        if kind == recording.TYPE_REPLY and size > recording.REPLY.size + 8:
            found = body + size - 8
        at = body + -(-size // recording.ALIGNMENT) * recording.ALIGNMENT
    assert found
    return found
