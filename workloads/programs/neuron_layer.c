/*
 * neuron_layer.c - the counterpart of Caffe's Neuron Layer test: `neuron_layer STEPS WARMUP EVERY
 * [LAYER]`.
 *
 * A step is one case. Each variant of a layer has two: its forward results are compared with the
 * same function in double precision, and its gradient with numerical differences, on tensors of
 * 2 x 3 x 4 x 5. As in Caffe's gradient checker, an element takes one pass forward and backward and
 * two passes forward with the element moved up and down; each pass writes the tensor, sets the
 * arguments, launches one kernel and reads the tensor back. So there are very many calls and hardly
 * any work: the worst that can happen to a forwarded API.
 *
 * The gradient of every EVERY-th element is checked; 1 checks all, as Caffe does. The forward
 * results are always all checked.
 *
 * After WARMUP steps the cases run in the order of the table, from its start again after the last.
 * LAYER keeps only the variants of that layer. The kernels are compiled before the first step.
 * Each step prints an event line whose `loss` is the largest deviation, as a share of what is
 * allowed; the status is 1 if one was larger than 1.
 */
#define CL_TARGET_OPENCL_VERSION 120
#include <CL/cl.h>

#include <dlfcn.h>
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define SAMPLES 2u
#define CHANNELS 3u
#define PLANE (4u * 5u)
#define COUNT (SAMPLES * CHANNELS * PLANE)
#define SIZE_BYTES (COUNT * sizeof(float))

#define STEPS_MAX 1000000
#define SETTINGS_MAX 3u
#define KINKS_MAX 2u
#define SOURCE_BYTES_MAX (1u << 20)
#define NAME_BYTES 64u

#define FORWARD_TOLERANCE 1e-5
/* Caffe's: the step, the weight of the element in the objective, and the share allowed. */
#define GRADIENT_STEP 1e-2f
#define LOSS_WEIGHT 2.0f
#define GRADIENT_TOLERANCE 1e-3
/* Inputs stay further from a kink than the step, so that no difference is taken across one. */
#define KINK_RANGE 0.05
#define E 2.718281828459045

/* What a layer keeps for each element, in the kernel's last argument. */
enum aux { AUX_NONE, AUX_SLOPES, AUX_SHARED_SLOPE, AUX_HALF, AUX_QUARTER };

typedef double (*layer_function)(double x, const double *settings, double aux);

/* A layer with its settings; inputs are drawn from low to high, away from the kinks. */
struct variant {
    const char *title;
    const char *layer;
    layer_function function;
    double low, high;
    unsigned settings_count;
    double settings[SETTINGS_MAX];
    enum aux aux;
    unsigned kinks_count;
    double kinks[KINKS_MAX];
};

static double absval(double x, const double *s, double aux)
{
    (void)s, (void)aux;
    return fabs(x);
}

static double relu(double x, const double *s, double aux)
{
    (void)aux;
    return x > 0 ? x : s[0] * x;
}

static double elu(double x, const double *s, double aux)
{
    (void)aux;
    return x > 0 ? x : s[0] * expm1(x);
}

static double selu(double x, const double *s, double aux)
{
    (void)aux;
    return s[0] * (x > 0 ? x : s[1] * expm1(x));
}

static double sigmoid(double x, const double *s, double aux)
{
    (void)s, (void)aux;
    return 1 / (1 + exp(-x));
}

static double tanh_layer(double x, const double *s, double aux)
{
    (void)s, (void)aux;
    return tanh(x);
}

static double exp_layer(double x, const double *s, double aux)
{
    (void)aux;
    return pow(s[0], s[1] + s[2] * x);
}

static double log_layer(double x, const double *s, double aux)
{
    (void)aux;
    return log(s[1] + s[2] * x) / log(s[0]);
}

static double power(double x, const double *s, double aux)
{
    (void)aux;
    return pow(s[1] + s[2] * x, s[0]);
}

static double bnll(double x, const double *s, double aux)
{
    (void)s, (void)aux;
    return x > 0 ? x + log1p(exp(-x)) : log1p(exp(x));
}

static double prelu(double x, const double *s, double aux)
{
    (void)s;
    return x > 0 ? x : aux * x;
}

static double swish(double x, const double *s, double aux)
{
    (void)aux;
    return x / (1 + exp(-s[0] * x));
}

