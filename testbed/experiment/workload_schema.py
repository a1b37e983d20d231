"""The JSON schema of workload files, for editors; the loader in workload.py has the last word."""

from __future__ import annotations

import json
from typing import Any

from testbed.experiment import data, workload, zoo

Schema = dict[str, Any]


def schema_text() -> str:
    """The schema as the file `workloads/schema.json` holds it."""
    return json.dumps(workload_schema(), indent=2) + "\n"


def workload_schema() -> Schema:
    """The schema of one workload file."""
    properties: Schema = {
        "name": _text("The file's name without .yaml.", workload.NAME.pattern),
        "doc": _text("What the workload is, in a sentence."),
        "model": _model(),
        "data": _data(),
        "mode": {
            "enum": list(workload.MODES),
            "description": "Training (the default), or steps forward alone.",
        },
        "optimiser": _optimiser(),
        "batch": _integer("Samples in a step.", 1, workload.BATCH_LIMIT),
        "weights_seed": _integer("Decides the initial weights.", 0),
        "captured_step": {
            "type": "boolean",
            "description": "Trace the training step once on the host and ship it.",
        },
        "command": _command(),
        "steps": _integer("Steps of a trial, warm-up included.", 1, workload.STEPS_LIMIT),
        "warmup_steps": _integer("First steps that are not measured.", 0, workload.STEPS_LIMIT),
        "tolerance": _mapping(
            "How far a loss may be from native's; without it every bit must be equal.",
            {
                "absolute": _number("Largest difference."),
                "relative": {**_number("Largest share of the value."), "maximum": 1},
            },
        ),
        "packages": {"type": "array", "items": _package(), "description": "Pure Python wheels."},
        "environment": {
            "type": "object",
            "propertyNames": {
                "pattern": f"^(?!WORMHOLE_|LD_|OCL_ICD_){workload.VARIABLE.pattern}$"
            },
            "additionalProperties": {"type": ["string", "number", "boolean"]},
        },
        "timeout_s": _integer("Limit of one trial, in seconds.", 1, workload.TIMEOUT_LIMIT_S),
    }
    model_only = ["model", "data", "mode", "optimiser", "batch", "weights_seed", "captured_step"]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Workload",
        **_mapping("A workload of the testbed.", properties, required=["name", "doc", "steps"]),
        "$defs": {"layer": _any_layer()},
        "oneOf": [
            {
                "required": ["model", "data", "optimiser", "batch", "weights_seed", "packages"],
                "properties": {"command": False},
            },
            {"required": ["command"], "properties": dict.fromkeys(model_only, False)},
        ],
    }


def _optimiser() -> Schema:
    own: dict[str, Schema] = {
        "sgd": {"momentum": {**_number("Share of the last change."), "maximum": 1}},
        "adam": {},
    }
    forms = [
        _mapping(
            f"Optimiser: {kind}.",
            {
                "kind": {"const": kind},
                "rate": _number("Learning rate."),
                "weight_decay": _number("Pull of the weights towards zero."),
                **own[kind],
            },
            required=["kind", "rate"],
        )
        for kind in workload.OPTIMISERS
    ]
    return {"description": "How the weights are changed.", "oneOf": forms}


def _data() -> Schema:
    seed = _integer("Decides the order of the samples, and what is synthetic.", 0)
    size = {
        "type": "integer",
        "multipleOf": workload.DIGIT_SIDE,
        "minimum": workload.DIGIT_SIDE,
        "maximum": workload.DIGIT_SIDE * workload.DIGIT_SCALE_LIMIT,
        "description": "Side of the square images, in pixels.",
    }
    sides = [("Channels.", workload.CHANNELS_LIMIT), *[("Pixels.", workload.SIDE_LIMIT)] * 2]
    shape = {
        "type": "array",
        "prefixItems": [_integer(doc, 1, limit) for doc, limit in sides],
        "minItems": 3,
        "maxItems": 3,
        "description": "Of one image: channels, height, width.",
    }
    classes = _integer("Number of classes.", 1, workload.CLASSES_LIMIT)
    samples = _integer("Number of images.", 1, workload.SAMPLES_LIMIT)
    path = _text("Absolute, below `~`, or beside the workload.")
    own: dict[str, Schema] = {
        "digits": {"size": size},
        "synthetic": {"samples": samples},
        "idx": {"images": path, "labels": path},
        "npz": {
            "file": path,
            "images": _text("Name of the array of images."),
            "labels": _text("Name of the array of labels."),
        },
        "csv": {"file": path, "label": _integer("Column of the label, from 0.", 0)},
    }
    optional = ("size", "samples", "label")
    forms = []
    for name in data.DATA_SETS:
        common: Schema = {} if name == "digits" else {"shape": shape, "classes": classes}
        keys = {"set": {"const": name}, "seed": seed, **common, **own[name]}
        required = [key for key in keys if key not in optional]
        forms.append(_mapping(f"Data: {name}.", keys, required=required))
    return {"description": "What the model learns from.", "oneOf": forms}


