/*
 * client.c - what programs do with the CUDA runtime, case by case. It prints every result, so that
 * a native run and a forwarded one can be compared line by line; a case fails by itself where the
 * right value is known.
 *
 *     client          all cases but `fault`
 *     client CASE...  these
 *     client --list   their names
 */
#define _GNU_SOURCE

#include "cases.h"

#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

static int launch(const char *name, unsigned blocks, unsigned threads, void **arguments,
                  cudaStream_t stream)
{
    return cudaLaunchKernel(client_kernel(name), (struct wh_dim3){blocks, 1, 1},
                            (struct wh_dim3){threads, 1, 1}, arguments, 0, stream);
}

static int scale(int *x, int factor, int shift, int n, cudaStream_t stream)
{
    void *arguments[] = {&x, &factor, &shift, &n};
    return launch("scale", (unsigned)(n + 255) / 256, 256, arguments, stream);
}

static int slow_store(int *x, int value, int n, int milliseconds, cudaStream_t stream)
{
    void *arguments[] = {&x, &value, &n, &milliseconds};
    return launch("slow_store", 1, 1, arguments, stream);
}

static void vector_add(void)
{
    enum { N = 100000 };
    float *host = malloc(3 * N * sizeof(float));
    float *a = NULL;
    float *b = NULL;
    float *c = NULL;
    int n = N;
    for (int i = 0; i < 2 * N; i++) {
        host[i] = (float)i;
    }
    OK(cudaMalloc((void **)&a, N * sizeof(float)));
    OK(cudaMalloc((void **)&b, N * sizeof(float)));
    OK(cudaMalloc((void **)&c, N * sizeof(float)));
    OK(cudaMemcpy(a, host, N * sizeof(float), TO_DEVICE));
    OK(cudaMemcpy(b, host + N, N * sizeof(float), ANY));
    void *arguments[] = {&a, &b, &c, &n};
    OK(launch("vector_add", (N + 255) / 256, 256, arguments, NULL));
    OK(cudaMemcpy(host + 2 * N, c, N * sizeof(float), ANY));
    int wrong = 0;
    for (int i = 0; i < N; i++) {
        wrong += host[2 * N + i] != host[i] + host[N + i];
    }
    check(wrong == 0, "sums");
    OK(cudaFree(a));
    OK(cudaFree(b));
    OK(cudaFree(c));
    IS(cudaFree(NULL), 0);
    free(host);
}

/* Round trips of all size classes, pageable and pinned. */
static void sizes(void)
{
    static const size_t bytes[] = {0,        1,       63,      64,      65,       4095,    4096,
                                   4097,     8191,    8193,    65535,   65536,    65537,   1048575,
                                   1u << 20, 1048577, 2097153, 4194304, 67108863, 67108865};
    for (size_t i = 0; i < sizeof(bytes) / sizeof(bytes[0]); i++) {
        size_t n = bytes[i];
        unsigned char *from = malloc(n + 1);
        unsigned char *to = malloc(n + 1);
        unsigned char *pinned = NULL;
        void *device = NULL;
        for (size_t j = 0; j < n; j++) {
            from[j] = (unsigned char)(j * 31 + i);
        }
        memset(to, 0, n + 1);
        OK(cudaMalloc(&device, n + 1));
        OK(cudaMemcpy(device, from, n, TO_DEVICE));
        OK(cudaMemcpy(to, device, n, TO_HOST));
        check(memcmp(from, to, n) == 0, "pageable bytes");
        OK(cudaMallocHost((void **)&pinned, n + 1));
        memset(pinned, 0, n + 1);
        OK(cudaMemcpyAsync(pinned, device, n, TO_HOST, NULL));
        OK(cudaStreamSynchronize(NULL));
        check(memcmp(from, pinned, n) == 0, "pinned bytes");
        OK(cudaFreeHost(pinned));
        OK(cudaFree(device));
        free(from);
        free(to);
    }
}

