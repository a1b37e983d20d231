"""`./inv workload.new`: a workload and its experiment to begin with, from commented templates."""

from __future__ import annotations

import re
from pathlib import Path

from testbed.errors import TestbedError
from testbed.experiment.workload import NAME, WORKLOADS

PLACEHOLDER = re.compile(r"\bNAME\b")


def new_workload(name: str, folder: Path = WORKLOADS) -> tuple[Path, Path]:
    """Write `NAME.yaml` and `experiments/NAME.yaml`; returns their paths.

    Raises TestbedError if the name is not one, or if there is such a file already.
    """
    if not NAME.fullmatch(name):
        raise TestbedError(
            f"`{name}` is no name of a workload", "use a-z, 0-9, `.`, `_` and `-`, 64 at most"
        )
    workload, experiment = folder / f"{name}.yaml", folder / "experiments" / f"{name}.yaml"
    for path in (workload, experiment):
        if path.exists():
            raise TestbedError(f"{path} is there already", "choose another name, or edit that file")
    for path, template in ((workload, "workload.yaml"), (experiment, "experiment.yaml")):
        text = (WORKLOADS / "templates" / template).read_text(encoding="utf-8")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(PLACEHOLDER.sub(name, text), encoding="utf-8")
        except OSError as error:
            raise TestbedError(
                f"cannot write {path}: {error.strerror}", "check the disk"
            ) from error
    return workload, experiment
