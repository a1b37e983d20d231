"""Models that a workload can name: each is a list of layers, as `layers:` in YAML would give it.

A layer is a mapping with a `kind`; `LAYER_KEYS` says which keys each kind takes.  The training
program gets the finished list and knows nothing of the zoo.

The classic models come in two scales: `published`, as their authors describe them, and `small`, the
same layers with fewer channels and smaller inputs, so that a processor can train them.  None has
dropout or local response normalisation: neither is needed to learn, and a trial must repeat bit for
bit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from testbed.errors import TestbedError
from testbed.yamlfile import Section

Layer = dict[str, Any]
Shape = tuple[int, ...]

ACTIVATIONS = ("relu", "tanh", "sigmoid", "elu", "softplus", "gelu", "silu")
RECTIFIERS = ("relu", "elu", "gelu", "silu")
POOLS = ("max", "avg")
ORDERS = ("rows", "pixels")
SCALES = ("small", "published")
LAYERS_LIMIT = 200
DEPTH_LIMIT = 3
WIDTH_LIMIT = 65536
KERNEL_LIMIT = 64
HEADS_LIMIT = 256
LAST_SPREAD = 0.05

#: The keys of each kind of layer, besides `kind`.
LAYER_KEYS: dict[str, tuple[str, ...]] = {
    "conv": ("channels", "size", "stride", "padding", "bias"),
    "linear": ("outputs", "bias"),
    "pool": ("how", "size", "stride", "padding"),
    "activation": ("function",),
    "flatten": (),
    "batchnorm": (),
    "layernorm": (),
    "residual": ("body", "shortcut"),
    "mean": (),
    "sequence": ("of",),
    "positions": (),
    "attention": ("heads",),
    "lstm": ("hidden",),
    "last": (),
}


@dataclass(frozen=True)
class Parameter:
    """Shape and start of a tensor that a layer owns.

    `spread` is the variance of the initial values times the number of inputs; without one all are
    `value`.
    """

    shape: Shape
    spread: float = 0.0
    value: float = 0.0


def lenet5(section: Section, classes: int) -> list[Layer]:
    """LeNet-5 (LeCun and others, 1998) for 32 x 32 inputs, with ordinary pooling layers."""
    activation = section.choice("activation", ACTIVATIONS, "tanh")
    pool = section.choice("pool", POOLS, "max")
    layers: list[Layer] = []
    for channels in (6, 16):
        layers += [_conv(channels, 5), _activation(activation), _pool(pool)]
    layers.append({"kind": "flatten"})
    for outputs in (120, 84):
        layers += [_linear(outputs), _activation(activation)]
    return [*layers, _linear(classes)]


def lenet_caffe(section: Section, classes: int) -> list[Layer]:
    """LeNet as Caffe ships it for MNIST (28 x 28 inputs)."""
    del section  # takes no parameters
    layers: list[Layer] = []
    for channels in (20, 50):
        layers += [_conv(channels, 5), _pool("max")]
    return [*layers, {"kind": "flatten"}, _linear(500), _activation("relu"), _linear(classes)]


def mlp(section: Section, classes: int) -> list[Layer]:
    """Fully connected layers of the widths in `hidden`, then one output per class."""
    activation = section.choice("activation", ACTIVATIONS, "relu")
    hidden = section.integers("hidden")
    if not hidden or any(not 1 <= width <= WIDTH_LIMIT for width in hidden):
        raise section.error("hidden", f"must list widths of 1 to {WIDTH_LIMIT}")
    layers: list[Layer] = [{"kind": "flatten"}]
    for width in hidden:
        layers += [_linear(width), _activation(activation)]
    return [*layers, _linear(classes)]


def cifar10_quick(section: Section, classes: int) -> list[Layer]:
    """Caffe's CIFAR-10 "quick" (32 x 32 inputs); small: a quarter of the channels."""
    widths = _scaled(section, (8, 8, 16, 16), (32, 32, 64, 64))
    first, second, third, hidden = widths
    return [
        *(_conv(first, 5, padding=2), _pool("max", 3, 2, 1), _activation("relu")),
        *(_conv(second, 5, padding=2), _activation("relu"), _pool("avg", 3, 2, 1)),
        *(_conv(third, 5, padding=2), _activation("relu"), _pool("avg", 3, 2, 1)),
        *({"kind": "flatten"}, _linear(hidden), _linear(classes)),
    ]