/* A copy into pageable memory behind a long kernel is complete after the synchronise. */
static void pageable_async(void)
{
    enum { N = 1000 };
    int *host = calloc(N, sizeof(int));
    int *device = NULL;
    cudaStream_t stream = NULL;
    OK(cudaStreamCreateWithFlags(&stream, 1));
    OK(cudaMalloc((void **)&device, N * sizeof(int)));
    OK(slow_store(device, 7, N, 100, stream));
    OK(cudaMemcpyAsync(host, device, N * sizeof(int), TO_HOST, stream));
    OK(cudaStreamSynchronize(stream));
    check(host[0] == 7 && host[N - 1] == 7, "data after the synchronise");
    /* What is copied in is taken at the call. */
    for (int i = 0; i < N; i++) {
        host[i] = i;
    }
    OK(slow_store(device, 1, N, 50, stream));
    OK(cudaMemcpyAsync(device, host, N * sizeof(int), TO_DEVICE, stream));
    memset(host, 0xff, N * sizeof(int));
    OK(scale(device, 2, 1, N, stream));
    OK(cudaMemcpyAsync(host, device, N * sizeof(int), TO_HOST, stream));
    OK(cudaStreamSynchronize(stream));
    int wrong = 0;
    for (int i = 0; i < N; i++) {
        wrong += host[i] != 2 * i + 1;
    }
    check(wrong == 0, "bytes taken at the call");
    OK(cudaStreamDestroy(stream));
    OK(cudaFree(device));
    free(host);
}

/* A registered source gets its bytes from a copy before it in the stream. */
static void registered_order(void)
{
    enum { N = 4096 };
    int *host = NULL;
    int *a = NULL;
    int *b = NULL;
    int result[N];
    cudaStream_t stream = NULL;
    check(posix_memalign((void **)&host, 4096, N * sizeof(int)) == 0, "memory");
    memset(host, 0, N * sizeof(int));
    OK(cudaStreamCreate(&stream));
    OK(cudaHostRegister(host, N * sizeof(int), 0));
    IS(cudaHostRegister(host, N * sizeof(int), 0), 712);
    IS(cudaGetLastError(), 712);
    OK(cudaMalloc((void **)&a, N * sizeof(int)));
    OK(cudaMalloc((void **)&b, N * sizeof(int)));
    OK(slow_store(a, 42, N, 50, stream));
    OK(cudaMemcpyAsync(host, a, N * sizeof(int), TO_HOST, stream));
    OK(cudaMemcpyAsync(b, host, N * sizeof(int), TO_DEVICE, stream));
    OK(cudaMemcpyAsync(result, b, N * sizeof(int), TO_HOST, stream));
    OK(cudaStreamSynchronize(stream));
    check(result[0] == 42 && result[N - 1] == 42, "the second copy's bytes");
    OK(cudaHostUnregister(host));
    IS(cudaHostUnregister(host), 713);
    IS(cudaGetLastError(), 713);
    OK(cudaFree(a));
    OK(cudaFree(b));
    OK(cudaStreamDestroy(stream));
    free(host);
}

/* Values that are read back one by one, as a program that looks at its loss does it. */
static void read_backs(void)
{
    enum { READS = 100 };
    int *device = NULL;
    cudaStream_t stream = NULL;
    OK(cudaStreamCreateWithFlags(&stream, 1));
    OK(cudaMalloc((void **)&device, 4));
    OK(cudaMemsetAsync(device, 0, 4, stream));
    int wrong = 0;
    for (int i = 1; i <= READS; i++) {
        int host = -1;
        OK(scale(device, 1, 1, 1, stream));
        OK(cudaMemcpyAsync(&host, device, 4, TO_HOST, stream));
        OK(cudaStreamSynchronize(stream));
        wrong += host != i;
    }
    check(wrong == 0, "values read back");
    OK(cudaFree(device));
    OK(cudaStreamDestroy(stream));
}

struct seen {
    int count;
    int order[8];
    int *pinned;
    int value;
};

static void host_function(void *data)
{
    struct seen *seen = data;
    seen->order[seen->count++] = 1;
    seen->value = seen->pinned[0];
}

static void stream_function(void *stream, int status, void *data)
{
    struct seen *seen = data;
    (void)stream;
    seen->order[seen->count++] = status == 0 ? 2 : -1;
}

