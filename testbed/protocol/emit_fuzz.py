"""C of the fuzzer: the shape of every function's message, from the same specs as the skeletons.

What a hand-written skeleton takes is not in the specs: `SHAPES` says it here. A function that is
missing there gets the shape that its arguments suggest, which the worker refuses more often.
"""

from __future__ import annotations

from testbed.protocol.emit import banner
from testbed.protocol.emit_content import FLOATS
from testbed.protocol.emit_cuda import STREAM
from testbed.protocol.spec import Api, Argument, Function

# The first query of each family, by the C type of param_name.
QUERIES = {
    "cl_platform_info": 0x0900,
    "cl_device_info": 0x1000,
    "cl_context_info": 0x1080,
    "cl_command_queue_info": 0x1090,
    "cl_mem_info": 0x1100,
    "cl_image_info": 0x1110,
    "cl_sampler_info": 0x1150,
    "cl_program_info": 0x1160,
    "cl_program_build_info": 0x1181,
    "cl_kernel_info": 0x1190,
    "cl_kernel_arg_info": 0x1196,
    "cl_kernel_work_group_info": 0x11B0,
    "cl_kernel_sub_group_info": 0x2033,
    "cl_event_info": 0x11D0,
    "cl_profiling_info": 0x1280,
    "cl_mem_object_type": 0x10F0,
}
SMALL = ("num_entries", "pattern_size", "input_value_size")
SIZES = ("size", "offset", "cb", "bytes", "pitch", "num_entries", "width", "height", "depth")
TRANSFER = "queue mem mode size length events event"
RECTANGLE = "queue mem rectangle-mode origin region zero zero events event"
IMAGE = "phase context +mem image"
LAUNCH = "queue kernel packed geometry events event"

# Messages of hand-written skeletons: an item a word, in order.
SHAPES = {
    "whFetch": "small small out small",
    "whCopy": "bytes out small",
    "clGetPlatformIDs": "",
    "clGetDeviceIDs": "platform number small out",
    "clCreateContext": "list:0x1084 devices small +context out",
    "clCreateContextFromType": "list:0x1084 number small +context out",
    "clCreateBuffer": "context list:0 buffer",
    "clCreateBufferWithProperties": "context list:0 buffer",
    "whTakeCallbacks": "small out room out out",
    "whTakeOutput": "out room out out",
    "whPutFile": "path bytes small",
    "whPutStaging": "small room zero bytes small",
    "clCreateProgramWithSource": "context zero source +program",
    "clCreateProgramWithBinary": "context one:device binary +program out",
    "clCreateProgramWithIL": "context bytes small +program",
    "clBuildProgram": "program count devices options boolean",
    "clCompileProgram": "program count devices options headers boolean",
    "clLinkProgram": "context devices options programs boolean +program",
    "clGetProgramInfo": "program query:0x1160 size out-size out",
    "clCreateKernelsInProgram": "program created:kernel number boolean",
    "clSetKernelArg": "kernel argument",
    "clEnqueueNDRangeKernel": LAUNCH,
    "clEnqueueTask": LAUNCH,
    "clEnqueueReadBuffer": f"{TRANSFER} answer",
    "clEnqueueMapBuffer": f"{TRANSFER} answer",
    "clEnqueueWriteBuffer": f"{TRANSFER} answer",
    "clEnqueueUnmapMemObject": f"{TRANSFER} answer",
    "clEnqueueReadBufferRect": f"{RECTANGLE} answer",
    "clEnqueueWriteBufferRect": f"{RECTANGLE} answer",
    "clEnqueueReadImage": f"{RECTANGLE} answer",
    "clEnqueueMapImage": f"{RECTANGLE} answer",
    "clEnqueueWriteImage": f"{RECTANGLE} answer",
    "clCreateImage": IMAGE,
    "clCreateImageWithProperties": IMAGE,
    "clCreateImage2D": IMAGE,
    "clCreateImage3D": IMAGE,
    "clSetProgramSpecializationConstant": "program number small bytes",
    "clCreateSubBuffer": "mem flags part +mem",
    "clEnqueueCopyBufferRect": (
        "queue mem mem origin origin region zero zero zero zero count events event"
    ),
    "clCreateSubDevices": "device partition",
    "clSetEventCallback": "event= number boolean id",
    "clSetMemObjectDestructorCallback": "mem id",
    "clSetProgramReleaseCallback": "program id",
    "clSetContextDestructorCallback": "context id",
    "clFinish": "queue reads",
    "clWaitForEvents": "events reads",
    "clGetEventInfo": "event= query:0x11d0 size out-size out reads",
}
LT_SET = "lt small bytes out:256"
LT_GET = "lt small small out out"
LT_TYPES = "small small small small small small"

