"""What a data set is and where it comes from; datasets.py loads its samples.

Apart from the loaders, so that a machine which only runs prepared data needs no NumPy.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from testbed.errors import TestbedError

DATA_SETS = ("digits", "synthetic", "idx", "npz", "csv")
DIGITS_CLASSES = 10

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Data:
    """A data set; `shape` is that of one sample (channels, height, width).

    `samples` counts those of `synthetic`.  `files` are the images and the labels of `idx`, or the
    one file of `npz` and `csv`; `arrays` names images and labels in an `npz` file, `label_column`
    counts from 0 in a `csv` file.
    """

    name: str
    seed: int
    shape: Shape
    classes: int
    samples: int = 0
    files: tuple[Path, ...] = ()
    arrays: tuple[str, ...] = ()
    label_column: int = 0

    @property
    def origin(self) -> str:
        """What the samples are: real, synthetic or file (real or not, we cannot know)."""
        return {"digits": "real", "synthetic": "synthetic"}.get(self.name, "file")


def describe(data: Data) -> dict[str, Any]:
    """What a record says of a data set."""
    text = {
        "digits": "scikit-learn's handwritten digits (1797 real scans)",
        "synthetic": f"{data.samples} synthetic images of {data.classes} classes",
    }.get(data.name, f"read from {', '.join(path.name for path in data.files)}")
    return {
        "set": data.name,
        "origin": data.origin,
        "text": text,
        "shape": list(data.shape),
        "classes": data.classes,
        "seed": data.seed,
        "files": {path.name: fingerprint(path) for path in data.files},
    }


def fingerprint(path: Path) -> str:
    """SHA-256 of a file's content.  Raises TestbedError if it cannot be read."""
    try:
        with path.open("rb") as handle:
            return hashlib.file_digest(handle, "sha256").hexdigest()
    except OSError as error:
        raise unreadable(path, error) from error


def unreadable(path: Path, error: Exception) -> TestbedError:
    """The error for a data file that cannot be read."""
    said = getattr(error, "strerror", None) or error
    return TestbedError(f"cannot read the data file {path}: {said}", "check the path and the file")
