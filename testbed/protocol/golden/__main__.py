"""Writes the specimens again: `python -m testbed.protocol.golden`."""

from __future__ import annotations

from testbed.protocol.generate import write_if_changed
from testbed.protocol.golden.specimens import GOLDEN_DIR, specimens

for name, text in specimens().items():
    if write_if_changed(GOLDEN_DIR / name, text):
        print(GOLDEN_DIR / name)
