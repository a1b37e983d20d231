"""Models on the accelerator: each kind of layer against numpy, and training that learns."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import yaml

from testbed import yamlfile
from testbed.experiment import data, prepare, zoo
from testbed.experiment.events import Trajectory, read_events
from testbed.experiment.gate import check_trajectory
from testbed.experiment.workload import Model, Workload, find_workload, parse_workload

pytestmark = pytest.mark.opencl

Array = npt.NDArray[np.float64]
Layers = list[dict[str, Any]]
STEPS = 3
LIMIT_S = 600.0


def conv() -> dict[str, Any]:
    return {"kind": "conv", "channels": 4, "size": 3, "padding": 1}


IMAGES: Layers = [
    conv(),
    {"kind": "batchnorm"},
    {"kind": "activation", "function": "relu"},
    {"kind": "pool", "how": "max", "size": 3, "stride": 2, "padding": 1},
    {
        "kind": "residual",
        "body": [
            {"kind": "conv", "channels": 6, "size": 3, "stride": 2, "padding": 1, "bias": False}
        ],
        "shortcut": [{"kind": "conv", "channels": 6, "size": 1, "stride": 2}],
    },
    {"kind": "activation", "function": "silu"},
    {"kind": "pool", "how": "avg", "size": 2, "stride": 1},
    {"kind": "mean"},
    {"kind": "linear", "outputs": 5},
]
ROWS: Layers = [
    {"kind": "sequence", "of": "rows"},
    {"kind": "lstm", "hidden": 6},
    {"kind": "last"},
    {"kind": "activation", "function": "elu"},
    {"kind": "linear", "outputs": 5},
]
PIXELS: Layers = [
    {"kind": "conv", "channels": 6, "size": 4, "stride": 4},
    {"kind": "sequence", "of": "pixels"},
    {"kind": "positions"},
    {
        "kind": "residual",
        "body": [{"kind": "layernorm"}, {"kind": "attention", "heads": 2}],
    },
    {"kind": "linear", "outputs": 7, "bias": False},
    {"kind": "activation", "function": "tanh"},
    {"kind": "flatten"},
    {"kind": "linear", "outputs": 5},
]


def workload(layers: Layers, name: str) -> Workload:
    """A workload of these layers on small synthetic images, forward alone."""
    settings = {
        "name": name,
        "doc": "A test.",
        "model": {"layers": layers},
        "data": {"set": "synthetic", "shape": [2, 8, 8], "classes": 5, "samples": 8, "seed": 1},
        "mode": "inference",
        "optimiser": {"kind": "sgd", "rate": 0.05},
        "batch": 4,
        "weights_seed": 1,
        "steps": STEPS,
        "packages": [vars(package) for package in find_workload("lenet-digits").packages],
        "environment": dict(find_workload("lenet-digits").environment),
    }
    text = yaml.safe_dump(settings, sort_keys=False)
    return parse_workload(yamlfile.parse(text, Path(f"{name}.yaml")))


@pytest.mark.parametrize("name", ["images", "rows", "pixels"])
def test_layers_compute_what_numpy_computes(name: str, tmp_path: Path) -> None:
    chosen = workload({"images": IMAGES, "rows": ROWS, "pixels": PIXELS}[name], name)
    assert isinstance(chosen.task, Model)
    native = run(chosen, tmp_path)
    assert native.start["mode"] == "inference"
    assert native.start["data"]["origin"] == "synthetic"
    tensors = prepare.data_tensors(chosen.task, STEPS)
    owned = {key: floats(tensors[key]) for key in tensors if key not in ("x", "y")}
    samples, labels = floats(tensors["x"]), np.frombuffer(tensors["y"][2], "<i4").reshape(2, 4)
    for step in native.steps:
        # Eight samples fill two batches; the third step begins again.
        batch = step.index % 2
        outputs = forward(list(chosen.task.layers), owned, samples[batch], "")
        shifted = outputs - outputs.max(axis=1, keepdims=True)
        chances = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
        expected = -chances[np.arange(4), labels[batch]].mean()
        assert step.loss == pytest.approx(expected, rel=2e-5)


def run(chosen: Workload, folder: Path) -> Trajectory:
    bundle = prepare.prepare(chosen, traced=True)
    prepare.run_native(bundle, folder / "out", LIMIT_S, folder / "log")
    return read_events((folder / "out").read_text(encoding="utf-8").splitlines())


def floats(tensor: tuple[str, tuple[int, ...], bytes]) -> Array:
    _, shape, raw = tensor
    values: Array = np.frombuffer(raw, "<f4").reshape(shape).astype(np.float64)
    return values


def forward(layers: list[zoo.Layer], owned: dict[str, Array], x: Array, path: str) -> Array:
    for index, layer in enumerate(layers):
        prefix = f"{path}{index}."
        own = {
            key.removeprefix(prefix): value
            for key, value in owned.items()
            if key.startswith(prefix)
        }
        if layer["kind"] == "residual":
            body = forward(layer["body"], owned, x, f"{prefix}body.")
            x = body + forward(layer["shortcut"], owned, x, f"{prefix}shortcut.")
        else:
            x = apply(layer, own, x)
    return x


def apply(layer: zoo.Layer, own: dict[str, Array], x: Array) -> Array:
    """One layer in the plainest words."""
    kind = layer["kind"]
    if kind in ("conv", "pool"):
        return windows(layer, own, x)
    if kind == "linear":
        return x @ own["weight"].T + own.get("bias", np.zeros(1))
    if kind == "batchnorm":
        each = {key: value.reshape(1, -1, 1, 1) for key, value in own.items()}
        scaled = (x - each["mean"]) / np.sqrt(each["variance"] + 1e-5)
        return scaled * each["weight"] + each["bias"]
    if kind == "layernorm":
        centred: Array = x - x.mean(axis=-1, keepdims=True)
        spread = np.sqrt(np.square(centred).mean(axis=-1, keepdims=True) + 1e-5)
        normal: Array = centred / spread * own["weight"] + own["bias"]
        return normal
    if kind == "activation":
        return ACTIVATIONS[layer["function"]](x)
    if kind == "sequence":
        batch, channels, height, width = x.shape
        if layer["of"] == "rows":
            return np.stack([x[:, :, row].reshape(batch, -1) for row in range(height)], axis=1)
        return x.reshape(batch, channels, height * width).swapaxes(1, 2)
    if kind == "positions":
        return x + own["weight"]
    if kind == "attention":
        return attention(layer["heads"], own, x)
    if kind == "lstm":
        return lstm(own, x)
    if kind == "last":
        return x[:, -1]
    if kind == "mean":
        means: Array = x.mean(axis=(2, 3) if x.ndim == 4 else 1)
        return means
    assert kind == "flatten"
    return x.reshape(len(x), -1)


ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "relu": lambda x: np.maximum(x, 0),
    "silu": lambda x: x / (1 + np.exp(-x)),
    "tanh": np.tanh,
    "elu": lambda x: np.where(x > 0, x, np.expm1(np.minimum(x, 0))),
}


def windows(layer: zoo.Layer, own: dict[str, Array], x: Array) -> Array:
    size, stride, padding = layer["size"], layer["stride"], layer["padding"]
    fill = -np.inf if layer.get("how") == "max" else 0.0
    wide = np.pad(x, [(0, 0), (0, 0), *[(padding, padding)] * 2], constant_values=fill)
    sides = [(side - size) // stride + 1 for side in wide.shape[2:]]
    rows = []
    for top in range(sides[0]):
        row = []
        for left in range(sides[1]):
            y, z = top * stride, left * stride
            window = wide[:, :, y : y + size, z : z + size]
            if layer["kind"] == "conv":
                value = np.einsum("bchw,ochw->bo", window, own["weight"]) + own.get("bias", 0.0)
            elif layer["how"] == "max":
                value = window.max(axis=(2, 3))
            else:
                value = window.mean(axis=(2, 3))
            row.append(value)
        rows.append(np.stack(row, axis=-1))
    return np.stack(rows, axis=-2)


def attention(heads: int, own: dict[str, Array], x: Array) -> Array:
    three = x @ own["weight"].T + own["bias"]
    query, key, value = np.split(three, 3, axis=-1)
    width = x.shape[-1] // heads
    seen = []
    for head in range(heads):
        part = slice(head * width, (head + 1) * width)
        score = query[..., part] @ key[..., part].swapaxes(1, 2) / math.sqrt(width)
        weight = np.exp(score - score.max(axis=-1, keepdims=True))
        seen.append(weight / weight.sum(axis=-1, keepdims=True) @ value[..., part])
    return np.concatenate(seen, axis=-1) @ own["out_weight"].T + own["out_bias"]


def lstm(own: dict[str, Array], x: Array) -> Array:
    hidden = own["recurrent_weight"].shape[1]
    state, cell = np.zeros((len(x), hidden)), np.zeros((len(x), hidden))
    states = []
    for at in range(x.shape[1]):
        gates = x[:, at] @ own["weight"].T + state @ own["recurrent_weight"].T + own["bias"]
        enter, forget, leave = (1 / (1 + np.exp(-part)) for part in np.split(gates, 4, axis=1)[:3])
        cell = forget * cell + enter * np.tanh(np.split(gates, 4, axis=1)[3])
        state = leave * np.tanh(cell)
        states.append(state)
    return np.stack(states, axis=1)


@pytest.mark.parametrize("name", ["lstm-small", "transformer-small", "resnet18-small"])
def test_models_learn_and_captured_steps_compute_the_same(name: str, tmp_path: Path) -> None:
    """One of each family: recurrent, with Adam and attention, with statistics of batches."""
    chosen = find_workload(name)
    assert isinstance(chosen.task, Model)
    native = prepare.reference(prepare.prepare(chosen, traced=True))
    assert native is not None
    losses = [step.loss or math.nan for step in native.steps]
    assert sum(losses[-10:]) < 0.9 * sum(losses[:10])
    prepare.run_native(prepare.prepare(chosen), tmp_path / "out", LIMIT_S, tmp_path / "log")
    captured = read_events((tmp_path / "out").read_text(encoding="utf-8").splitlines())
    assert captured.start["start"] == "captured"
    assert check_trajectory(native, captured, chosen.tolerance, chosen.steps).passed


def test_inference_of_an_untrained_model_says_its_first_loss(tmp_path: Path) -> None:
    """Forward alone with the same weights and batch, so the first loss of training."""
    chosen = find_workload("mlp-digits").resized(steps=20)
    assert isinstance(chosen.task, Model)
    training = prepare.reference(prepare.prepare(chosen))
    forward_alone = run(replace(chosen, task=replace(chosen.task, mode="inference")), tmp_path)
    assert training is not None
    assert forward_alone.steps[0].loss == pytest.approx(training.steps[0].loss, rel=1e-6)
    assert data.describe(chosen.task.data)["origin"] == "real"