static double gelu(double x, const double *s, double aux)
{
    (void)s, (void)aux;
    return x * 0.5 * erfc(-x * M_SQRT1_2);
}

static double mish(double x, const double *s, double aux)
{
    return x * tanh(bnll(x, s, aux));
}

static double softsign(double x, const double *s, double aux)
{
    (void)s, (void)aux;
    return x / (1 + fabs(x));
}

static double dropout(double x, const double *s, double aux)
{
    (void)s;
    return x * aux;
}

static double threshold(double x, const double *s, double aux)
{
    (void)aux;
    return x > s[0] ? 1 : 0;
}

static double clip(double x, const double *s, double aux)
{
    (void)aux;
    return fmin(fmax(x, s[0]), s[1]);
}

static double hardsigmoid(double x, const double *s, double aux)
{
    (void)aux;
    return fmin(fmax(s[0] * x + s[1], 0), 1);
}

static double hardswish(double x, const double *s, double aux)
{
    (void)s, (void)aux;
    return x * fmin(fmax(x / 6 + 0.5, 0), 1);
}

/* clang-format off */
static const struct variant variants[] = {
    {"absolute value", "absval", absval, -2, 2, 0, {0}, AUX_NONE, 1, {0}},
    {"ReLU", "relu", relu, -2, 2, 1, {0}, AUX_NONE, 1, {0}},
    {"leaky ReLU", "relu", relu, -2, 2, 1, {0.01}, AUX_NONE, 1, {0}},
    {"ELU", "elu", elu, -2, 2, 1, {0.5}, AUX_NONE, 1, {0}},
    {"ELU as ReLU", "elu", elu, -2, 2, 1, {0}, AUX_NONE, 1, {0}},
    {"SELU", "selu", selu, -2, 2, 2, {1.0507009873554805, 1.6732632423543772}, AUX_NONE, 1, {0}},
    {"sigmoid", "sigmoid", sigmoid, -3, 3, 0, {0}, AUX_NONE, 0, {0}},
    {"tanh", "tanh", tanh_layer, -2, 2, 0, {0}, AUX_NONE, 0, {0}},
    {"exp", "exp", exp_layer, -1.5, 1.5, 3, {E, 0, 1}, AUX_NONE, 0, {0}},
    {"exp, base 2, shift 1, scale 3", "exp", exp_layer, -1, 1, 3, {2, 1, 3}, AUX_NONE, 0, {0}},
    {"log", "log", log_layer, 0.5, 4, 3, {E, 0, 1}, AUX_NONE, 0, {0}},
    {"log, base 2, shift 1, scale 3", "log", log_layer, 0.25, 2, 3, {2, 1, 3}, AUX_NONE, 0, {0}},
    {"power 0.37", "power", power, -1, 2, 3, {0.37, 2.4, 0.83}, AUX_NONE, 0, {0}},
    {"power 2", "power", power, -2, 2, 3, {2, 3, -0.5}, AUX_NONE, 0, {0}},
    {"power 1", "power", power, -2, 2, 3, {1, 3, 0.83}, AUX_NONE, 0, {0}},
    {"BNLL", "bnll", bnll, -3, 3, 0, {0}, AUX_NONE, 0, {0}},
    {"PReLU", "prelu", prelu, -2, 2, 0, {0}, AUX_SLOPES, 1, {0}},
    {"PReLU, shared slope", "prelu", prelu, -2, 2, 0, {0}, AUX_SHARED_SLOPE, 1, {0}},
    {"Swish", "swish", swish, -3, 3, 1, {1}, AUX_NONE, 0, {0}},
    {"Swish, beta 1.5", "swish", swish, -3, 3, 1, {1.5}, AUX_NONE, 0, {0}},
    {"GELU", "gelu", gelu, -3, 3, 0, {0}, AUX_NONE, 0, {0}},
    {"Mish", "mish", mish, -3, 3, 0, {0}, AUX_NONE, 0, {0}},
    {"softsign", "softsign", softsign, -2, 2, 0, {0}, AUX_NONE, 1, {0}},
    {"dropout 0.5", "dropout", dropout, -2, 2, 0, {0}, AUX_HALF, 0, {0}},
    {"dropout 0.75", "dropout", dropout, -2, 2, 0, {0}, AUX_QUARTER, 0, {0}},
    {"threshold", "threshold", threshold, -2, 2, 1, {0.5}, AUX_NONE, 1, {0.5}},
    {"clip", "clip", clip, -2, 2, 2, {-1, 0.75}, AUX_NONE, 2, {-1, 0.75}},
    {"hard sigmoid", "hardsigmoid", hardsigmoid, -4, 4, 2, {0.2, 0.5}, AUX_NONE, 2, {-2.5, 2.5}},
    {"hard Swish", "hardswish", hardswish, -4, 4, 0, {0}, AUX_NONE, 2, {-3, 3}},
};
/* clang-format on */

