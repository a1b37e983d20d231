"""C of the client side: one stub a function, the dispatch table of the OpenCL loader."""

from __future__ import annotations

from testbed.protocol.emit import (
    banner,
    functions_with,
    kind_macro,
    out_arguments,
    wrapped,
)
from testbed.protocol.spec import Api, Argument, Function

# All of the API is forwarded, so its deprecated parts are no mistake here.
TARGET = (
    "#ifndef CL_TARGET_OPENCL_VERSION\n#define CL_TARGET_OPENCL_VERSION 300\n"
    "#define CL_USE_DEPRECATED_OPENCL_1_0_APIS 1\n#define CL_USE_DEPRECATED_OPENCL_1_1_APIS 1\n"
    "#define CL_USE_DEPRECATED_OPENCL_1_2_APIS 1\n#define CL_USE_DEPRECATED_OPENCL_2_0_APIS 1\n"
    "#define CL_USE_DEPRECATED_OPENCL_2_1_APIS 1\n#define CL_USE_DEPRECATED_OPENCL_2_2_APIS 1\n"
    "#endif\n"
)


def core_header(api: Api) -> str:
    """Prototypes of the runtime's own calls."""
    out = [banner("core.yaml"), "#ifndef WH_CORE_STUB_H\n#define WH_CORE_STUB_H\n\n"]
    out.append("#include <stdint.h>\n\n/* Each returns 0 or -errno of the forwarding. */\n")
    for function in api.functions:
        out.append(f"/* {function.doc} */\n")
        out.append(wrapped(f"int {function.name}", _declarations(function), ";") + "\n")
    out.append("\n#endif\n")
    return "".join(out)


def core_source(api: Api) -> str:
    """Stubs of the runtime's own calls."""
    out = [
        banner("core.yaml"),
        "#include <string.h>\n\n",
        '#include "call.h"\n#include "wh_core_stub.h"\n#include "wh_wire.h"\n',
    ]
    out.extend("\n" + _core_stub(function) for function in api.functions)
    return "".join(out)


def _declarations(function: Function) -> list[str]:
    return [argument.declaration for argument in function.args] or ["void"]


def _core_stub(function: Function) -> str:
    body = [wrapped(f"int {function.name}", _declarations(function), "") + "\n{"]
    body.append("    struct wh_call call;")
    body.append(f"    int error = wh_call_begin(&call, WH_OP_{function.name});")
    body.append("    if (error != 0) {\n        return error;\n    }")
    if function.blocks:
        body.append("    wh_call_blocks(&call);")
    body.extend(_put(a) for a in function.args if a.out != "value")
    if function.mode == "oneway":
        body.append("    return wh_call_oneway(&call);\n}")
        return "\n".join(body) + "\n"
    body.append("    error = wh_call_sync(&call);")
    outs = out_arguments(function)
    if outs:
        body.append("    if (error == 0) {")
        body.extend("    " + _core_get(argument) for argument in outs)
        body.append("    }")
    body.append("    wh_call_end(&call);\n    return error;\n}")
    return "\n".join(body) + "\n"


def _core_get(argument: Argument) -> str:
    """Values of the runtime's own calls are plain items of the reply: NULL is never passed."""
    if argument.out == "value":
        return f"    *{argument.name} = wh_get_u64(&call);"
    return _get(argument)


def _put(argument: Argument) -> str:
    """The statement that writes one argument into the request."""
    name = argument.name
    if argument.handle:
        return f"    wh_put_u64(&call, wh_cl_handle({name}));"
    if argument.handles:
        return f"    wh_cl_put_handles(&call, (const void *const *){name}, {argument.count});"
    if argument.in_bytes.startswith("wh_cl_region_bytes"):
        # Of another kind than the one that there is: no bytes, so no pointer to them.
        bytes_ = argument.in_bytes
        return f"    wh_put_blob(&call, {bytes_} == 0 ? NULL : {name}, {bytes_});"
    if argument.in_bytes:
        return f"    wh_put_blob(&call, {name}, {argument.in_bytes});"
    if argument.string:
        return f"    wh_put_blob(&call, {name}, {name} == NULL ? 0 : strlen({name}) + 1);"
    if argument.strings:
        return f"    wh_cl_put_strings(&call, (const char *const *){name}, {argument.count});"
    if argument.out == "value":
        return f"    wh_put_out(&call, sizeof(*{name}), {name} != NULL);"
    if argument.out == "bytes":
        return f"    wh_put_out(&call, {argument.size}, {name} != NULL);"
    if argument.out == "info":
        return f"    wh_put_out(&call, param_value_size, {name} != NULL);"
    if argument.out_event:
        return "    wh_put_u64(&call, created == NULL ? 0 : created->handle);"
    return f"    wh_put_u64(&call, (uint64_t){name});"


