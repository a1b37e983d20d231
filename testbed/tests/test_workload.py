"""Workload files: what they may say, and that every mistake names its place."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from testbed import yamlfile
from testbed.errors import TestbedError
from testbed.experiment import zoo
from testbed.experiment.workload import (
    WORKLOADS,
    Command,
    Model,
    OwnMetric,
    Workload,
    find_workload,
    load_workload,
    parse_workload,
    workload_names,
)
from testbed.experiment.workload_schema import schema_text, workload_schema

MODEL: dict[str, Any] = {
    "name": "some",
    "doc": "A model.",
    "model": {"name": "mlp", "hidden": [16]},
    "data": {"set": "digits", "size": 8, "seed": 3},
    "optimiser": {"kind": "sgd", "rate": 0.1},
    "batch": 4,
    "weights_seed": 1,
    "steps": 5,
    "packages": [{"name": "tinygrad", "version": "0.12.0", "sha256": "0" * 64}],
}
METRIC = {"name": "bandwidth", "unit": "GB/s", "pattern": "Copy: (?P<value>.*) GB/s"}
COMMAND: dict[str, Any] = {
    "name": "some",
    "doc": "A command.",
    "command": {"argv": ["clinfo"]},
    "steps": 1,
}


def read(settings: dict[str, Any], path: Path = Path("some.yaml")) -> Workload:
    return parse_workload(yamlfile.parse(yaml.safe_dump(settings, sort_keys=False), path))


def test_every_committed_workload_loads_and_fits_the_schema() -> None:
    names = workload_names()
    assert "lenet-digits" in names
    schema = workload_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    for name in names:
        path = WORKLOADS / f"{name}.yaml"
        assert load_workload(path).name == name
        jsonschema.validate(yaml.safe_load(path.read_text(encoding="utf-8")), schema)


def test_the_committed_schema_is_the_generated_one() -> None:
    assert (WORKLOADS / "schema.json").read_text(encoding="utf-8") == schema_text(), (
        "run `python -m testbed.experiment.workload`"
    )


def test_lenet_digits_is_the_workload_of_the_comparison() -> None:
    workload = find_workload("lenet-digits")
    assert isinstance(workload.task, Model)
    assert (workload.task.batch, workload.task.optimiser.rate) == (8, 0.01)
    assert workload.task.optimiser.momentum == 0.9
    assert workload.tolerance.is_exact
    assert [package.name for package in workload.packages] == ["tinygrad"]
    owned = zoo.parameters(workload.task.layers, (1, 32, 32), 10)
    assert owned["0.weight"].shape == (6, 1, 5, 5)
    assert owned["7.weight"].shape == (120, 400)
    assert sum(1 for name in owned if name.endswith("weight")) == 5


def test_a_misspelt_key_names_file_line_and_the_nearest_key() -> None:
    text = yaml.safe_dump({**MODEL, "warmup_step": 2}, sort_keys=False)
    line = text.splitlines().index("warmup_step: 2") + 1
    with pytest.raises(TestbedError) as caught:
        parse_workload(yamlfile.parse(text, Path("some.yaml")))
    assert f"some.yaml:{line}" in caught.value.what
    assert "warmup_steps" in caught.value.remedy


CHANGES: list[tuple[dict[str, Any], str]] = [
    ({"name": "other"}, "name"),
    ({"model": {"name": "lenet55"}}, "lenet5"),
    ({"model": {"name": "mlp", "hidden": []}}, "hidden"),
    ({"model": {"name": "mlp", "hidden": [16], "layers": []}}, "layers"),
    ({"model": {"name": "lenet5", "hidden": [16]}}, "hidden"),
    ({"model": {"layers": [{"kind": "linear", "outputs": 10}]}}, "flatten"),
    ({"model": {"layers": [{"kind": "flatten"}, {"kind": "linear", "outputs": 9}]}}, "10 classes"),
    ({"model": {"layers": [{"kind": "flatten", "size": 3}]}}, "size"),
    ({"model": {"name": "lenet5"}}, "does not fit"),
    ({"data": {"set": "digits", "size": 20, "seed": 1}}, "multiple"),
    ({"data": {"set": "mnist", "seed": 1}}, "digits"),
    ({"optimiser": {"kind": "sgd", "rate": -1}}, "rate"),
    ({"batch": 0}, "batch"),
    ({"batch": "8"}, "batch"),
    ({"steps": 3, "warmup_steps": 3}, "warmup_steps"),
    ({"packages": [{"name": "tinygrad", "version": "0.12.0", "sha256": "00"}]}, "sha256"),
    ({"packages": [{"name": "-r", "version": "1", "sha256": "0" * 64}]}, "name"),
    ({"packages": []}, "lacks tinygrad"),
    ({"environment": {"WORMHOLE_SERVER": "x"}}, "WORMHOLE_SERVER"),
    ({"environment": {"A B": "x"}}, "A B"),
    ({"tolerance": {"absolut": 1}}, "absolute"),
    ({"command": {"argv": ["x"]}}, "either"),
]


@pytest.mark.parametrize(("change", "named"), CHANGES)
def test_a_wrong_value_is_refused_and_named(change: dict[str, Any], named: str) -> None:
    read(MODEL)  # the unchanged file is right, so it is the change that is refused
    with pytest.raises(TestbedError) as caught:
        read({**MODEL, **change})
    assert "some.yaml:" in caught.value.what
    assert named in str(caught.value)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"argv": []}, "argv"),
        ({"argv": ["x"], "files": ["../pyproject.toml"]}, "below"),
        ({"argv": ["x"], "files": ["/etc/passwd"]}, "below"),
        ({"argv": ["x"], "files": ["absent.py"]}, "absent.py"),
        ({"argv": ["x"], "step_pattern": "("}, "regular expression"),
        ({"argv": ["x"], "step_pattern": "(?P<los>x)"}, "los"),
        ({"argv": ["x"], "compile": ["absent.c"]}, "absent.c"),
        ({"argv": ["x"], "host_python": True}, "begin `argv` with python3"),
        ({"argv": ["x"], "compile": ["../x.c"]}, "below"),
        ({"argv": ["x"], "files": ["a.cl", "b"], "compile": ["b.c"]}, "one name"),
        ({"argv": ["x"], "compile": ["a.cl"]}, "C files"),
        ({"argv": ["x"], "metrics": [{"name": "b", "unit": "s", "pattern": "x"}]}, "group `value`"),
        ({"argv": ["x"], "metrics": [{"name": "B", "unit": "s", "pattern": "x"}]}, "lower-case"),
        ({"argv": ["x"], "metrics": [{"name": "b", "pattern": "(?P<value>x)"}]}, "unit"),
        ({"argv": ["x"], "metrics": [METRIC, METRIC]}, "two of one name"),
    ],
)
def test_a_wrong_command_is_refused(tmp_path: Path, change: dict[str, Any], named: str) -> None:
    for name in ("a.cl", "b", "b.c"):
        (tmp_path / name).touch()
    with pytest.raises(TestbedError) as caught:
        read({**COMMAND, "command": change}, tmp_path / "some.yaml")
    assert named in str(caught.value)


def test_a_command_has_programs_and_metrics(tmp_path: Path) -> None:
    (tmp_path / "b.c").touch()
    command = {"argv": ["{dir}/b"], "compile": ["b.c"], "metrics": [METRIC], "deterministic": True}
    settings = {**COMMAND, "command": command}
    task = read(settings, tmp_path / "some.yaml").task
    assert isinstance(task, Command)
    assert task.compile == (tmp_path / "b.c",)
    assert task.metrics == (OwnMetric(**METRIC),)
    assert task.deterministic
    assert jsonschema.Draft202012Validator(workload_schema()).is_valid(settings)


def test_a_command_may_run_on_the_hosts_python() -> None:
    for value in (True, False):
        settings = {**COMMAND, "command": {"argv": ["python3", "-V"], "host_python": value}}
        task = read(settings).task
        assert isinstance(task, Command)
        assert task.host_python is value
        assert jsonschema.Draft202012Validator(workload_schema()).is_valid(settings)


def test_a_command_has_no_model_keys() -> None:
    assert isinstance(read(COMMAND).task, Command)
    with pytest.raises(TestbedError, match="batch"):
        read({**COMMAND, "batch": 8})
    with pytest.raises(TestbedError, match="no batch"):
        read(COMMAND).resized(batch=8)


def test_resizing_leaves_steps_to_measure() -> None:
    workload = read({**MODEL, "warmup_steps": 2})
    resized = workload.resized(batch=16, steps=3)
    assert isinstance(resized.task, Model)
    assert (resized.task.batch, resized.steps) == (16, 3)
    with pytest.raises(TestbedError, match="warm-up"):
        workload.resized(steps=2)


def test_an_unknown_workload_lists_the_known_ones() -> None:
    with pytest.raises(TestbedError) as caught:
        find_workload("lenet-digit")
    assert "lenet-digits" in caught.value.remedy


def test_schema_and_loader_know_the_same_keys() -> None:
    """Every key that the schema allows is known to the loader, and the other way round."""
    properties = workload_schema()["properties"]
    section = yamlfile.parse(yaml.safe_dump({**MODEL, "zzz": 1}), Path("some.yaml"))
    with pytest.raises(TestbedError) as caught:
        parse_workload(section)
    listed = caught.value.remedy.removeprefix("valid keys here: ").split(", ")
    assert sorted([*listed, "command"]) == sorted(properties)


@pytest.mark.parametrize(("change", "named"), CHANGES)
def test_the_schema_refuses_what_the_loader_refuses(change: dict[str, Any], named: str) -> None:
    beyond_a_schema = {
        "lacks tinygrad",
        "name",
        "10 classes",
        "flatten",
        "does not fit",
        "warmup_steps",
    }
    validator = jsonschema.Draft202012Validator(json.loads(schema_text()))
    assert validator.is_valid(MODEL)
    assert validator.is_valid({**MODEL, **change}) == (
        named in beyond_a_schema and change.get("packages") in (None, [])
    )