#define VARIANTS_COUNT (sizeof(variants) / sizeof(variants[0]))

/* The kernels of a variant; `slopes` is there for layers that learn. */
struct kernels {
    cl_kernel forward, backward, slopes;
};

struct device {
    cl_context context;
    cl_command_queue queue;
    cl_program program;
};

/* One case at work: its tensors on the device and on the host. */
struct test {
    const struct variant *variant;
    const struct kernels *kernels;
    cl_mem bottom, top, bottom_diff, top_diff, aux_buffer;
    float x[COUNT], aux[COUNT];
};

static struct device device;
static struct kernels kernels[VARIANTS_COUNT];
static uint64_t random_state;
static bool failed;
static void (*mark)(const char *label);

static void fail(const char *what, long detail)
{
    fprintf(stderr, "neuron_layer: %s (%ld)\n", what, detail);
    exit(2);
}

static void check(cl_int error, const char *what)
{
    if (error != CL_SUCCESS) {
        fail(what, error);
    }
}

/* Uniform in [0, 1): xorshift64*, the same on every machine. */
static double uniform(void)
{
    random_state ^= random_state >> 12;
    random_state ^= random_state << 25;
    random_state ^= random_state >> 27;
    return (double)((random_state * UINT64_C(2685821657736338717)) >> 11) * 0x1p-53;
}

static bool near_kink(const struct variant *variant, double x)
{
    for (unsigned kink = 0; kink < variant->kinks_count; kink++) {
        if (fabs(x - variant->kinks[kink]) < KINK_RANGE) {
            return true;
        }
    }
    return false;
}

static float draw(const struct variant *variant)
{
    for (;;) { /* kinks take a small share of the range, so that this ends */
        double x = variant->low + (variant->high - variant->low) * uniform();
        if (!near_kink(variant, x)) {
            return (float)x;
        }
    }
}

static float draw_aux(const struct variant *variant, unsigned index)
{
    unsigned channel = index / PLANE % CHANNELS;
    switch (variant->aux) {
    case AUX_SLOPES:
        return 0.25f * (float)(channel + 1);
    case AUX_SHARED_SLOPE:
        return 0.25f;
    case AUX_HALF:
        return uniform() < 0.5 ? 0.0f : 2.0f;
    case AUX_QUARTER:
        return uniform() < 0.75 ? 0.0f : 4.0f;
    default:
        return 0.0f;
    }
}

static char *source_text(const char *program_path)
{
    char path[4096];
    if ((size_t)snprintf(path, sizeof(path), "%s.cl", program_path) >= sizeof(path)) {
        fail("the path of the program is too long", sizeof(path));
    }
    FILE *file = fopen(path, "r");
    char *text = calloc(1, SOURCE_BYTES_MAX);
    if (file == NULL || text == NULL) {
        fail("cannot read neuron_layer.cl beside the program", 0);
    }
    size_t size = fread(text, 1, SOURCE_BYTES_MAX - 1, file);
    fclose(file);
    if (size == 0) {
        fail("neuron_layer.cl is empty", 0);
    }
    return text;
}

static void open_device(const char *program_path)
{
    cl_platform_id platform;
    cl_device_id id;
    cl_int error;
    check(clGetPlatformIDs(1, &platform, NULL), "no OpenCL platform");
    check(clGetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, 1, &id, NULL), "no OpenCL device");
    device.context = clCreateContext(NULL, 1, &id, NULL, NULL, &error);
    check(error, "clCreateContext");
    device.queue = clCreateCommandQueue(device.context, id, 0, &error);
    check(error, "clCreateCommandQueue");
    char *text = source_text(program_path);
    device.program =
        clCreateProgramWithSource(device.context, 1, (const char **)&text, NULL, &error);
    check(error, "clCreateProgramWithSource");
    error = clBuildProgram(device.program, 1, &id, "", NULL, NULL);
    if (error != CL_SUCCESS) {
        static char log[8192];
        clGetProgramBuildInfo(device.program, id, CL_PROGRAM_BUILD_LOG, sizeof(log) - 1, log, NULL);
        fprintf(stderr, "%s\n", log);
        fail("neuron_layer.cl does not compile", error);
    }
    free(text);
}