def _put_opencl(argument: Argument) -> str:
    """As _put, with an input whose size the client gives cut to nothing if it is too large."""
    if not argument.in_bytes.isidentifier():
        return _put(argument)
    return wrapped("    wh_put_blob", ["&call", _input(argument), argument.in_bytes], ";")


def _input(argument: Argument) -> str:
    """Where the bytes of an input are: nowhere if it is too large; the library refuses the size."""
    if not argument.in_bytes.isidentifier():
        return argument.name
    return f"{argument.in_bytes} > WH_CL_IN_BYTES_MAX ? NULL : {argument.name}"


def _get(argument: Argument) -> str:
    """The statement that copies one result to the caller."""
    name = argument.name
    size = {
        "value": f"{name} == NULL ? 0 : sizeof(*{name})",
        "bytes": argument.size,
        "info": "param_value_size",
    }[argument.out]
    return f"    (void)wh_get_out(&call, {name}, {size});"


def opencl_header(api: Api) -> str:
    """Kinds of handles, prototypes of the stubs written by hand."""
    out = [banner("opencl.yaml"), "#ifndef WH_OPENCL_STUB_H\n#define WH_OPENCL_STUB_H\n\n"]
    out.append(
        TARGET + "#include <CL/cl_icd.h>\n\n/* The dispatch table that every object points to. */\n"
    )
    out.append("extern const cl_icd_dispatch wh_cl_dispatch;\n\n")
    out.append("/* Functions that are found by name alone; a name of NULL ends the list. */\n")
    out.append("struct wh_cl_named {\n    const char *name;\n    void *function;\n};\n")
    out.append("extern const struct wh_cl_named wh_cl_by_name[];\n\n/* Written by hand: */\n")
    for function in api.functions:
        if function.manual_stub:
            out.append(f"/* {function.name}: {function.manual_stub} */\n")
            out.append(wrapped(_head(function, static=False), _declarations(function), ";") + "\n")
    out.append("\n#endif\n")
    return "".join(out)


def kinds_header(api: Api) -> str:
    """Kinds of handles and the error that the API has for a wrong one; for both sides."""
    out = [banner("opencl.yaml"), "#ifndef WH_OPENCL_KINDS_H\n#define WH_OPENCL_KINDS_H\n\n"]
    out.extend(f"#define {kind_macro(handle.name)} {handle.kind}u\n" for handle in api.handles)
    out.append(f"#define WH_KIND_COUNT {max(h.kind for h in api.handles) + 1}u\n\n")
    out.append("/* The API's error for a wrong object of a kind, as an initializer by kind. */\n")
    out.append("#define WH_KIND_ERRORS \\\n    { \\\n        0, \\\n")
    out.extend(f"        {handle.error}, \\\n" for handle in api.handles)
    out.append("    }\n\n#endif\n")
    return "".join(out)


def opencl_source(api: Api) -> str:
    """All stubs that need no hand, and the dispatch table."""
    out = [banner("opencl.yaml")]
    out.append('#include <string.h>\n\n#include "call.h"\n#include "opencl/object.h"\n')
    out.append('#include "wh_opencl_kinds.h"\n#include "wh_opencl_stub.h"\n#include "wh_wire.h"\n')
    for function in functions_with(api, "stub"):
        out.append("\n" + opencl_stub(api, function))
    out.append("\nconst cl_icd_dispatch wh_cl_dispatch = {\n")
    out.extend(f"    .{f.name} = wh_stub_{f.name},\n" for f in api.functions)
    out.append("};\n\n")
    out.append("const struct wh_cl_named wh_cl_by_name[] = {\n")
    out.extend(
        f'    {{"{name}", (void *)wh_stub_{f.name}}},\n'
        for f in api.functions
        for name in f.by_name
    )
    out.append("    {NULL, NULL},\n};\n")
    return "".join(out)


def _head(function: Function, static: bool = True) -> str:
    returns = function.returns + ("" if function.returns.endswith("*") else " ")
    return f"{'static ' if static else ''}{returns}CL_API_CALL wh_stub_{function.name}"


