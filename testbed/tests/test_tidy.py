"""The structure of the project as rules: who may import whom, and what no file may contain."""

from __future__ import annotations

import ast
import re
import subprocess
from pathlib import Path

import pytest

from testbed.root import ROOT

# Layer -> layers of testbed it may import (ARCHITECTURE.md, section 1).
ALLOWED = {
    "protocol": {"protocol"},
    "machine": {"protocol", "machine"},
    "experiment": {"protocol", "machine", "experiment", "analysis"},
    "analysis": {"protocol", "analysis"},
    "coverage": {"protocol", "coverage"},
}


def tracked(*suffixes: str) -> list[Path]:
    """Files that git knows or would add, with one of the suffixes."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    ).stdout.split("\n")
    paths = [ROOT / name for name in listed if name]
    return [path for path in paths if path.is_file() and (path.suffix in suffixes or not suffixes)]


def imported_layers(path: Path) -> set[str]:
    """Sub-packages of testbed that a module imports anywhere in its code."""
    layers = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        for name in names:
            parts = name.split(".")
            if parts[0] == "testbed" and len(parts) > 1 and parts[1] in ALLOWED:
                layers.add(parts[1])
    return layers


@pytest.mark.parametrize("layer", sorted(ALLOWED))
def test_dependencies_point_one_way(layer: str) -> None:
    wrong = {
        str(path.relative_to(ROOT)): sorted(imported_layers(path) - ALLOWED[layer])
        for path in (ROOT / "testbed" / layer).rglob("*.py")
        if "tests" not in path.parts and imported_layers(path) - ALLOWED[layer]
    }
    assert not wrong


def test_layer_check_sees_an_import(tmp_path: Path) -> None:
    module = tmp_path / "m.py"
    module.write_text("def f():\n    from testbed.experiment import plan\n")
    assert imported_layers(module) == {"experiment"}


def test_guest_and_host_c_do_not_include_each_other() -> None:
    wrong = []
    for top, other in (("guest_agent", "host_server"), ("host_server", "guest_agent")):
        for path in (ROOT / top).rglob("*.[ch]"):
            for include in re.findall(r'#include "([^"]+)"', path.read_text()):
                if other in include or (path.parent / include).resolve().is_relative_to(
                    ROOT / other
                ):
                    wrong.append(f"{path.relative_to(ROOT)} includes {include}")
    assert not wrong


def test_python_modules_state_their_job() -> None:
    silent = [
        str(path.relative_to(ROOT))
        for path in tracked(".py")
        if path.name != "__init__.py" and not ast.get_docstring(ast.parse(path.read_text()))
    ]
    assert not silent


def test_no_machine_paths_and_no_leftovers() -> None:
    # Written in pieces so that this file does not match itself.
    forbidden = re.compile("|".join(["/wo" + "rk/", "/ro" + r"ot/\.", "TO" + "DO", "FIX" + "ME"]))
    found = []
    for path in tracked(".py", ".c", ".h", ".md", ".yaml", ".toml", ".txt", ".rst", ""):
        if path.name == "LICENSE":
            continue
        for number, line in enumerate(path.read_text(errors="replace").split("\n"), 1):
            if forbidden.search(line):
                found.append(f"{path.relative_to(ROOT)}:{number}: {line.strip()[:80]}")
    assert not found