static cl_kernel kernel_of(const char *layer, const char *direction)
{
    char name[NAME_BYTES];
    cl_int error;
    snprintf(name, sizeof(name), "%s_%s", layer, direction);
    cl_kernel kernel = clCreateKernel(device.program, name, &error);
    check(error, name);
    return kernel;
}

static cl_mem buffer(void)
{
    cl_int error;
    cl_mem made = clCreateBuffer(device.context, CL_MEM_READ_WRITE, SIZE_BYTES, NULL, &error);
    check(error, "clCreateBuffer");
    return made;
}

static void write_tensor(cl_mem target, const float *values)
{
    check(clEnqueueWriteBuffer(device.queue, target, CL_TRUE, 0, SIZE_BYTES, values, 0, NULL, NULL),
          "clEnqueueWriteBuffer");
}

static void read_tensor(cl_mem source, float *values)
{
    check(clEnqueueReadBuffer(device.queue, source, CL_TRUE, 0, SIZE_BYTES, values, 0, NULL, NULL),
          "clEnqueueReadBuffer");
}

static void launch(cl_kernel kernel)
{
    size_t items = COUNT;
    check(clEnqueueNDRangeKernel(device.queue, kernel, 1, NULL, &items, NULL, 0, NULL, NULL),
          "clEnqueueNDRangeKernel");
}

static void set(cl_kernel kernel, cl_uint index, size_t size_bytes, const void *value)
{
    check(clSetKernelArg(kernel, index, size_bytes, value), "clSetKernelArg");
}

/* The layer's settings, behind `first` other arguments. */
static void set_settings(const struct test *test, cl_kernel kernel, cl_uint first)
{
    for (unsigned index = 0; index < test->variant->settings_count; index++) {
        float value = (float)test->variant->settings[index];
        set(kernel, first + index, sizeof(value), &value);
    }
    if (test->variant->aux != AUX_NONE) {
        set(kernel, first, sizeof(cl_mem), &test->aux_buffer);
    }
}

static void forward(struct test *test, float *top)
{
    cl_kernel kernel = test->kernels->forward;
    cl_uint count = COUNT;
    write_tensor(test->bottom, test->x);
    set(kernel, 0, sizeof(count), &count);
    set(kernel, 1, sizeof(cl_mem), &test->bottom);
    set(kernel, 2, sizeof(cl_mem), &test->top);
    set_settings(test, kernel, 3);
    launch(kernel);
    read_tensor(test->top, top);
}

/* What `top_diff` gives for the bottom; with `slopes` for the slopes, element by element. */
static void backward(struct test *test, const float *top_diff, bool slopes, float *diff)
{
    cl_kernel kernel = slopes ? test->kernels->slopes : test->kernels->backward;
    cl_uint count = COUNT;
    write_tensor(test->top_diff, top_diff);
    set(kernel, 0, sizeof(count), &count);
    set(kernel, 1, sizeof(cl_mem), &test->top_diff);
    set(kernel, 2, sizeof(cl_mem), &test->bottom);
    set(kernel, 3, sizeof(cl_mem), &test->bottom_diff);
    if (!slopes) {
        set_settings(test, kernel, 4);
    }
    launch(kernel);
    read_tensor(test->bottom_diff, diff);
}

static void begin(struct test *test, unsigned number)
{
    memset(test, 0, sizeof(*test));
    test->variant = &variants[number];
    test->kernels = &kernels[number];
    random_state = UINT64_C(88172645463325252) + number;
    for (unsigned index = 0; index < COUNT; index++) {
        test->x[index] = draw(test->variant);
        test->aux[index] = draw_aux(test->variant, index);
    }
    test->bottom = buffer();
    test->top = buffer();
    test->bottom_diff = buffer();
    test->top_diff = buffer();
    if (test->variant->aux != AUX_NONE) {
        test->aux_buffer = buffer();
        write_tensor(test->aux_buffer, test->aux);
    }
}

static void end(struct test *test)
{
    cl_mem buffers[] = {test->bottom, test->top, test->bottom_diff, test->top_diff,
                        test->aux_buffer};
    for (unsigned index = 0; index < sizeof(buffers) / sizeof(buffers[0]); index++) {
        if (buffers[index] != NULL) {
            check(clReleaseMemObject(buffers[index]), "clReleaseMemObject");
        }
    }
}

