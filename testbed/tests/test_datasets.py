"""Data sets: the right samples from every kind of file, and a clear word about a wrong one."""

from __future__ import annotations

import gzip
import hashlib
import struct
from pathlib import Path

import numpy as np
import pytest

from testbed.errors import TestbedError
from testbed.experiment import datasets
from testbed.experiment.data import DATA_SETS, Data, describe
from testbed.experiment.datasets import load

IMAGES = np.arange(3 * 2 * 2, dtype=np.uint8).reshape(3, 2, 2) * 20
LABELS = np.array([2, 0, 1], dtype=np.uint8)
EXPECTED = (IMAGES / np.float32(127.5) - 1).astype(np.float32)[:, None]


def idx(values: np.ndarray[tuple[int, ...], np.dtype[np.uint8]]) -> bytes:
    """The IDX format, written from its description."""
    head = struct.pack(f">HBB{values.ndim}I", 0, 8, values.ndim, *values.shape)
    return head + values.tobytes()


def data(name: str, *files: Path, classes: int = 3, shape: tuple[int, ...] = (1, 2, 2)) -> Data:
    arrays = ("x_train", "y_train") if name == "npz" else ()
    return Data(name, 1, shape, classes, files=files, arrays=arrays)


@pytest.mark.parametrize("packed", [False, True])
def test_idx_files_as_people_have_mnist(tmp_path: Path, packed: bool) -> None:
    images, labels = tmp_path / "images", tmp_path / "labels"
    for path, values in ((images, IMAGES), (labels, LABELS)):
        path.write_bytes(gzip.compress(idx(values)) if packed else idx(values))
    found = load(data("idx", images, labels))
    assert np.array_equal(found.images, EXPECTED)
    assert found.labels.tolist() == [2, 0, 1]
    said = describe(data("idx", images, labels))
    assert (said["origin"], said["text"]) == ("file", "read from images, labels")
    assert said["files"]["images"] == hashlib.sha256(images.read_bytes()).hexdigest()


@pytest.mark.parametrize(
    ("images", "labels", "named"),
    [
        (b"\0\0\x0d\x03" + bytes(12), idx(LABELS), "no IDX file of bytes"),
        (idx(IMAGES)[:-1], idx(LABELS), "has 11 bytes of data, its head says 12"),
        (idx(IMAGES)[:9], idx(LABELS), "cut off"),
        (idx(IMAGES), idx(LABELS[:2]), "3 images and 2 labels"),
        (idx(IMAGES), idx(LABELS + 1), "go from 1 to 3"),
        (idx(IMAGES.reshape(3, 4, 1)[:, :3]), idx(LABELS), "3 values a sample"),
        (gzip.compress(idx(IMAGES))[:-9], idx(LABELS), "cannot read"),
        (idx(IMAGES[:0]), idx(LABELS[:0]), "no images"),
    ],
)
def test_a_wrong_idx_file_is_named(
    tmp_path: Path, images: bytes, labels: bytes, named: str
) -> None:
    (tmp_path / "images").write_bytes(images)
    (tmp_path / "labels").write_bytes(labels)
    with pytest.raises(TestbedError) as caught:
        load(data("idx", tmp_path / "images", tmp_path / "labels"))
    assert named in caught.value.what


def test_npz_files_with_channels_last_and_floats_as_they_are(tmp_path: Path) -> None:
    coloured = np.arange(2 * 2 * 2 * 3, dtype=np.uint8).reshape(2, 2, 2, 3)
    np.savez(tmp_path / "a.npz", x_train=coloured, y_train=np.array([[1], [0]]))
    found = load(data("npz", tmp_path / "a.npz", shape=(3, 2, 2)))
    assert np.array_equal(
        found.images, (coloured.transpose(0, 3, 1, 2) / np.float32(127.5) - 1).astype(np.float32)
    )
    assert found.labels.tolist() == [1, 0]
    floats = np.array([[0.25, -3.0, 7.5, 300.0]])
    np.savez(tmp_path / "b.npz", x_train=floats, y_train=np.array([0]))
    assert load(data("npz", tmp_path / "b.npz")).images.reshape(-1).tolist() == floats[0].tolist()


