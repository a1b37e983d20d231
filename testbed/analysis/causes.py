"""What sets one system apart from another, in words, taken from the switches in the manifest."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

#: (switch, value that it changes to) -> words.
_WORDS: dict[tuple[str, Any], str] = {
    ("transport", "shm"): "shared memory for TCP",
    ("transport", "tcp"): "TCP for shared memory",
    ("local", True): "local answers",
    ("local", False): "no local answers",
    ("oneway", True): "one-way calls",
    ("oneway", False): "every call waits",
    ("notifications", "adaptive"): "no notifications in steady state",
    ("notifications", "always"): "a notification each way",
}


def causes(manifest: Mapping[str, Any], before: str, after: str) -> str:
    """The switches in which two systems of a run differ, as words; empty if none is recorded."""
    systems = manifest.get("systems")
    found = systems if isinstance(systems, Mapping) else {}
    old, new = found.get(before) or {}, found.get(after) or {}
    words = []
    for switch in {**old, **new}:
        if old.get(switch) != new.get(switch):
            default = f"{switch} {old.get(switch)} to {new.get(switch)}"
            words.append(_WORDS.get((switch, new.get(switch)), default.replace("_", " ")))
    return ", ".join(words)


def same_systems(manifest: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Pairs of systems that differ in their names alone: an A/A comparison."""
    systems = manifest.get("systems")
    found = list(systems.items()) if isinstance(systems, Mapping) else []
    return [
        (name, other)
        for index, (name, switches) in enumerate(found)
        for other, others in found[index + 1 :]
        if switches == others
    ]
