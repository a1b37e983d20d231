"""C of both sides of CUDA's libraries: headers, stubs, skeletons, tables of functions, exports.

Handles, errors and what goes one way are CUDA's own, so these emitters stand beside OpenCL's; specs
and their meaning are the same (README.md).
"""

from __future__ import annotations

from testbed.protocol import emit_content
from testbed.protocol.emit import banner, kind_macro, wrapped
from testbed.protocol.spec import Api, Argument, Function, Library, exports

OWN_PREFIX = "whc"  # messages of the forwarding's own
FLOATS = ("float", "double")
STREAM = "stream"


def library_of(api: Api) -> Library:
    """The library of a CUDA spec."""
    assert api.library is not None, api.name
    return api.library


def header(api: Api) -> str:
    """Types, prototypes and the table of the real library's functions; for both sides."""
    name = api.name.upper()
    out = [banner(f"{api.name}.yaml"), f"#ifndef WH_{name}_H\n#define WH_{name}_H\n\n"]
    out.append('#include <stddef.h>\n#include <stdint.h>\n\n#include "wh_cuda.h"\n')
    shared = library_of(api).shared_header
    out.append(f'#include "{shared}"\n\n' if shared else "\n")
    out.extend(f"typedef {of}{'' if of.endswith('*') else ' '}{new};\n" for new, of in api.types)
    out.append("\n")
    for handle in api.handles:
        macro = kind_macro(handle.name)
        out.append(f"#ifndef {macro}\n#define {macro} {handle.kind}u\n#endif\n")
    out.append("\n")
    for function in api.functions:
        if not function.name.startswith(OWN_PREFIX):
            out.append(wrapped(_head(function), _declarations(function), ";") + "\n")
    out.extend(emit_content.kinds(api))
    if not api.crosses:
        return "".join([*out, "\n#endif\n"])
    called = _called(api)
    out.append(f"\n#define WH_{name}_FUNCTIONS(X) \\\n")
    out.append(" \\\n".join(f"    X({f.name})" for f in called))
    out.append(
        f"\n\n/* The real library's; NULL if it has none. */\nstruct wh_{api.name}_table {{\n"
    )
    out.extend(f"    __typeof__({f.name}) *{f.name};\n" for f in called)
    out.append("};\n\n#endif\n")
    return "".join(out)


def _called(api: Api) -> list[Function]:
    """What the real library has: all but the registration of the compiler's and our own."""
    return [f for f in api.functions if not f.name.startswith((OWN_PREFIX, "__"))]


def _head(function: Function) -> str:
    return function.returns + ("" if function.returns.endswith("*") else " ") + function.name


def _declarations(function: Function) -> list[str]:
    return [argument.declaration for argument in function.args] or ["void"]


def exports_map(api: Api) -> str:
    """The linker's version script: every export of the real library, under its version."""
    library = library_of(api)
    names = "".join(f"        {name};\n" for name in exports(api.name))
    return f"{library.node} {{\n    global:\n{names}    local:\n        *;\n}};\n"


def stub_source(api: Api) -> str:
    """All stubs that need no hand, and the answer of every export that is not forwarded."""
    library = library_of(api)
    out = [banner(f"{api.name}.yaml"), "#include <string.h>\n\n"]
    out.append('#include "cuda.h"\n')
    for name in filter(None, (library.stub_header, "content.h" if api.contents else "")):
        out.append(f'#include "{name}"\n')
    out.append(f'#include "wh_{api.name}.h"\n#include "wh_wire.h"\n\n')
    out.append(f"const struct wh_cuda_api wh_{api.name}_api = {{\n")
    out.append(f'    .name = "{library.soname}",\n')
    for key in ("success", "lost", "unsupported", "memory", "invalid"):
        out.append(f"    .{key} = {getattr(library, key)},\n")
    out.append(f"    .first_opcode = {min(f.opcode for f in api.functions):#x},\n}};\n")
    known = {f.name for f in api.functions if f.mode != "unsupported"}
    for function in api.functions:
        if function.manual_stub:
            continue
        if function.mode in emit_content.MODES:
            out.append("\n" + emit_content.stub(api, function))
        elif function.mode not in ("local", "unsupported"):
            out.append("\n" + stub(api, function))
    for name in exports(api.name):
        if name not in known and f"{name.removesuffix('_ptsz').removesuffix('_ptds')}" == name:
            out.append(_refused(api, name))
    out.extend(_per_thread(api, name) for name in exports(api.name) if name not in known)
    return "".join(out)


