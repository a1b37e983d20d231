"""Names of functions in files: imports and strings of ELF files, identifiers of Python sources."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field
from pathlib import Path

from elftools.common.exceptions import ELFError
from elftools.elf.dynamic import DynamicSection
from elftools.elf.elffile import ELFFile
from elftools.elf.sections import SymbolTableSection

from testbed.coverage.surface import Surface

# Holds names of what the file defines or refers to, not what it looks up at run time.
NAME_SECTIONS = (".dynstr", ".strtab", ".shstrtab", ".debug", ".gnu_debug", ".symtab", ".comment")
TAGS = {"DT_NEEDED": "needed", "DT_RPATH": "rpath", "DT_RUNPATH": "runpath"}
SOURCE_BYTES_MAX = 16 << 20


@dataclass
class Needs:
    """Of one file: functions that it is linked with, that it may look up, and that it defines."""

    imports: set[str] = field(default_factory=set)
    lookups: set[str] = field(default_factory=set)
    defines: set[str] = field(default_factory=set)
    libraries: tuple[str, ...] = ()
    search: tuple[str, ...] = ()  # RPATH and RUNPATH


def is_elf(path: Path) -> bool:
    """Whether a file begins like an ELF file; False if it cannot be read."""
    try:
        with path.open("rb") as file:
            return file.read(4) == b"\x7fELF"
    except OSError:
        return False


def elf_needs(path: Path, surface: Surface) -> Needs:
    """Needs of a program, shared library or extension module.

    A damaged file has those that could be read: somebody else's file is no fault of ours.
    """
    needs = Needs()
    try:
        with path.open("rb") as file:
            _read_elf(ELFFile(file), surface, needs)
    except (ELFError, OSError, ValueError, AssertionError):
        pass
    needs.lookups -= needs.imports | needs.defines
    return needs


def _read_elf(elf: ELFFile, surface: Surface, needs: Needs) -> None:
    sections = list(elf.iter_sections())
    for section in sections:
        if isinstance(section, DynamicSection):
            _read_dynamic(section, needs)
        if isinstance(section, SymbolTableSection):
            _read_symbols(section, surface, needs)
    data = [section.data() for section in sections if _holds_data(section)]
    for part in data or [segment.data() for segment in elf.iter_segments("PT_LOAD")]:
        needs.lookups |= _strings(part, surface)


def _holds_data(section: object) -> bool:
    name = str(getattr(section, "name", ""))
    header = getattr(section, "header", {})
    return header["sh_type"] == "SHT_PROGBITS" and not name.startswith(NAME_SECTIONS)


def _read_dynamic(section: DynamicSection, needs: Needs) -> None:
    for tag in section.iter_tags():
        attribute = TAGS.get(tag.entry.d_tag, "")
        value = str(getattr(tag, attribute, ""))
        if attribute == "needed":
            needs.libraries = (*needs.libraries, value)
        elif attribute:
            needs.search = (*needs.search, *value.split(":"))


def _read_symbols(section: SymbolTableSection, surface: Surface, needs: Needs) -> None:
    for symbol in section.iter_symbols():
        if not surface.pattern.fullmatch(symbol.name):
            continue
        defined = symbol.entry["st_shndx"] != "SHN_UNDEF"
        if defined:
            needs.defines.add(symbol.name)
        elif section.name == ".dynsym":
            needs.imports.add(symbol.name)


def _strings(data: bytes, surface: Surface) -> set[str]:
    """Whole strings that are names of the API."""
    pattern = re.compile(rb"(?<![A-Za-z0-9_])(" + surface.pattern.pattern.encode() + rb")\0")
    found = {match.group(1).decode("ascii") for match in pattern.finditer(data)}
    return {name for name in found if _is_known(name, surface)}


def _is_known(name: str, surface: Surface) -> bool:
    """A string is a function's name only if the API has it; an import always is."""
    return (
        name in surface.functions
        or name in surface.provided
        or name in surface.refused
        or name.endswith(surface.extensions)
    )


def python_needs(path: Path, surface: Surface) -> Needs:
    """Names that a Python source uses, but for those that it defines itself (a ctypes binding)."""
    needs = Needs()
    try:
        if path.stat().st_size > SOURCE_BYTES_MAX:
            return needs
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError):
        return needs
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            needs.defines.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            needs.defines.add(node.id)
        elif isinstance(node, ast.Name):
            needs.lookups.add(node.id)
        elif isinstance(node, ast.Attribute):
            needs.lookups.add(node.attr)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            needs.lookups.add(node.value)
    needs.lookups = {
        name
        for name in needs.lookups - needs.defines
        if surface.pattern.fullmatch(name) and _is_known(name, surface)
    }
    return needs
