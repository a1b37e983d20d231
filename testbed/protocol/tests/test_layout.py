"""C's and Python's views of wire.yaml agree, byte for byte."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from testbed.protocol.generate import generate
from testbed.protocol.spec import Struct, load_wire
from testbed.protocol.wire import View, constant, enum, hash_of_specs, view

COMPILE_LIMIT_S = 60


def _program(structs: tuple[Struct, ...]) -> str:
    lines = ['#include <stdio.h>\n#include "wh_wire.h"\nint main(void)\n{']
    for struct in structs:
        name = f"struct wh_{struct.name}"
        lines.append(f'printf("{struct.name} %zu", sizeof({name}));')
        for field in struct.fields:
            member = f"(({name} *)0)->{field.name}"
            numbers = f"offsetof({name}, {field.name}), sizeof({member})"
            lines.append(f'printf(" {field.name}:%zu:%zu", {numbers});')
        lines.append('printf("\\n");')
    for entry in load_wire().constants:
        value = f"(unsigned long long)WH_{entry.name.upper()}"
        lines.append(f'printf("={entry.name} %llu\\n", {value});')
    lines.append('printf("=spec_hash %llu\\n", (unsigned long long)WH_SPEC_HASH);')
    return "\n".join([*lines, "return 0;\n}\n"])


def _run_c(folder: Path) -> list[str]:
    generate(folder / "generated")
    source = folder / "layout.c"
    source.write_text(_program(load_wire().structs), encoding="utf-8")
    include = folder / "generated" / "include"
    argv = ["gcc", "-std=gnu11", "-Wall", "-Wextra", "-Werror", f"-I{include}"]
    subprocess.run(
        [*argv, "-o", str(folder / "layout"), str(source)], check=True, timeout=COMPILE_LIMIT_S
    )
    shown = subprocess.run(
        [str(folder / "layout")], capture_output=True, text=True, check=True, timeout=10
    )
    return shown.stdout.splitlines()


@pytest.mark.native
def test_c_and_python_agree(tmp_path: Path) -> None:
    lines = _run_c(tmp_path)
    layouts = {line.split()[0]: line.split()[1:] for line in lines if line[0] != "="}
    numbers = {line.split()[0][1:]: int(line.split()[1]) for line in lines if line[0] == "="}
    structs = load_wire().structs
    assert set(layouts) == {struct.name for struct in structs}
    for struct in structs:
        size, *fields = layouts[struct.name]
        python = View(struct)
        assert int(size) == python.size_bytes == len(python.pack())
        assert len(fields) == len(struct.fields)
        for text in fields:
            name, offset, width = text.split(":")
            assert int(offset) == python.offset(name), f"{struct.name}.{name}"
            assert int(width) == _width(python, name), f"{struct.name}.{name}"
    assert numbers.pop("spec_hash") == hash_of_specs()
    assert numbers == {entry.name: entry.value for entry in load_wire().constants}


def _width(python: View, name: str) -> int:
    """Bytes that storing the largest value of a member changes."""
    field = python.field(name)
    if field.count > 1:
        return sum(byte == 0xFF for byte in python.pack(**{name: b"\xff" * field.count}))
    value = -1 if field.type.startswith("s") else 2 ** (8 * int(field.type[1:]) // 8) - 1
    return sum(byte == 0xFF for byte in python.pack(**{name: value}))


def test_values_survive_a_round_trip() -> None:
    hello = view("hello")
    data = hello.pack(magic=constant("magic"), version=7, pid=42, name=b"abc", token=b"\x01" * 32)
    values = hello.unpack(data)
    assert values["magic"] == constant("magic")
    assert values["version"] == 7
    assert values["pid"] == 42
    assert values["name"] == b"abc" + bytes(13)
    assert values["token"] == b"\x01" * 32
    buffer = bytearray(8 + hello.size_bytes)
    hello.store(buffer, 8, "spin_us", 50)
    assert hello.load(buffer, 8, "spin_us") == 50
    assert hello.load(buffer, 8, "version") == 0


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match=r"17 bytes do not fit hello\.name"):
        view("hello").pack(name=b"x" * 17)
    with pytest.raises(ValueError, match="needs bytes"):
        view("hello").pack(token=1)
    with pytest.raises(KeyError):
        view("hello").pack(nothing=1)
    with pytest.raises(KeyError):
        view("nothing")


def test_each_writer_has_its_own_cache_lines() -> None:
    """Client words, worker words and supervisor words of a session never share a line."""
    header = view("session_header")
    line = constant("line_bytes")
    lines = [header.offset(name) // line for name in ("arena_bytes", "head", "tail", "host_idle")]
    lines += [header.offset(name) // line for name in ("space_waiting", "host_state")]
    assert len(set(lines)) == len(lines)
    assert header.size_bytes <= constant("page_bytes")
    assert view("slot_header").size_bytes == line
    entry = view("table_guest").size_bytes
    assert entry == view("table_host").size_bytes == line


def test_enums() -> None:
    assert enum("host_state") == {"free": 0, "ready": 1, "dead": 2, "refused": 3}
    with pytest.raises(KeyError):
        enum("nothing")
