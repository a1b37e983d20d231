"""Loads the data sets that a model can learn from: samples and labels.

Real scans that a package carries (`digits`), files that people have (`idx`, `npz`, `csv`), or
`synthetic` images from a seed.  What is computed is the same on every machine: integers come from
Python's own generator, and floats from them by operations that IEEE 754 rounds correctly.
"""

from __future__ import annotations

import functools
import gzip
import math
import random
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from testbed.errors import TestbedError
from testbed.experiment.data import Data, Shape, unreadable

DIGITS_HALF_RANGE = 8  # pixels are 0..16; /8 - 1 is exact in float32
PIXEL_HALF_RANGE = 127.5
PROTOTYPE_SIDE = 4  # synthetic classes differ in a coarse pattern, which convolutions can find
FILE_BYTES_LIMIT = 4 << 30
IDX_UNSIGNED_BYTES = 0x08

Floats = npt.NDArray[np.float32]
Integers = npt.NDArray[np.int32]


@dataclass(frozen=True)
class Samples:
    """All samples of a set: images (sample, channel, row, column) and the class of each."""

    images: Floats
    labels: Integers


def load(data: Data) -> Samples:
    """All samples of a set.  Raises TestbedError if a file is not what the workload says."""
    samples = LOADERS[data.name](data)
    images, labels = samples.images, samples.labels
    if len(images) != len(labels) or not len(images):
        raise TestbedError(
            f"the data set has {len(images)} images and {len(labels)} labels",
            "give an image file and the label file that belongs to it",
        )
    if labels.min() < 0 or labels.max() >= data.classes:
        raise TestbedError(
            f"the labels of the data set go from {labels.min()} to {labels.max()}",
            f"the workload says `classes: {data.classes}`, which allows 0 to {data.classes - 1}",
        )
    if not np.isfinite(images).all():
        raise TestbedError("the data set holds values that are not finite", "clean the file")
    return samples


@functools.cache
def digits() -> tuple[npt.NDArray[np.uint8], Integers]:
    """Pixels (0..16) and labels of scikit-learn's digits, 8 x 8 each."""
    from sklearn.datasets import load_digits

    found = load_digits()
    return found.images.astype(np.uint8), found.target.astype(np.int32)


def _digits(data: Data) -> Samples:
    """The scans as float32 in [-1, 1], every pixel repeated."""
    pixels, labels = digits()
    images = pixels.astype(np.float32) / np.float32(DIGITS_HALF_RANGE) - np.float32(1)
    factor = data.shape[1] // images.shape[1]
    wide = images.repeat(factor, axis=1).repeat(factor, axis=2)
    return Samples(wide[:, None].repeat(data.shape[0], axis=1), labels)


def _synthetic(data: Data) -> Samples:
    """Each class has a coarse pattern; a sample is half pattern, half noise."""
    channels, height, width = data.shape
    generator = random.Random(data.seed)
    labels = np.arange(data.samples, dtype=np.int32) % data.classes
    sides = (min(PROTOTYPE_SIDE, height), min(PROTOTYPE_SIDE, width))
    coarse = _bytes(generator, (min(data.classes, data.samples), channels, *sides))
    rows, columns = np.arange(height) * sides[0] // height, np.arange(width) * sides[1] // width
    patterns = coarse[:, :, rows][:, :, :, columns]
    noise = _bytes(generator, (data.samples, channels, height, width))
    return Samples((patterns[labels] + noise) * np.float32(0.5), labels)


def _bytes(generator: random.Random, shape: Shape) -> Floats:
    """Uniform values in [-1, 1], 256 of them."""
    raw = np.frombuffer(generator.randbytes(math.prod(shape)), np.uint8).reshape(shape)
    return raw.astype(np.float32) / np.float32(PIXEL_HALF_RANGE) - np.float32(1)


def _idx(data: Data) -> Samples:
    images, labels = (_read_idx(path) for path in data.files)
    return Samples(_images(data, images), _labels(data.files[1], labels))