def _refused(api: Api, name: str) -> str:
    declared = next((f for f in api.functions if f.name == name), None)
    head = f"{library_of(api).status} {name}"
    if declared is not None:
        unused = "".join(f"    (void){a.name};\n" for a in declared.args)
        top = wrapped(head, _declarations(declared), "") + f"\n{{\n{unused}"
    else:
        top = f"{head}(void);\n{head}(void)\n{{\n"
    return (
        f"\nWH_EXPORT {top}    static int said;\n"
        f'    return wh_cuda_unsupported(&wh_{api.name}_api, "{name}", &said);\n}}\n'
    )


def _per_thread(api: Api, name: str) -> str:
    """The form of a function for which stream 0 is the calling thread's own."""
    plain = name.removesuffix("_ptsz").removesuffix("_ptds")
    if plain == name:
        return ""
    function = next((f for f in api.functions if f.name == plain and f.mode != "unsupported"), None)
    stream = [] if function is None else [a for a in function.args if a.type == "cudaStream_t"]
    if function is None or not stream:
        return _refused(api, name)
    head = wrapped(
        function.returns + " " + name, [argument.declaration for argument in function.args], ""
    )
    passed = [
        f"{a.name} == NULL ? WH_CUDA_PER_THREAD : {a.name}" if a in stream else a.name
        for a in function.args
    ]
    call = wrapped(f"    return {plain}", passed, ";")
    return f"\n{head};\nWH_EXPORT {head}\n{{\n{call}\n}}\n"


def stub(api: Api, function: Function) -> str:
    """One stub."""
    apis = f"&wh_{api.name}_api"
    result = function.returns
    own = function.name.startswith(OWN_PREFIX)
    head = wrapped(("" if own else "WH_EXPORT ") + _head(function), _declarations(function), "")
    body = [head + "\n{", "    WH_API_CALL();", "    struct wh_call call;"]
    created = [argument for argument in function.args if argument.creates]
    for argument in function.args:
        body.extend(_check(api, argument))
    for argument in created:
        name = argument.name
        body.append(
            f"    uint64_t {name}_new = wh_cuda_handle_new({kind_macro(argument.creates)});"
        )
        body.append(f"    if ({name}_new == 0) {{")
        body.append(f"        return wh_cuda_done({apis}, {library_of(api).memory});\n    }}")
    body.extend(_prepare(api, function))
    body.append(f"    int outcome = wh_cuda_begin(&call, {apis}, WH_OP_{function.name});")
    body.append("    if (outcome != 0) {")
    body.extend(f"        wh_cuda_handle_end({argument.name}_new);" for argument in created)
    body.append(f"        return ({result})wh_cuda_done({apis}, outcome);\n    }}")
    if function.blocks:
        body.append("    wh_call_blocks(&call);")
    body.extend(_put(api, argument) for argument in function.args)
    body.extend(_send(api, function))
    if function.releases:
        first = next(a for a in function.args if a.handle == function.releases)
        body.append(f"    wh_cuda_handle_end((uint64_t)(uintptr_t){first.name});")
    for argument in created:
        body.append(f"    if (outcome == {library_of(api).success}) {{")
        body.append(f"        *{argument.name} = (void *)(uintptr_t){argument.name}_new;")
        if function.keep_function:
            kept = ", ".join((f"{argument.name}_new", *function.keep_arguments))
            body.append(f"        {function.keep_function}({kept});")
        body.append(f"    }} else {{\n        wh_cuda_handle_end({argument.name}_new);\n    }}")
    body.append(f"    return ({result})wh_cuda_done({apis}, outcome);\n}}")
    return "\n".join(body) + "\n"


def _check(api: Api, argument: Argument) -> list[str]:
    """Refuses at once what no message is needed for."""
    apis = f"&wh_{api.name}_api"
    if argument.creates:
        refusal = str(library_of(api).invalid)
        condition = f"{argument.name} == NULL"
    elif argument.handles:
        refusal = str(library_of(api).invalid)
        condition = f"{argument.name} == NULL && {argument.count} > 0"
    elif argument.handle and argument.handle != STREAM:
        refusal = api.handle(argument.handle).error
        condition = f"!wh_cuda_handle_live({argument.name}, {kind_macro(argument.handle)})"
        if argument.optional:
            condition = f"{argument.name} != NULL && {condition}"
    elif argument.handle:
        refusal = api.handle(argument.handle).error
        condition = f"!wh_cuda_stream_live({argument.name})"
    else:
        return []
    return [f"    if ({condition}) {{\n        return wh_cuda_done({apis}, {refusal});\n    }}"]


