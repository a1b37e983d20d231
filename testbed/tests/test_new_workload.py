"""The walk of workloads/README.md, as it is written: each command, and what it prints."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from testbed.errors import TestbedError
from testbed.experiment.experiment import EXPERIMENTS, load_experiment
from testbed.experiment.new_workload import new_workload
from testbed.experiment.workload import WORKLOADS, Model, load_workload
from testbed.root import ROOT

HEADING = "## Ten minutes"
NAME = "my-digits"
LIMIT_S = 900


def walk() -> list[tuple[str, list[str]]]:
    """Each command of the walk with the lines that it is said to print."""
    text = (WORKLOADS / "README.md").read_text(encoding="utf-8")
    section = text.split(HEADING)[1].split("\n## ")[0]
    found: list[tuple[str, list[str]]] = []
    for line in section.splitlines():
        if line.startswith("    $ "):
            found.append((line.removeprefix("    $ "), []))
        elif line.startswith("    "):
            found[-1][1].append(line.strip())
    return found


def plain(line: str) -> str:
    """A line without what differs each time: the time at its start, durations, paths."""
    line = re.sub(r"^\[[^]]*\] ", "", line.strip()).replace(f"{ROOT}/", "")
    return re.sub(r"\b\d+ (s|min)\b", "N s", re.sub(r"\b\d+ min \d+ s\b", "N s", line))


def missing(said: list[str], printed: str) -> str | None:
    """The first line of `said` that is not printed where it should be; `...` is any lines."""
    lines = [plain(line) for line in printed.splitlines() if line.strip()]
    at, anywhere = 0, False
    for wanted in said:
        if wanted == "...":
            anywhere = True
            continue
        rest = lines[at:] if anywhere else lines[at : at + 1]
        if plain(wanted) not in rest:
            return wanted
        at += rest.index(plain(wanted)) + 1
        anywhere = False
    return None if anywhere or at == len(lines) else f"(no more lines, but there is: {lines[at]})"


@pytest.mark.opencl
@pytest.mark.native
def test_the_walk_is_as_it_is_written() -> None:
    files = [WORKLOADS / f"{NAME}.yaml", EXPERIMENTS / f"{NAME}.yaml"]
    assert not any(path.exists() for path in files), f"{NAME} is the name of the walk"
    commands = walk()
    assert [command for command, _ in commands if command.startswith("./inv run")]
    try:
        for command, said in commands:
            done = subprocess.run(
                ["sh", "-c", command],
                cwd=ROOT,
                env={**os.environ, "COLUMNS": "200"},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=LIMIT_S,
                check=False,
            )
            lacking = missing(said, done.stdout)
            assert lacking is None, f"{command}: {lacking}\n{done.stdout}"
            assert done.returncode == (1 if said and said[0].startswith("error:") else 0)
        assert not any(path.exists() for path in files)
    finally:
        for path in files:
            path.unlink(missing_ok=True)


def test_the_comparison_of_lines_sees_what_is_wrong() -> None:
    assert missing(["a", "...", "c in 3 s"], "[1 s] a\nb\nc in 1 min 5 s\n") is None
    assert missing(["a"], "a\nb\n") == "(no more lines, but there is: b)"
    assert missing(["...", "b"], "a\n") == "b"
    assert missing(["b", "..."], "a\nb\n") == "b"


def test_a_new_workload_and_its_experiment_are_right(tmp_path: Path) -> None:
    workload, experiment = new_workload("some-model", tmp_path)
    loaded = load_workload(workload)
    assert isinstance(loaded.task, Model)
    assert loaded.name == "some-model"
    part = load_experiment(experiment).parts[0]
    assert [choice.name for choice in part.workloads] == ["some-model"]
    assert "NAME" not in workload.read_text(encoding="utf-8").replace("NAME`", "")


@pytest.mark.parametrize("name", ["", "Some", "../x", "a b"])
def test_a_wrong_name_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(TestbedError, match="no name of a workload"):
        new_workload(name, tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("place", ["some.yaml", "experiments/some.yaml"])
def test_nothing_is_overwritten(tmp_path: Path, place: str) -> None:
    (tmp_path / "experiments").mkdir()
    (tmp_path / place).write_text("mine", encoding="utf-8")
    with pytest.raises(TestbedError, match="is there already"):
        new_workload("some", tmp_path)
    assert [path.read_text() for path in tmp_path.rglob("*.yaml")] == ["mine"]
