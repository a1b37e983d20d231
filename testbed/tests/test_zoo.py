"""Models: their published sizes, the shapes of their layers, and mistakes that name a layer."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import yaml

from testbed import yamlfile
from testbed.errors import TestbedError
from testbed.experiment import zoo
from testbed.experiment.workload import Model, find_workload, workload_names
from testbed.experiment.zoo import Parameter

#: As their papers, Caffe and torchvision count them.
LEARNED = {
    "lenet-published": 431_080,
    "mlp-published": 266_610,
    "cifar10-quick-published": 145_578,
    "alexnet-published": 61_100_840,
    "vgg11-published": 132_863_336,
    "resnet18-published": 11_689_512,
}


def owned(name: str) -> dict[str, Parameter]:
    task = find_workload(name).task
    assert isinstance(task, Model)
    return zoo.parameters(task.layers, task.data.shape, task.data.classes)


def learned(name: str) -> int:
    return sum(
        math.prod(parameter.shape)
        for key, parameter in owned(name).items()
        if not key.endswith((".mean", ".variance"))
    )


@pytest.mark.parametrize(("name", "count"), LEARNED.items())
def test_published_models_have_their_published_size(name: str, count: int) -> None:
    assert learned(name) == count


def test_every_classic_model_has_both_scales() -> None:
    models = {name.removesuffix("-published") for name in workload_names() if "published" in name}
    assert models == {
        *("lenet", "mlp", "cifar10-quick", "alexnet", "vgg11", "resnet18", "lstm", "transformer")
    }
    for model in models - {"lenet", "mlp"}:
        assert learned(f"{model}-small") < 200_000  # a recording holds the weights once
    for model in ("lenet", "mlp"):
        assert learned(f"{model}-digits") < 200_000


def read(*layers: dict[str, Any]) -> list[zoo.Layer]:
    section = yamlfile.parse(yaml.safe_dump({"layers": list(layers)}), Path("some.yaml"))
    return [zoo.read_layer(item) for item in section.sections("layers")]


LINEAR = {"kind": "linear", "outputs": 3}
ROWS = {"kind": "sequence", "of": "rows"}


def shapes(*layers: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    found = zoo.parameters(read(*layers), (2, 4, 6), 3)
    return {name: parameter.shape for name, parameter in found.items()}


def test_the_shapes_of_what_layers_own() -> None:
    block = {"kind": "conv", "channels": 5, "size": 3, "padding": 1, "stride": 2, "bias": False}
    around = {"kind": "conv", "channels": 5, "size": 1, "stride": 2}
    residual = {"kind": "residual", "body": [block, {"kind": "batchnorm"}], "shortcut": [around]}
    assert shapes(residual, {"kind": "mean"}, LINEAR) == {
        "0.body.0.weight": (5, 2, 3, 3),
        **{f"0.body.1.{key}": (5,) for key in ("weight", "bias", "mean", "variance")},
        "0.shortcut.0.weight": (5, 2, 1, 1),
        "0.shortcut.0.bias": (5,),
        "2.weight": (3, 5),
        "2.bias": (3,),
    }
    attention: list[dict[str, Any]] = [
        {"kind": "attention", "heads": 4},
        {"kind": "layernorm"},
        {"kind": "positions"},
    ]
    assert shapes(ROWS, *attention, {"kind": "lstm", "hidden": 7}, {"kind": "last"}, LINEAR) == {
        "1.weight": (36, 12),
        "1.bias": (36,),
        "1.out_weight": (12, 12),
        "1.out_bias": (12,),
        "2.weight": (12,),
        "2.bias": (12,),
        "3.weight": (4, 12),
        "4.weight": (28, 12),
        "4.recurrent_weight": (28, 7),
        "4.bias": (28,),
        "6.weight": (3, 7),
        "6.bias": (3,),
    }


@pytest.mark.parametrize(
    ("layers", "named"),
    [
        (
            [ROWS, {"kind": "attention", "heads": 5}],
            "1 (attention) does not fit the shape 4 x 12",
        ),
        (
            [{"kind": "attention", "heads": 2}],
            "0 (attention) does not fit the shape 2 x 4 x 6",
        ),
        ([{"kind": "lstm", "hidden": 2}], "layer 0 (lstm)"),
        ([ROWS, {"kind": "conv", "channels": 1, "size": 1}], "layer 1 (conv)"),
        ([{"kind": "pool", "size": 5}], "layer 0 (pool) does not fit the shape 2 x 4 x 6"),
        (
            [{"kind": "flatten"}, {"kind": "batchnorm"}],
            "1 (batchnorm) does not fit the shape 48",
        ),
        ([{"kind": "flatten"}, {"kind": "mean"}], "layer 1 (mean)"),
        ([{"kind": "residual", "body": [ROWS]}], "adds the shape 4 x 12 of its body to 2 x 4 x 6"),
        (
            [{"kind": "residual", "body": [{"kind": "pool"}, {"kind": "pool", "size": 3}]}],
            "layer 0.body.1 (pool) does not fit the shape 2 x 2 x 3",
        ),
        ([LINEAR], "layer 0 (linear) does not fit the shape 2 x 4 x 6"),
        ([{"kind": "flatten"}], "ends with the shape 48 for 3 classes"),
    ],
)
def test_a_layer_that_does_not_fit_is_named_with_the_shape(
    layers: list[dict[str, Any]], named: str
) -> None:
    with pytest.raises(TestbedError) as caught:
        zoo.parameters(read(*layers), (2, 4, 6), 3)
    assert named in caught.value.what
    assert caught.value.remedy


@pytest.mark.parametrize(
    ("layer", "named"),
    [
        ({"kind": "lstm"}, "hidden"),
        ({"kind": "sequence", "of": "columns"}, "rows"),
        ({"kind": "residual", "body": [{"kind": "conv", "chanels": 3, "size": 3}]}, "channels"),
        ({"kind": "batchnorm", "size": 3}, "size"),
        ({"kind": "pool", "size": 3, "padding": 2}, "padding"),
    ],
)
def test_a_wrong_layer_names_file_line_and_key(layer: dict[str, Any], named: str) -> None:
    with pytest.raises(TestbedError) as caught:
        read(layer)
    assert "some.yaml:" in caught.value.what
    assert named in str(caught.value)


def test_nesting_has_an_end() -> None:
    layer: dict[str, Any] = {"kind": "flatten"}
    for _ in range(zoo.DEPTH_LIMIT + 1):
        layer = {"kind": "residual", "body": [layer]}
    with pytest.raises(TestbedError, match="nested deeper"):
        read(layer)