# The same of CUDA's libraries, behind the context word.
CUDA_SHAPES = {
    "cudaLaunchKernelExC": "kernel stream launch",
    "cudaFuncGetAttributes": "kernel out",
    "cudaFuncSetAttribute": "kernel small small",
    "cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags": "kernel small size zero out",
    "cudaOccupancyAvailableDynamicSMemPerBlock": "kernel small small out",
    "cudaOccupancyMaxActiveClusters": "kernel stream clusters out",
    "cudaOccupancyMaxPotentialClusterSize": "kernel stream clusters out",
    "cudaMemPoolSetAccess": "mem_pool= bytes small",
    "cudaGraphDestroy": "graph= graph_nodes",
    "cudaGraphAddKernelNode": "+graph_node graph= graph_nodes kernel node-launch",
    "cudaGraphKernelNodeSetParams": "zero graph_node= kernel node-launch",
    "cudaGraphExecKernelNodeSetParams": "graph_exec= graph_node= kernel node-launch",
    "cudaGraphAddMemcpyNode": "+graph_node graph= graph_nodes copy zero zero",
    "cudaGraphMemcpyNodeSetParams": "zero graph_node= copy",
    "cudaGraphExecMemcpyNodeSetParams": "graph_exec= graph_node= copy",
    "cudaGraphAddHostNode": "+graph_node graph= graph_nodes pinned",
    "cudaGraphExecUpdate": "graph_exec= graph= out",
    "whcListNodes": "boolean graph= created:graph_node out out",
    "cudaStreamGetCaptureInfo": "stream out out",
    "cudaStreamBeginCapture": "stream small",
    "cudaLaunchHostFunc": "stream id zero",
    "cudaGraphGetNodes": "graph out",
    "whcOpen": "out",
    "whcLoadImage": "+image code",
    "whcUnloadImage": "image= kernels",
    "whcGetKernel": "image= name +kernel out out",
    "whcGetVariable": "image= name out out",
    "whcCopyIn": "address area-in",
    "whcCopyOut": "address area-out",
    "whcPin": "pinned size small",
    "whcUnpin": "pinned",
    "whcCallbackDone": "id",
    "whcErrorText": "small out:256 out:256",
    "cublasLtDestroy": "cublaslt",
    "cublasLtMatmulDescInit_internal": "small small small out:256",
    "cublasLtMatmulDescCreate": "small small small out:256",
    "cublasLtMatrixLayoutInit_internal": "small small size size size out:256",
    "cublasLtMatrixLayoutCreate": "small small size size size out:256",
    "cublasLtMatrixTransformDescInit_internal": "small small out:256",
    "cublasLtMatrixTransformDescCreate": "small small out:256",
    "cublasLtMatmulPreferenceInit_internal": "small out:256",
    "cublasLtMatmulPreferenceCreate": "small out:256",
    "cublasLtMatmulAlgoGetHeuristic": "cublaslt lt lt lt lt lt lt small out out:4096",
    "cublasLtMatmulAlgoCheck": "cublaslt lt lt lt lt lt lt out",
    "cublasLtMatmulAlgoGetIds": f"cublaslt {LT_TYPES} small out out",
    "cublasLtMatmulAlgoInit": f"cublaslt {LT_TYPES} small out",
    "cublasLtMatmulAlgoCapGetAttribute": LT_GET,
    **{
        f"cublasLt{what}{verb}Attribute": shape
        for what in ("MatmulDesc", "MatrixLayout", "MatrixTransformDesc", "MatmulPreference")
        for verb, shape in (("Set", LT_SET), ("Get", LT_GET))
    },
    "cublasLtMatmulAlgoConfigSetAttribute": LT_SET,
    "cublasLtMatmulAlgoConfigGetAttribute": LT_GET,
    "cublasLtMatmul": (
        "cublaslt lt scalar address lt address lt scalar address lt address lt lt address size "
        "stream"
    ),
    "cublasLtMatrixTransform": (
        "cublaslt lt scalar address lt scalar address lt address lt stream"
    ),
    "cublasLtGetVersion": "",
    "cudnnGetVersion": "",
    "cudnnGetCudartVersion": "",
    "cudnnGetMaxDeviceVersion": "",
    "cudnnGetLastErrorString": "out",
    "cudnnBackendSetAttribute": "backend elements",
    "cudnnBackendGetAttribute": "backend asked",
    "cudnnBackendExecute": "cudnn backend pack",
    "cudnnSetDropoutDescriptor": "cudnn float address size size",
    "cudnnGetRNNWeightParams": "cudnn content:rnn small size small out address",
    "cudnnDeriveBNTensorDescriptor": "content:tensor small out",
}
PLAIN = {
    "number": "NUMBER, WH_HINT_ANY, 0",
    "size": "NUMBER, WH_HINT_SIZE, 0",
    "length": "NUMBER, WH_HINT_LENGTH, 0",
    "small": "NUMBER, WH_HINT_SMALL, 0",
    "zero": "NUMBER, WH_HINT_ZERO, 0",
    "room": "NUMBER, WH_HINT_ROOM, 0",
    "id": "NUMBER, WH_HINT_ID, 0",
    "flags": "NUMBER, WH_HINT_FLAGS, 0",
    "boolean": "NUMBER, WH_HINT_BOOLEAN, 0",
    "mode": "NUMBER, WH_HINT_MODE, 8",
    "rectangle-mode": "NUMBER, WH_HINT_MODE, 4",
    "phase": "NUMBER, WH_HINT_PHASE, 0",
    "time": "NUMBER, WH_HINT_TIME, 0",
    "count": "COUNT, 0, 0",
    "bytes": "BYTES, 0, 0",
    "data": "DATA, 0, 0",
    "triple": "TRIPLE, 0, 0",
    "origin": "TRIPLE, WH_HINT_ORIGIN, 0",
    "region": "TRIPLE, WH_HINT_REGION, 0",
    "string": "STRING, 0, 0",
    "path": "STRING, WH_HINT_PATH, 0",
    "options": "STRING, WH_HINT_OPTIONS, 0",
    "source": "SOURCE, 0, 0",
    "out": "OUT, 0, 0",
    "out-size": "OUT_SIZE, 0, 0",
    "event": "EVENT, 0, 0",
    "reads": "READS, 0, 0",
    "answer": "ANSWER, 0, 0",
    "image": "IMAGE, 0, 0",
    "buffer": "BUFFER, 0, 0",
    "binary": "BINARY, 0, 0",
    "argument": "ARGUMENT, 0, 0",
    "headers": "HEADERS, 0, 0",
    "part": "PART, 0, 0",
    "partition": "PARTITION, 0, 0",
    "packed": "PACKED, 0, 0",
    "geometry": "GEOMETRY, 0, 0",
    "context": "CONTEXT, 0, 0",
    "address": "ADDRESS, 0, 0",
    "scalar": "SCALAR, 0, 0",
    "result": "RESULT, 0, 0",
    "inout": "INOUT, 0, 0",
    "float": "FLOAT, 0, 0",
    "lt": "LT, 0, 0",
    "code": "CODE, 0, 0",
    "name": "NAME, 0, 0",
    "launch": "LAUNCH, 0, 0",
    "clusters": "LAUNCH, 0, 1",
    "node-launch": "LAUNCH, 0, 2",
    "copy": "COPY, 0, 0",
    "area-in": "AREA, 0, 0",
    "area-out": "AREA, 0, 1",
    "pinned": "PINNED, 0, 0",
    "elements": "ELEMENTS, 0, 0",
    "asked": "ELEMENTS, 0, 1",
    "pack": "PACK, 0, 0",
}