def _prepare(api: Api, function: Function) -> list[str]:
    """Sends what was put off, before a message about the object that it belongs to."""
    library = library_of(api)
    first = function.args[0] if function.args else None
    if not library.prepare or first is None or not first.handle or first.handle != api.name:
        return []
    return [f"    {library.prepare}({first.name});"]


def _put(api: Api, argument: Argument) -> str:
    name = argument.name
    if argument.content:
        return f"    wh_content_put(&call, {name}, {emit_content.macro(api, argument.content)});"
    if argument.result:
        return f"    wh_cuda_put_result(&call, {name}, {argument.result});"
    if argument.creates:
        return f"    wh_put_u64(&call, {name}_new);"
    if argument.handle == STREAM:
        return f"    wh_put_u64(&call, wh_cuda_stream({name}));"
    if argument.handle:
        return f"    wh_put_u64(&call, (uint64_t)(uintptr_t){name});"
    if argument.handles:
        return f"    wh_put_blob(&call, {name}, (size_t){argument.count} * sizeof(*{name}));"
    if argument.scalar:
        return f"    wh_cuda_put_scalar(&call, {name}, {argument.scalar});"
    if argument.in_bytes:
        return f"    wh_put_blob(&call, {name}, {argument.in_bytes});"
    if argument.inout:
        return (
            f"    wh_put_blob(&call, {name}, {argument.inout});\n"
            f"    wh_put_out(&call, {argument.inout}, {name} != NULL);"
        )
    if argument.string:
        return f"    wh_put_blob(&call, {name}, {name} == NULL ? 0 : strlen({name}) + 1);"
    if argument.out == "value":
        return f"    wh_put_out(&call, sizeof(*{name}), {name} != NULL);"
    if argument.out:
        return f"    wh_put_out(&call, {argument.size}, {name} != NULL);"
    if argument.type in FLOATS:
        return f"    wh_put_u64(&call, wh_cuda_{argument.type}_bits({name}));"
    return f"    wh_put_u64(&call, (uint64_t){name});"


def _returned(function: Function) -> list[Argument]:
    return [a for a in function.args if a.out or a.inout or a.result]


def _send(api: Api, function: Function) -> list[str]:
    apis = f"&wh_{api.name}_api"
    success = library_of(api).success
    outs = _returned(function)
    if function.mode == "oneway":
        return [f"    outcome = wh_cuda_send(&call, {apis});"]
    lines = []
    result = next((argument for argument in outs if argument.result), None)
    if function.mode == "shape":
        lines = [f"    uint64_t shape = wh_shape(WH_OP_{function.name});"]
        lines.extend(filter(None, map(_shape, function.args)))
        lines.append(f"    outcome = wh_cuda_send_shape(&call, {apis}, shape);")
        if result is None:
            return lines
        # A result in host memory is waited for; what the device keeps goes as the others do.
        lines = [
            f"    size_t result_bytes = {result.result};",
            "    if (result_bytes == 0) {",
            *("    " + line for line in lines),
            f"        return ({function.returns})wh_cuda_done({apis}, outcome);\n    }}",
        ]
    call = "wh_cuda_call_pure" if function.mode == "pure" else "wh_cuda_call"
    lines.append(f"    outcome = {call}(&call, {apis});")
    if outs:
        lines.append(f"    if (outcome == {success}) {{")
        for argument in outs:
            size = argument.inout or argument.size
            if argument.result:
                size = "result_bytes"
            if argument.out == "value":
                size = f"{argument.name} == NULL ? 0 : sizeof(*{argument.name})"
            lines.append(f"        (void)wh_get_out(&call, (void *){argument.name}, {size});")
        lines.append("    }")
    return [*lines, "    wh_call_end(&call);"]


def _shape(argument: Argument) -> str:
    """Adds what must be the same for a call to go one way: no addresses, no contents."""
    name = argument.name
    if argument.handle or argument.creates:
        return f"    shape = wh_shape_add(shape, (uint64_t)(uintptr_t){name});"
    if argument.content:
        return f"    shape = wh_shape_add(shape, wh_content_hash({name}));"
    if argument.scalar:
        return f"    shape = wh_shape_add(shape, {name} == NULL ? 0 : 1 + ({argument.scalar}));"
    if argument.type in FLOATS:
        return ""
    if argument.is_value and "*" not in argument.type:
        return f"    shape = wh_shape_add(shape, (uint64_t){name});"
    if argument.in_bytes:
        return f"    shape = wh_shape_add_bytes(shape, {name}, {argument.in_bytes});"
    if argument.type.endswith("*"):
        return f"    shape = wh_shape_add(shape, {name} != NULL);"
    return ""


