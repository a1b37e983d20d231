"""The table of functions in the documentation is what spec and tests make it."""

from __future__ import annotations

from pathlib import Path

from testbed.protocol.emit_table import TABLE_PATH, find_tests, table_text
from testbed.protocol.spec import load_api


def test_the_table_is_current() -> None:
    api = load_api("opencl")
    tests = find_tests(function.name for function in api.functions)
    assert TABLE_PATH.read_text(encoding="utf-8") == table_text(api, tests), "run ./inv generate"


def test_every_function_has_its_line() -> None:
    api = load_api("opencl")
    text = table_text(api, {"clFlush": {"b.py", "a.c"}})
    for function in api.functions:
        assert text.count(f"\n| `{function.name}` |") == 1
    (flush,) = [line for line in text.splitlines() if line.startswith("| `clFlush`")]
    assert flush.endswith("| `a.c`, `b.py` |")


def test_only_tests_count(tmp_path: Path) -> None:
    folder = tmp_path / "testbed" / "tests"
    folder.mkdir(parents=True)
    (folder / "test_one.py").write_text("clFlush()", encoding="utf-8")
    (folder / "test_two.c").write_text("clFlushed(); clFinish();", encoding="utf-8")
    (tmp_path / "testbed" / "other.py").write_text("clFlush()", encoding="utf-8")
    found = find_tests(["clFlush", "clFinish"], tmp_path)
    assert found == {"clFlush": {"test_one.py"}, "clFinish": {"test_two.c"}}
