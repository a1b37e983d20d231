"""`./inv coverage PROGRAM`: what a program needs, and whether it is there, before anything runs."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from testbed.coverage.files import files_of
from testbed.coverage.needs import elf_needs, is_elf, python_needs
from testbed.coverage.surface import Answer, Surface, Verdict, surfaces
from testbed.errors import TestbedError

SHOWN_FILES = 3


@dataclass(frozen=True)
class Need:
    """A function that a program is linked with (`imported`) or may look up, and what it gets."""

    answer: Answer
    imported: bool
    files: tuple[Path, ...]


@dataclass(frozen=True)
class Coverage:
    """Of one program and one API; needs in the order of names."""

    api: str
    files: tuple[Path, ...]
    needs: tuple[Need, ...]

    @property
    def missing(self) -> list[str]:
        """Names of functions that are not forwarded."""
        return [n.answer.name for n in self.needs if n.answer.verdict is Verdict.NOT]

    def counts(self) -> dict[str, int]:
        """Functions by verdict, every verdict named."""
        found = Counter(need.answer.verdict for need in self.needs)
        return {verdict.value: found[verdict] for verdict in Verdict}


def coverage(program: str, surface: Surface, python: str = "") -> Coverage:
    """What a program can ask of an API.  Raises TestbedError if there is no such program."""
    files = files_of(program, surface, python)
    imported: dict[str, list[Path]] = {}
    looked_up: dict[str, list[Path]] = {}
    for path in files:
        if path.name.startswith(surface.libraries) and len(files) > 1:
            continue
        needs = elf_needs(path, surface) if is_elf(path) else python_needs(path, surface)
        for names, found in ((needs.imports, imported), (needs.lookups, looked_up)):
            for name in names:
                found.setdefault(name, []).append(path)
    return Coverage(
        surface.name,
        tuple(files),
        tuple(
            Need(
                surface.answer(name),
                name in imported,
                tuple(imported.get(name, []) + looked_up.get(name, [])),
            )
            for name in sorted(imported.keys() | looked_up.keys())
        ),
    )


def run_coverage(program: str, python: str = "", as_json: bool = False) -> None:
    """Print the coverage of a program.

    Raises TestbedError if it needs something that is not forwarded, or no API that we know.
    """
    every = [coverage(program, surface, python) for surface in surfaces()]
    found = [entry for entry in every if entry.needs] or every[:1]
    if as_json:
        print(
            json.dumps({"program": program, "apis": [_as_json(entry) for entry in found]}, indent=2)
        )
    else:
        for entry in found:
            _print(program, entry)
    missing = [name for entry in found for name in entry.missing]
    if missing:
        raise TestbedError(
            f"{program} can ask for {len(missing)} functions that are not forwarded: "
            f"{', '.join(missing[:8])}{' ...' if len(missing) > 8 else ''}",
            "it works if it never calls them; testbed/protocol/ has the specs of all functions",
        )


def _print(program: str, entry: Coverage) -> None:
    print(f"{program}: {len(entry.files)} files, {len(entry.needs)} functions of {entry.api}")
    width = max((len(need.answer.name) for need in entry.needs), default=0)
    for verdict in Verdict:
        needs = [need for need in entry.needs if need.answer.verdict is verdict]
        if not needs:
            continue
        print(f"\n{verdict.value} ({len(needs)})")
        for need in needs:
            asked = "imported " if need.imported else "looked up"
            print(f"  {need.answer.name:{width}}  {asked}  {need.answer.how}")
    counts = ", ".join(f"{count} {verdict}" for verdict, count in entry.counts().items())
    print(f"\n{entry.api}: {counts}")


def _as_json(entry: Coverage) -> dict[str, Any]:
    return {
        "api": entry.api,
        "files": [str(path) for path in entry.files],
        "counts": entry.counts(),
        "functions": [
            {
                "name": need.answer.name,
                "verdict": need.answer.verdict.value,
                "how": need.answer.how,
                "imported": need.imported,
                "files": [str(path) for path in need.files[:SHOWN_FILES]],
            }
            for need in entry.needs
        ],
    }