def skeleton_source(api: Api) -> str:
    """All skeletons that need no hand, and the dispatch."""
    out = [banner(f"{api.name}.yaml"), "#include <errno.h>\n\n"]
    out.append('#include "cuda_backend.h"\n#include "cuda_scalar.h"\n')
    out.append('#include "skeleton.h"\n#include "times.h"\n')
    if library_of(api).worker_header:
        out.append(f'#include "{library_of(api).worker_header}"\n')
    out.append(
        f'#include "wh_{api.name}.h"\n#include "wh_skeleton_parts.h"\n#include "wh_wire.h"\n'
    )
    forwarded = [f for f in api.functions if f.forwarded]
    for function in forwarded:
        out.append("\n")
        if function.manual_skeleton:
            out.append(f"/* By hand: {function.manual_skeleton} */\n")
            out.append(f"int wh_skeleton_{function.name}(struct wh_request *request);\n")
            out.append(f"#define skeleton_{function.name} wh_skeleton_{function.name}\n")
        elif function.mode == "set":
            out.append(emit_content.skeleton(api, function, _take))
        else:
            out.append(skeleton(api, function))
    out.append(
        f"\nint wh_dispatch_{api.name}(uint16_t opcode, struct wh_request *request)\n{{\n"
        "    switch (opcode) {\n"
    )
    for function in forwarded:
        out.append(f"    case WH_OP_{function.name}:\n")
        out.append(f"        return skeleton_{function.name}(request);\n")
    out.append("    default:\n        return -ENOSYS;\n    }\n}\n\n")
    out.append(emit_content.tables(api))
    out.append(_loading(api))
    return "".join(out)


def _loading(api: Api) -> str:
    library = library_of(api)
    name = api.name
    return (
        f"const struct wh_{name}_table *wh_{name}(void)\n{{\n"
        f"    static struct wh_{name}_table table;\n"
        "    static const struct wh_cuda_entry entries[] = {\n"
        f"#define ENTRY(name) {{#name, offsetof(struct wh_{name}_table, name)}},\n"
        f"        WH_{name.upper()}_FUNCTIONS(ENTRY)\n#undef ENTRY\n"
        "        {NULL, 0},\n    };\n"
        f'    static struct wh_cuda_library library = {{"{library.soname}", entries, &table, '
        "NULL, false, PTHREAD_MUTEX_INITIALIZER};\n"
        "    return wh_cuda_open(&library) ? &table : NULL;\n}\n"
    )


def skeleton(api: Api, function: Function) -> str:
    """One skeleton."""
    library = library_of(api)
    body = [f"static int skeleton_{function.name}(struct wh_request *request)\n{{"]
    body.append("    uint64_t outcome = 0;\n    bool valid = true;\n    wh_cuda_enter(request);")
    body.append(f"    const struct wh_{api.name}_table *real = wh_{api.name}();")
    body.append(f"    bool there = real != NULL && real->{function.name} != NULL;")
    places = any(argument.scalar or argument.result for argument in function.args)
    if places:
        body.append("    unsigned places = 0;")
    for argument in function.args:
        body.extend(_take(api, argument))
    body.append("    if (wh_request_failed(request)) {\n        return -EBADMSG;\n    }")
    conditions = [c for argument in function.args for c in _bound(argument)]
    if conditions:
        joined = " ||\n        ".join(conditions)
        body.append(f"    if ({joined}) {{\n        return -EBADMSG;\n    }}")
    if places and library.placed:
        first = function.args[0].name
        body.append(f"    if (valid && there && !{library.placed}(real, {first}, places)) {{")
        body.append(f"        valid = false;\n        outcome = {library.invalid};\n    }}")
    body.append("    if (!there) {")
    body.append(f"        outcome = {library.unsupported};\n    }} else if (valid) {{")
    if function.blocks:
        body.append("        wh_block_begin(request->session);")
    passed = [("&" if a.creates else "") + a.name for a in function.args]
    call = wrapped(f"real->{function.name}", passed, ";").replace("\n", "\n" + " " * 18)
    part = "WH_TIMES_KERNEL" if function.blocks else "WH_TIMES_BACKEND"
    body.append("        uint64_t begin_ticks = wh_times_enter();")
    body.append(f"        outcome = (uint64_t){call}")
    body.append(f"        wh_times_leave(begin_ticks, {part});")
    if function.blocks:
        body.append("        wh_block_end(request->session);")
    body.append("    }")
    for argument in function.args:
        if argument.creates:
            kind = kind_macro(argument.creates)
            body.append(f"    if (valid && there && outcome == {library.success} &&")
            put = f"{argument.name}_handle, {kind}, {argument.name}"
            body.append(f"        wh_handle_put(request->session, {put}) != 0) {{")
            body.append(f"        outcome = {library.memory};\n    }}")
    if function.releases:
        ended = next(a for a in function.args if a.handle == function.releases)
        kind = kind_macro(function.releases)
        body.append("    if (valid) {")
        body.append(f"        wh_handle_remove(request->session, {ended.name}_handle, {kind});")
        body.append("    }")
    if any(argument.content for argument in function.args):
        body.append(f"    wh_{api.name}_end();")
    body.append(f"    wh_cuda_reply(request, WH_OP_{function.name}, outcome, {library.success});")
    for argument in _returned(function):
        reply = f"wh_reply_out(request, {_written(argument, library)});"
        if argument.result:
            reply = f"if ({argument.name}_host) {{\n        {reply}\n    }}"
        body.append("    " + reply)
    body.append("    return 0;\n}")
    return "\n".join(body) + "\n"


