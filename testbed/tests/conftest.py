"""Shared fixtures live beside the tests that need them; this file only keeps runs tidy."""

from __future__ import annotations

import os

# Tests must not depend on switches that happen to be set in the developer's shell.
for _name in [name for name in os.environ if name.startswith("WORMHOLE_")]:
    if _name not in {"WORMHOLE_CACHE", "WORMHOLE_ACCEL", "WORMHOLE_QEMU_TARBALL"}:
        del os.environ[_name]
