"""C of the server side: skeletons, dispatch by opcode, the table of backend functions, names."""

from __future__ import annotations

from testbed.protocol.emit import (
    banner,
    element_type,
    kind_macro,
    out_arguments,
    wrapped,
)
from testbed.protocol.emit_stub import TARGET
from testbed.protocol.spec import Api, Argument, Function

BLOB_BYTES_MAX = "WH_CL_BLOB_BYTES_MAX"
STRING_BYTES_MAX = "WH_CORE_STRING_BYTES_MAX"


def core_backend_header(api: Api) -> str:
    """What the worker implements of core.yaml."""
    out = [banner("core.yaml"), "#ifndef WH_CORE_BACKEND_H\n#define WH_CORE_BACKEND_H\n\n"]
    out.append("#include <stdint.h>\n\n#define WH_CORE_STRING_BYTES_MAX 4096u\n\n")
    out.append("struct wh_session;\n\n/* Each returns 0 or -errno. */\n")
    for function in api.functions:
        out.append(f"/* {function.doc} */\n")
        declarations = ["struct wh_session *session"] + [a.declaration for a in function.args]
        out.append(wrapped(f"int wh_core_{function.name}", declarations, ";") + "\n")
    out.append("\n#endif\n")
    return "".join(out)


def core_source(api: Api) -> str:
    """Skeletons of the runtime's own calls and their dispatch."""
    out = [banner("core.yaml"), "#include <errno.h>\n\n"]
    out.append('#include "skeleton.h"\n#include "wh_core_backend.h"\n#include "wh_wire.h"\n')
    out.append('#include "wh_skeleton_parts.h"\n')
    out.extend("\n" + _core_skeleton(function) for function in api.functions)
    out.append("\n" + _dispatch("core", api.functions))
    return "".join(out)


def _core_skeleton(function: Function) -> str:
    body = [f"static int skeleton_{function.name}(struct wh_request *request)\n{{"]
    for argument in function.args:
        name = argument.name
        if argument.out == "value":
            body.append(f"    {element_type(argument)} {name} = 0;")
        elif argument.out == "bytes":
            body.append(f"    size_t {name}_bytes = 0;")
            body.append(f"    void *{name} = wh_take_out(request, &{name}_bytes);")
        elif argument.in_bytes:
            body.append(f"    size_t {name}_bytes = 0;\n    uint64_t {name}_block = 0;")
            body.append(
                f"    {argument.declaration} = wh_take_bulk(request, &{name}_bytes, &{name}_block);"
            )
        elif argument.string:
            body.append(f"    size_t {name}_bytes = 0;")
            body.append(
                f"    {argument.declaration} = "
                f"wh_take_blob(request, &{name}_bytes, {STRING_BYTES_MAX});"
            )
        else:
            body.append(f"    {argument.type} {name} = wh_take_u64(request);")
    body.append("    if (wh_request_failed(request)) {\n        return -EBADMSG;\n    }")
    for argument in function.args:
        name = argument.name
        if argument.out == "bytes":
            body.append(f"    if ({name} == NULL || {name}_bytes < {argument.size}) {{")
            body.append("        return -EBADMSG;\n    }")
        elif argument.in_bytes:
            body.append(f"    if ({name} == NULL || {name}_bytes < {argument.in_bytes}) {{")
            body.append("        return -EBADMSG;\n    }")
        elif argument.string:
            body.append(f"    if ({name}_bytes == 0 || {name}[{name}_bytes - 1] != '\\0') {{")
            body.append("        return -EBADMSG;\n    }")
    if function.blocks:
        body.append("    wh_block_begin(request->session);")
    arguments = [("&" if a.out == "value" else "") + a.name for a in function.args]
    call = ", ".join(["request->session", *arguments])
    body.append(f"    int error = wh_core_{function.name}({call});")
    if function.blocks:
        body.append("    wh_block_end(request->session);")
    for argument in function.args:
        if argument.in_bytes:
            body.append(f"    wh_bulk_done(request->session, {argument.name}_block);")
    for argument in out_arguments(function):
        if argument.out == "value":
            body.append(f"    wh_reply_u64(request, {argument.name});")
        else:
            written = argument.written or argument.size
            body.append(f"    wh_reply_out(request, error != 0 ? 0 : {written});")
    body.append("    return error;\n}")
    return "\n".join(body) + "\n"


def _dispatch(name: str, functions: tuple[Function, ...] | list[Function]) -> str:
    out = [f"int wh_dispatch_{name}(uint16_t opcode, struct wh_request *request)\n{{\n"]
    out.append("    switch (opcode) {\n")
    for function in functions:
        out.append(f"    case WH_OP_{function.name}:\n")
        out.append(f"        return skeleton_{function.name}(request);\n")
    out.append("    default:\n        return -ENOSYS;\n    }\n}\n")
    return "".join(out)