def _written(argument: Argument, library: Library) -> str:
    name = argument.name
    size = argument.inout or argument.written or argument.size
    if argument.result:
        size = f"{name}_bytes"
    if argument.out == "value":
        size = f"sizeof(*{name})"
    return (
        f"{name} == NULL || !valid || !there || outcome != {library.success} ? 0 : (size_t)({size})"
    )


def _take(api: Api, argument: Argument) -> list[str]:
    name = argument.name
    if argument.creates:
        target = argument.type.removesuffix("*").strip()
        return [
            f"    uint64_t {name}_handle = wh_take_u64(request);",
            f"    {target}{'' if target.endswith('*') else ' '}{name} = NULL;",
        ]
    if argument.handle:
        error = api.handle(argument.handle).error
        if argument.handle == STREAM:
            get = f"wh_cuda_stream_object(request, {name}_handle, &valid)"
        else:
            get = f"wh_cuda_object(request, {name}_handle, {kind_macro(argument.handle)}, &valid)"
        return [
            f"    uint64_t {name}_handle = wh_take_u64(request);",
            f"    {argument.type} {name} = {get};",
            f"    outcome = valid || outcome != 0 ? outcome : {error};",
        ]
    if argument.handles:
        kind = kind_macro(argument.handles)
        error = api.handle(argument.handles).error
        return [
            f"    size_t {name}_count = 0;",
            f"    {argument.type}{name} =",
            f"        (void *)wh_cuda_objects(request, {kind}, &{name}_count, &valid);",
            f"    outcome = valid || outcome != 0 ? outcome : {error};",
        ]
    if argument.content:
        kind = emit_content.macro(api, argument.content)
        return [
            f"    {argument.type} {name} = wh_{api.name}_take(request, {kind}, &outcome, &valid);"
        ]
    if argument.scalar:
        return [f"    {argument.type}{name} = wh_cuda_take_scalar(request, &places);"]
    if argument.result:
        return [
            f"    size_t {name}_bytes = 0;\n    bool {name}_host = false;",
            f"    {argument.type}{name} = wh_cuda_take_result(request, &places, &{name}_bytes, "
            f"&{name}_host);",
        ]
    if argument.in_bytes or argument.string:
        blob = f"wh_take_blob(request, &{name}_bytes, WH_CUDA_BLOB_BYTES_MAX)"
        return [
            f"    size_t {name}_bytes = 0;",
            f"    {argument.type}{name} =",
            f"        ({argument.type}){blob};",
        ]
    if argument.inout:
        return [
            f"    size_t {name}_bytes = 0;",
            f"    {argument.type}{name} = wh_cuda_take_inout(request, &{name}_bytes);",
        ]
    if argument.out:
        return [
            f"    size_t {name}_bytes = 0;",
            f"    {argument.type}{name} = wh_take_out(request, &{name}_bytes);",
        ]
    if argument.type in FLOATS:
        return [f"    {argument.type} {name} = wh_cuda_bits_{argument.type}(wh_take_u64(request));"]
    return [f"    {argument.type} {name} = ({argument.type})wh_take_u64(request);"]


def _bound(argument: Argument) -> list[str]:
    """Sizes that the real library trusts must be those of the bytes that came."""
    name = argument.name
    size = argument.in_bytes or argument.inout
    if argument.string:
        return [f"({name} != NULL && !wh_cuda_string_ends({name}, {name}_bytes))"]
    if argument.handles:
        return [f"(uint64_t){argument.count} != {name}_count"]
    if argument.out == "value":
        size = f"sizeof(*{name})"
    elif argument.out:
        size = argument.size
    return [f"({name} != NULL && {name}_bytes < (size_t)({size}))"] if size else []