static void callbacks(void)
{
    struct seen seen = {.count = 0};
    int *device = NULL;
    cudaStream_t stream = NULL;
    OK(cudaStreamCreate(&stream));
    OK(cudaMalloc((void **)&device, 4096));
    OK(cudaMallocHost((void **)&seen.pinned, 4096));
    seen.pinned[0] = 0;
    OK(slow_store(device, 5, 1, 30, stream));
    OK(cudaMemcpyAsync(seen.pinned, device, 4, TO_HOST, stream));
    OK(cudaLaunchHostFunc(stream, (void *)host_function, &seen));
    OK(cudaStreamAddCallback(stream, (void *)stream_function, &seen, 0));
    OK(scale(device, 10, 0, 1, stream));
    OK(cudaMemcpyAsync(seen.pinned + 1, device, 4, TO_HOST, stream));
    OK(cudaStreamSynchronize(stream));
    check(seen.count == 2 && seen.order[0] == 1 && seen.order[1] == 2, "order and number");
    check(seen.value == 5, "pinned memory as the function sees it");
    check(seen.pinned[1] == 50, "what comes behind the functions");
    IS(cudaLaunchHostFunc(stream, NULL, NULL), 1);
    (void)cudaGetLastError();
    OK(cudaFreeHost(seen.pinned));
    OK(cudaFree(device));
    OK(cudaStreamDestroy(stream));
}

static void slow_function(void *data)
{
    usleep(50000);
    *(int *)data = 1;
}

/* Launches that find the device's queue full wait for a function of this very program. */
static void full_queue(void)
{
    enum { LAUNCHES = 3000 };
    int ran = 0;
    int host = 0;
    int *device = NULL;
    cudaStream_t stream = NULL;
    OK(cudaStreamCreateWithFlags(&stream, 1));
    OK(cudaMalloc((void **)&device, 4));
    OK(cudaMemsetAsync(device, 0, 4, stream));
    OK(cudaLaunchHostFunc(stream, (void *)slow_function, &ran));
    for (int i = 0; i < LAUNCHES; i++) {
        OK(scale(device, 1, 1, 1, stream));
    }
    OK(cudaMemcpyAsync(&host, device, 4, TO_HOST, stream));
    OK(cudaStreamSynchronize(stream));
    check(ran == 1 && host == LAUNCHES, "a function before a full queue");
    OK(cudaFree(device));
    OK(cudaStreamDestroy(stream));
}

static void *run_thread(void *argument)
{
    long number = (long)argument;
    int *device = NULL;
    int host = 0;
    int id = -1;
    cudaStream_t stream = NULL;
    OK(cudaStreamCreateWithFlags(&stream, 1));
    OK(cudaMalloc((void **)&device, 4));
    OK(cudaGetDevice(&id));
    check(id == 0, "the thread's device");
    OK(cudaMemsetAsync(device, 0, 4, stream));
    for (int i = 0; i < 200; i++) {
        OK(scale(device, 1, (int)number, 1, stream));
        if (i % 20 == 0) {
            OK(cudaStreamSynchronize(stream));
        }
    }
    OK(cudaMemcpyAsync(&host, device, 4, TO_HOST, stream));
    OK(cudaStreamSynchronize(stream));
    check(host == 200 * number, "a thread's result");
    IS(cudaGetLastError(), 0);
    OK(cudaFree(device));
    OK(cudaStreamDestroy(stream));
    return NULL;
}

static void threads(void)
{
    pthread_t all[8];
    for (long i = 0; i < 8; i++) {
        pthread_create(&all[i], NULL, run_thread, (void *)(i + 1));
    }
    for (int i = 0; i < 8; i++) {
        pthread_join(all[i], NULL);
    }
}

/* The child cannot use what its parent has, the parent does not notice. */
static void forking(void)
{
    int *device = NULL;
    int host = 3;
    OK(cudaMalloc((void **)&device, 4));
    OK(cudaMemcpy(device, &host, 4, TO_DEVICE));
    pid_t child = fork();
    if (child == 0) {
        void *other = NULL;
        int error = cudaMalloc(&other, 4);
        _exit(error == 3 ? 0 : 1 + (error != 0));
    }
    int status = -1;
    waitpid(child, &status, 0);
    say("child %d", WIFEXITED(status) ? WEXITSTATUS(status) : -1);
    child = fork();
    if (child == 0) {
        exit(0);
    }
    waitpid(child, &status, 0);
    OK(scale(device, 2, 0, 1, NULL));
    OK(cudaMemcpy(&host, device, 4, TO_HOST));
    check(host == 6, "the parent's memory");
    OK(cudaFree(device));
}