def parts_header(cuda: list[Api]) -> str:
    """Dispatchers of the single specs."""
    dispatchers = "".join(
        f"int wh_dispatch_{name}(uint16_t opcode, struct wh_request *request);\n"
        for name in ("core", "opencl", *(api.name for api in cuda))
    )
    return (
        banner("core.yaml, opencl.yaml ...")
        + "#ifndef WH_SKELETON_PARTS_H\n#define WH_SKELETON_PARTS_H\n\n"
        "#include <stdint.h>\n\nstruct wh_request;\n\n"
        "/* Each returns 0 or -errno; -ENOSYS for an opcode that is not of its spec. */\n"
        f"{dispatchers}"
        "\n/* Of all of CUDA's libraries. */\n"
        "int wh_dispatch_cuda_all(uint16_t opcode, struct wh_request *request);\n\n"
        '/* Name of a function by opcode; "?" if there is none. */\n'
        "const char *wh_opcode_name(uint16_t opcode);\n\n#endif\n"
    )


def dispatch_source(cuda: list[Api]) -> str:
    """The one entry: the runtime's own calls, then the API."""
    first = min(function.opcode for api in cuda for function in api.functions)
    parts = "".join(
        f"    if (error == -ENOSYS) {{\n        error = wh_dispatch_{api.name}(opcode, request);\n"
        "    }\n"
        for api in cuda
    )
    return (
        banner("core.yaml, opencl.yaml ...") + "#include <errno.h>\n\n"
        '#include "skeleton.h"\n#include "wh_skeleton_parts.h"\n\n'
        "int wh_dispatch_cuda_all(uint16_t opcode, struct wh_request *request)\n{\n"
        f"    int error = -ENOSYS;\n{parts}    return error;\n}}\n\n"
        "/* Absent from a worker that was built where OpenCL is unknown. */\n"
        "int wh_dispatch_opencl(uint16_t opcode, struct wh_request *request)\n"
        "    __attribute__((weak));\n\n"
        "int wh_dispatch(uint16_t opcode, struct wh_request *request)\n{\n"
        f"    if (opcode >= {first:#x}) {{\n        return wh_dispatch_cuda_all(opcode, request);\n"
        "    }\n"
        "    int error = wh_dispatch_core(opcode, request);\n"
        "    bool opencl = error == -ENOSYS && wh_dispatch_opencl != NULL;\n"
        "    return opencl ? wh_dispatch_opencl(opcode, request) : error;\n}\n"
    )


def names_source(apis: list[Api]) -> str:
    """Names of all opcodes."""
    out = [
        banner("core.yaml, opencl.yaml"),
        '#include "wh_skeleton_parts.h"\n#include "wh_wire.h"\n\n',
    ]
    out.append("const char *wh_opcode_name(uint16_t opcode)\n{\n    switch (opcode) {\n")
    for api in apis:
        for function in api.functions:
            out.append(f'    case WH_OP_{function.name}:\n        return "{function.name}";\n')
    out.append('    default:\n        return "?";\n    }\n}\n')
    return "".join(out)


def opencl_table_header(api: Api) -> str:
    """The backend's functions, found by name in the real library."""
    out = [banner("opencl.yaml"), "#ifndef WH_OPENCL_TABLE_H\n#define WH_OPENCL_TABLE_H\n\n"]
    out.append(TARGET + "#include <CL/cl_icd.h>\n\n#define WH_OPENCL_FUNCTIONS(X) \\\n")
    out.append(" \\\n".join(f"    X({f.name})" for f in _called(api)))
    # Types come from the prototypes: cl_icd.h names its pointer types otherwise since 2024.
    member = "#define WH_OPENCL_MEMBER(name) __typeof__(name) *name;\n"
    out.append(f"\n\nstruct wh_opencl_table {{\n{member}")
    out.append("    WH_OPENCL_FUNCTIONS(WH_OPENCL_MEMBER)\n#undef WH_OPENCL_MEMBER\n};\n\n#endif\n")
    return "".join(out)


def _called(api: Api) -> list[Function]:
    """The functions of the real library that a worker calls."""
    own = ("clSetEventCallback", "clSetMemObjectDestructorCallback")  # the skeletons' own use
    forwarded = [f for f in api.functions if f.forwarded and not f.calls]
    return forwarded + [f for f in api.functions if f.name in own and f not in forwarded]