def _read_idx(path: Path) -> npt.NDArray[np.uint8]:
    """A file of the MNIST data base: u16 0, type, dimensions, u32 sizes (big endian), the data."""
    raw = _content(path)
    if len(raw) < 4 or raw[:2] != b"\0\0" or raw[2] != IDX_UNSIGNED_BYTES or raw[3] > 4:
        raise TestbedError(
            f"{path} is no IDX file of bytes", "give e.g. train-images-idx3-ubyte, or its .gz"
        )
    head = 4 + 4 * raw[3]
    if len(raw) < head:
        raise TestbedError(f"{path} is cut off in its head", "fetch it again")
    sizes = struct.unpack(f">{raw[3]}I", raw[4:head])
    if len(raw) != head + math.prod(sizes):
        raise TestbedError(
            f"{path} has {len(raw) - head} bytes of data, its head says {math.prod(sizes)}",
            "fetch it again",
        )
    return np.frombuffer(raw, np.uint8, offset=head).reshape(sizes)


def _content(path: Path) -> bytes:
    """A file's content, unpacked if it is a gzip file."""
    try:
        with path.open("rb") as handle:
            packed = handle.read(2) == b"\x1f\x8b"
        with gzip.open(path) if packed else path.open("rb") as source:
            raw = source.read(FILE_BYTES_LIMIT + 1)
    except (OSError, EOFError) as error:
        raise unreadable(path, error) from error
    if len(raw) > FILE_BYTES_LIMIT:
        raise TestbedError(f"{path} holds more than {FILE_BYTES_LIMIT >> 30} GiB", "take a part")
    return raw


def _npz(data: Data) -> Samples:
    (path,) = data.files
    try:
        with np.load(path, allow_pickle=False) as archive:
            known = ", ".join(archive.files)
            missing = [name for name in data.arrays if name not in archive.files]
            if missing:
                raise TestbedError(f"{path} has no array `{missing[0]}`", f"it has: {known}")
            images, labels = (archive[name] for name in data.arrays)
    except (OSError, ValueError, AttributeError) as error:
        raise unreadable(path, error) from error
    return Samples(_images(data, images), _labels(path, labels))


def _csv(data: Data) -> Samples:
    """One sample a line; a first line that is no numbers is a heading."""
    import pandas

    (path,) = data.files
    try:
        with path.open(encoding="utf-8", errors="replace") as source:
            heading = any(character.isalpha() for character in source.readline())
        table = pandas.read_csv(path, header=0 if heading else None).to_numpy()
    except (OSError, ValueError) as error:
        raise unreadable(path, error) from error
    if data.label_column >= table.shape[1]:
        raise TestbedError(
            f"{path} has {table.shape[1]} columns, and `label` names column {data.label_column}",
            "columns count from 0",
        )
    labels = table[:, data.label_column]
    return Samples(
        _images(data, np.delete(table, data.label_column, axis=1)), _labels(path, labels)
    )


def _images(data: Data, values: npt.NDArray[Any]) -> Floats:
    """Images as the model takes them: channels first, whole numbers 0..255 as -1..1."""
    path, (channels, height, width) = data.files[0], data.shape
    if values.dtype.kind not in "uif" or values.ndim < 2 or not len(values):
        raise TestbedError(f"{path} holds no images of numbers", "give the array with the pixels")
    size = math.prod(values.shape[1:])
    if size != math.prod(data.shape):
        raise TestbedError(
            f"{path} has {size} values a sample",
            f"the workload says `shape: {list(data.shape)}`, which is {math.prod(data.shape)}",
        )
    if channels > 1 and values.shape[1:] == (height, width, channels):
        values = values.transpose(0, 3, 1, 2)
    images = values.reshape(len(values), *data.shape)
    if values.dtype.kind == "f":
        return images.astype(np.float32)
    if values.min() < 0 or values.max() > 255:
        raise TestbedError(
            f"{path} has whole numbers from {values.min()} to {values.max()} as pixels",
            "store 0 to 255, or the floats that the model shall get",
        )
    return images.astype(np.float32) / np.float32(PIXEL_HALF_RANGE) - np.float32(1)


def _labels(path: Path, values: npt.NDArray[Any]) -> Integers:
    flat = values.reshape(-1)
    if flat.dtype.kind not in "uif" or not np.array_equal(flat, np.trunc(flat)):
        raise TestbedError(f"{path} has labels that are no whole numbers", "number the classes")
    return flat.astype(np.int32)


LOADERS: dict[str, Callable[[Data], Samples]] = {
    "digits": _digits,
    "synthetic": _synthetic,
    "idx": _idx,
    "npz": _npz,
    "csv": _csv,
}