/* Compare one value; returns the deviation as a share of what is allowed. */
static double compare(const struct test *test, const char *what, unsigned index, double got,
                      double expected, double tolerance)
{
    double scale = fmax(1, fmax(fabs(got), fabs(expected)));
    double share = fabs(got - expected) / (tolerance * scale);
    if (!(share <= 1)) { /* a NaN fails, too */
        fprintf(stderr, "%s, %s %u at x = %.9g: %.9g, expected %.9g (allowed %g)\n",
                test->variant->title, what, index, test->x[index % COUNT], got, expected,
                tolerance * scale);
        failed = true;
        return isfinite(share) ? share : HUGE_VALF;
    }
    return share;
}

static double check_forward(struct test *test)
{
    double worst = 0;
    float top[COUNT];
    forward(test, top);
    for (unsigned index = 0; index < COUNT; index++) {
        double settings[SETTINGS_MAX]; /* as the device gets them */
        for (unsigned n = 0; n < SETTINGS_MAX; n++) {
            settings[n] = (float)test->variant->settings[n];
        }
        double expected = test->variant->function(test->x[index], settings, test->aux[index]);
        worst = fmax(worst, compare(test, "forward, element", index, top[index], expected,
                                    FORWARD_TOLERANCE));
    }
    return worst;
}

/* The objective is an element of the top, weighed; so is its change with the same input element. */
static double check_element(struct test *test, unsigned index)
{
    float top_diff[COUNT] = {0}, diff[COUNT], top[COUNT];
    float x = test->x[index];
    top_diff[index] = LOSS_WEIGHT;
    forward(test, top);
    backward(test, top_diff, false, diff);
    test->x[index] = x + GRADIENT_STEP;
    forward(test, top);
    double up = top[index];
    test->x[index] = x - GRADIENT_STEP;
    forward(test, top);
    double down = top[index];
    test->x[index] = x;
    double step = (double)(x + GRADIENT_STEP) - (double)(x - GRADIENT_STEP);
    return compare(test, "gradient, element", index, diff[index], LOSS_WEIGHT * (up - down) / step,
                   GRADIENT_TOLERANCE);
}

/* Whether an element has the slope of a channel. */
static bool has_slope(const struct test *test, unsigned index, unsigned channel)
{
    return test->variant->aux == AUX_SHARED_SLOPE || index / PLANE % CHANNELS == channel;
}

static double weighed_sum(const float *values)
{
    double sum = 0;
    for (unsigned index = 0; index < COUNT; index++) {
        sum += (double)LOSS_WEIGHT * values[index];
    }
    return sum;
}

static double moved_slope(struct test *test, unsigned channel, float step)
{
    float aux[COUNT], top[COUNT];
    for (unsigned index = 0; index < COUNT; index++) {
        aux[index] = test->aux[index] + (has_slope(test, index, channel) ? step : 0.0f);
    }
    write_tensor(test->aux_buffer, aux);
    forward(test, top);
    return weighed_sum(top);
}

static double check_slope(struct test *test, unsigned channel)
{
    float top_diff[COUNT], diff[COUNT], top[COUNT];
    double got = 0;
    for (unsigned index = 0; index < COUNT; index++) {
        top_diff[index] = LOSS_WEIGHT;
    }
    forward(test, top);
    backward(test, top_diff, true, diff);
    for (unsigned index = 0; index < COUNT; index++) {
        got += has_slope(test, index, channel) ? diff[index] : 0.0f;
    }
    double up = moved_slope(test, channel, GRADIENT_STEP);
    double down = moved_slope(test, channel, -GRADIENT_STEP);
    write_tensor(test->aux_buffer, test->aux);
    return compare(test, "gradient, slope", channel, got, (up - down) / (2 * GRADIENT_STEP),
                   GRADIENT_TOLERANCE);
}

static double check_gradient(struct test *test, unsigned every)
{
    double worst = 0;
    for (unsigned index = 0; index < COUNT; index += every) {
        worst = fmax(worst, check_element(test, index));
    }
    if (test->kernels->slopes != NULL) {
        unsigned slopes = test->variant->aux == AUX_SHARED_SLOPE ? 1 : CHANNELS;
        for (unsigned channel = 0; channel < slopes; channel++) {
            worst = fmax(worst, check_slope(test, channel));
        }
    }
    return worst;
}