def opencl_stub(api: Api, function: Function) -> str:
    """One stub."""
    body = [wrapped(_head(function), _declarations(function), "") + "\n{"]
    body.append("    WH_API_CALL();")
    if function.mode == "unsupported":
        body.extend(_unsupported(function))
    elif function.mode == "answered":
        body.extend(_answered(api, function))
    elif function.mode == "info":
        body.extend(_info(function))
    elif function.mode in ("retain", "release"):
        first = function.args[0]
        body.append(
            f"    return wh_cl_{function.mode}({first.name}, {kind_macro(first.handle)}, "
            f"WH_OP_{function.name});"
        )
    elif function.creates:
        body.extend(_creates(api, function))
    else:
        body.extend(_plain(api, function))
    return "\n".join(body) + "\n}\n"


def _unsupported(function: Function) -> list[str]:
    lines = []
    for argument in function.args:
        if argument.name != "errcode_ret":
            lines.append(f"    (void){argument.name};")
    if any(argument.name == "errcode_ret" for argument in function.args):
        lines.append(
            "    if (errcode_ret != NULL) {\n        *errcode_ret = CL_INVALID_OPERATION;\n    }"
        )
    if function.returns == "cl_int":
        lines.append("    return CL_INVALID_OPERATION;")
    elif function.returns != "void":
        lines.append("    return NULL;")
    return lines


def _answered(api: Api, function: Function) -> list[str]:
    """The rule's answer, unless an object is no live one."""
    has_error = any(argument.errcode for argument in function.args)
    fail = "return {error};"
    if has_error:
        fail = "return wh_cl_created(NULL, {error}, errcode_ret);"
    elif function.returns == "void":
        fail = "return;"
    elif function.returns != "cl_int":
        fail = "return NULL;"
    lines = _checks(api, function, fail)
    lines += [f"    (void){a.name};" for a in function.args if not (a.handle or a.errcode)]
    if function.returns != "void":
        lines.append("    " + fail.format(error=function.answers))
    return lines


def _info(function: Function) -> list[str]:
    names = [argument.name for argument in function.args]
    first = function.args[0]
    second = function.args[1] if len(function.args) == 6 else None
    lines = ["    const struct wh_cl_query query = {"]
    lines.append(f"        .opcode = WH_OP_{function.name},")
    lines.append(f"        .object = {first.name},")
    lines.append(f"        .kind = {kind_macro(first.handle)},")
    if second is not None and second.handle:
        lines.append(f"        .second_object = {second.name},")
        lines.append(f"        .second_kind = {kind_macro(second.handle)},")
        lines.append(f"        .second_optional = {'true' if second.optional else 'false'},")
    elif second is not None:
        lines.append(f"        .second_value = {second.name},")
    lines.append(f"        .has_second = {'true' if second is not None else 'false'},")
    lines.append(f"        .cache = WH_CL_CACHE_{function.immutable.upper()},")
    lines.append(f"        .param = {names[-4]},")
    lines.append("        .size = param_value_size,")
    lines.append("        .value = param_value,")
    lines.append("        .size_ret = param_value_size_ret,")
    lines.append("    };\n    return wh_cl_info(&query);")
    return lines


def _checks(api: Api, function: Function, fail: str) -> list[str]:
    """Refuses what is no live object; `fail` has {error}."""
    lines = []
    for argument in function.args:
        if argument.handle:
            condition = f"!wh_cl_live({argument.name}, {kind_macro(argument.handle)})"
            if argument.optional:
                condition = f"{argument.name} != NULL && {condition}"
            error = api.handle(argument.handle).error
        elif argument.name == "event_wait_list":
            continue  # see _plain: it needs the queue's context
        elif argument.handles:
            name = argument.name
            empty = f"{name} == NULL || {argument.count} == 0"
            refuse = fail.format(error="CL_INVALID_VALUE")
            lines.append(f"    if ({empty}) {{\n        {refuse}\n    }}")
            condition = (
                f"!wh_cl_all_live((const void *const *){name}, {argument.count}, "
                f"{kind_macro(argument.handles)})"
            )
            error = api.handle(argument.handles).error
        else:
            continue
        lines.append(f"    if ({condition}) {{\n        {fail.format(error=error)}\n    }}")
    return lines


