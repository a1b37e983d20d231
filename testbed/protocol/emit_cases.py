"""Emits the differential program's cases: every function of the spec, every argument in turn wrong.

A function's baseline is a call that works; each case changes one thing of it.  The C around these
calls - the objects they use, the lines they print - is in
guest_agent/stub/opencl/tests/differential/.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from testbed.protocol.emit import banner
from testbed.protocol.spec import Api, Argument, Function

# Names of the objects of `struct setting`, by kind of handle.
OBJECTS = {
    "platform": "platform",
    "device": "device",
    "context": "context",
    "queue": "queue",
    "mem": "mem",
    "program": "program",
    "kernel": "kernel",
    "event": "event",
    "sampler": "sampler",
}
# The same of another context.
ABROAD = {"queue": "foreign", "mem": "abroad", "event": "elsewhere"}
RELEASE = {
    "cl_context": "clReleaseContext",
    "cl_command_queue": "clReleaseCommandQueue",
    "cl_mem": "clReleaseMemObject",
    "cl_program": "clReleaseProgram",
    "cl_kernel": "clReleaseKernel",
    "cl_sampler": "clReleaseSampler",
}
# Objects that a query is also asked about, beside the usual one.
QUERIED = {
    "clGetCommandQueueInfo": ("foreign",),
    "clGetMemObjectInfo": ("sub", "image"),
    "clGetImageInfo": ("mem",),
    "clGetProgramInfo": ("unbuilt",),
    "clGetProgramBuildInfo": ("unbuilt",),
    "clGetEventInfo": ("command", "failed"),
    "clGetEventProfilingInfo": ("command", "failed"),
}
QUERY_SIZES = (
    ("size", "0, NULL, &got"),
    ("exact", "size, s->answer, &got"),
    ("exact without size", "size, s->answer, NULL"),
    ("short", "size == 0 ? 0 : size - 1, s->answer, &got"),
    ("maximal", "SIZE_MAX, s->answer, &got"),
    ("long", "ANSWER_BYTES, s->answer, &got"),
    ("zero size", "0, s->answer, &got"),
    ("nothing", "0, NULL, NULL"),
)
QUERIED_TYPES = {
    *("cl_platform_id", "cl_device_id", "cl_context", "cl_command_queue", "cl_mem", "cl_program"),
    *("cl_kernel", "cl_event", "cl_sampler"),
}
# What may be counted on to be the same in each run although replay, which goes on in the middle of
# a program, does not compare it.
COUNTED = re.compile(r"_(REFERENCE|MAP)_COUNT$|_EXECUTION_STATUS$")

SCALARS: Mapping[str, Sequence[str]] = {
    "size_t": ("0", "1", "3", "5000", "(size_t)1 << 40", "SIZE_MAX"),
    "cl_uint": ("0", "2", "4", "UINT32_MAX"),
    "cl_int": ("0", "1", "-1", "INT32_MAX", "INT32_MIN"),
    "cl_bool": ("0", "1", "7"),
    "cl_device_type": ("0", "1", "2", "4", "8", "16", "1 << 20", "CL_DEVICE_TYPE_ALL"),
    "cl_mem_flags": (
        *("0", "1", "2", "3", "4", "5", "6", "7", "8", "16", "24", "32", "40", "48", "64"),
        *(
            "128",
            "256",
            "384",
            "512",
            "1 << 10",
            "1 << 11",
            "1ull << 40",
            "CL_MEM_KERNEL_READ_AND_WRITE",
        ),
    ),
    "cl_svm_mem_flags": ("0", "1", "2", "3", "4", "1 << 10", "3 << 10", "1ull << 40"),
    "cl_map_flags": ("0", "1", "2", "3", "4", "5", "6", "7", "8", "1ull << 40"),
    "cl_mem_migration_flags": ("0", "1", "2", "3", "4", "1ull << 40"),
    "cl_command_queue_properties": ("0", "1", "2", "3", "4", "8", "12", "15", "1ull << 40"),
    "cl_addressing_mode": ("0", "0x1130", "0x1131", "0x1132", "0x1133", "0x1134", "0x1135"),
    "cl_filter_mode": ("0", "0x1140", "0x1141", "0x1142"),
    "cl_mem_object_type": ("0", *(hex(value) for value in range(0x10F0, 0x10F9))),
    "cl_buffer_create_type": ("0", "0x1221"),
    "cl_GLuint": ("0", "1"),
    "cl_GLenum": ("0", "0x0DE1"),
    "cl_GLint": ("0", "-1"),
}
EVENT_LISTS = (
    ("one without a list", "num = 1; list = NULL;", 0),
    ("a list without a count", "num = 0; list = &s->event;", 0),
    ("nothing", "num = 0; list = NULL;", 0),
    ("two", "num = 2; events[0] = s->event; events[1] = s->command; list = events;", 0),
    ("the same twice", "num = 2; events[0] = events[1] = s->event; list = events;", 0),
    ("NULL", "num = 1; events[0] = NULL; list = events;", 0),
    ("behind one NULL", "num = 2; events[0] = s->event; events[1] = NULL; list = events;", 0),
    ("failed", "num = 1; list = &s->failed;", 0),
    ("of another context", "num = 1; list = &s->elsewhere;", 0),
    ("a queue", "num = 1; events[0] = (cl_event)s->queue; list = events;", 1),
    ("released", "num = 1; events[0] = released_event(s); list = events;", 1),
)


@dataclass(frozen=True)
class Case:
    """One call: what differs from the baseline, in C; the error if it is undefined natively."""

    name: str
    change: str
    undefined: str = "0"


@dataclass(frozen=True)
class Baseline:
    """How a function is called when nothing is wrong: argument -> C expression."""

    values: Mapping[str, str] = field(default_factory=dict)
    locals: str = ""
    after: str = ""
    more: Sequence[Case] = ()
    #: Arguments without cases of their own: natively these would be read or written past their end.
    skip: Sequence[str] = ()


def header_queries(header: str) -> dict[str, list[str]]:
    """`cl_xxx_info` -> names, from the text of cl.h."""
    found: dict[str, list[str]] = {}
    here = ""
    for line in header.split("\n"):
        title = re.match(r"/\* (cl_\w+)", line)
        if title:
            here = title.group(1)
        name = re.match(r"#define (CL_\w+)\s+0x[0-9A-Fa-f]+", line)
        if name and here.endswith("_info"):
            found.setdefault(here, []).append(name.group(1))
    return found


def cases_source(api: Api, header: str, baselines: Mapping[str, Baseline]) -> str:
    """The C file with a group of cases for every function."""
    queries = header_queries(header)
    out = [banner("opencl.yaml"), '#include "cases.h"\n\n#include <stdio.h>\n#include <stdlib.h>\n']
    out.append('#include <string.h>\n\n#define NAME(text) snprintf(name, size, "%s", text)\n')
    out.append("static void CL_CALLBACK nothing(void)\n{\n}\n\n")
    groups = []
    for function in api.functions:
        if _is_query(function, queries):
            count, text = _query_group(api, function, queries[_param(function).type])
        else:
            baseline = baselines.get(function.name, Baseline())
            count, text = _call_group(api, function, baseline)
        out.append(text)
        groups.append(
            f'    {{"{function.name}", {count}, name_{function.name}, undefined_{function.name}, '
            f"run_{function.name}}},\n"
        )
    out.append("const struct group generated_groups[] = {\n" + "".join(groups) + "};\n")
    out.append(f"const size_t generated_group_count = {len(groups)};\n")
    return "".join(out)


def _param(function: Function) -> Argument:
    return next(argument for argument in function.args if argument.name == "param_name")


def _is_query(function: Function, queries: Mapping[str, list[str]]) -> bool:
    names = [argument.name for argument in function.args]
    if function.args and function.args[0].type not in QUERIED_TYPES:
        return False
    if names[-4:] != ["param_name", "param_value_size", "param_value", "param_value_size_ret"]:
        return False
    return _param(function).type in queries


def _pointer_type(function: Function) -> str:
    parameters = ", ".join(argument.declaration for argument in function.args) or "void"
    star = "" if function.returns.endswith("*") else " "
    return f"typedef {function.returns}{star}(CL_API_CALL *{function.name}_t)({parameters});\n"


def _find(function: Function) -> str:
    name = function.name
    return (
        f'    {name}_t call = ({name}_t)find_function(s, "{name}");\n'
        '    if (call == NULL) {\n        say(o, "no function");\n        return;\n    }\n'
    )


def _names(function: Function, names: Sequence[str]) -> str:
    lines = "".join(f'        "{name}",\n' for name in names)
    return (
        f"static void name_{function.name}(size_t number, char *name, size_t size)\n{{\n"
        f"    static const char *const names[] = {{\n{lines}    }};\n    NAME(names[number]);\n"
        "}\n\n"
    )


def _undefined(function: Function, errors: Sequence[str]) -> str:
    lines = "".join(f"        {error},\n" for error in errors)
    return (
        f"static cl_int undefined_{function.name}(size_t number)\n{{\n"
        f"    static const cl_int errors[] = {{\n{lines}    }};\n    return errors[number];\n}}\n\n"
    )


# --- queries -----------------------------------------------------------------------------------


def _query_group(api: Api, function: Function, params: Sequence[str]) -> tuple[int, str]:
    """A query: every name x every way to ask x every object; then wrong objects."""
    object_argument = function.args[0]
    kind = _kind_of(api, object_argument)
    objects = (OBJECTS[kind], *QUERIED.get(function.name, ()))
    if kind == "mem" and function.name == "clGetImageInfo":
        objects = ("image", "mem")
    names, errors, bodies = [], [], []
    volatile = {name for name in function.volatile if not COUNTED.search(name)}
    for which in objects:
        for param in (*params, "0", "0x7fff"):
            silent = "all" in function.volatile or param in volatile
            for size_name, sizes in QUERY_SIZES:
                names.append(f"{which} {param} {size_name}")
                errors.append("0")
                bodies.append(_query_body(function, f"s->{which}", param, sizes, silent))
    for wrong in _wrong_handles(api, object_argument):
        names.append(f"{object_argument.name} {wrong.name}")
        errors.append(wrong.undefined)
        value = wrong.change.split("=", 1)[1].strip().rstrip(";")
        bodies.append(_query_body(function, value, params[0], "0, NULL, &got", True))
    cases = "".join(
        f"    case {number}: {{\n{body}        break;\n    }}\n"
        for number, body in enumerate(bodies)
    )
    text = (
        _pointer_type(function)
        + _names(function, names)
        + _undefined(function, errors)
        + f"static void run_{function.name}(struct setting *s, size_t number, struct outcome *o)\n"
        + "{\n"
        + _find(function)
        + "    size_t size = 0;\n    size_t got = 0x5555;\n    cl_int error = 0;\n"
        + "    bool silent = false;\n    memset(s->answer, UNTOUCHED, ANSWER_BYTES);\n"
        + f"    switch (number) {{\n{cases}    }}\n"
        + '    say(o, "%d", error);\n'
        + f"    if (!silent && undefined_{function.name}(number) == 0) {{\n"
        # A failed query need not say how long the answer would have been.
        + '        say(o, " size=%zu", error == CL_SUCCESS ? got : 0);\n'
        + '        say_bytes(s, o, "value", s->answer, size);\n'
        + "        name_addresses(s, s->answer, ANSWER_BYTES);\n"
        + '        say(o, " all=#%08x", (unsigned)hash_of(s->answer, ANSWER_BYTES));\n    }\n'
        + "}\n\n"
    )
    return len(names), text


def _query_body(function: Function, first: str, param: str, sizes: str, silent: bool) -> str:
    before = [first]
    for argument in function.args[1:]:
        if argument.name == "param_name":
            break
        before.append(_value_of(function, argument, Baseline()))
    head = ", ".join(before)
    if param == "CL_PROGRAM_BINARIES":
        ask = "        static uint8_t binary[1 << 20];\n        *(uint8_t **)s->answer = binary;\n"
    else:
        ask = ""
    ask += "" if "size" not in sizes else f"        call({head}, {param}, 0, NULL, &size);\n"
    return (
        ask
        + "        size = size > ANSWER_BYTES ? ANSWER_BYTES : size;\n"
        + f"        error = call({head}, {param}, {sizes});\n"
        + (f"        silent = {str(silent).lower()};\n" if silent else "")
    )


# --- other functions ---------------------------------------------------------------------------


def _kind_of(api: Api, argument: Argument) -> str:
    for handle in api.handles:
        if argument.type == handle.type:
            return handle.name
    return ""


def _value_of(function: Function, argument: Argument, baseline: Baseline) -> str:
    """The argument in the baseline, as a C expression."""
    if argument.name in baseline.values:
        return baseline.values[argument.name]
    if argument.callback:
        return "NULL"
    kinds = {
        "cl_platform_id": "s->platform",
        "cl_device_id": "s->device",
        "cl_context": "s->context",
        "cl_command_queue": "s->queue",
        "cl_program": "s->program",
        "cl_kernel": "s->kernel",
        "cl_event": "s->event",
        "cl_sampler": "s->sampler",
    }
    if argument.type in kinds:
        return kinds[argument.type]
    if argument.type == "cl_mem":
        image = "image" in argument.name
        other = "dst" in argument.name
        return (
            f"s->{('other_image' if other else 'image') if image else 'other' if other else 'mem'}"
        )
    return _plain_value(argument)


def _plain_value(argument: Argument) -> str:
    name, kind = argument.name, argument.type
    by_name = {
        "size": "64",
        "num_entries": "4",
        "region": "region",
        "ptr": "s->host",
        "num_events_in_wait_list": "1",
        "num_events": "1",
        "event_list": "&s->event",
        "event_wait_list": "&s->event",
        "errcode_ret": "&code",
        "event": "&event",
        "image_format": "&format",
        "image_desc": "&desc",
        "map_flags": "CL_MAP_READ",
    }
    if name in by_name:
        return by_name[name]
    if "origin" in name:
        return "origin"
    if kind.startswith("cl_bool"):
        return "CL_TRUE"
    if kind.startswith("const ") and kind.endswith("*"):
        return "NULL"
    if kind.endswith("*"):
        return f"&out_{name}" if kind not in ("void *", "void **") else "NULL"
    return "0"


def _wrong_handles(api: Api, argument: Argument) -> list[Case]:
    kind = _kind_of(api, argument)
    error = api.handle(kind).error
    name = argument.name
    cases = [Case("NULL", f"{name} = NULL;")]
    if kind == "mem":
        for member in ("mem", "sub", "image"):
            cases.append(Case(f"the {member}", f"{name} = s->{member};"))
    for other, member in OBJECTS.items():
        if other != kind:
            cases.append(Case(f"a {other}", f"{name} = ({argument.type})s->{member};", error))
    if kind in ABROAD:
        cases.append(Case("of another context", f"{name} = s->{ABROAD[kind]};"))
    if kind not in ("platform", "device"):
        cases.append(Case("released", f"{name} = released_{kind}(s);", error))
    return cases


def _variations(api: Api, function: Function, argument: Argument) -> list[Case]:
    """Every other value of one argument."""
    name = argument.name
    kind = _kind_of(api, argument)
    if kind:
        wrong = _wrong_handles(api, argument)
        # A void function cannot say what is wrong, and an unsupported one says the same to all.
        names = {other.name for other in function.args}
        can_say = function.returns == "cl_int" or "errcode_ret" in names
        silent = not can_say or function.mode == "unsupported"
        return [case for case in wrong if not silent or case.undefined == "0"]
    if name in ("event_wait_list", "event_list"):
        return _event_lists(function, argument)
    if argument.callback:
        return [
            Case("NULL", f"{name} = NULL;"),
            Case("a function", f"{name} = ({argument.callback})nothing;"),
        ]
    if name.startswith("num_events"):
        return []  # with the list
    if argument.type in SCALARS:
        return [Case(value, f"{name} = {value};") for value in SCALARS[argument.type]]
    if argument.type.endswith("*"):
        return _pointers(argument)
    return [Case(value, f"{name} = ({argument.type}){value};") for value in ("0", "1", "0x7fff")]


def _event_lists(function: Function, argument: Argument) -> list[Case]:
    number = next(a.name for a in function.args if a.name.startswith("num_events"))
    error = "CL_INVALID_EVENT_WAIT_LIST"
    if function.name == "clWaitForEvents":
        error = "CL_INVALID_EVENT"
    cases = []
    for title, change, undefined in EVENT_LISTS:
        if title == "failed" and function.name.startswith("clEnqueue"):
            continue  # written by hand: there are accelerators on which each takes for ever
        text = re.sub(r"\bnum\b", number, re.sub(r"\blist\b", argument.name, change))
        cases.append(Case(title, text, error if undefined else "0"))
    return cases


def _pointers(argument: Argument) -> list[Case]:
    name, kind = argument.name, argument.type
    cases = [Case("NULL", f"{name} = NULL;")]
    if kind == "const size_t *":
        for values in ("0, 0, 0", "0, 1, 1", "4, 0, 1", "4, 4, 0", "4, 2, 2", "5000, 1, 1"):
            cases.append(Case(f"{{{values}}}", f"{name} = (const size_t[3]){{{values}}};"))
        cases.append(Case("huge", f"{name} = (const size_t[3]){{SIZE_MAX, SIZE_MAX, SIZE_MAX}};"))
    elif re.fullmatch(r"const cl_\w*propert\w* \*", kind):
        element = kind[len("const ") :].removesuffix(" *")
        for title, values in (("empty", "0"), ("unknown", "0x7777, 1, 0")):
            cases.append(Case(title, f"{name} = (const {element}[]){{{values}}};"))
    elif kind == "const char *":
        for text in ("", "unknown"):
            cases.append(Case(f"'{text}'", f'{name} = "{text}";'))
    return cases


def _call_group(api: Api, function: Function, baseline: Baseline) -> tuple[int, str]:
    cases = [Case("baseline", "")]
    for argument in function.args:
        if argument.name in baseline.skip:
            continue
        for case in _variations(api, function, argument):
            cases.append(Case(f"{argument.name} {case.name}", case.change, case.undefined))
    outputs = [a for a in function.args if _is_output(a)]
    if len(outputs) > 1:
        change = " ".join(f"{a.name} = NULL;" for a in outputs)
        cases.append(Case("no outputs", change))
    cases.extend(baseline.more)
    changes = "".join(
        f"    case {number}: {{\n        {_outliving(case.change)}\n        break;\n    }}\n"
        for number, case in enumerate(cases)
        if case.change
    )
    text = (
        _pointer_type(function)
        + _names(function, [case.name for case in cases])
        + _undefined(function, [case.undefined for case in cases])
        + f"static void run_{function.name}(struct setting *s, size_t number, struct outcome *o)\n"
        + "{\n"
        + _find(function)
        + _locals(function, baseline)
        + f"    switch (number) {{\n{changes}    default:\n        break;\n    }}\n"
        + _the_call(function)
        + f"    if (undefined_{function.name}(number) != 0) {{\n        return;\n    }}\n"
        + _outputs(function, baseline)
        + "}\n\n"
    )
    return len(cases), text


def _outliving(change: str) -> str:
    """The change with its lists in static memory: the call comes after the block."""
    made = 0

    def keep(found: re.Match[str]) -> str:
        nonlocal made
        made += 1
        return f"memcpy(kept{made}, {found[0]}, sizeof({found[0]}))"

    lists = re.findall(r"\((const [\w ]+)\[\d*\]\)\{[^}]*\}", change)
    declared = "".join(
        f"static {kind.removeprefix('const ')} kept{number}[8]; "
        for number, kind in enumerate(lists, 1)
    )
    return declared + re.sub(r"\(const [\w ]+\[\d*\]\)\{[^}]*\}", keep, change)


def _is_output(argument: Argument) -> bool:
    return (
        argument.type.endswith("*")
        and not argument.type.startswith("const ")
        and argument.type not in ("void *", "void **", "cl_mem *")
    )


def _touches_memory(function: Function) -> bool:
    return function.name.startswith("clEnqueue") and "Kernel" not in function.name


def _touches_images(function: Function) -> bool:
    return _touches_memory(function) and "Image" in function.name


def _locals(function: Function, baseline: Baseline) -> str:
    """Variables for all that any call needs, then one for each argument."""
    lines = [
        "cl_int code = 0x5555;",
        "cl_event event_made = NULL;",
        "cl_event events[2] = {NULL, NULL};",
        "const size_t origin_[3] = {0, 0, 0};",
        "const size_t region_[3] = {16, 4, 1};",
        "const cl_image_format format = {CL_RGBA, CL_UNSIGNED_INT8};",
        "const cl_image_desc desc = {.image_type = CL_MEM_OBJECT_IMAGE2D, .image_width = 16, "
        ".image_height = 16};",
    ]
    if _touches_memory(function):
        lines.append("setting_reset(s);")
    image = _touches_images(function)
    if image:
        lines[4] = "const size_t region_[3] = {4, 4, 1};"
    lines += ["(void)code; (void)event_made; (void)events; (void)origin_; (void)region_;"]
    lines += ["(void)format; (void)desc;"]
    if baseline.locals:
        lines.append(baseline.locals)
    for argument in function.args:
        value = _value_of(function, argument, baseline)
        value = {"origin": "origin_", "region": "region_", "&event": "&event_made"}.get(
            value, value
        )
        if value == f"&out_{argument.name}":
            element = argument.type[:-1].strip()
            lines.append(f"{element} out_{argument.name}[OUTPUTS];")
            lines.append(f"memset(out_{argument.name}, 0, sizeof(out_{argument.name}));")
            value = f"out_{argument.name}"
        lines.append(f"{argument.declaration} = {value};")
    return "".join(f"    {line}\n" for line in lines)


def _the_call(function: Function) -> str:
    arguments = ", ".join(argument.name for argument in function.args)
    if function.returns == "void":
        return f'    call({arguments});\n    say(o, "called");\n'
    if function.returns == "cl_int":
        return f'    cl_int result = call({arguments});\n    say(o, "%d", result);\n'
    star = "" if function.returns.endswith("*") else " "
    errcode = any(argument.name == "errcode_ret" for argument in function.args)
    show = "code" if errcode else "result == NULL"
    return f'    {function.returns}{star}result = call({arguments});\n    say(o, "%d", {show});\n'


def _outputs(function: Function, baseline: Baseline) -> str:
    out = []
    returned = function.returns
    if "all" in function.volatile:
        return ""
    if returned not in ("void", "cl_int"):
        errcode = any(argument.name == "errcode_ret" for argument in function.args)
        # Some libraries return an object beside an error; nobody may use it.
        failed = "errcode_ret != NULL && code != CL_SUCCESS" if errcode else "false"
        out.append(f'say_object(s, o, "result", {failed} ? NULL : (const void *)result);')
    for argument in function.args:
        if argument.name == "errcode_ret" or not _is_output(argument):
            continue
        name = argument.name
        if argument.type == "cl_event *" and name == "event":
            out.append('say_event(o, "event", event_made);')
        elif _value_of(function, argument, baseline) == f"&out_{name}":
            out.append(f'say_array(s, o, "{name}", out_{name}, sizeof(out_{name}[0]));')
    if baseline.after:
        out.append(baseline.after)
    if _touches_memory(function):
        out.append("say_memory(s, o);")
    if _touches_images(function):
        out.append("say_images(s, o);")
    if returned in RELEASE:
        out.append(f"if (result != NULL) {{ {RELEASE[returned]}(result); }}")
    elif returned == "cl_event":
        out.append('say_event(o, "result", result);')
    return "".join(f"    {line}\n" for line in out)
