"""The bundle for machines without network: made here, unpacked elsewhere, run with Python alone."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from testbed.analysis.report import tabulate
from testbed.errors import TestbedError
from testbed.experiment import offline
from testbed.experiment.offline import make_bundle, unpack_wheel
from testbed.experiment.provenance import commit
from testbed.machine import prebuilt

EXPERIMENT = """\
name: offline-test
doc: A few steps of a small model.
seed: 1
baseline: native
systems: [native, wormhole]
parts:
  - form: application
    workloads: [{name: mlp-digits, steps: 12}]
    placements: [process]
    rounds: 1
"""
# What PoCL needs (its linker), what every system has, Python; no compiler, no pip, no git.
PROGRAMS = ("sh", "env", "ls", "tr", "grep", "setpriv", "ld", "unshare", "ldconfig")
RUN_LIMIT_S = 120.0


@pytest.fixture(scope="module")
def experiment(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("experiment") / "offline-test.yaml"
    path.write_text(EXPERIMENT)
    return path


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory: pytest.TempPathFactory, experiment: Path) -> Path:
    """A folder like another machine: the unpacked bundle, an empty home, few programs."""
    folder = tmp_path_factory.mktemp("elsewhere")
    made = make_bundle(folder / "b.tar.xz", [str(experiment)], guest=False, quick=True, say=print)
    assert made.size_bytes == made.path.stat().st_size < offline.LIMIT_BYTES
    subprocess.run(
        ["tar", "-xf", str(made.path), "-C", str(folder)], check=True, timeout=RUN_LIMIT_S
    )
    (folder / "home").mkdir()
    (folder / "bin").mkdir()
    for name in PROGRAMS:
        found = shutil.which(name, path="/usr/sbin:/usr/bin:/sbin:/bin")
        if found is not None:
            (folder / "bin" / name).symlink_to(found)
    # The system's own Python, or that of the environment without its packages.
    (folder / "bin" / "python3").symlink_to(Path(sys.executable).resolve())
    return folder


def run(elsewhere: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """`./run` there, without network where that can be had."""
    alone = ["unshare", "--net", "--"]
    if subprocess.run([*alone, "true"], capture_output=True, check=False).returncode != 0:
        alone = []
    return subprocess.run(
        [*alone, str(elsewhere / offline.TOP / "run"), *words],
        env={"PATH": str(elsewhere / "bin"), "HOME": str(elsewhere / "home"), "LANG": "C.UTF-8"},
        cwd=elsewhere,
        capture_output=True,
        text=True,
        timeout=RUN_LIMIT_S,
        check=False,
    )


@pytest.mark.native
@pytest.mark.opencl
def test_a_bundle_runs_an_experiment_that_is_evaluated_at_home(
    elsewhere: Path, experiment: Path
) -> None:
    done = run(elsewhere, "run", str(experiment), "--opencl", "pocl")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 trials (2 ok)" in done.stdout
    (folder,) = (elsewhere / offline.TOP / "results" / "offline-test").iterdir()
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["opencl"]["chosen"] == "pocl"
    assert manifest["opencl"]["device"]
    assert manifest["jail"]["level"] in ("full", "confined", "filtered")
    assert "devices" not in manifest["jail"]
    assert manifest["commit"]["id"] == commit().id
    assert not (folder / "report.html").exists()
    (comparison,) = tabulate(folder).comparisons
    assert [row.ok for row in comparison.rows] == [1, 1]


@pytest.mark.native
def test_the_doctor_of_a_bundle_says_what_it_is(elsewhere: Path) -> None:
    done = run(elsewhere, "doctor", "--json")
    assert done.returncode == 0, done.stderr
    found = {finding["name"]: finding for finding in json.loads(done.stdout)}
    assert found["native code"]["ok"] is True
    assert "has native, opencl" in found["bundle"]["value"]
    assert found["worker's jail"]["value"].startswith("reached: ")
    assert "packages: native" not in found


@pytest.mark.native
def test_a_bundle_lists_the_tasks_that_it_can_do(elsewhere: Path) -> None:
    done = run(elsewhere)
    assert done.returncode == 0
    listed = {line.split()[0] for line in done.stdout.splitlines() if line.startswith("  ")}
    assert {"doctor", "run", "exec", "vm.boot"} <= listed
    assert not {"plot", "test", "bundle"} & listed
    assert run(elsewhere, "run", "--help").returncode == 0


@pytest.mark.native
@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("plot", "results"), "plot needs a checkout, and this is a bundle"),
        (("vm.boot",), "this bundle was made without qemu"),
        (("run", "spin"), "this bundle was made without workloads/"),
        (("run", "quick", "--placement", "server-vm"), "has no trial in server-vm placement"),
    ],
)
def test_what_a_bundle_has_not_is_said(elsewhere: Path, words: tuple[str, ...], error: str) -> None:
    done = run(elsewhere, *words)
    assert done.returncode == 1
    assert error in done.stderr


@pytest.mark.native
def test_a_bundle_that_would_be_too_large_is_no_bundle(
    tmp_path: Path, experiment: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(offline, "LIMIT_BYTES", 1 << 20)
    with pytest.raises(TestbedError, match="more than 1"):
        make_bundle(tmp_path / "b.tar.xz", [str(experiment)], guest=False, quick=True, say=print)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("wheel", "member", "place"),
    [
        ("a-1.0-py3-none-any.whl", "a/x.py", "all/a/x.py"),
        ("b-1.0-cp39-abi3-manylinux_2_34_x86_64.whl", "b/_b.abi3.so", "all/b/_b.abi3.so"),
        ("c-1.0-cp312-cp312-manylinux_2_17_x86_64.whl", "c/_c.so", "cp312/c/_c.so"),
        ("pyyaml-6.0-cp312-cp312-manylinux_2_17_x86_64.whl", "yaml/a.py", "all/yaml/a.py"),
        ("pyyaml-6.0-cp312-cp312-manylinux_2_17_x86_64.whl", "yaml/_yaml.so", ""),
        ("a-1.0-py3-none-any.whl", "a/tests/test_x.py", ""),
    ],
)
def test_wheels_are_put_where_the_right_python_finds_them(
    tmp_path: Path, wheel: str, member: str, place: str
) -> None:
    with zipfile.ZipFile(tmp_path / wheel, "w") as archive:
        archive.writestr(member, "content")
    unpack_wheel(tmp_path / wheel, tmp_path / "site")
    files = [path for path in (tmp_path / "site").rglob("*") if path.is_file()]
    assert files == ([tmp_path / "site" / place] if place else [])


def test_a_checkout_is_no_bundle() -> None:
    assert prebuilt.bundle_facts() is None
    assert prebuilt.prebuilt("guest") is None
    assert not prebuilt.has_prebuilt("native")
