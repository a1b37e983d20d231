"""Faults in a spec are one line that names the file and the place in it."""

from __future__ import annotations

from pathlib import Path

import pytest

from testbed.errors import TestbedError
from testbed.protocol.spec import load_api, load_wire, spec_path

FUNCTION = """
name: opencl
version: 1
doc: A test.
handles:
  - {name: queue, kind: 4, type: cl_command_queue, error: CL_INVALID_COMMAND_QUEUE}
functions:
  - name: clFlush
    opcode: 0x1
    mode: shape
    returns: cl_int
    args:
      - {name: command_queue, type: cl_command_queue, handle: queue}
"""


def _api(folder: Path, old: str, new: str) -> str:
    path = folder / "opencl.yaml"
    assert old in FUNCTION
    path.write_text(FUNCTION.replace(old, new), encoding="utf-8")
    with pytest.raises(TestbedError) as caught:
        load_api("opencl", path)
    return str(caught.value)


def test_a_good_spec(tmp_path: Path) -> None:
    path = tmp_path / "opencl.yaml"
    path.write_text(FUNCTION, encoding="utf-8")
    (function,) = load_api("opencl", path).functions
    assert function.name == "clFlush"
    assert function.forwarded
    assert function.args[0].handle == "queue"


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("mode: shape", "mode: shap", "$.functions[0](clFlush).mode"),
        ("mode: shape", "modus: shape", "$.functions[0](clFlush)"),
        ("handle: queue", "handle: queu", "unknown handle kind 'queu'"),
        ("handle: queue", "handles: queue, count: number", "count 'number' is no argument"),
        ("handle: queue", "handles: queue", "'count' is a dependency of 'handles'"),
        ("opcode: 0x1", "opcode: 0x10000", "$.functions[0](clFlush).opcode"),
        ("mode: shape", "mode: shape\n    blocks: maybe", "'maybe' is no argument"),
        ("version: 1", "version: one", "$.version"),
    ],
)
def test_faults_name_their_place(tmp_path: Path, old: str, new: str, expected: str) -> None:
    message = _api(tmp_path, old, new)
    assert message.startswith("opencl.yaml: ")
    assert expected in message


def test_an_opcode_is_used_once(tmp_path: Path) -> None:
    path = tmp_path / "opencl.yaml"
    again = FUNCTION.split("functions:\n")[1].replace("clFlush", "clFinish")
    path.write_text(FUNCTION + again, encoding="utf-8")
    with pytest.raises(TestbedError, match="'0x1' is defined twice"):
        load_api("opencl", path)


def test_misaligned_fields_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "wire.yaml"
    text = spec_path("wire").read_text(encoding="utf-8")
    old = "      - {name: session_count, type: u32}\n"
    assert old in text
    path.write_text(text.replace(old, "      - {name: session_count, type: u16}\n"), "utf-8")
    with pytest.raises(TestbedError, match=r"wire.yaml: .*region_header.*epoch.*offset"):
        load_wire(path)


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(TestbedError, match="cannot read spec"):
        load_wire(tmp_path / "wire.yaml")


def test_the_whole_dispatch_table_is_there() -> None:
    """Every function of the OpenCL 3.0 table but those of other systems (Direct3D)."""
    api = load_api("opencl")
    forwarded = [function for function in api.functions if function.forwarded]
    assert len(api.functions) == 133
    assert len(forwarded) >= 60
    names = {function.name for function in api.functions}
    assert {"clGetPlatformIDs", "clSVMAlloc", "clSetContextDestructorCallback"} <= names
    for function in forwarded:
        if function.mode == "info":
            assert function.immutable, function.name


def test_a_rule_needs_its_answer(tmp_path: Path) -> None:
    message = _api(tmp_path, "mode: shape", "mode: answered")
    assert "clFlush" in message and "answers" in message


def test_an_extension_is_listed_once(tmp_path: Path) -> None:
    twice = "extensions:\n  - {reason: A test., names: [cl_khr_icd, cl_khr_icd]}\nfunctions:"
    assert "'cl_khr_icd' is defined twice" in _api(tmp_path, "functions:", twice)
