"""Preparing workloads: the same bytes everywhere, and a program that trains on them."""

from __future__ import annotations

import hashlib
import json
import math
import random
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from testbed.errors import TestbedError
from testbed.experiment import prepare
from testbed.experiment.data import Data
from testbed.experiment.datasets import digits
from testbed.experiment.events import read_events
from testbed.experiment.gate import check_trajectory
from testbed.experiment.workload import Model, find_workload, load_workload
from testbed.experiment.zoo import Parameter


def read_tensors(path: Path) -> dict[str, tuple[list[int], bytes]]:
    """Read the safetensors format, written from its description."""
    raw = path.read_bytes()
    (length,) = struct.unpack_from("<Q", raw)
    header: dict[str, Any] = json.loads(raw[8 : 8 + length])
    body = raw[8 + length :]
    return {
        name: (entry["shape"], body[entry["data_offsets"][0] : entry["data_offsets"][1]])
        for name, entry in header.items()
    }


def lenet() -> Model:
    task = find_workload("lenet-digits").task
    assert isinstance(task, Model)
    return task


def test_the_order_covers_the_set_before_it_repeats() -> None:
    order = prepare.sample_order(10, 25, seed=1)
    assert len(order) == 25
    assert sorted(order[:10]) == sorted(order[10:20]) == list(range(10))
    assert order[:10] != order[10:20]
    assert prepare.sample_order(10, 25, seed=1) == order
    assert prepare.sample_order(10, 25, seed=2) != order
    assert prepare.sample_order(10, 5, seed=1) == order[:5]


def test_tensors_are_written_as_they_are_read(tmp_path: Path) -> None:
    tensors = {
        "a": ("F32", (2,), struct.pack("<2f", 1, -2)),
        "b": ("I32", (1, 1), struct.pack("<i", 7)),
    }
    sha256 = prepare.write_tensors(tmp_path / "t", tensors)
    assert sha256 == hashlib.sha256((tmp_path / "t").read_bytes()).hexdigest()
    read = read_tensors(tmp_path / "t")
    assert read == {"a": ([2], tensors["a"][2]), "b": ([1, 1], tensors["b"][2])}


def test_the_data_are_the_same_bytes_on_every_machine(tmp_path: Path) -> None:
    """The hash was made once; a machine that gets another one would train on other data."""
    sha256 = prepare.write_tensors(tmp_path / "t", prepare.data_tensors(lenet(), steps=3))
    assert sha256 == "f242c30a81e5b17c12d807b2de045a8e7e4e10549ed2ccff1493409baf0bb9b2"