#: Functions that build programs, and those that wait until commands are complete.
COMPILES = ("clBuildProgram", "clCompileProgram", "clLinkProgram")
WAITS = ("clFinish", "clWaitForEvents")


def timed_source(api: Api) -> str:
    """The table of the real library's functions again, each measured."""
    out = [banner("opencl.yaml"), '#include "opencl_backend.h"\n#include "times.h"\n\n']
    out.append("static const struct wh_opencl_table *untimed;\n")
    functions = _called(api)
    out.extend("\n" + _timed(function) for function in functions)
    out.append("\nstatic const struct wh_opencl_table timed = {\n")
    out.extend(f"    .{f.name} = timed_{f.name},\n" for f in functions)
    out.append(
        "};\n\nconst struct wh_opencl_table *wh_cl_timed(const struct wh_opencl_table *real)"
    )
    out.append("\n{\n    untimed = real;\n    return &timed;\n}\n")
    return "".join(out)


def _timed(function: Function) -> str:
    returns = function.returns + ("" if function.returns.endswith("*") else " ")
    declarations = [argument.declaration for argument in function.args] or ["void"]
    names = [argument.name for argument in function.args]
    blocking = next((name for name in names if name.startswith("blocking_")), None)
    part = "WH_TIMES_BACKEND"
    if function.name in COMPILES:
        part = "WH_TIMES_COMPILE"
    elif function.name in WAITS:
        part = "WH_TIMES_KERNEL"
    elif blocking is not None:
        part = f"{blocking} ? WH_TIMES_KERNEL : WH_TIMES_BACKEND"
    head = wrapped(f"static {returns}CL_API_CALL timed_{function.name}", declarations, "")
    call = wrapped(f"untimed->{function.name}", names, ";").replace("\n", "\n    ")
    kept = "" if function.returns == "void" else f"{returns}result = "
    body = [f"{head}\n{{", "    uint64_t begin_ticks = wh_times_enter();", f"    {kept}{call}"]
    body.append(f"    wh_times_leave(begin_ticks, {part});")
    body.append("    return result;\n}" if kept else "}")
    return "\n".join(body) + "\n"


def opencl_source(api: Api) -> str:
    """All skeletons that need no hand, and the dispatch."""
    out = [banner("opencl.yaml"), "#include <errno.h>\n\n"]
    out.append('#include "opencl_backend.h"\n#include "skeleton.h"\n#include "wh_opencl_kinds.h"\n')
    out.append('#include "wh_skeleton_parts.h"\n#include "wh_wire.h"\n')
    forwarded = [f for f in api.functions if f.forwarded]
    for function in forwarded:
        out.append("\n")
        if function.manual_skeleton:
            out.append(f"/* By hand: {function.manual_skeleton} */\n")
            out.append(f"int wh_skeleton_{function.name}(struct wh_request *request);\n")
            out.append(f"#define skeleton_{function.name} wh_skeleton_{function.name}\n")
        else:
            if function.truth:
                out.append(_ask(function))
            out.append(opencl_skeleton(function))
    out.append("\n" + _dispatch("opencl", forwarded))
    out.append("\n" + _extensions(api))
    out.append("\n" + _volatile(api))
    return "".join(out)


def opencl_skeleton(function: Function) -> str:
    """One skeleton."""
    body = [f"static int skeleton_{function.name}(struct wh_request *request)\n{{"]
    body.append("    cl_int error = CL_SUCCESS;")
    for argument in function.args:
        body.extend(_take(argument))
    if function.creates:
        body.append("    uint64_t created = wh_take_u64(request);")
    if function.mode == "release":
        body.append("    bool last = wh_take_u64(request) != 0;")
        body.append("    size_t forgotten_bytes = 0;")
        body.append("    const uint64_t *forgotten =")
        body.append(f"        wh_take_blob(request, &forgotten_bytes, {BLOB_BYTES_MAX});")
    body.append("    if (wh_request_failed(request)) {\n        return -EBADMSG;\n    }")
    body.extend(_validate(function))
    body.extend(_execute(function))
    body.append("    return 0;\n}")
    return "\n".join(body) + "\n"