static void bad_handles(void)
{
    static const uintptr_t wrong[] = {0x1000, 0xdeadbeef, 0x1100000100000001ull};
    cudaStream_t stream = NULL;
    cudaEvent_t event = NULL;
    int device_pointer = 0;
    OK(cudaStreamCreate(&stream));
    OK(cudaEventCreate(&event));
    OK(cudaStreamDestroy(stream));
    OK(cudaEventDestroy(event));
    (void)wrong;
    IS(cudaLaunchKernel((const void *)&device_pointer, (struct wh_dim3){1, 1, 1},
                        (struct wh_dim3){1, 1, 1}, NULL, 0, NULL),
       400);
    IS(cudaGetLastError(), 400);
    IS(cudaFree(&device_pointer), 1);
    IS(cudaGetLastError(), 1);
    IS(cudaFreeHost(&device_pointer), 1);
    IS(cudaGetLastError(), 1);
    IS(cudaMemset(&device_pointer, 0, 4), 1);
    IS(cudaGetLastError(), 1);
    IS(cudaSetDevice(1000), 101);
    IS(cudaGetLastError(), 101);
}

static void stickiness(void)
{
    int *device = NULL;
    void *arguments[] = {&device, &device, &device, &device};
    cudaStream_t stream = NULL;
    cudaEvent_t event = NULL;
    OK(cudaStreamCreateWithFlags(&stream, 1));
    OK(cudaEventCreate(&event));
    OK(cudaMalloc((void **)&device, 4));
    IS(launch("scale", 0, 1, arguments, NULL), 1);
    IS(cudaPeekAtLastError(), 1);
    IS(cudaPeekAtLastError(), 1);
    IS(cudaGetLastError(), 1);
    IS(cudaGetLastError(), 0);
    IS(launch("scale", 1, 2048, arguments, NULL), 1);
    OK(cudaDeviceSynchronize());
    IS(cudaGetLastError(), 1);
    OK(slow_store(device, 1, 1, 100, stream));
    OK(cudaEventRecord(event, stream));
    IS(cudaEventQuery(event), 600);
    IS(cudaGetLastError(), 0);
    IS(cudaStreamQuery(stream), 600);
    IS(cudaGetLastError(), 0);
    OK(cudaStreamSynchronize(stream));
    OK(cudaEventQuery(event));
    OK(cudaStreamQuery(stream));
    say("%s, %s", cudaGetErrorName(1), cudaGetErrorString(1));
    say("%s, %s", cudaGetErrorName(0), cudaGetErrorString(0));
    OK(cudaEventDestroy(event));
    OK(cudaStreamDestroy(stream));
    OK(cudaFree(device));
}

struct block {
    char bytes[320];
};
struct aligned {
    long long parts[2];
} __attribute__((aligned(16)));
struct large {
    char bytes[3600];
};

static void layout(void)
{
    char *out = NULL;
    char one = 0x11;
    double two = 2.5;
    struct aligned three = {{0x3333, 0x4444}};
    char *four = NULL;
    struct block five;
    short six = 0x6666;
    struct large seven;
    char wanted[4000];
    char got[4000];
    OK(cudaMalloc((void **)&out, sizeof(got)));
    four = out + 8;
    for (size_t i = 0; i < sizeof(five); i++) {
        five.bytes[i] = (char)(i * 7);
    }
    for (size_t i = 0; i < sizeof(seven); i++) {
        seven.bytes[i] = (char)(i * 13);
    }
    void *arguments[] = {&out, &one, &two, &three, &four, &five, &six, &seven};
    OK(launch("layout_probe", 1, 1, arguments, NULL));
    OK(cudaMemcpy(got, out, sizeof(got), TO_HOST));
    size_t at = 0;
    static const size_t bytes[] = {1, 8, 16, 8, 320, 2, 3600};
    for (size_t i = 0; i < 7; i++) {
        memcpy(wanted + at, arguments[i + 1], bytes[i]);
        check(memcmp(wanted + at, got + at, bytes[i]) == 0, "an argument's value");
        at += bytes[i];
    }
    OK(cudaFree(out));
}

