"""The committed specimens are what the generator makes, and generating twice changes nothing."""

from __future__ import annotations

from pathlib import Path

from testbed.protocol.generate import generate
from testbed.protocol.golden.specimens import FUNCTIONS, GOLDEN_DIR, specimens


def test_specimens_are_current() -> None:
    for name, text in specimens().items():
        committed = (GOLDEN_DIR / name).read_text(encoding="utf-8")
        assert committed == text, f"{name}: run python -m testbed.protocol.golden"
        for function in FUNCTIONS:
            assert function in text


def test_unchanged_files_are_not_written_again(tmp_path: Path) -> None:
    written = generate(tmp_path)
    times = {path: path.stat().st_mtime_ns for path in written}
    assert len(written) >= 10
    assert generate(tmp_path) == []
    assert {path: path.stat().st_mtime_ns for path in written} == times
    changed = written[0]
    changed.write_text("something else", encoding="utf-8")
    assert generate(tmp_path) == [changed]