def _take(argument: Argument) -> list[str]:
    name = argument.name
    if argument.awaited:
        return [f"    bool {name} = wh_take_u64(request) != 0;"]
    if argument.errcode or argument.callback or argument.is_callback_data:
        return []
    if argument.handle:
        kind = kind_macro(argument.handle)
        return [
            f"    uint64_t {name}_handle = wh_take_u64(request);",
            f"    {argument.type} {name} = wh_cl_object(request, {name}_handle, {kind}, &error);",
        ]
    if argument.handles:
        kind = kind_macro(argument.handles)
        return [
            f"    cl_uint {name}_count = 0;",
            f"    {argument.type.replace('const ', '')}{name} =",
            f"        (void *)wh_cl_objects(request, {kind}, &{name}_count, &error);",
        ]
    if argument.strings:
        return [
            f"    cl_uint {name}_count = 0;",
            f"    {argument.type}{name} = wh_cl_strings(request, &{name}_count);",
        ]
    if argument.in_bytes or argument.string:
        take = [
            f"    size_t {name}_bytes = 0;",
            f"    {argument.type}{name} = wh_take_blob(request, &{name}_bytes, {BLOB_BYTES_MAX});",
        ]
        if argument.padded:
            padded = f"wh_cl_padded(request, {name}, {name}_bytes, {argument.padded})"
            take.append(f"    {name} = {padded};")
        return take
    if argument.out:
        return [
            f"    size_t {name}_bytes = 0;",
            f"    {argument.type}{name} = wh_take_out(request, &{name}_bytes);",
        ]
    if argument.out_event:
        return ["    uint64_t created = wh_take_u64(request);"]
    return [f"    {argument.type} {name} = ({argument.type})wh_take_u64(request);"]


def _validate(function: Function) -> list[str]:
    """Sizes that the backend trusts must be those of the bytes that came."""
    conditions = []
    for argument in function.args:
        name = argument.name
        if argument.padded:
            continue
        if argument.in_bytes and "wh_cl_" not in argument.in_bytes:
            conditions.append(f"({name} != NULL && {name}_bytes < {argument.in_bytes})")
        elif argument.in_bytes.startswith("wh_cl_properties_bytes"):
            conditions.append(f"!wh_cl_properties_end({name}, {name}_bytes)")
        elif argument.in_bytes:
            conditions.append(f"({name} != NULL && {name}_bytes < sizeof(cl_buffer_region))")
        elif argument.string:
            conditions.append(f"!wh_cl_string_ends({name}, {name}_bytes)")
        elif argument.out == "value":
            conditions.append(f"({name} != NULL && {name}_bytes < sizeof(*{name}))")
        elif argument.out == "bytes":
            conditions.append(f"({name} != NULL && {name}_bytes < {argument.size})")
        elif argument.out == "info":
            conditions.append(f"({name} != NULL && {name}_bytes < param_value_size)")
        elif argument.handles or argument.strings:
            conditions.append(f"{argument.count} != {name}_count")
    if not conditions:
        return []
    joined = " ||\n        ".join(conditions)
    return [f"    if ({joined}) {{\n        return -EBADMSG;\n    }}"]


def _execute(function: Function) -> list[str]:
    awaited = next((argument for argument in function.args if argument.awaited), None)
    info = any(argument.out == "info" for argument in function.args)
    lines = [*_declare(function, awaited), *_call(function, awaited), *_count(function)]
    if any(argument.out_event for argument in function.args):
        lines.append("    error = wh_cl_register(request, created, WH_KIND_EVENT, event, error);")
    if function.creates:
        kind = kind_macro(function.creates)
        lines.append(f"    error = wh_cl_register(request, created, {kind}, object, error);")
    if info:
        lines += _mend_info(function)
    lines.append(f"    wh_cl_reply_error(request, WH_OP_{function.name}, error);")
    if awaited is not None:
        lines.append("    wh_reply_u64(request, wh_cl_notice_end(notice));")
    for argument in out_arguments(function):
        lines.append(f"    wh_reply_out(request, {_written(function, argument, info)});")
    return lines


def _declare(function: Function, awaited: Argument | None) -> list[str]:
    """What the call fills in."""
    lines = [_truths(function)] if function.truth else []
    if any(argument.out_event for argument in function.args):
        lines.append("    cl_event event = NULL;")
    if any(argument.out == "info" for argument in function.args):
        lines.append("    size_t written = 0;")
    if function.creates:
        lines.append(f"    {function.returns} object = NULL;")
    if awaited is not None:
        lines.append(f"    struct wh_cl_notice *notice = wh_cl_notice_new({awaited.name}, &error);")
    return lines


