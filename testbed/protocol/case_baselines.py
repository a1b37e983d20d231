"""How each function is called when nothing is wrong, where its arguments' names do not say it.

Expressions are C; `s` is the setting (guest_agent/stub/opencl/tests/differential/cases.h) and `o`
the outcome.  `more` holds calls that differ from the baseline by more than one wrong argument.
"""

from __future__ import annotations

from testbed.protocol.emit_cases import Baseline, Case

FRESH_PROGRAM = "cl_program fresh = fresh_program(s);"
RELEASE_PROGRAM = "clReleaseProgram(fresh);"
ONE_DEVICE = {"num_devices": "1", "device_list": "&s->device"}
PARTITION = "{CL_DEVICE_PARTITION_EQUALLY, 1, 0}"


def _sizes(*values: str) -> str:
    return f"(const size_t[3]){{{', '.join(values)}}}"


def _retain(kind: str, type_: str, name: str, argument: str, count: str) -> Baseline:
    """Retaining counts, and the object lives until the last release."""
    return Baseline(
        {argument: "fresh"},
        f"{type_} fresh = fresh_{kind}(s);",
        f"cl_uint count = 0; clGet{name}Info(fresh, {count}, sizeof(count), &count, NULL); "
        'say(o, " count=%u", count); '
        f"while (count-- > 0) {{ clRelease{'MemObject' if kind == 'mem' else name}(fresh); }}",
    )


def _release(kind: str, type_: str, argument: str) -> Baseline:
    return Baseline({argument: "fresh"}, f"{type_} fresh = fresh_{kind}(s);")


_LAUNCHES = (
    Case("two dimensions", f"work_dim = 2; global_work_size = {_sizes('16', '4', '9')};"),
    Case("three dimensions", f"work_dim = 3; global_work_size = {_sizes('4', '4', '4')};"),
    Case("an offset", f"global_work_offset = {_sizes('8', '0', '0')};"),
    Case("a group", f"local_work_size = {_sizes('8', '1', '1')};"),
    Case("a group of 0", f"local_work_size = {_sizes('0', '1', '1')};"),
    Case("a group that does not divide", f"local_work_size = {_sizes('7', '1', '1')};"),
    Case("a group too large", f"local_work_size = {_sizes('(size_t)1 << 30', '1', '1')};"),
    Case("no size", f"global_work_size = {_sizes('0', '1', '1')};"),
    Case("no second size", f"work_dim = 2; global_work_size = {_sizes('4', '0', '1')};"),
    Case("NULL size", "global_work_size = NULL;"),
    Case("no dimension", "work_dim = 0;"),
    Case("four dimensions", "work_dim = 4;"),
    Case("huge dimension", "work_dim = UINT32_MAX;"),
    Case("a kernel without arguments", "kernel = fresh_kernel(s);"),
)
_ARGUMENTS = (
    Case("the value", "arg_index = 1; arg_size = 4; arg_value = s->host;"),
    Case("a short value", "arg_index = 1; arg_size = 3; arg_value = s->host;"),
    Case("a long value", "arg_index = 1; arg_size = 8; arg_value = s->host;"),
    Case("no value", "arg_index = 1; arg_size = 4; arg_value = NULL;"),
    Case("NULL buffer", "static const cl_mem none; arg_value = &none;"),
    Case("an image", "arg_value = &s->image;"),
    Case("a sub-buffer", "arg_value = &s->sub;"),
    Case("a sampler", "arg_value = &s->sampler;"),
    Case("a buffer of another context", "arg_value = &s->abroad;"),
    Case("local", "kernel = fresh_kernel(s); arg_index = 1; arg_size = 16; arg_value = NULL;"),
    Case("local of 0", "kernel = fresh_kernel(s); arg_index = 1; arg_size = 0; arg_value = NULL;"),
    Case("local with value", "kernel = fresh_kernel(s); arg_index = 1; arg_value = s->host;"),
    Case("vector", "kernel = fresh_kernel(s); arg_index = 2; arg_size = 16; arg_value = s->host;"),
    Case(
        "short vector",
        "kernel = fresh_kernel(s); arg_index = 2; arg_size = 8; arg_value = s->host;",
    ),
)
_HOST_FLAGS = tuple(
    Case(f"flags {flags} with host memory", f"flags = {flags}; host_ptr = s->host;")
    for flags in ("0", "1", "4", "8", "16", "24", "32", "40", "48", "56", "9", "33", "1 << 10")
)


