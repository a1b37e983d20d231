"""The Neuron Layer test really checks: right layers pass, and a fault in any one of them fails."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import pytest

from testbed.experiment.workload import WORKLOADS, Command, find_workload
from testbed.machine.native_build import COMPILER

PROGRAMS = WORKLOADS / "programs"
CASES = 58
LIMIT_S = 300

pytestmark = [pytest.mark.opencl, pytest.mark.native]

Steps = dict[str, bool]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the program, built as strictly as our own code and with sanitizers."""
    folder = tmp_path_factory.mktemp("neuron")
    flags = ["-O1", "-g", "-std=gnu11", "-Wall", "-Wextra", "-Werror", "-fsanitize=undefined"]
    argv = [COMPILER, *flags, "-fno-sanitize-recover=all", "-o", str(folder / "neuron_layer")]
    libraries = ["-l:libOpenCL.so.1", "-lm", "-ldl"]
    subprocess.run(
        [*argv, str(PROGRAMS / "neuron_layer.c"), *libraries], check=True, timeout=LIMIT_S
    )
    return folder


def run(folder: Path, old: str, new: str, *arguments: str) -> tuple[int, Steps, str]:
    """Run with `old` replaced by `new` in the kernels: status, which cases passed, errors."""
    text = (PROGRAMS / "neuron_layer.cl").read_text(encoding="utf-8")
    assert text.count(old) == 1
    (folder / "neuron_layer.cl").write_text(text.replace(old, new), encoding="utf-8")
    done = subprocess.run(
        [str(folder / "neuron_layer"), *arguments],
        env={**os.environ, "POCL_CACHE_DIR": str(folder / "cache")},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    steps = [line for line in lines if line["event"] == "step"]
    # The largest deviation as a share of what is allowed; 3f800000 is 1.
    return done.returncode, {s["case"]: s["loss_bits"] <= "3f800000" for s in steps}, done.stderr


def test_the_whole_set_is_58_cases_over_at_least_15_layers() -> None:
    workload = find_workload("neuron-layer")
    assert isinstance(workload.task, Command)
    assert workload.task.deterministic
    assert workload.steps - workload.warmup_steps == CASES
    source = (PROGRAMS / "neuron_layer.c").read_text(encoding="utf-8")
    rows = re.findall(r'^    \{"([^"]+)", "(\w+)", \w+, ', source, re.MULTILINE)
    assert 2 * len(rows) == 2 * len({title for title, _ in rows}) == CASES
    assert len({layer for _, layer in rows}) >= 15
    kernels = (PROGRAMS / "neuron_layer.cl").read_text(encoding="utf-8")
    assert {layer for _, layer in rows} == set(re.findall(r"^LAYER\((\w+),", kernels, re.M))


def test_the_gradients_are_checked_in_every_channel_of_both_samples() -> None:
    task = find_workload("neuron-layer").task
    assert isinstance(task, Command)
    source = (PROGRAMS / "neuron_layer.c").read_text(encoding="utf-8")
    size = {name: int(value) for name, value in re.findall(r"#define (\w+) (\d+)u", source)}
    planes, plane = size["SAMPLES"] * size["CHANNELS"], 4 * 5
    assert "#define PLANE (4u * 5u)" in source
    checked = range(0, planes * plane, int(task.argv[3]))
    assert {index // plane for index in checked} == set(range(planes))


def test_a_fault_in_every_gradient_fails_every_gradient_and_nothing_else(folder: Path) -> None:
    status, passed, errors = run(folder, "(slope);", "((slope) + 0.01f);", str(CASES), "0", "40")
    assert status == 1
    assert len(passed) == CASES
    assert {case for case, ok in passed.items() if ok} == {
        case for case in passed if case.endswith(", forward")
    }
    assert "GELU, gradient, element" in errors


def test_a_fault_in_every_result_fails_every_forward_case(folder: Path) -> None:
    status, passed, _ = run(folder, "(top_value);", "(top_value) + 0.0002f;", str(CASES), "0", "40")
    assert status == 1
    # A constant is lost in a difference, so that the gradients are still right.
    assert {case for case, ok in passed.items() if not ok} == {
        case for case in passed if case.endswith(", forward")
    }


@pytest.mark.parametrize(
    ("old", "new", "layer", "failing"),
    [
        ("x * (1.0f - t * t)", "x * (1.0f + t * t)", "mish", {"Mish, gradient"}),
        ("top_diff[i] * bottom[i];", "top_diff[i];", "prelu", None),
        (
            "x > 0.0f ? x : a *x, x > 0.0f ? 1.0f : a)",
            "x > 0.0f ? x : a *x, x > 0.0f ? 1.0f : 0.0f)",
            "relu",
            {"leaky ReLU, gradient"},
        ),
    ],
)
def test_one_wrong_layer_is_named(
    folder: Path, old: str, new: str, layer: str, failing: set[str] | None
) -> None:
    failing = failing or {"PReLU, gradient", "PReLU, shared slope, gradient"}
    status, passed, errors = run(folder, old, new, "8", "0", "5", layer)
    assert status == 1
    assert {case for case, ok in passed.items() if not ok} == failing
    assert {re.split(r", element|, slope \d", line)[0] for line in errors.splitlines()} <= failing


def test_right_layers_pass_and_repeat_bit_for_bit(folder: Path) -> None:
    status, passed, errors = run(folder, "(slope);", "(slope);", "4", "2", "1", "tanh")
    assert (status, errors) == (0, "")
    assert passed == {"tanh, forward": True, "tanh, gradient": True}


@pytest.mark.parametrize(
    "arguments",
    [["1", "0"], ["-1", "0", "1"], ["x", "0", "1"], ["1", "0", "0"], ["1", "0", "1", "absent"]],
)
def test_wrong_arguments_are_refused(folder: Path, arguments: list[str]) -> None:
    status, passed, errors = run(folder, "(slope);", "(slope);", *arguments)
    assert status == 2
    assert not passed
    assert errors
