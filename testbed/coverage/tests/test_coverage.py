"""What programs need of OpenCL, found in real ones: compiled here, clinfo, Python sources."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from testbed.coverage.report import coverage, run_coverage
from testbed.coverage.surface import Surface, Verdict, cuda_surface, opencl_surface, surfaces
from testbed.errors import TestbedError
from testbed.root import ROOT

LIMIT_S = 60
PROGRAM = """
int clFinish(void *); int clNoSuchFunction(void);
void *dlsym(void *, const char *);
int main(void)
{
    void *name = dlsym(0, "clEnqueueNDRangeKernel");
    return dlsym(0, "clImportMemoryARM") == name ? clFinish(name) : clNoSuchFunction();
}
"""


@pytest.fixture(scope="module")
def surface() -> Surface:
    return opencl_surface()


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Imports two functions of a stand-in for the loader and looks two up."""
    folder = tmp_path_factory.mktemp("program")
    (folder / "main.c").write_text(PROGRAM, encoding="utf-8")
    loader = "int clFinish(void *a){return !a;} int clNoSuchFunction(void){return 1;}"
    (folder / "loader.c").write_text(loader, encoding="utf-8")
    gcc = ["gcc", "-o"]
    subprocess.run(
        [*gcc, "libOpenCL.so", "-shared", "-fPIC", "loader.c"],
        cwd=folder,
        check=True,
        timeout=LIMIT_S,
    )
    subprocess.run(
        [*gcc, "program", "main.c", "libOpenCL.so", "-Wl,-rpath,$ORIGIN", "-s"],
        cwd=folder,
        check=True,
        timeout=LIMIT_S,
    )
    return folder / "program"


@pytest.mark.native
def test_a_program(program: Path, surface: Surface) -> None:
    found = coverage(str(program), surface)
    needs = {need.answer.name: need for need in found.needs}
    assert {name for name, need in needs.items() if need.imported} == {
        "clFinish",
        "clNoSuchFunction",
    }
    assert needs["clFinish"].answer.verdict is Verdict.FORWARDED
    assert needs["clEnqueueNDRangeKernel"].answer.verdict is Verdict.FORWARDED
    assert needs["clImportMemoryARM"].answer.verdict is Verdict.RULE
    assert found.missing == ["clNoSuchFunction"]
    assert found.files == (program.resolve(),)  # the loader is not the program's own


@pytest.mark.native
def test_what_is_missing_fails(program: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(TestbedError, match="1 functions that are not forwarded: clNoSuchFunction"):
        run_coverage(str(program), as_json=True)
    (entry,) = json.loads(capsys.readouterr().out)["apis"]
    assert entry["counts"]["not forwarded"] == 1
    assert {"clFinish", "clNoSuchFunction"} <= {f["name"] for f in entry["functions"]}


@pytest.mark.native
@pytest.mark.opencl
def test_clinfo(surface: Surface) -> None:
    program = shutil.which("clinfo")
    assert program is not None, "apt-get install clinfo"
    found = coverage("clinfo", surface)
    imported = {need.answer.name for need in found.needs if need.imported}
    nm = subprocess.run(
        ["nm", "-D", "-u", program], capture_output=True, text=True, timeout=LIMIT_S, check=True
    )
    names = {word.split("@")[0] for line in nm.stdout.splitlines() for word in line.split()[1:]}
    assert imported == {name for name in names if name.startswith("cl")}
    assert len(imported) > 10


def test_a_python_package(
    tmp_path: Path, surface: Surface, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A binding defines all functions; what uses it counts."""
    package = tmp_path / "some_package"
    package.mkdir()
    (package / "__init__.py").write_text("", encoding="utf-8")
    (package / "binding.py").write_text("clFlush = clSVMAlloc = library.x", encoding="utf-8")
    use = "import binding\nbinding.clFlush(q)\ngetattr(library, 'clSetEventCallback')"
    (package / "use.py").write_text(use, encoding="utf-8")
    (package / "broken.py").write_text("def (:", encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    found = coverage("some_package", surface, sys.executable)
    assert [need.answer.name for need in found.needs] == ["clFlush", "clSetEventCallback"]


def test_a_process(surface: Surface) -> None:
    """This one maps Python and its extension modules; none of them asks for OpenCL."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        try:
            found = coverage(str(process.pid), surface)
        finally:
            process.kill()
    assert found.api == "opencl"
    assert found.missing == []


@pytest.mark.parametrize("name", ["no-such-program", "no_such_package", "999999999"])
def test_what_is_not_there(name: str, surface: Surface) -> None:
    with pytest.raises(TestbedError):
        coverage(name, surface)


def test_a_damaged_file_is_no_fault(tmp_path: Path, surface: Surface) -> None:
    path = tmp_path / "damaged"
    path.write_bytes(b"\x7fELF" + bytes(range(200)))
    assert coverage(str(path), surface).needs == ()


def test_every_spec_of_an_api_has_a_surface() -> None:
    specs = {path.stem for path in (ROOT / "testbed" / "protocol").glob("*.yaml")}
    assert specs - {"core", "wire"} == {surface.name for surface in surfaces()}


@pytest.mark.native
def test_a_cuda_program(tmp_path: Path) -> None:
    """Forwarded, exported but refused, and unknown functions of the runtime."""
    calls = "cudaMalloc cudaMemcpy cudaGetDevice cudaGraphAddNode cudaNoSuchThing"
    prototypes = "".join(f"void {name}(void);" for name in calls.split())
    body = "".join(f"{name}();" for name in calls.split())
    source = tmp_path / "program.c"
    source.write_text(f"{prototypes} void run(void) {{ {body} }}", encoding="utf-8")
    library = tmp_path / "program.so"
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", library, source], check=True, timeout=LIMIT_S)
    found = coverage(str(library), cuda_surface("cudart"))
    verdicts = {need.answer.name: need.answer for need in found.needs}
    assert verdicts["cudaMalloc"].verdict is Verdict.FORWARDED
    assert verdicts["cudaGetDevice"].verdict is Verdict.LOCAL
    assert verdicts["cudaGraphAddNode"].how == "not forwarded yet"
    assert verdicts["cudaNoSuchThing"].how == "unknown"
    assert found.missing == ["cudaGraphAddNode", "cudaNoSuchThing"]
