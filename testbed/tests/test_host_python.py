"""Which folders a Python needs, and what of this machine a guest never sees."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from testbed.errors import TestbedError
from testbed.experiment.conduct import part_needs
from testbed.experiment.experiment import EXPERIMENTS, Part, WorkloadChoice, load_experiment
from testbed.machine.host_python import MEMORY_MIB, python_paths, python_tree


def gpu_guest() -> Part:
    (part,) = load_experiment(EXPERIMENTS / "gpu-guest.yaml").parts
    return part


def test_a_python_needs_itself_and_what_it_imports_from() -> None:
    code = "import sys; print('\\n'.join(sys.path[1:]))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    paths = python_paths(sys.executable)
    assert all(path.is_absolute() for path in paths)
    assert Path(sys.executable) in paths
    imported = [Path(line) for line in done.stdout.splitlines() if line.startswith("/")]
    assert set(imported) <= set(paths)
    assert Path("/usr") not in paths, "of the system's folders there is a list"


def test_what_is_no_python_is_said() -> None:
    with pytest.raises(TestbedError, match="does not say where its packages are"):
        python_paths("/bin/false")


@pytest.mark.parametrize("folder", ["/tmp", "/proc/self", "/dev"])
def test_what_the_guest_has_itself_cannot_be_shared(folder: str) -> None:
    with pytest.raises(TestbedError, match=f"a guest cannot see {folder}"):
        python_tree(sys.executable, (folder,))


def test_a_tree_is_made_once() -> None:
    assert python_tree(sys.executable) is python_tree(sys.executable)


def test_a_part_for_guests_says_what_they_need() -> None:
    needs = part_needs(gpu_guest())
    assert (needs["backend"], needs["network"]) == ("cuda", "auto")
    assert needs["share"] is python_tree(sys.executable)
    plain = part_needs(replace(gpu_guest(), workloads=(WorkloadChoice("lenet-digits"),)))
    assert plain == {"backend": "opencl", "network": "auto"}
    assert MEMORY_MIB > 4096, "PyTorch with its pages"


def test_one_guest_serves_one_api() -> None:
    both = (WorkloadChoice("torch-lenet"), WorkloadChoice("lenet-digits"))
    with pytest.raises(TestbedError, match="cuda and of opencl"):
        part_needs(replace(gpu_guest(), workloads=both))