/* Case 2n is variant n forward, case 2n + 1 its gradient. */
static double run_case(unsigned number, unsigned every)
{
    struct test test;
    begin(&test, number / 2);
    double worst = number % 2 == 0 ? check_forward(&test) : check_gradient(&test, every);
    end(&test);
    return worst;
}

/* Make the kernels of the chosen variants and run each once, so that all is compiled. */
static unsigned make_kernels(const char *layer, unsigned *chosen)
{
    unsigned count = 0;
    for (unsigned number = 0; number < VARIANTS_COUNT; number++) {
        const struct variant *variant = &variants[number];
        if (layer != NULL && strcmp(layer, variant->layer) != 0) {
            continue;
        }
        kernels[number].forward = kernel_of(variant->layer, "forward");
        kernels[number].backward = kernel_of(variant->layer, "backward");
        if (variant->aux == AUX_SLOPES || variant->aux == AUX_SHARED_SLOPE) {
            kernels[number].slopes = kernel_of(variant->layer, "slopes");
        }
        struct test test;
        float values[COUNT];
        begin(&test, number);
        forward(&test, values);
        backward(&test, test.x, false, values);
        if (test.kernels->slopes != NULL) {
            backward(&test, test.x, true, values);
        }
        end(&test);
        chosen[count++] = number;
    }
    return count;
}

static void no_mark(const char *label)
{
    (void)label;
}

static void load_mark(void)
{
    const char *path = getenv("WORMHOLE_MARK_LIB");
    mark = no_mark;
    if (path != NULL) {
        void *library = dlopen(path, RTLD_NOW);
        if (library == NULL) {
            fprintf(stderr, "neuron_layer: %s\n", dlerror());
            exit(2);
        }
        *(void **)&mark = dlsym(library, "wormhole_mark");
        if (mark == NULL) {
            fail("WORMHOLE_MARK_LIB names a library without wormhole_mark", 0);
        }
    }
}

static void report(unsigned step, unsigned number, double worst)
{
    struct timespec now;
    char label[NAME_BYTES];
    float loss = (float)worst;
    uint32_t bits;
    memcpy(&bits, &loss, sizeof(bits));
    clock_gettime(CLOCK_MONOTONIC, &now);
    snprintf(label, sizeof(label), "step %u", step);
    mark(label);
    printf("{\"event\": \"step\", \"step\": %u, \"t_ns\": %lld, \"case\": \"%s, %s\", "
           "\"loss_bits\": \"%08x\"}\n",
           step, (long long)now.tv_sec * 1000000000 + now.tv_nsec, variants[number / 2].title,
           number % 2 == 0 ? "forward" : "gradient", bits);
    fflush(stdout);
}

static long number_of(const char *text, long minimum, long maximum)
{
    char *rest;
    long value = strtol(text, &rest, 10);
    if (rest == text || *rest != '\0' || value < minimum || value > maximum) {
        fail("STEPS, WARMUP and EVERY must be whole numbers (EVERY from 1), at most", maximum);
    }
    return value;
}

int main(int argc, char **argv)
{
    unsigned chosen[VARIANTS_COUNT];
    if (argc < 4 || argc > 5) {
        fprintf(stderr, "usage: neuron_layer STEPS WARMUP EVERY [LAYER]\n");
        return 2;
    }
    long steps = number_of(argv[1], 0, STEPS_MAX), warmup = number_of(argv[2], 0, STEPS_MAX);
    unsigned every = (unsigned)number_of(argv[3], 1, COUNT);
    load_mark();
    open_device(argv[0]);
    unsigned cases = 2 * make_kernels(argc == 5 ? argv[4] : NULL, chosen);
    if (cases == 0) {
        fail("there is no such layer, or the table is empty", 0);
    }
    printf("{\"event\": \"start\", \"cases\": %u, \"steps\": %ld}\n", cases, steps);
    mark("ready");
    for (long step = 0; step < steps; step++) {
        unsigned at = (unsigned)((step < warmup ? step : step - warmup) % cases);
        unsigned number = 2 * chosen[at / 2] + at % 2;
        report((unsigned)step, number, run_case(number, every));
    }
    printf("{\"event\": \"end\", \"failed\": %s}\n", failed ? "true" : "false");
    return failed ? 1 : 0;
}