def test_images_are_the_scans_repeated_and_scaled() -> None:
    model = replace(lenet(), data=Data("digits", 1, (1, 16, 16), 10), batch=2)
    tensors = prepare.data_tensors(replace(model, layers=({"kind": "flatten"}, *LINEAR)), steps=1)
    pixels, labels = digits()
    order = prepare.sample_order(len(labels), 2, seed=1)
    values = struct.unpack("<512f", tensors["x"][2])
    for place, sample in enumerate(order):
        for row in range(16):
            for column in range(16):
                got = values[place * 256 + row * 16 + column]
                assert got == pixels[sample][row // 2][column // 2] / 8 - 1
    assert list(struct.unpack("<2i", tensors["y"][2])) == [labels[sample] for sample in order]


LINEAR = ({"kind": "linear", "outputs": 10, "bias": True},)


def test_weights_have_the_variance_that_is_promised() -> None:
    owned = {"0.weight": Parameter((200, 50), spread=1.0), "0.bias": Parameter((200,), value=0.5)}
    tensors = prepare.initial_weights(owned, seed=1)
    values = struct.unpack("<10000f", tensors["0.weight"][2])
    assert max(values) <= (3 / 50) ** 0.5
    # As Python's generator gives them, one at a time.
    generator = random.Random(1)
    first = [(2.0 * generator.random() - 1.0) * math.sqrt(3.0 / 50) for _ in range(5)]
    assert struct.pack("<5f", *first) == struct.pack("<5f", *values[:5])
    assert abs(sum(value * value for value in values) / len(values) - 1 / 50) < 0.001
    assert tensors["0.bias"][2] == struct.pack("<f", 0.5) * 200


def test_more_data_than_the_limit_is_refused() -> None:
    with pytest.raises(TestbedError, match="limit 1024"):
        prepare.data_tensors(lenet(), steps=40_000)


def test_a_command_is_prepared_with_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORMHOLE_CACHE", str(tmp_path / "cache"))
    (tmp_path / "program.py").write_text("print('loss 1.5')\n", encoding="utf-8")
    (tmp_path / "some.yaml").write_text(
        "name: some\ndoc: Some program.\nsteps: 1\n"
        "command:\n  argv: [python3, '{dir}/program.py']\n  files: [program.py]\n"
        "  step_pattern: 'loss (?P<loss>.*)'\n",
        encoding="utf-8",
    )
    bundle = prepare.prepare(load_workload(tmp_path / "some.yaml"))
    assert bundle.argv(Path("/there")) == ["python3", "/there/program.py"]
    prepare.run_native(bundle, tmp_path / "out", 60.0, tmp_path / "log")
    assert (tmp_path / "out").read_text(encoding="utf-8") == "loss 1.5\n"
    (tmp_path / "program.py").write_text("print('loss 2.5')\n", encoding="utf-8")
    assert prepare.prepare(load_workload(tmp_path / "some.yaml")).key != bundle.key


@pytest.mark.native
def test_c_programs_are_compiled_and_the_losses_of_deterministic_ones_are_the_reference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORMHOLE_CACHE", str(tmp_path / "cache"))
    source = (
        '#include <stdio.h>\nint main(int c, char **v) { printf("%s of %s\\n", v[2], v[1]); }\n'
    )
    (tmp_path / "p.c").write_text(source, encoding="utf-8")
    text = (
        "name: some\ndoc: Some program.\nsteps: 1\n"
        "command:\n  argv: ['{dir}/p', '{steps}', '{warmup_steps}']\n  compile: [p.c]\n"
        "  step_pattern: '(?P<loss>.*) of'\n"
    )
    (tmp_path / "some.yaml").write_text(text, encoding="utf-8")
    bundle = prepare.prepare(load_workload(tmp_path / "some.yaml"))
    assert bundle.argv(Path("/there")) == ["/there/p", "1", "0"]
    assert prepare.reference(bundle) is None
    (tmp_path / "some.yaml").write_text(f"{text}  deterministic: true\n", encoding="utf-8")
    native = prepare.reference(prepare.prepare(load_workload(tmp_path / "some.yaml")))
    assert native is not None
    assert [step.loss for step in native.steps] == [0.0]


@pytest.mark.native
def test_a_c_program_that_does_not_compile_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORMHOLE_CACHE", str(tmp_path / "cache"))
    (tmp_path / "p.c").write_text("int main(void) { return wrong; }\n", encoding="utf-8")
    (tmp_path / "some.yaml").write_text(
        "name: some\ndoc: Some program.\nsteps: 1\ncommand: {argv: ['{dir}/p'], compile: [p.c]}\n",
        encoding="utf-8",
    )
    with pytest.raises(TestbedError, match="wrong"):
        prepare.prepare(load_workload(tmp_path / "some.yaml"))


@pytest.mark.opencl
def test_training_repeats_bit_for_bit_traced_and_captured(tmp_path: Path) -> None:
    workload = find_workload("mlp-digits").resized(steps=20)
    bundle = prepare.prepare(workload)
    native = prepare.reference(bundle)
    assert native is not None
    assert native.start["start"] == "traced"
    assert native.start["data_sha256"] == bundle.data_sha256
    prepare.run_native(bundle, tmp_path / "out", 120.0, tmp_path / "log")
    captured = read_events((tmp_path / "out").read_text(encoding="utf-8").splitlines())
    assert captured.start["start"] == "captured"
    assert check_trajectory(native, captured, workload.tolerance, 20).passed
    first, last = captured.steps[0].loss, captured.steps[-1].loss
    assert first is not None and last is not None and last < first  # it learns


@pytest.mark.opencl
def test_changed_data_and_captured_steps_are_refused(tmp_path: Path) -> None:
    bundle = prepare.prepare(find_workload("mlp-digits").resized(steps=20))
    for name in ("data.safetensors", "captured.bin"):
        copy = tmp_path / name
        prepare._link_tree(bundle.directory, copy)
        raw = bytearray((copy / name).read_bytes())
        raw[-1] ^= 1
        (copy / name).unlink()
        (copy / name).write_bytes(raw)
        with pytest.raises(TestbedError, match="SHA-256"):
            prepare.run_native(replace(bundle, directory=copy), copy / "out", 60.0, copy / "log")
