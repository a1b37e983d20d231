"""Models that a workload can name: each is a list of layers, as `layers:` in YAML would give it.

A layer is a mapping with a `kind`; `LAYER_KEYS` says which keys each kind takes.  The training
program gets the finished list and knows nothing of the zoo.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from testbed.errors import TestbedError
from testbed.yamlfile import Section

Layer = dict[str, Any]

ACTIVATIONS = ("relu", "tanh", "sigmoid", "elu", "softplus")
POOLS = ("max", "avg")
LAYERS_LIMIT = 200
WIDTH_LIMIT = 65536
KERNEL_LIMIT = 64

#: The keys of each kind of layer, besides `kind`.
LAYER_KEYS: dict[str, tuple[str, ...]] = {
    "conv": ("channels", "size", "stride", "padding"),
    "linear": ("outputs",),
    "pool": ("how", "size", "stride"),
    "activation": ("function",),
    "flatten": (),
}


def lenet5(section: Section) -> list[Layer]:
    """LeNet-5 (LeCun and others, 1998) for 32 x 32 inputs, with ordinary pooling layers."""
    activation = section.choice("activation", ACTIVATIONS, "tanh")
    pool = section.choice("pool", POOLS, "max")
    layers: list[Layer] = []
    for channels in (6, 16):
        layers += [_conv(channels, 5), _activation(activation), _pool(pool)]
    layers.append({"kind": "flatten"})
    for outputs in (120, 84):
        layers += [_linear(outputs), _activation(activation)]
    return [*layers, _linear(10)]


def lenet_caffe(section: Section) -> list[Layer]:
    """LeNet as Caffe ships it for MNIST (28 x 28 inputs)."""
    del section  # takes no parameters
    layers: list[Layer] = []
    for channels in (20, 50):
        layers += [_conv(channels, 5), _pool("max")]
    return [*layers, {"kind": "flatten"}, _linear(500), _activation("relu"), _linear(10)]


def mlp(section: Section) -> list[Layer]:
    """Fully connected layers of the widths in `hidden`, then one output per class."""
    activation = section.choice("activation", ACTIVATIONS, "relu")
    hidden = section.integers("hidden")
    if not hidden or any(not 1 <= width <= WIDTH_LIMIT for width in hidden):
        raise section.error("hidden", f"must list widths of 1 to {WIDTH_LIMIT}")
    layers: list[Layer] = [{"kind": "flatten"}]
    for width in hidden:
        layers += [_linear(width), _activation(activation)]
    return [*layers, _linear(10)]


#: Name -> a function that reads the model's own keys from YAML and gives its layers.
ZOO: dict[str, Callable[[Section], list[Layer]]] = {
    "lenet5": lenet5,
    "lenet-caffe": lenet_caffe,
    "mlp": mlp,
}


def read_layer(section: Section) -> Layer:
    """One entry of `layers:`.  Raises TestbedError naming file, line and key."""
    kind = section.choice("kind", tuple(LAYER_KEYS))
    layer: Layer = {"kind": kind}
    if kind == "conv":
        layer["channels"] = section.integer("channels", minimum=1, maximum=WIDTH_LIMIT)
        layer["size"] = section.integer("size", minimum=1, maximum=KERNEL_LIMIT)
        layer["stride"] = section.integer("stride", 1, minimum=1, maximum=KERNEL_LIMIT)
        layer["padding"] = section.integer("padding", 0, minimum=0, maximum=KERNEL_LIMIT)
    elif kind == "linear":
        layer["outputs"] = section.integer("outputs", minimum=1, maximum=WIDTH_LIMIT)
    elif kind == "pool":
        layer["how"] = section.choice("how", POOLS, "max")
        layer["size"] = section.integer("size", 2, minimum=1, maximum=KERNEL_LIMIT)
        layer["stride"] = section.integer("stride", layer["size"], minimum=1, maximum=KERNEL_LIMIT)
    elif kind == "activation":
        layer["function"] = section.choice("function", ACTIVATIONS)
    section.finish()
    return layer


def parameter_shapes(
    layers: Sequence[Layer], input_shape: tuple[int, ...], classes: int
) -> dict[str, tuple[int, ...]]:
    """Name and shape of every weight, in order: `i.weight` and `i.bias` for layer i.

    `input_shape` is that of one sample (channels, height, width).  Raises TestbedError naming the
    layer that does not fit what comes before it, or a last layer without one output per class.
    """
    shapes: dict[str, tuple[int, ...]] = {}
    shape = input_shape
    for index, layer in enumerate(layers):
        shape, weight = _after(index, layer, shape)
        if weight:
            shapes[f"{index}.weight"] = weight
            shapes[f"{index}.bias"] = weight[:1]
    if shape != (classes,):
        raise TestbedError(
            f"the model ends with the shape {_shown(shape)} for {classes} classes",
            f"end it with a linear layer of {classes} outputs",
        )
    return shapes


def fan_in(weight_shape: tuple[int, ...]) -> int:
    """Number of inputs that one output of a layer sums over."""
    return math.prod(weight_shape[1:])


def _after(
    index: int, layer: Layer, shape: tuple[int, ...]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The shape behind a layer and the shape of its weight (empty if it has none)."""
    kind = layer["kind"]
    if kind in ("conv", "pool"):
        if len(shape) != 3:
            raise _misfit(index, layer, shape, "put it before `flatten` and `linear`")
        channels, height, width = shape
        size, stride, padding = layer["size"], layer["stride"], layer.get("padding", 0)
        height = (height + 2 * padding - size) // stride + 1
        width = (width + 2 * padding - size) // stride + 1
        if height < 1 or width < 1:
            raise _misfit(index, layer, shape, "make the input larger or the window smaller")
        if kind == "pool":
            return (channels, height, width), ()
        return (layer["channels"], height, width), (layer["channels"], channels, size, size)
    if kind == "linear":
        if len(shape) != 1:
            raise _misfit(index, layer, shape, "put `kind: flatten` before it")
        return (layer["outputs"],), (layer["outputs"], shape[0])
    if kind == "flatten":
        return (math.prod(shape),), ()
    return shape, ()


def _misfit(index: int, layer: Layer, shape: tuple[int, ...], remedy: str) -> TestbedError:
    return TestbedError(
        f"layer {index} ({layer['kind']}) does not fit the shape {_shown(shape)} before it", remedy
    )


def _shown(shape: tuple[int, ...]) -> str:
    return " x ".join(str(side) for side in shape)


def _conv(channels: int, size: int) -> Layer:
    return {"kind": "conv", "channels": channels, "size": size, "stride": 1, "padding": 0}


def _pool(how: str) -> Layer:
    return {"kind": "pool", "how": how, "size": 2, "stride": 2}


def _linear(outputs: int) -> Layer:
    return {"kind": "linear", "outputs": outputs}


def _activation(function: str) -> Layer:
    return {"kind": "activation", "function": function}