def _copied(name: str) -> str:
    """What a new buffer holds, if it was made from host memory."""
    return (
        "if (result != NULL && host_ptr != NULL) { uint8_t copy[64] = {0}; "
        f"clEnqueueReadBuffer(s->queue, {name}, CL_TRUE, 0, sizeof(copy), copy, 0, NULL, NULL); "
        'say(o, " holds=#%08x", (unsigned)hash_of(copy, sizeof(copy))); }'
    )


_MAP_AFTER = (
    "if (result != NULL) { clFinish(s->queue); "
    'say(o, " holds=#%08x", (unsigned)hash_of(result, {bytes})); '
    'say(o, " unmap=%d", clEnqueueUnmapMemObject(s->queue, {mem}, result, 0, NULL, NULL)); '
    "clFinish(s->queue); }"
)
_IMAGE_DESCS = tuple(
    Case(
        f"image {title}",
        f"static cl_image_desc other; other = desc; {change} image_desc = &other;",
    )
    for title, change in (
        ("of no type", "other.image_type = 0;"),
        ("1D", "other.image_type = CL_MEM_OBJECT_IMAGE1D;"),
        ("1D array", "other.image_type = CL_MEM_OBJECT_IMAGE1D_ARRAY; other.image_array_size = 3;"),
        ("1D buffer", "other.image_type = CL_MEM_OBJECT_IMAGE1D_BUFFER; other.buffer = s->mem;"),
        ("1D buffer without one", "other.image_type = CL_MEM_OBJECT_IMAGE1D_BUFFER;"),
        ("2D array", "other.image_type = CL_MEM_OBJECT_IMAGE2D_ARRAY; other.image_array_size = 3;"),
        ("2D array of 0", "other.image_type = CL_MEM_OBJECT_IMAGE2D_ARRAY;"),
        ("3D", "other.image_type = CL_MEM_OBJECT_IMAGE3D; other.image_depth = 4;"),
        ("3D without depth", "other.image_type = CL_MEM_OBJECT_IMAGE3D;"),
        ("without width", "other.image_width = 0;"),
        ("without height", "other.image_height = 0;"),
        ("too wide", "other.image_width = (size_t)1 << 30;"),
        ("too wide by far", "other.image_width = SIZE_MAX;"),
        ("with a pitch and no memory", "other.image_row_pitch = 128;"),
        ("with levels", "other.num_mip_levels = 2;"),
        ("with samples", "other.num_samples = 2;"),
        ("2D of a buffer", "other.buffer = s->mem;"),
    )
)
_IMAGE_FORMATS = tuple(
    Case(
        f"format {order} {kind}",
        f"static const cl_image_format other = {{{order}, {kind}}}; image_format = &other;",
    )
    for order, kind in (
        ("0", "0"),
        ("CL_R", "CL_UNSIGNED_INT8"),
        ("CL_RGB", "CL_UNORM_SHORT_565"),
        ("CL_BGRA", "CL_UNORM_INT8"),
        ("CL_RGBA", "CL_FLOAT"),
        ("CL_RGBA", "CL_HALF_FLOAT"),
        ("CL_DEPTH", "CL_FLOAT"),
        ("CL_LUMINANCE", "CL_UNORM_INT8"),
        ("CL_RGBA", "0x7777"),
    )
)
_IMAGE_HOST = (
    Case(
        "copied with a pitch",
        "static cl_image_desc other; other = desc; "
        "other.image_row_pitch = 128; image_desc = &other; "
        "flags = CL_MEM_COPY_HOST_PTR; host_ptr = s->host;",
    ),
    Case(
        "copied with a short pitch",
        "static cl_image_desc other; other = desc; "
        "other.image_row_pitch = 60; image_desc = &other; "
        "flags = CL_MEM_COPY_HOST_PTR; host_ptr = s->host;",
    ),
)
_IMAGES = (*_HOST_FLAGS, *_IMAGE_DESCS, *_IMAGE_FORMATS, *_IMAGE_HOST)
_BUILD_OPTIONS = tuple(
    Case(f"options {text}", f'options = "{text}";')
    for text in (
        "-cl-fast-relaxed-math",
        "-DX=1 -D Y",
        "-cl-std=CL1.2",
        "-cl-std=CL9.9",
        "-w -Werror",
    )
)
_BUILD_DEVICES = (
    Case("one device", "num_devices = 1; device_list = &s->device;"),
    Case("a count without a list", "num_devices = 1; device_list = NULL;"),
    Case("a list without a count", "num_devices = 0; device_list = &s->device;"),
    Case("NULL device", "static const cl_device_id none; num_devices = 1; device_list = &none;"),
    Case("data without a function", "pfn_notify = NULL; user_data = s->host;"),
)
_BINARY = (
    "size_t length = 0; clGetProgramInfo(s->program, CL_PROGRAM_BINARY_SIZES, sizeof(length), "
    "&length, NULL); unsigned char *bytes = calloc(1, length + 1); "
    "const unsigned char *binary = bytes; "
    "clGetProgramInfo(s->program, CL_PROGRAM_BINARIES, sizeof(bytes), &bytes, NULL); "
)
_SUB_GROUPS = tuple(
    Case(f"param {name}", f"param_name = {name};")
    for name in (
        "CL_KERNEL_MAX_SUB_GROUP_SIZE_FOR_NDRANGE",
        "CL_KERNEL_SUB_GROUP_COUNT_FOR_NDRANGE",
        "CL_KERNEL_LOCAL_SIZE_FOR_SUB_GROUP_COUNT",
        "CL_KERNEL_MAX_NUM_SUB_GROUPS",
        "CL_KERNEL_COMPILE_NUM_SUB_GROUPS",
    )
)
_SUB_GROUP_VALUES = {
    "param_name": "CL_KERNEL_MAX_SUB_GROUP_SIZE_FOR_NDRANGE",
    "input_value_size": "sizeof(origin_)",
    "input_value": "region_",
    "param_value_size": "64",
    "param_value": "s->answer",
}
_SUB_GROUP_AFTER = 'say_bytes(s, o, "value", s->answer, 64);'
_SVM = "void *svm = clSVMAlloc(s->context, CL_MEM_READ_WRITE, 4096, 0);"
_SVM_AFTER = "clFinish(s->queue); clSVMFree(s->context, svm);"