def alexnet(section: Section, classes: int) -> list[Layer]:
    """AlexNet in one column (Krizhevsky, 2014; 224 x 224); small: 16 x 16, an eighth as wide."""
    small = section.choice("scale", SCALES, "published") == "small"
    widths, hidden = ((8, 24, 48, 32, 32), 128) if small else ((64, 192, 384, 256, 256), 4096)
    stem = _conv(widths[0], 3, padding=1) if small else _conv(widths[0], 11, 4, 2)
    pool = _pool("max", 3, 2, 1) if small else _pool("max", 3, 2)
    relu = _activation("relu")
    return [
        *(stem, relu, pool),
        *(_conv(widths[1], 5, padding=2), relu, pool),
        *(_conv(widths[2], 3, padding=1), relu),
        *(_conv(widths[3], 3, padding=1), relu),
        *(_conv(widths[4], 3, padding=1), relu, pool),
        *({"kind": "flatten"}, _linear(hidden), relu, _linear(hidden), relu, _linear(classes)),
    ]


def vgg11(section: Section, classes: int) -> list[Layer]:
    """VGG-11, configuration A (Simonyan and Zisserman, 2014; 224 x 224); small: 32 x 32, 1/8."""
    widths = (64, 128, 256, 256, 512, 512, 512, 512, 4096)
    *channels, hidden = _scaled(section, (8, 16, 32, 32, 64, 64, 64, 64, 64), widths)
    layers: list[Layer] = []
    for index, width in enumerate(channels):
        layers += [_conv(width, 3, padding=1), _activation("relu")]
        if index in (0, 1, 3, 5, 7):
            layers.append(_pool("max"))
    layers.append({"kind": "flatten"})
    for _ in range(2):
        layers += [_linear(hidden), _activation("relu")]
    return [*layers, _linear(classes)]


def resnet18(section: Section, classes: int) -> list[Layer]:
    """ResNet-18 (He and others, 2015; 224 x 224); small: 16 x 16, an eighth as wide, no pooling."""
    small = section.choice("scale", SCALES, "published") == "small"
    width = 8 if small else 64
    if small:
        layers = [*_conv_norm(width, 3), _activation("relu")]
    else:
        layers = [*_conv_norm(width, 7, 2, 3), _activation("relu"), _pool("max", 3, 2, 1)]
    for stage in range(4):
        for block in range(2):
            halves = stage > 0 and block == 0
            channels, stride = width << stage, 2 if halves else 1
            body = [*_conv_norm(channels, 3, stride), _activation("relu"), *_conv_norm(channels, 3)]
            shortcut = _conv_norm(channels, 1, stride, 0) if halves else []
            layers.append({"kind": "residual", "body": body, "shortcut": shortcut})
            layers.append(_activation("relu"))
    return [*layers, {"kind": "mean"}, _linear(classes)]


def lstm(section: Section, classes: int) -> list[Layer]:
    """An LSTM that reads an image row by row, and the class from its last state."""
    (hidden,) = _scaled(section, (32,), (128,))
    return [
        *({"kind": "sequence", "of": "rows"}, {"kind": "lstm", "hidden": hidden}),
        *({"kind": "last"}, _linear(classes)),
    ]


def transformer(section: Section, classes: int) -> list[Layer]:
    """A vision transformer, DeiT-Tiny (Touvron and others, 2021; 224 x 224) with mean pooling.

    Small: patches of 2 x 2 of an 8 x 8 image, two blocks of width 32 with two heads.
    """
    patch, width, heads, blocks, factor = _scaled(section, (2, 32, 2, 2, 2), (16, 192, 3, 12, 4))
    layers = [
        _conv(width, patch, patch),
        {"kind": "sequence", "of": "pixels"},
        {"kind": "positions"},
    ]
    for _ in range(blocks):
        attention: list[Layer] = [{"kind": "layernorm"}, {"kind": "attention", "heads": heads}]
        feed_forward = [
            *({"kind": "layernorm"}, _linear(factor * width)),
            *(_activation("gelu"), _linear(width)),
        ]
        for body in (attention, feed_forward):
            layers.append({"kind": "residual", "body": body, "shortcut": []})
    return [*layers, {"kind": "layernorm"}, {"kind": "mean"}, _linear(classes)]


#: Name -> a function that reads the model's own keys from YAML and gives its layers.
ZOO: dict[str, Callable[[Section, int], list[Layer]]] = {
    "lenet5": lenet5,
    "lenet-caffe": lenet_caffe,
    "mlp": mlp,
    "cifar10-quick": cifar10_quick,
    "alexnet": alexnet,
    "vgg11": vgg11,
    "resnet18": resnet18,
    "lstm": lstm,
    "transformer": transformer,
}