def test_a_wrong_npz_file_is_named(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x=IMAGES, y_train=LABELS)
    with pytest.raises(TestbedError, match="no array `x_train`") as caught:
        load(data("npz", tmp_path / "a.npz"))
    assert "it has: x, y_train" in caught.value.remedy
    (tmp_path / "b.npz").write_bytes(b"text")
    with pytest.raises(TestbedError, match="cannot read the data file"):
        load(data("npz", tmp_path / "b.npz"))
    np.savez(tmp_path / "c.npz", x_train=IMAGES.astype(np.int32) + 200, y_train=LABELS)
    with pytest.raises(TestbedError, match="whole numbers from 200 to 420"):
        load(data("npz", tmp_path / "c.npz"))
    np.savez(tmp_path / "d.npz", x_train=np.full((3, 4), np.nan), y_train=LABELS)
    with pytest.raises(TestbedError, match="not finite"):
        load(data("npz", tmp_path / "d.npz"))


@pytest.mark.parametrize("heading", ["", "label,p0,p1,p2,p3\n"])
def test_csv_files_with_and_without_a_heading(tmp_path: Path, heading: str) -> None:
    rows = [
        ",".join(map(str, [int(label), *image.reshape(-1).tolist()]))
        for image, label in zip(IMAGES, LABELS, strict=True)
    ]
    (tmp_path / "a.csv").write_text(heading + "\n".join(rows) + "\n", encoding="utf-8")
    found = load(data("csv", tmp_path / "a.csv"))
    assert np.array_equal(found.images, EXPECTED)
    assert found.labels.tolist() == [2, 0, 1]


def test_a_wrong_csv_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("1,2,3,4,x\n1,2,3,4,y\n", encoding="utf-8")
    with pytest.raises(TestbedError, match=r"a\.csv holds no images of numbers"):
        load(data("csv", tmp_path / "a.csv"))
    far = Data("csv", 1, (1, 2, 2), 3, files=(tmp_path / "a.csv",), label_column=9)
    with pytest.raises(TestbedError, match="has 5 columns"):
        load(far)


def test_synthetic_images_are_the_same_bytes_on_every_machine() -> None:
    """The hash was made once; a machine that gets another one would train on other data."""
    found = load(Data("synthetic", 3, (2, 5, 7), 4, samples=9))
    assert found.images.shape == (9, 2, 5, 7)
    assert found.labels.tolist() == [0, 1, 2, 3, 0, 1, 2, 3, 0]
    assert hashlib.sha256(found.images.tobytes()).hexdigest() == SYNTHETIC_SHA256
    other = load(Data("synthetic", 4, (2, 5, 7), 4, samples=9))
    assert not np.array_equal(found.images, other.images)


SYNTHETIC_SHA256 = "b0f922ae20703be47ab1a7edc8693a26f6a13c91d90679d7a417e3a320165156"


def test_synthetic_classes_can_be_told_apart() -> None:
    """Samples lie nearer to others of their class: there is something to learn."""
    found = load(Data("synthetic", 1, (1, 16, 16), 2, samples=40))
    flat = found.images.reshape(40, -1)
    means = np.stack([flat[found.labels == label].mean(axis=0) for label in (0, 1)])
    nearest = np.square(flat[:, None] - means).sum(axis=2).argmin(axis=1)
    assert np.array_equal(nearest, found.labels)


def test_a_record_says_where_samples_come_from() -> None:
    assert describe(Data("digits", 1, (1, 8, 8), 10))["origin"] == "real"
    said = describe(Data("synthetic", 5, (1, 8, 8), 3, samples=12))
    assert (said["origin"], said["text"]) == ("synthetic", "12 synthetic images of 3 classes")
    assert set(datasets.LOADERS) == set(DATA_SETS)