static void events(void)
{
    cudaEvent_t start = NULL;
    cudaEvent_t end = NULL;
    cudaEvent_t untimed = NULL;
    cudaStream_t stream = NULL;
    cudaStream_t other = NULL;
    int *device = NULL;
    int host = 0;
    float ms = -1;
    OK(cudaStreamCreateWithFlags(&stream, 1));
    OK(cudaStreamCreateWithFlags(&other, 1));
    OK(cudaMalloc((void **)&device, 4));
    OK(cudaEventCreate(&start));
    OK(cudaEventCreate(&end));
    OK(cudaEventCreateWithFlags(&untimed, 2));
    IS(cudaEventElapsedTime(&ms, start, end), 400);
    IS(cudaGetLastError(), 400);
    OK(cudaEventRecord(start, stream));
    OK(slow_store(device, 9, 1, 60, stream));
    OK(cudaEventRecord(end, stream));
    IS(cudaEventElapsedTime(&ms, start, end), 600);
    OK(cudaStreamWaitEvent(other, end, 0));
    OK(scale(device, 3, 0, 1, other));
    OK(cudaMemcpyAsync(&host, device, 4, TO_HOST, other));
    OK(cudaStreamSynchronize(other));
    check(host == 27, "what waits for an event comes after it");
    OK(cudaEventSynchronize(end));
    OK(cudaEventElapsedTime(&ms, start, end));
    check(ms >= 59.0f, "elapsed time");
    OK(cudaEventRecord(untimed, stream));
    OK(cudaEventSynchronize(untimed));
    IS(cudaEventElapsedTime(&ms, start, untimed), 400);
    (void)cudaGetLastError();
    OK(cudaEventDestroy(start));
    OK(cudaEventDestroy(end));
    OK(cudaEventDestroy(untimed));
    OK(cudaStreamDestroy(stream));
    OK(cudaStreamDestroy(other));
    OK(cudaFree(device));
}

static void null_outputs(void)
{
    size_t bytes = 0;
    IS(cudaMalloc(NULL, 4), 1);
    IS(cudaGetLastError(), 1);
    IS(cudaStreamCreate(NULL), 1);
    IS(cudaGetLastError(), 1);
    IS(cudaEventCreate(NULL), 1);
    IS(cudaGetLastError(), 1);
    OK(cudaMemGetInfo(&bytes, NULL));
    OK(cudaMemGetInfo(NULL, NULL));
    OK(cudaDeviceGetStreamPriorityRange(NULL, NULL));
}

static void mapped(void)
{
    static const size_t bytes[] = {1, 7, 100, 255, 256, 257, 1000, 100000};
    for (size_t i = 0; i < sizeof(bytes) / sizeof(bytes[0]); i++) {
        int *pinned = NULL;
        int *device = NULL;
        struct wh_cuda_pointer attributes;
        OK(cudaHostAlloc((void **)&pinned, bytes[i] < 4 ? 4 : bytes[i], 2));
        check((uintptr_t)pinned % 256 == 0, "alignment");
        OK(cudaHostGetDevicePointer((void **)&device, pinned, 0));
        pinned[0] = 20;
        OK(scale(device, 2, 1, 1, NULL));
        OK(cudaDeviceSynchronize());
        check(pinned[0] == 41, "mapped memory after a kernel");
        OK(cudaPointerGetAttributes(&attributes, pinned));
        say("type %d device %d same %d", attributes.type, attributes.device,
            attributes.device_pointer == attributes.host_pointer);
        OK(cudaFreeHost(pinned));
    }
    void *device = NULL;
    struct wh_cuda_pointer attributes;
    OK(cudaMalloc(&device, 4));
    OK(cudaPointerGetAttributes(&attributes, device));
    say("device memory: type %d device %d own %d host %d", attributes.type, attributes.device,
        attributes.device_pointer == device, attributes.host_pointer != NULL);
    OK(cudaPointerGetAttributes(&attributes, &attributes));
    say("stack: type %d device %d dev %d", attributes.type, attributes.device,
        attributes.device_pointer != NULL);
    OK(cudaFree(device));
}