BASELINES = {
    "clGetPlatformIDs": Baseline({"num_entries": "4"}),
    "clGetDeviceIDs": Baseline({"num_entries": "4", "device_type": "CL_DEVICE_TYPE_ALL"}),
    "clCreateContext": Baseline(
        {"num_devices": "1", "devices": "&s->device"},
        skip=("num_devices",),
        more=(
            Case("no devices", "num_devices = 0;"),
            Case(
                "the platform",
                "properties = (const cl_context_properties[]){CL_CONTEXT_PLATFORM, "
                "(cl_context_properties)s->platform, 0};",
            ),
            Case(
                "the platform twice",
                "properties = (const cl_context_properties[]){CL_CONTEXT_PLATFORM, "
                "(cl_context_properties)s->platform, CL_CONTEXT_PLATFORM, "
                "(cl_context_properties)s->platform, 0};",
            ),
            Case(
                "no platform",
                "properties = (const cl_context_properties[]){CL_CONTEXT_PLATFORM, 0, 0};",
            ),
            Case(
                "the device twice",
                "static cl_device_id two[2]; two[0] = two[1] "
                "= s->device; num_devices = 2; devices = two;",
            ),
            Case("NULL device", "static const cl_device_id none; devices = &none;"),
            Case("data without a function", "user_data = s->host;"),
        ),
    ),
    "clCreateContextFromType": Baseline({"device_type": "CL_DEVICE_TYPE_ALL"}),
    "clRetainContext": _retain(
        "context", "cl_context", "Context", "context", "CL_CONTEXT_REFERENCE_COUNT"
    ),
    "clReleaseContext": _release("context", "cl_context", "context"),
    "clRetainCommandQueue": _retain(
        "queue", "cl_command_queue", "CommandQueue", "command_queue", "CL_QUEUE_REFERENCE_COUNT"
    ),
    "clReleaseCommandQueue": _release("queue", "cl_command_queue", "command_queue"),
    "clRetainMemObject": _retain("mem", "cl_mem", "MemObject", "memobj", "CL_MEM_REFERENCE_COUNT"),
    "clReleaseMemObject": _release("mem", "cl_mem", "memobj"),
    "clRetainSampler": _retain(
        "sampler", "cl_sampler", "Sampler", "sampler", "CL_SAMPLER_REFERENCE_COUNT"
    ),
    "clReleaseSampler": _release("sampler", "cl_sampler", "sampler"),
    "clRetainProgram": _retain(
        "program", "cl_program", "Program", "program", "CL_PROGRAM_REFERENCE_COUNT"
    ),
    "clReleaseProgram": _release("program", "cl_program", "program"),
    "clRetainKernel": _retain(
        "kernel", "cl_kernel", "Kernel", "kernel", "CL_KERNEL_REFERENCE_COUNT"
    ),
    "clReleaseKernel": _release("kernel", "cl_kernel", "kernel"),
    "clRetainEvent": _retain("event", "cl_event", "Event", "event", "CL_EVENT_REFERENCE_COUNT"),
    "clReleaseEvent": _release("event", "cl_event", "event"),
    "clSetCommandQueueProperty": Baseline(
        {"command_queue": "fresh"},
        "cl_command_queue fresh = fresh_queue(s);",
        "clReleaseCommandQueue(fresh);",
    ),
    "clCreateBuffer": Baseline({"size": "DATA_BYTES"}, after=_copied("result"), more=_HOST_FLAGS),
    "clCreateBufferWithProperties": Baseline(
        {"size": "DATA_BYTES"}, after=_copied("result"), more=_HOST_FLAGS
    ),
    "clCreateImage2D": Baseline({"image_width": "16", "image_height": "16"}, more=_HOST_FLAGS),
    "clCreateImage3D": Baseline(
        {"image_width": "8", "image_height": "8", "image_depth": "2"}, more=_HOST_FLAGS
    ),
    "clCreateImage": Baseline(more=_IMAGES),
    "clCreateImageWithProperties": Baseline(more=_IMAGES),
    "clGetSupportedImageFormats": Baseline(
        {"num_entries": "4", "image_type": "CL_MEM_OBJECT_IMAGE2D", "flags": "CL_MEM_READ_WRITE"}
    ),
    "clCreateSampler": Baseline(
        {"addressing_mode": "CL_ADDRESS_CLAMP", "filter_mode": "CL_FILTER_NEAREST"}
    ),
    "clCreateSamplerWithProperties": Baseline(
        more=tuple(
            Case(
                f"properties {title}",
                f"sampler_properties = (const cl_sampler_properties[]){{{values}}};",
            )
            for title, values in (
                (
                    "all",
                    "CL_SAMPLER_NORMALIZED_COORDS, 0, CL_SAMPLER_ADDRESSING_MODE, "
                    "CL_ADDRESS_CLAMP, CL_SAMPLER_FILTER_MODE, CL_FILTER_LINEAR, 0",
                ),
                ("twice", "CL_SAMPLER_NORMALIZED_COORDS, 0, CL_SAMPLER_NORMALIZED_COORDS, 1, 0"),
                ("wrong value", "CL_SAMPLER_FILTER_MODE, 5, 0"),
            )
        )
    ),
    "clCreateProgramWithSource": Baseline(
        {"count": "1", "strings": "texts", "lengths": "NULL"},
        'const char *texts[2] = {"__kernel void k(__global int *a)", "{ a[0] = 1; }"}; '
        "size_t lengths_[2] = {0, 5}; (void)lengths_;",
        more=(
            Case("two", "count = 2;"),
            Case("two with lengths", "count = 2; lengths = lengths_;"),
            Case("a NULL", "count = 2; texts[1] = NULL;"),
        ),
        skip=("count",),
    ),
    "clCreateProgramWithBinary": Baseline(
        {
            "num_devices": "1",
            "device_list": "&s->device",
            "lengths": "&length",
            "binaries": "&binary",
        },
        _BINARY,
        "free(bytes);",
        more=(
            Case("no devices", "num_devices = 0;"),
            Case("a length of 0", "length = 0;"),
            Case("a NULL binary", "binary = NULL;"),
            Case("no binary at all", "length = 64; binary = s->host;"),
            Case("half a binary", "length /= 2;"),
        ),
        skip=("num_devices", "lengths"),
    ),
    "clCreateProgramWithIL": Baseline({"il": "s->host", "length": "64"}, skip=("length",)),
    "clCreateProgramWithBuiltInKernels": Baseline(
        {**ONE_DEVICE, "kernel_names": '"none"'}, skip=("num_devices",)
    ),
    "clBuildProgram": Baseline(
        {"program": "fresh"},
        FRESH_PROGRAM,
        RELEASE_PROGRAM,
        more=(*_BUILD_OPTIONS, *_BUILD_DEVICES, Case("with kernels", "program = s->program;")),
        skip=("num_devices",),
    ),
    "clCompileProgram": Baseline(
        {"program": "fresh"},
        FRESH_PROGRAM,
        RELEASE_PROGRAM,
        more=(
            *_BUILD_OPTIONS,
            *_BUILD_DEVICES,
            Case("headers without a list", "num_input_headers = 1;"),
            Case(
                "names without a count",
                'static const char *names[1] = {"a.h"}; header_include_names = names;',
            ),
            Case(
                "a header",
                'static const char *names[1] = {"a.h"}; static '
                "cl_program headers[1]; headers[0] = s->unbuilt; "
                "num_input_headers = 1; header_include_names = names; input_headers = headers;",
            ),
        ),
        skip=("num_devices", "num_input_headers"),
    ),
    "clLinkProgram": Baseline(
        {"num_input_programs": "1", "input_programs": "&fresh"},
        FRESH_PROGRAM + " clCompileProgram(fresh, 0, NULL, NULL, 0, NULL, NULL, NULL, NULL);",
        RELEASE_PROGRAM,
        more=(
            *(c for c in _BUILD_DEVICES),
            Case("a library", 'options = "-create-library";'),
            Case("wrong options", 'options = "-wrong";'),
            Case("not compiled", "input_programs = &s->unbuilt;"),
            Case("already linked", "input_programs = &s->program;"),
            Case("no programs", "num_input_programs = 0; input_programs = NULL;"),
            Case("programs without a count", "num_input_programs = 0;"),
        ),
        skip=("num_devices", "num_input_programs"),
    ),
    "clCreateKernel": Baseline(
        {"kernel_name": '"add"'}, more=(Case("not built", "program = s->unbuilt;"),)
    ),
    "clCreateKernelsInProgram": Baseline(
        {"num_kernels": "4"},
        after=(
            "for (size_t i = 0; i < 4; i++) { if "
            "(out_kernels[i] != NULL) { clReleaseKernel(out_kernels[i]); } }"
        ),
        more=(Case("not built", "program = s->unbuilt;"),),
    ),
    "clSetKernelArg": Baseline(
        {"arg_size": "sizeof(cl_mem)", "arg_value": "&s->mem"}, more=_ARGUMENTS
    ),
    "clEnqueueNDRangeKernel": Baseline(
        {"work_dim": "1", "global_work_size": _sizes("64", "1", "1")},
        more=_LAUNCHES,
        skip=("work_dim", "global_work_size", "global_work_offset", "local_work_size"),
    ),
    "clEnqueueMapBuffer": Baseline(
        {"size": "64"},
        after=_MAP_AFTER.replace("{bytes}", "size < 64 ? size : 64").replace("{mem}", "buffer"),
    ),
    "clEnqueueMapImage": Baseline(
        after=_MAP_AFTER.replace("{bytes}", "16").replace("{mem}", "image")
    ),
    "clEnqueueUnmapMemObject": Baseline(
        {"mapped_ptr": "mapped"},
        "void *mapped = clEnqueueMapBuffer(s->queue, "
        "s->mem, CL_TRUE, CL_MAP_WRITE, 0, 64, 0, NULL, "
        "NULL, NULL); if (mapped != NULL) { memset(mapped, 7, 64); }",
        "if (result != CL_SUCCESS) { "
        "clEnqueueUnmapMemObject(s->queue, s->mem, mapped, 0, NULL, NULL); }",
        more=(
            Case("other memory", "mapped_ptr = s->host;"),
            Case("inside", "mapped_ptr = (uint8_t *)mapped + 4;"),
        ),
    ),
    "clEnqueueNativeKernel": Baseline({"user_func": "(void (CL_CALLBACK *)(void *))nothing"}),
    "clGetExtensionFunctionAddress": Baseline(
        {"func_name": '"clIcdGetPlatformIDsKHR"'},
        more=tuple(
            Case(name, f'func_name = "{name}";')
            for name in ("clGetPlatformInfo", "clSetContentSizeBufferPoCL", "clCreateFromGLBuffer")
        ),
    ),
    "clGetExtensionFunctionAddressForPlatform": Baseline(
        {"func_name": '"clIcdGetPlatformIDsKHR"'},
        more=tuple(
            Case(name, f'func_name = "{name}";')
            for name in ("clGetPlatformInfo", "clSetContentSizeBufferPoCL", "clCreateFromGLBuffer")
        ),
    ),
    "clSetEventCallback": Baseline(
        {
            "event": "s->command",
            "pfn_notify": "(void (CL_CALLBACK *)(cl_event, cl_int, void *))nothing",
        }
    ),
    "clCreateSubBuffer": Baseline(
        {"buffer_create_type": "CL_BUFFER_CREATE_TYPE_REGION", "buffer_create_info": "&part"},
        "cl_buffer_region part = {1024, 512};",
        more=(
            Case("of nothing", "part.size = 0;"),
            Case("beyond the end", "part.size = 4096;"),
            Case("beyond by far", "part.origin = SIZE_MAX; part.size = 2;"),
            Case("unaligned", "part.origin = 3;"),
            Case("of a sub-buffer", "buffer = s->sub;"),
            Case("of an image", "buffer = s->image;"),
        ),
    ),
    "clSetMemObjectDestructorCallback": Baseline(
        {"memobj": "fresh", "pfn_notify": "(void (CL_CALLBACK *)(cl_mem, void *))nothing"},
        "cl_mem fresh = fresh_mem(s);",
        "clReleaseMemObject(fresh);",
    ),
    "clSetContextDestructorCallback": Baseline(
        {"context": "fresh", "pfn_notify": "(void (CL_CALLBACK *)(cl_context, void *))nothing"},
        "cl_context fresh = fresh_context(s);",
        "clReleaseContext(fresh);",
    ),
    "clSetProgramReleaseCallback": Baseline(
        {"program": "fresh", "pfn_notify": "(void (CL_CALLBACK *)(cl_program, void *))nothing"},
        FRESH_PROGRAM,
        RELEASE_PROGRAM,
    ),
    "clSetProgramSpecializationConstant": Baseline({"spec_size": "4", "spec_value": "s->host"}),
    "clCreateUserEvent": Baseline(
        after="if (result != NULL) { clSetUserEventStatus(result, CL_COMPLETE); }"
    ),
    "clSetUserEventStatus": Baseline(
        {"event": "fresh"},
        "cl_event fresh = fresh_event(s);",
        "cl_int now = 99; clGetEventInfo(fresh, "
        "CL_EVENT_COMMAND_EXECUTION_STATUS, sizeof(now), &now, "
        'NULL); say(o, " now=%d", now); clReleaseEvent(fresh);',
        more=(
            Case("twice", "clSetUserEventStatus(fresh, CL_COMPLETE);"),
            Case("no user event", "event = s->command;"),
        ),
    ),
    "clCreateSubDevices": Baseline(
        {"properties": "partition", "num_devices": "4"},
        f"const cl_device_partition_property partition[] = {PARTITION};",
        "for (size_t i = 0; i < 4; i++) { if "
        "(out_out_devices[i] != NULL) { clReleaseDevice(out_out_devices[i]); } }",
        more=(
            Case(
                "by counts",
                "properties = (const "
                "cl_device_partition_property[]){CL_DEVICE_PARTITION_BY_COUNTS, 1, 1, 0, 0};",
            ),
            Case(
                "by too many",
                "properties = (const "
                "cl_device_partition_property[]){CL_DEVICE_PARTITION_BY_COUNTS, 1000, 0, 0};",
            ),
            Case(
                "of 0",
                "properties = (const "
                "cl_device_partition_property[]){CL_DEVICE_PARTITION_EQUALLY, 0, 0};",
            ),
            Case(
                "of 1000",
                "properties = (const "
                "cl_device_partition_property[]){CL_DEVICE_PARTITION_EQUALLY, 1000, 0};",
            ),
            Case(
                "by affinity",
                "properties = (const "
                "cl_device_partition_property[]){CL_DEVICE_PARTITION_BY_AFFINITY_DOMAIN, 1, 0};",
            ),
        ),
    ),
    "clEnqueueFillBuffer": Baseline({"pattern": "s->host", "pattern_size": "4"}),
    "clEnqueueFillImage": Baseline({"fill_color": "s->host"}),
    "clEnqueueMigrateMemObjects": Baseline(
        {"num_mem_objects": "1", "mem_objects": "&s->mem"},
        more=(
            Case(
                "two",
                "static cl_mem two[2]; two[0] = s->mem; two[1] = "
                "s->other; num_mem_objects = 2; mem_objects = two;",
            ),
            Case("NULL object", "static const cl_mem none; mem_objects = &none;"),
            Case("no objects", "num_mem_objects = 0; mem_objects = NULL;"),
            Case("objects without a count", "num_mem_objects = 0;"),
        ),
        skip=("num_mem_objects",),
    ),
    "clGetKernelSubGroupInfo": Baseline(
        _SUB_GROUP_VALUES, after=_SUB_GROUP_AFTER, more=_SUB_GROUPS, skip=("param_value_size",)
    ),
    "clGetKernelSubGroupInfoKHR": Baseline(
        _SUB_GROUP_VALUES, after=_SUB_GROUP_AFTER, more=_SUB_GROUPS, skip=("param_value_size",)
    ),
    "clSVMAlloc": Baseline({"size": "64"}, after="clSVMFree(s->context, result);"),
    "clEnqueueSVMMemcpy": Baseline(
        {"dst_ptr": "svm", "src_ptr": "s->host"}, _SVM, _SVM_AFTER, skip=("size",)
    ),
    "clEnqueueSVMMemFill": Baseline(
        {"svm_ptr": "svm", "pattern": "s->host", "pattern_size": "4"},
        _SVM,
        _SVM_AFTER,
        skip=("size",),
    ),
    "clEnqueueSVMMap": Baseline({"svm_ptr": "svm"}, _SVM, _SVM_AFTER, skip=("size",)),
    "clEnqueueSVMUnmap": Baseline({"svm_ptr": "svm"}, _SVM, _SVM_AFTER),
    "clSetKernelArgSVMPointer": Baseline({"arg_value": "svm"}, _SVM, "clSVMFree(s->context, svm);"),
}