def _call(function: Function, awaited: Argument | None) -> list[str]:
    """The backend's function, unless there is an error already."""
    arguments = [_passed(argument, awaited) for argument in function.args]
    call = wrapped(f"wh_cl->{function.backend}", arguments, ";")
    if function.truth:
        count = f"{len(function.truth)}u"
        arguments[:1] = [f"ask_{function.name}", arguments[0], "truths", count]
        call = wrapped("wh_cl_tell", arguments, ";")
    if function.mode == "release":
        first = function.args[0]
        let_go = ["request", f"{first.name}_handle", kind_macro(first.handle), first.name]
        lines = [wrapped("    if (wh_cl_count_release", [*let_go, "last", "&error"], ") {")]
    else:
        lines = ["    if (error == CL_SUCCESS) {"]
    if function.blocks == "true":
        lines.append("        wh_block_begin(request->session);")
    target = "object" if function.creates else "error"
    lines.append("        " + f"{target} = {call}".replace("\n", "\n" + " " * (11 + len(target))))
    if awaited is not None:
        lines.append("        wh_cl_notice_wait(notice, error);")
    if function.blocks == "true":
        lines.append("        wh_block_end(request->session);")
    return [*lines, "    }"]


def _passed(argument: Argument, awaited: Argument | None) -> str:
    """What stands for an argument in the backend's call."""
    if argument.errcode:
        return "&error"
    if argument.awaited:
        return f"{argument.name} ? wh_cl_notify : NULL"
    if argument.is_callback_data and awaited:
        return "notice"
    if argument.callback or argument.is_callback_data:
        return "NULL"
    if argument.out_event:
        return "created == 0 ? NULL : &event"
    if argument.name == "param_value_size_ret":
        return "&written"
    return argument.name


def _count(function: Function) -> list[str]:
    """The client's references, after the backend has counted."""
    if function.mode == "release":
        return ["    wh_cl_forget(request, forgotten, forgotten_bytes);"]
    if function.mode == "retain":
        first = function.args[0]
        kind = kind_macro(first.handle)
        return [f"    wh_cl_count_retain(request, {first.name}_handle, {kind}, error);"]
    return []


def _mend_info(function: Function) -> list[str]:
    """Hides what means nothing to the client, and says how much was written."""
    lines = []
    if function.opaque:
        lines = [
            f"    static const cl_uint opaque[] = {{{', '.join(function.opaque)}}};",
            "    if (error == CL_SUCCESS) {",
            "        wh_cl_hide(param_name, opaque, sizeof(opaque) / sizeof(opaque[0]),",
            "                   param_value, written);\n    }",
        ]
    return [
        *lines,
        "    if (error == CL_SUCCESS && param_value_size_ret != NULL) {",
        "        *param_value_size_ret = written;\n    }",
    ]


def _truths(function: Function) -> str:
    """What the answers must not promise."""
    out = ["    static const struct wh_cl_truth truths[] = {"]
    for truth in function.truth:
        rule = f"WH_CL_TRUTH_{truth.rule.upper()}"
        out.append(f"        {{{truth.query}, {rule}, {truth.bits}}},")
    return "\n".join([*out, "    };"])


def _ask(function: Function) -> str:
    """The real library's query, for whatever kind of object."""
    types = [argument.type for argument in function.args]
    return (
        f"static cl_int ask_{function.name}(void *object, cl_uint param, size_t size,\n"
        "    void *value, size_t *written)\n{\n"
        f"    return wh_cl->{function.backend}(({types[0]})object, param, size, value, written);\n"
        "}\n\n"
    )


def _extensions(api: Api) -> str:
    out = ["const char *const wh_cl_extensions[] = {\n"]
    out.extend(f'    "{name}",\n' for name in api.extensions)
    return "".join([*out, "    NULL,\n};\n"])


def _written(function: Function, argument: Argument, info: bool) -> str:
    name = argument.name
    failed = f"{name} == NULL || error != CL_SUCCESS"
    if argument.out == "value":
        return f"{failed} ? 0 : sizeof(*{name})"
    if argument.out == "info":
        return f"{failed} ? 0 : written"
    return f"{failed} ? 0 : {argument.written}"


def _volatile(api: Api) -> str:
    """Which replies differ from run to run: by opcode and, for queries, by parameter."""
    out = ["bool wh_cl_reply_volatile(uint16_t opcode, const uint64_t *items, size_t count)\n{\n"]
    out.append("    switch (opcode) {\n")
    for function in api.functions:
        if not function.volatile:
            continue
        out.append(f"    case WH_OP_{function.name}:\n")
        if function.volatile == ("all",):
            out.append("        return true;\n")
            continue
        place = [argument.name for argument in function.args].index("param_name")
        tests = " ||\n               ".join(
            f"items[{place}] == {name}" for name in function.volatile
        )
        out.append(f"        return count > {place} &&\n               ({tests});\n")
    out.append("    default:\n        (void)items;\n        (void)count;\n")
    out.append("        return false;\n    }\n}\n")
    return "".join(out)