static void symbols(void)
{
    int values[64];
    int back[64];
    int *sum = NULL;
    int host = 0;
    size_t bytes = 0;
    void *address = NULL;
    for (int i = 0; i < 64; i++) {
        values[i] = i * i;
    }
    OK(cudaGetSymbolSize(&bytes, client_table()));
    check(bytes == sizeof(values), "a variable's size");
    OK(cudaGetSymbolAddress(&address, client_table()));
    OK(cudaMemcpyToSymbol(client_table(), values, sizeof(values), 0, TO_DEVICE));
    OK(cudaMalloc((void **)&sum, 4));
    void *arguments[] = {&sum};
    OK(launch("sum_table", 1, 1, arguments, NULL));
    OK(cudaMemcpy(&host, sum, 4, TO_HOST));
    check(host == 85344, "a sum over a variable");
    OK(cudaMemcpyFromSymbol(back, client_table(), sizeof(back), 0, TO_HOST));
    check(memcmp(values, back, sizeof(back)) == 0, "a variable read back");
    IS(cudaGetSymbolAddress(&address, &host), 13);
    IS(cudaGetLastError(), 13);
    OK(cudaFree(sum));
}

static void rectangles(void)
{
    enum { WIDTH = 100, HEIGHT = 50, HOST_PITCH = 130 };
    unsigned char from[HOST_PITCH * HEIGHT];
    unsigned char to[HOST_PITCH * HEIGHT];
    void *device = NULL;
    size_t pitch = 0;
    for (size_t i = 0; i < sizeof(from); i++) {
        from[i] = (unsigned char)(i * 3);
    }
    memset(to, 0, sizeof(to));
    OK(cudaMallocPitch(&device, &pitch, WIDTH, HEIGHT));
    check(pitch >= WIDTH, "a pitch");
    OK(cudaMemset2D(device, pitch, 0xaa, WIDTH, HEIGHT));
    OK(cudaMemcpy2D(device, pitch, from, HOST_PITCH, WIDTH, HEIGHT, TO_DEVICE));
    OK(cudaMemcpy2D(to, HOST_PITCH, device, pitch, WIDTH, HEIGHT, TO_HOST));
    int wrong = 0;
    for (int row = 0; row < HEIGHT; row++) {
        wrong += memcmp(from + row * HOST_PITCH, to + row * HOST_PITCH, WIDTH) != 0;
        wrong += to[row * HOST_PITCH + WIDTH] != 0;
    }
    check(wrong == 0, "rows");
    IS(cudaMemcpy2D(to, 10, device, pitch, WIDTH, HEIGHT, TO_HOST), 12);
    IS(cudaGetLastError(), 12);
    OK(cudaFree(device));
}

/* After an error of a kernel nothing of the device context works any more. */
static void fault(void)
{
    int *device = NULL;
    void *arguments[] = {&device};
    void *more = NULL;
    OK(cudaMalloc((void **)&device, 4));
    OK(launch("fault", 1, 1, arguments, NULL));
    IS(cudaDeviceSynchronize(), 700);
    IS(cudaMalloc(&more, 4), 700);
    IS(cudaGetLastError(), 700);
    IS(launch("fault", 1, 1, arguments, NULL), 700);
    IS(cudaPeekAtLastError(), 700);
}

static const struct test_case cases[] = {
    {"null_outputs", null_outputs, false},
    {"vector_add", vector_add, false},
    {"sizes", sizes, false},
    {"pageable_async", pageable_async, false},
    {"registered_order", registered_order, false},
    {"read_backs", read_backs, false},
    {"callbacks", callbacks, false},
    {"full_queue", full_queue, false},
    {"threads", threads, false},
    {"forking", forking, false},
    {"bad_handles", bad_handles, false},
    {"stickiness", stickiness, false},
    {"layout", layout, false},
    {"events", events, false},
    {"mapped", mapped, false},
    {"symbols", symbols, false},
    {"rectangles", rectangles, false},
    {"fault", fault, true},
};

int main(int argc, char **argv)
{
    return run_cases(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
}