def _creates(api: Api, function: Function) -> list[str]:
    fail = "return wh_cl_created(NULL, {error}, errcode_ret);"
    lines = _checks(api, function, fail)
    kind = kind_macro(function.creates)
    lines.append(f"    struct wh_cl_object *object = wh_cl_object_new({kind});")
    lines.append("    if (object == NULL) {\n        " + fail.format(error="CL_OUT_OF_HOST_MEMORY"))
    lines.append("    }")
    if function.prepare:
        lines.append(f"    {function.prepare}({function.args[0].name});")
    lost = "return wh_cl_created(object, WH_CL_LOST, errcode_ret);"
    lines.extend(_begin(function, lost))
    lines.extend(_put_opencl(argument) for argument in function.args if not argument.errcode)
    lines.append("    wh_put_u64(&call, object->handle);")
    lines.append("    cl_int error = wh_cl_call_error(&call);")
    lines.append("    if (error == CL_SUCCESS) {")
    arguments = ", ".join(("object", *function.keep_arguments))
    lines.append(f"        {function.keep_function}({arguments});\n    }}")
    lines.append("    return wh_cl_created(object, error, errcode_ret);")
    return lines


def _plain(api: Api, function: Function) -> list[str]:
    lines = _checks(api, function, "return {error};")
    first = function.args[0] if function.args else None
    enqueue = function.name.startswith("clEnqueue") or function.name == "clFlush"
    event = next((a for a in function.args if a.out_event), None)
    waits = any(argument.name == "event_wait_list" for argument in function.args)
    checks = []
    if waits and first is not None:
        call = wrapped(
            "wh_cl_check_waits",
            [first.name, "num_events_in_wait_list", "event_wait_list"],
            "",
        )
        checks.append(call)
    if enqueue:
        checks.append("wh_cl_take_async()")
    for index, check in enumerate(checks):
        lines.append(f"    {'cl_int ' if index == 0 else ''}error = {check};")
        lines.append("    if (error != CL_SUCCESS) {\n        return error;\n    }")
    if event is not None and first is not None:
        lines.append(
            f"    struct wh_cl_object *created = wh_cl_event_new({first.name}, {function.command}, "
            f"{event.name} != NULL);"
        )
        lines.append(f"    if ({event.name} != NULL && created == NULL) {{")
        lines.append("        return CL_OUT_OF_HOST_MEMORY;\n    }")
    lost = f"return wh_cl_enqueued(created, WH_CL_LOST, {event.name});" if event else ""
    lines.extend(_begin(function, lost or "return WH_CL_LOST;"))
    lines.extend(_put_opencl(argument) for argument in function.args)
    if function.mode == "shape":
        lines.append(f"    uint64_t shape = wh_shape(WH_OP_{function.name});")
        lines.extend(_shape(argument) for argument in function.args)
        call = "wh_cl_call_shape(&call, shape)"
    else:
        call = "wh_cl_call_error(&call)"
    outs = out_arguments(function)
    if event is not None:
        lines.append(f"    error = {call};")
        lines.append(f"    return wh_cl_enqueued(created, error, {event.name});")
    elif outs:
        lines.append("    cl_int error = wh_cl_call_sync(&call);\n    if (error == CL_SUCCESS) {")
        lines.extend("    " + _get(argument) for argument in outs)
        lines.append("    }\n    wh_call_end(&call);\n    return error;")
    else:
        lines.append(f"    return {call};")
    return [line for line in lines if line]


def _begin(function: Function, lost: str) -> list[str]:
    return [
        "    struct wh_call call;",
        f"    if (wh_call_begin(&call, WH_OP_{function.name}) != 0) {{\n        {lost}\n    }}",
    ]


def _shape(argument: Argument) -> str:
    """Adds what must be the same for a call to go one way."""
    name = argument.name
    if argument.handle:
        return f"    shape = wh_shape_add(shape, wh_cl_handle({name}));"
    if argument.in_bytes:
        items = ["shape", _input(argument), argument.in_bytes]
        return wrapped("    shape = wh_shape_add_bytes", items, ";")
    if argument.handles and argument.handles != "event":
        return (
            f"    shape = wh_cl_shape_add_handles(shape, (const void *const *){name}, "
            f"{argument.count});"
        )
    if argument.out_event:
        return f"    shape = wh_shape_add(shape, {name} != NULL);"
    if argument.is_value and argument.name not in ("num_events_in_wait_list", "num_events"):
        return f"    shape = wh_shape_add(shape, (uint64_t){name});"
    return ""