def read_layer(section: Section, depth: int = 0) -> Layer:
    """One entry of `layers:`.  Raises TestbedError naming file, line and key."""
    kind = section.choice("kind", tuple(LAYER_KEYS))
    layer: Layer = {"kind": kind}
    if kind == "conv":
        layer["channels"] = section.integer("channels", minimum=1, maximum=WIDTH_LIMIT)
        layer["size"] = section.integer("size", minimum=1, maximum=KERNEL_LIMIT)
        layer["stride"] = section.integer("stride", 1, minimum=1, maximum=KERNEL_LIMIT)
        layer["padding"] = section.integer("padding", 0, minimum=0, maximum=KERNEL_LIMIT)
        layer["bias"] = section.boolean("bias", True)
    elif kind == "linear":
        layer["outputs"] = section.integer("outputs", minimum=1, maximum=WIDTH_LIMIT)
        layer["bias"] = section.boolean("bias", True)
    elif kind == "pool":
        layer["how"] = section.choice("how", POOLS, "max")
        layer["size"] = section.integer("size", 2, minimum=1, maximum=KERNEL_LIMIT)
        layer["stride"] = section.integer("stride", layer["size"], minimum=1, maximum=KERNEL_LIMIT)
        layer["padding"] = section.integer("padding", 0, minimum=0, maximum=layer["size"] // 2)
    elif kind == "activation":
        layer["function"] = section.choice("function", ACTIVATIONS)
    elif kind == "residual":
        if depth == DEPTH_LIMIT:
            raise section.error("kind", f"is nested deeper than {DEPTH_LIMIT} levels", "flatten it")
        layer["body"] = [read_layer(item, depth + 1) for item in section.sections("body")]
        shortcut = section.sections("shortcut", ())
        layer["shortcut"] = [read_layer(item, depth + 1) for item in shortcut]
    elif kind == "sequence":
        layer["of"] = section.choice("of", ORDERS)
    elif kind == "attention":
        layer["heads"] = section.integer("heads", minimum=1, maximum=HEADS_LIMIT)
    elif kind == "lstm":
        layer["hidden"] = section.integer("hidden", minimum=1, maximum=WIDTH_LIMIT)
    section.finish()
    return layer


def parameters(layers: Sequence[Layer], input_shape: Shape, classes: int) -> dict[str, Parameter]:
    """Name and start of every tensor that the layers own, in order: `i.weight` for layer i.

    Those of a residual's layers are named `i.body.j.weight`.  `input_shape` is that of one sample
    (channels, height, width).  Raises TestbedError naming the layer that does not fit what comes
    before it, or a last layer without one output per class.
    """
    found: dict[str, Parameter] = {}
    shape = _walk("", layers, input_shape, found)
    last = f"{len(layers) - 1}.weight"
    if last in found and any(layer.get("function") in RECTIFIERS for layer in layers):
        # Rectifiers and largest-of pools let values grow; so that a model starts undecided, and
        # not wrong with certainty, its last layer starts small.
        found[last] = replace(found[last], spread=LAST_SPREAD)
    if shape != (classes,):
        raise TestbedError(
            f"the model ends with the shape {_shown(shape)} for {classes} classes",
            f"end it with a linear layer of {classes} outputs",
        )
    return found


def _walk(path: str, layers: Sequence[Layer], shape: Shape, found: dict[str, Parameter]) -> Shape:
    """Add the parameters of some layers; returns the shape behind them."""
    for index, layer in enumerate(layers):
        name = f"{path}{index}"
        if layer["kind"] == "residual":
            body = _walk(f"{name}.body.", layer["body"], shape, found)
            around = _walk(f"{name}.shortcut.", layer["shortcut"], shape, found)
            if body != around:
                raise TestbedError(
                    f"layer {name} (residual) adds the shape {_shown(body)} of its body to "
                    f"{_shown(around)} of its shortcut",
                    "give the shortcut a conv of size 1 with the body's channels and stride",
                )
            shape = body
            continue
        # Weights before a rectifier get twice the variance (He and others, 2015).
        rest = [item for item in layers[index + 1 :] if item["kind"] not in ("batchnorm", "pool")]
        rectified = bool(rest) and rest[0].get("function") in RECTIFIERS
        shape, own = _after(name, layer, shape, 2.0 if rectified else 1.0)
        found.update({f"{name}.{suffix}": parameter for suffix, parameter in own.items()})
    return shape


def _after(
    name: str, layer: Layer, shape: Shape, spread: float
) -> tuple[Shape, Mapping[str, Parameter]]:
    """The shape behind a layer and what the layer owns."""
    kind = layer["kind"]
    if kind in ("conv", "pool"):
        return _after_window(name, layer, shape, spread)
    if kind in ("batchnorm", "sequence"):
        channels, height, width = _image(name, layer, shape)
        if kind == "sequence":
            rows = layer["of"] == "rows"
            return ((height, channels * width) if rows else (height * width, channels)), {}
        ones, zeros = Parameter((channels,), value=1.0), Parameter((channels,))
        return shape, {"weight": ones, "bias": zeros, "mean": zeros, "variance": ones}
    if kind in ("positions", "attention", "lstm", "last"):
        return _after_sequence(name, layer, shape)
    if kind == "linear":
        if len(shape) not in (1, 2):
            raise _misfit(name, layer, shape, "put `kind: flatten` before it")
        outputs = layer["outputs"]
        own = {"weight": Parameter((outputs, shape[-1]), spread)}
        return (*shape[:-1], outputs), own | _bias(layer, outputs)
    if kind == "layernorm":
        features = shape[-1:]
        return shape, {"weight": Parameter(features, value=1.0), "bias": Parameter(features)}
    if kind == "mean":
        if len(shape) == 1:
            raise _misfit(name, layer, shape, "it averages images and sequences")
        return (shape[0] if len(shape) == 3 else shape[1],), {}
    if kind == "flatten":
        return (math.prod(shape),), {}
    return shape, {}


def _after_window(
    name: str, layer: Layer, shape: Shape, spread: float
) -> tuple[Shape, Mapping[str, Parameter]]:
    """Layers that slide a window over an image."""
    channels, height, width = _image(name, layer, shape)
    size, stride, padding = layer["size"], layer["stride"], layer["padding"]
    height = (height + 2 * padding - size) // stride + 1
    width = (width + 2 * padding - size) // stride + 1
    if height < 1 or width < 1:
        raise _misfit(name, layer, shape, "make the input larger or the window smaller")
    if layer["kind"] == "pool":
        return (channels, height, width), {}
    outputs = layer["channels"]
    own = {"weight": Parameter((outputs, channels, size, size), spread)}
    return (outputs, height, width), own | _bias(layer, outputs)


def _after_sequence(name: str, layer: Layer, shape: Shape) -> tuple[Shape, Mapping[str, Parameter]]:
    """Layers that take a sequence: (length, features)."""
    if len(shape) != 2:
        raise _misfit(name, layer, shape, "put `kind: sequence` before it")
    kind, features = layer["kind"], shape[1]
    if kind == "positions":
        return shape, {"weight": Parameter(shape, 0.01 * math.prod(shape[1:]))}
    if kind == "attention":
        if features % layer["heads"]:
            raise _misfit(
                name, layer, shape, f"{features} is no multiple of {layer['heads']} heads"
            )
        return shape, {
            "weight": Parameter((3 * features, features), 1.0),
            "bias": Parameter((3 * features,)),
            "out_weight": Parameter((features, features), 1.0),
            "out_bias": Parameter((features,)),
        }
    if kind == "lstm":
        hidden = layer["hidden"]
        return (shape[0], hidden), {
            "weight": Parameter((4 * hidden, features), 1.0),
            "recurrent_weight": Parameter((4 * hidden, hidden), 1.0),
            "bias": Parameter((4 * hidden,)),
        }
    return (features,), {}


def _image(name: str, layer: Layer, shape: Shape) -> Shape:
    if len(shape) != 3:
        raise _misfit(name, layer, shape, "put it before `flatten`, `sequence` and `linear`")
    return shape


def _bias(layer: Layer, outputs: int) -> dict[str, Parameter]:
    return {"bias": Parameter((outputs,))} if layer["bias"] else {}


def _misfit(name: str, layer: Layer, shape: Shape, remedy: str) -> TestbedError:
    return TestbedError(
        f"layer {name} ({layer['kind']}) does not fit the shape {_shown(shape)} before it", remedy
    )


def _shown(shape: Shape) -> str:
    return " x ".join(str(side) for side in shape)


def _scaled(section: Section, small: Shape, published: Shape) -> Shape:
    """The figures of the scale that the workload asks for."""
    return small if section.choice("scale", SCALES, "published") == "small" else published


def _conv(channels: int, size: int, stride: int = 1, padding: int = 0, bias: bool = True) -> Layer:
    return {
        **{"kind": "conv", "channels": channels, "size": size},
        **{"stride": stride, "padding": padding, "bias": bias},
    }


def _conv_norm(channels: int, size: int, stride: int = 1, padding: int = 1) -> list[Layer]:
    return [_conv(channels, size, stride, padding, bias=False), {"kind": "batchnorm"}]


def _pool(how: str, size: int = 2, stride: int = 2, padding: int = 0) -> Layer:
    return {"kind": "pool", "how": how, "size": size, "stride": stride, "padding": padding}


def _linear(outputs: int) -> Layer:
    return {"kind": "linear", "outputs": outputs, "bias": True}


def _activation(function: str) -> Layer:
    return {"kind": "activation", "function": function}
