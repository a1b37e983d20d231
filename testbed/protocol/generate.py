"""Generates the C view of the specs: `python -m testbed.protocol.generate [--out build/generated]`.

The table of functions in the documentation (OPENCL.md) is made along with it.

A file is rewritten only when its content changes: a build sees no change where there is none.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from testbed.errors import TestbedError
from testbed.protocol import emit_cuda, emit_fuzz, emit_skeleton, emit_stub
from testbed.protocol.emit import banner
from testbed.protocol.emit_table import TABLE_PATH, find_tests, table_text
from testbed.protocol.spec import (
    CUDA_NAMES,
    Enum,
    Struct,
    Wire,
    load_api,
    load_wire,
    spec_hash,
)

TYPES = {
    "u8": "uint8_t",
    "u16": "uint16_t",
    "u32": "uint32_t",
    "u64": "uint64_t",
    "s32": "int32_t",
    "s64": "int64_t",
}


def wire_header(wire: Wire, opcodes: list[tuple[str, int]], hash_value: int) -> str:
    """Text of wh_wire.h: constants, enums, structures, opcodes; also for the kernel."""
    out = [banner("wire.yaml, core.yaml, opencl.yaml")]
    out.append("#ifndef WH_WIRE_H\n#define WH_WIRE_H\n\n")
    out.append("#ifdef __KERNEL__\n#include <linux/build_bug.h>\n#include <linux/stddef.h>\n")
    out.append(
        "#include <linux/types.h>\n#else\n#include <stddef.h>\n#include <stdint.h>\n#endif\n\n"
    )
    out.append(f"#define WH_SPEC_HASH {hash_value:#018x}ULL\n\n")
    for constant in wire.constants:
        out.append(_comment(constant.doc))
        out.append(f"#define WH_{constant.name.upper()} {_literal(constant.value)}\n")
    out.append("\n")
    out.extend(_enum(enum) for enum in wire.enums)
    out.extend(_struct(struct) for struct in wire.structs)
    out.append("/* Opcodes of wh_request_header. */\n")
    for name, opcode in opcodes:
        out.append(f"#define WH_OP_{name} {opcode:#06x}u\n")
    out.append("\n#endif\n")
    return "".join(out)


def _literal(value: int) -> str:
    if value > 0xFFFFFFFF:
        return f"{value:#x}ULL"
    return f"{value}u"


def _comment(text: str) -> str:
    return f"/* {text} */\n" if text else ""


def _enum(enum: Enum) -> str:
    out = [_comment(enum.doc)]
    for entry in enum.entries:
        name = f"WH_{enum.name.upper()}_{entry.name.upper()}"
        doc = f" /* {entry.doc} */" if entry.doc else ""
        out.append(f"#define {name} {_literal(entry.value)}{doc}\n")
    return "".join(out) + "\n"


def _struct(struct: Struct) -> str:
    out = [_comment(struct.doc), f"struct wh_{struct.name} {{\n"]
    for field in struct.fields:
        array = f"[{field.count}]" if field.count > 1 else ""
        doc = f" /* {field.doc} */" if field.doc else ""
        out.append(f"    {TYPES[field.type]} {field.name}{array};{doc}\n")
    out.append("};\n")
    name = f"struct wh_{struct.name}"
    out.append(
        f'_Static_assert(sizeof({name}) == {struct.size_bytes}, "size of wh_{struct.name}");\n'
    )
    for field in struct.fields:
        out.append(
            f"_Static_assert(offsetof({name}, {field.name}) == {field.offset_bytes},\n"
            f'               "offset of wh_{struct.name}.{field.name}");\n'
        )
    return "".join(out) + "\n"


def write_if_changed(path: Path, text: str) -> bool:
    """Writes a file only if its content differs; True if it did."""
    if path.exists() and path.read_text(encoding="utf-8") == text:
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".new")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)
    return True


def generate(out: Path) -> list[Path]:
    """Generates everything under `out`; returns the files that changed."""
    files = generated_files()
    return [out / name for name, text in files.items() if write_if_changed(out / name, text)]


def generated_files() -> dict[str, str]:
    """Content of every generated file by its path below the output directory."""
    core, opencl = load_api("core"), load_api("opencl")
    cuda = [load_api(name) for name in CUDA_NAMES]
    opcodes = [(f.name, f.opcode) for api in (core, opencl, *cuda) for f in api.functions]
    _refuse_shared_opcodes(opcodes)
    crossing = [api for api in cuda if api.crosses]
    return {
        "include/wh_wire.h": wire_header(load_wire(), opcodes, spec_hash()),
        "include/wh_core_stub.h": emit_stub.core_header(core),
        "include/wh_opencl_stub.h": emit_stub.opencl_header(opencl),
        "include/wh_opencl_kinds.h": emit_stub.kinds_header(opencl),
        "include/wh_core_backend.h": emit_skeleton.core_backend_header(core),
        "include/wh_skeleton_parts.h": emit_skeleton.parts_header(crossing),
        "include/wh_opencl_table.h": emit_skeleton.opencl_table_header(opencl),
        "stub_core.c": emit_stub.core_source(core),
        "stub_opencl.c": emit_stub.opencl_source(opencl),
        "skeleton_core.c": emit_skeleton.core_source(core),
        "skeleton_opencl.c": emit_skeleton.opencl_source(opencl),
        "skeleton_timed.c": emit_skeleton.timed_source(opencl),
        "skeleton_dispatch.c": emit_skeleton.dispatch_source(crossing),
        "fuzz_grammar.c": emit_fuzz.fuzz_source([core, opencl], crossing),
        "opcode_names.c": emit_skeleton.names_source([core, opencl, *cuda]),
        **{
            path: text
            for api in cuda
            for path, text in (
                (f"include/wh_{api.name}.h", emit_cuda.header(api)),
                (f"stub_cuda_{api.name}.c", emit_cuda.stub_source(api)),
                (f"cuda_{api.name}.map", emit_cuda.exports_map(api)),
            )
        },
        **{f"skeleton_cuda_{api.name}.c": emit_cuda.skeleton_source(api) for api in crossing},
    }


def write_table() -> list[Path]:
    """Writes the documentation's table again; its path if it changed."""
    api = load_api("opencl")
    text = table_text(api, find_tests(function.name for function in api.functions))
    return [TABLE_PATH] if write_if_changed(TABLE_PATH, text) else []


def _refuse_shared_opcodes(opcodes: list[tuple[str, int]]) -> None:
    seen: dict[int, str] = {}
    for name, opcode in opcodes:
        if opcode in seen:
            raise TestbedError(
                f"{name} and {seen[opcode]} share opcode {opcode:#x}", "give the newer one another"
            )
        seen[opcode] = name


def main(argv: list[str] | None = None) -> int:
    """Entry point; 0, or 1 with one line on a fault in the specs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("build/generated"))
    arguments = parser.parse_args(argv)
    try:
        changed = generate(arguments.out) + write_table()
    except TestbedError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    for path in changed:
        print(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
