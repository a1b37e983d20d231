"""C of both sides for descriptors that are only values (`contents` of a spec).

The client keeps what setters were given, one entry a setter: opcode, size, and the arguments as in
a message. The whole travels with every call that has such a descriptor, and the server makes a
descriptor of the real library's from it. So creating, setting and destroying one costs no message;
a setter is checked by the real library the first time that it makes these contents.
"""

from __future__ import annotations

from collections.abc import Callable

from testbed.protocol.emit import wrapped
from testbed.protocol.spec import Api, Argument, Function

#: Modes of functions that work on contents alone.
MODES = ("make", "drop", "set")
FLOATS = ("float", "double")


def macro(api: Api, content: str) -> str:
    """Name of a kind in C."""
    return f"WH_{api.name.upper()}_{content.upper()}"


def kinds(api: Api) -> list[str]:
    """Numbers of the kinds, for the header of both sides."""
    return [
        f"#define {macro(api, content.name)} {number}u\n"
        for number, content in enumerate(api.contents, 1)
    ]


def _head(function: Function) -> str:
    declared = [argument.declaration for argument in function.args]
    return wrapped(f"WH_EXPORT {function.returns} {function.name}", declared, "")


def stub(api: Api, function: Function) -> str:
    """A function that makes, drops or sets a descriptor."""
    first = function.args[0]
    apis = f"&wh_{api.name}_api"
    kind = macro(api, first.content)
    body = [_head(function) + "\n{", "    WH_API_CALL();"]
    if function.mode == "make":
        body.append(f"    return wh_content_make({apis}, {kind}, (void **){first.name});\n}}")
        return "\n".join(body) + "\n"
    if function.mode == "drop":
        body.append(f"    return wh_content_drop({apis}, {kind}, {first.name});\n}}")
        return "\n".join(body) + "\n"
    body.append("    struct wh_entry entry;")
    opcode = f"WH_OP_{function.name}"
    body.append(f"    wh_entry_begin(&entry, {first.name}, {kind}, {opcode});")
    body.extend(_put(api, argument) for argument in function.args[1:])
    if any(argument.name == "dataType" for argument in function.args):
        body.append("    wh_entry_type(&entry, dataType);")
    how = "true" if function.modifies else "false"
    body.append(f"    return wh_entry_commit(&entry, {apis}, {how});\n}}")
    return "\n".join(body) + "\n"


def _put(api: Api, argument: Argument) -> str:
    name = argument.name
    if argument.content:
        return f"    wh_entry_content(&entry, {name}, {macro(api, argument.content)});"
    if argument.in_bytes:
        return f"    wh_entry_blob(&entry, {name}, {argument.in_bytes});"
    if argument.type in FLOATS:
        return f"    wh_entry_u64(&entry, wh_cuda_{argument.type}_bits({name}));"
    return f"    wh_entry_u64(&entry, (uint64_t){name});"


def skeleton(api: Api, function: Function, take: Callable[[Api, Argument], list[str]]) -> str:
    """How one entry is applied to a real descriptor, and the answer to whether it can be."""
    first = function.args[0]
    kind = macro(api, first.content)
    name = function.name
    body = [f"static uint64_t apply_{name}(struct wh_request *request, void *{first.name})\n{{"]
    body.append("    uint64_t outcome = 0;\n    bool valid = true;")
    body.append(f"    const struct wh_{api.name}_table *real = wh_{api.name}();")
    for argument in function.args[1:]:
        body.extend(take(api, argument))
    conditions = ["wh_request_failed(request)"]
    for argument in function.args[1:]:
        if argument.in_bytes:
            bound = f"{argument.name}_bytes < {argument.in_bytes}"
            conditions.append(f"({argument.name} != NULL && {bound})")
    joined = " ||\n        ".join(conditions)
    body.append(f"    if ({joined}) {{\n        request->failed = true;")
    body.append("        return 0;\n    }\n    if (!valid) {\n        return outcome;\n    }")
    body.append(f"    if (real == NULL || real->{name} == NULL) {{")
    assert api.library is not None
    body.append(f"        return {api.library.unsupported};\n    }}")
    passed = wrapped(f"    return (uint64_t)real->{name}", [a.name for a in function.args], ";")
    body.append(passed + "\n}\n")
    body.append(f"static int skeleton_{name}(struct wh_request *request)\n{{")
    body.append(f"    return wh_{api.name}_check(request, WH_OP_{name}, {kind});\n}}")
    return "\n".join(body) + "\n"


def tables(api: Api) -> str:
    """Which entries there are, and how real descriptors are made and destroyed, by kind."""
    if not api.contents:
        return ""
    name = api.name
    out = [
        f"uint64_t wh_{name}_apply(unsigned kind, uint16_t opcode, struct wh_request *request,\n"
    ]
    out.append("                       void *descriptor)\n{\n    switch (opcode) {\n")
    for function in api.functions:
        if function.mode == "set":
            kind = macro(api, function.args[0].content)
            out.append(f"    case WH_OP_{function.name}:\n        if (kind == {kind}) {{\n")
            out.append(f"            return apply_{function.name}(request, descriptor);\n")
            out.append("        }\n        break;\n")
    out.append("    default:\n        break;\n    }\n    request->failed = true;\n")
    out.append("    return 0;\n}\n\n")
    out.append(f"uint64_t wh_{name}_make(unsigned kind, void **descriptor)\n{{\n")
    out.append(f"    const struct wh_{name}_table *real = wh_{name}();\n    switch (kind) {{\n")
    assert api.library is not None
    for content in api.contents:
        out.append(f"    case {macro(api, content.name)}:\n")
        out.append(f"        if (real != NULL && real->{content.create} != NULL) {{\n")
        out.append(f"            return (uint64_t)real->{content.create}(descriptor);\n")
        out.append("        }\n        break;\n")
    out.append(
        f"    default:\n        break;\n    }}\n    return {api.library.unsupported};\n}}\n\n"
    )
    out.append(f"void wh_{name}_unmake(unsigned kind, void *descriptor)\n{{\n")
    out.append(f"    const struct wh_{name}_table *real = wh_{name}();\n    switch (kind) {{\n")
    for content in api.contents:
        out.append(f"    case {macro(api, content.name)}:\n")
        out.append(f"        real->{content.destroy}(descriptor);\n        break;\n")
    out.append("    default:\n        break;\n    }\n}\n\n")
    return "".join(out)