def _model() -> Schema:
    activation = {"enum": list(zoo.ACTIVATIONS)}
    hidden = {"type": "array", "minItems": 1, "items": _integer("Width.", 1, zoo.WIDTH_LIMIT)}
    scale = {"scale": {"enum": list(zoo.SCALES)}}
    forms = {name: _named(name, scale) for name in zoo.ZOO} | {
        "lenet5": _named("lenet5", {"activation": activation, "pool": {"enum": list(zoo.POOLS)}}),
        "lenet-caffe": _named("lenet-caffe", {}),
        "mlp": _named("mlp", {"activation": activation, "hidden": hidden}, ["hidden"]),
    }
    layers = {**_layers(1), "maxItems": zoo.LAYERS_LIMIT}
    return {
        "description": "A model of the zoo by name, or its layers.",
        "oneOf": [
            *(forms[name] for name in zoo.ZOO),
            _mapping("Layers from input to output.", {"layers": layers}, required=["layers"]),
        ],
    }


def _named(name: str, parameters: Schema, required: list[str] | None = None) -> Schema:
    properties = {"name": {"const": name}, **parameters}
    return _mapping(f"{name} of the zoo.", properties, required=["name", *(required or [])])


def _layers(minimum: int) -> Schema:
    return {"type": "array", "minItems": minimum, "items": {"$ref": "#/$defs/layer"}}


def _any_layer() -> Schema:
    return {
        "type": "object",
        "required": ["kind"],
        "oneOf": [_layer(kind, keys) for kind, keys in zoo.LAYER_KEYS.items()],
    }


def _layer(kind: str, keys: tuple[str, ...]) -> Schema:
    """One kind of layer; sides and strides are windows, the rest are widths."""
    values: Schema = {
        "channels": _integer("Output channels.", 1, zoo.WIDTH_LIMIT),
        "outputs": _integer("Output values.", 1, zoo.WIDTH_LIMIT),
        "size": _integer("Side of the window.", 1, zoo.KERNEL_LIMIT),
        "stride": _integer("Step of the window.", 1, zoo.KERNEL_LIMIT),
        "padding": _integer("Zeros around the input.", 0, zoo.KERNEL_LIMIT),
        "bias": {"type": "boolean", "description": "Add a learned value to each output."},
        "how": {"enum": list(zoo.POOLS)},
        "function": {"enum": list(zoo.ACTIVATIONS)},
        "body": _layers(1),
        "shortcut": _layers(0),
        "of": {"enum": list(zoo.ORDERS)},
        "heads": _integer("Heads of attention.", 1, zoo.HEADS_LIMIT),
        "hidden": _integer("Width of the state.", 1, zoo.WIDTH_LIMIT),
    }
    required = {
        "conv": ["channels", "size"],
        "linear": ["outputs"],
        "activation": ["function"],
        "residual": ["body"],
        "sequence": ["of"],
        "attention": ["heads"],
        "lstm": ["hidden"],
    }
    properties = {"kind": {"const": kind}, **{key: values[key] for key in keys}}
    return _mapping(f"Layer: {kind}.", properties, required=["kind", *required.get(kind, [])])


def _command() -> Schema:
    texts = {"type": "array", "items": {"type": "string"}}
    metric = _mapping(
        "A figure that the program prints.",
        {
            "name": _text("Name in tables.", workload.METRIC.pattern),
            "unit": _text("Unit of the value."),
            "pattern": _text("Regular expression with a group `value`; the last match counts."),
        },
        required=["name", "unit", "pattern"],
    )
    return _mapping(
        "Any program; in its arguments `{dir}` is the folder of its files, `{steps}` and "
        "`{warmup_steps}` are numbers.",
        {
            "argv": {**texts, "minItems": 1},
            "files": texts,
            "compile": {
                "type": "array",
                "items": {"type": "string", "pattern": "\\.c$"},
                "description": "C files, each made a program of its name, linked with OpenCL.",
            },
            "step_pattern": _text("Regular expression with groups `step` and `loss`."),
            "metrics": {"type": "array", "items": metric},
            "deterministic": {
                "type": "boolean",
                "description": "Its losses must be those of a native run.",
            },
            "api": {
                "enum": list(workload.APIS),
                "description": "What it asks of the accelerator.",
            },
            "host_python": {
                "type": "boolean",
                "description": "In guests, too, python3 is the host's own with its packages.",
            },
        },
        required=["argv"],
    )


def _package() -> Schema:
    return _mapping(
        "A wheel from PyPI.",
        {
            "name": _text("Name on PyPI.", workload.PACKAGE.pattern),
            "version": _text("Exact version.", workload.VERSION.pattern),
            "sha256": _text("Hash of the wheel.", workload.SHA256.pattern),
        },
        required=["name", "version", "sha256"],
    )


def _mapping(doc: str, properties: Schema, required: list[str] | None = None) -> Schema:
    return {
        "type": "object",
        "description": doc,
        "properties": properties,
        "required": required or [],
        "additionalProperties": False,
    }


def _text(doc: str, pattern: str | None = None) -> Schema:
    schema: Schema = {"type": "string", "description": doc}
    return schema if pattern is None else {**schema, "pattern": f"^(?:{pattern})$"}


def _integer(doc: str, minimum: int, maximum: int | None = None) -> Schema:
    schema: Schema = {"type": "integer", "description": doc, "minimum": minimum}
    return schema if maximum is None else {**schema, "maximum": maximum}


def _number(doc: str) -> Schema:
    return {"type": "number", "description": doc, "minimum": 0}