def fuzz_source(apis: list[Api], cuda: list[Api]) -> str:
    """Text of fuzz_grammar.c: messages of two APIs, and entries of contents that come as values."""
    out = [banner("the specs of functions"), '#include "grammar.h"\n\n']
    kinds = {handle.name: handle.kind for api in apis for handle in api.handles}
    out.append("static const struct wh_shape shapes[] = {\n")
    for api in apis:
        for function in api.functions:
            if function.forwarded:
                out.append(_shape(function, shape_of(function), kinds))
    out.append("};\n\nstatic const struct wh_shape cuda_shapes[] = {\n")
    core = next(api for api in apis if api.name == "core")
    for function in core.functions:
        if function.forwarded:
            out.append(_shape(function, shape_of(function), kinds))
    contents: dict[str, int] = {}
    kinds = {handle.name: handle.kind for api in cuda for handle in api.handles}
    for api in cuda:
        contents |= {content.name: number for number, content in enumerate(api.contents, 1)}
    for api in cuda:
        for function in api.functions:
            if function.forwarded:
                out.append(_shape(function, cuda_shape_of(function), kinds | contents))
    out.append("};\n\nconst struct wh_entry_shape wh_entry_shapes[] = {\n")
    entries = 0
    for api in cuda:
        for function in api.functions:
            if function.mode == "set":
                words = [word for a in function.args[1:] for word in _cuda_words(a)]
                kind = contents[function.args[0].content]
                shape = _shape(function, words, kinds | contents).strip().rstrip(",")
                out.append(f"    {{{kind}, {shape}}},\n")
                entries += 1
    out.append(
        "};\n"
        f"const size_t wh_entry_shape_count = {entries};\n\n"
        "const struct wh_shapes wh_opencl_shapes = {shapes, sizeof(shapes) / sizeof(shapes[0])};\n"
        "const struct wh_shapes wh_cuda_shapes = {cuda_shapes,\n"
        "                                         sizeof(cuda_shapes) / sizeof(cuda_shapes[0])};\n"
    )
    return "".join(out)


