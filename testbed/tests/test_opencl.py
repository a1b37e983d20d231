"""Choosing the OpenCL of the host by name, and finding it where drivers are put."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from host_server import libraries
from testbed.errors import TestbedError
from testbed.experiment.client import native_by_hand
from testbed.machine import opencl
from testbed.machine.host_server import HostServerConfig, supervisor_argv


@pytest.fixture(autouse=True)
def _nothing_chosen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("WORMHOLE_CACHE", str(tmp_path / "cache"))
    yield
    opencl.choose_opencl("")


@pytest.fixture
def vendors(tmp_path: Path) -> Path:
    folder = tmp_path / "vendors"
    folder.mkdir()
    (folder / "pocl.icd").write_text("libpocl.so.2\n")
    (folder / "nvidia.icd").write_text("libnvidia-opencl.so.1\n")
    (folder / "intel64.icd").write_text("/opt/intel/libintelocl.so\n")
    (folder / "intel-gpu.icd").write_text("/opt/intel/libigdrcl.so\n")
    return folder


def test_a_vendor_is_found_by_a_word(vendors: Path) -> None:
    assert opencl.vendor_library("NVIDIA", vendors) == "libnvidia-opencl.so.1"
    assert opencl.vendor_library("igdrcl", vendors) == "/opt/intel/libigdrcl.so"
    with pytest.raises(TestbedError, match="fits several OpenCL libraries"):
        opencl.vendor_library("intel", vendors)
    with pytest.raises(TestbedError, match=r"no OpenCL library of this machine is called 'amd'"):
        opencl.vendor_library("amd", vendors)


def test_a_driver_without_a_vendor_file_is_found_where_it_was_mounted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Containers get the driver's libraries, but often nothing in /etc/OpenCL."""
    driver = tmp_path / "driver"
    driver.mkdir()
    (driver / "libnvidia-opencl.so.1").touch()
    (tmp_path / "none").mkdir()
    monkeypatch.setattr(libraries, "USUAL", (driver,))
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
    monkeypatch.setattr(opencl, "SYSTEM_VENDORS", tmp_path / "none")
    found = libraries.find_library("libnvidia-opencl.so.1")
    assert found is not None
    if found.by_itself:
        pytest.skip("this machine has NVIDIA's OpenCL itself")
    assert found.path.parent == driver
    assert opencl.vendor_library("nvidia", tmp_path / "none") == "libnvidia-opencl.so.1"


def test_what_was_chosen_is_all_that_a_command_uses(
    vendors: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opencl.vendor_library, "__defaults__", (vendors,))
    config = HostServerConfig(unix=True)
    worker = tmp_path / "worker"
    assert "--opencl-vendors" not in supervisor_argv(config, tmp_path, 3, worker, "127.0.0.1")
    opencl.choose_opencl("nvidia")
    folder = opencl.chosen_vendors()
    assert folder is not None
    assert [path.read_text() for path in folder.iterdir()] == ["libnvidia-opencl.so.1\n"]
    argv = supervisor_argv(config, tmp_path, 3, worker, "127.0.0.1")
    assert argv[argv.index("--opencl-vendors") + 1] == str(folder)
    assert argv[argv.index("--gpu") + 1] == "auto"
    native = native_by_hand({"OCL_ICD_VENDORS": "/elsewhere", "PATH": "/bin"})
    assert native == {**opencl.loader_variables(), "OCL_ICD_VENDORS": f"{folder}/", "PATH": "/bin"}
    # An experiment's own vendors come first: differential compares with one that it names.
    argv = supervisor_argv(
        HostServerConfig(unix=True, vendors=vendors), tmp_path, 3, worker, "127.0.0.1"
    )
    assert argv[argv.index("--opencl-vendors") + 1] == str(vendors)