def _shape(function: Function, words: list[str], kinds: dict[str, int]) -> str:
    items = [_item(word, kinds) for word in words]
    body = "".join(f"\n      {{{item}}}," for item in items) or "{0, 0, 0}"
    return f'    {{{function.opcode:#06x}u, {len(items)}, "{function.name}",\n     {{{body}}}}},\n'


def cuda_shape_of(function: Function) -> list[str]:
    """The same of a function of CUDA's libraries: the context word, then what its stub puts."""
    if function.name in CUDA_SHAPES:
        return ["context", *CUDA_SHAPES[function.name].split()]
    if function.mode == "set":  # the message asks whether the library takes the whole
        return ["context", f"content:{function.args[0].content}"]
    counts = {argument.count for argument in function.args if argument.handles}
    words = ["context"]
    for argument in function.args:
        words += ["count"] if argument.name in counts else _cuda_words(argument)
    return words


def _cuda_words(argument: Argument) -> list[str]:
    if argument.creates:
        return [f"+{argument.creates}"]
    if argument.content:
        return [f"content:{argument.content}"]
    if argument.handle:
        return [f"{argument.handle}="]
    if argument.handles:
        return [f"{argument.handles}s"]
    for word in ("result", "scalar", "inout"):
        if getattr(argument, word):
            return [word]
    if argument.in_bytes:
        return ["bytes"]
    if argument.string:
        return ["string"]
    if argument.out:
        return ["out"]
    if argument.type in FLOATS:
        return ["float"]
    if "*" in argument.type:
        return ["address"]
    return ["size" if argument.type == "size_t" else "small"]


def shape_of(function: Function) -> list[str]:
    """The items of a function's message, a word each."""
    if function.name in SHAPES:
        return SHAPES[function.name].split()
    words = [word for argument in function.args for word in _words(function, argument)]
    if function.creates:
        words.append(f"+{function.creates}")
    if function.mode == "release":
        words += ["boolean", "bytes"]
    return words


def _words(function: Function, argument: Argument) -> list[str]:
    if argument.awaited:
        return ["boolean"]
    if argument.errcode or argument.callback or argument.is_callback_data:
        return []
    if argument.handle:
        return [f"{argument.handle}="]
    if argument.handles:
        return [f"{argument.handles}s"]
    if argument.in_bytes:
        if "3 *" in argument.in_bytes:
            return [_triple(argument)]
        return [_list(argument) if "wh_cl_properties" in argument.in_bytes else "bytes"]
    if argument.string or argument.strings:
        return ["string"]
    if argument.out:
        return ["out-size" if argument.out == "info" else "out"]
    if argument.out_event:
        return ["event"]
    return [_number(function, argument)]


def _triple(argument: Argument) -> str:
    return next((word for word in ("origin", "region") if word in argument.name), "triple")


def _list(argument: Argument) -> str:
    family = {"cl_queue_properties": 0x1093, "cl_sampler_properties": 0x1152}
    for name, first in family.items():
        if name in argument.type:
            return f"list:{first:#x}"
    return "list:0"


def _number(function: Function, argument: Argument) -> str:
    if any(argument.name == other.count for other in function.args if other.handles):
        return "count"
    if argument.type in QUERIES:
        return f"query:{QUERIES[argument.type]:#x}"
    if argument.type.startswith("cl_bool"):
        return "boolean"
    if "flags" in argument.type:
        return "flags"
    if argument.name.endswith("_us"):
        return "time"
    if argument.name in SMALL:
        return "small"
    return "size" if any(word in argument.name for word in SIZES) else "number"


def _item(word: str, kinds: dict[str, int]) -> str:
    """C of one item: its kind, hint and argument."""
    if word.startswith("+"):
        return f"WH_FUZZ_CREATED, 0, {kinds[word[1:]]}"
    key, _, value = word.partition(":")
    if key == "query":
        return f"WH_FUZZ_NUMBER, WH_HINT_QUERY, {value}"
    if key == "list":
        return f"WH_FUZZ_LIST, 0, {value}"
    if key == "one":
        return f"WH_FUZZ_HANDLES, 1, {kinds[value]}"
    if key == "content":
        return f"WH_FUZZ_CONTENT, 0, {kinds[value]}"
    if key == "out" and value:
        return f"WH_FUZZ_OUT, 0, {value}"
    if key == "created":
        return f"WH_FUZZ_CREATED_LIST, 0, {kinds[value]}"
    if word in PLAIN:
        return f"WH_FUZZ_{PLAIN[word]}"
    name = word.removesuffix("=")
    if name == STREAM:
        return f"WH_FUZZ_STREAM, 0, {kinds[STREAM]}"
    if name in kinds:
        return f"WH_FUZZ_HANDLE, 0, {kinds[name]}"
    return f"WH_FUZZ_HANDLES, 0, {kinds[name.removesuffix('s')]}"
