// kernels.cu - the test program's device code for a GPU; the same kernels as the double's.
#include <cstring>

#include "client.h"

__global__ void vector_add(const float *a, const float *b, float *c, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) {
        c[i] = a[i] + b[i];
    }
}

__global__ void scale(int *x, int factor, int shift, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) {
        x[i] = x[i] * factor + shift;
    }
}

__global__ void slow_store(int *x, int value, int n, int milliseconds)
{
    unsigned long long begin, now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begin));
    do {
        asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    } while (now - begin < milliseconds * 1000000ull);
    for (int i = 0; i < n; i++) {
        x[i] = value;
    }
}

struct block {
    char bytes[320];
};
struct __align__(16) aligned {
    long long parts[2];
};
struct large {
    char bytes[3600];
};

__device__ static char *put(char *to, const void *from, int size)
{
    memcpy(to, from, size);
    return to + size;
}

__global__ void layout_probe(char *out, char one, double two, aligned three, char *four, block five,
                             short six, large seven)
{
    out = put(out, &one, sizeof(one));
    out = put(out, &two, sizeof(two));
    out = put(out, &three, sizeof(three));
    out = put(out, &four, sizeof(four));
    out = put(out, &five, sizeof(five));
    out = put(out, &six, sizeof(six));
    put(out, &seven, sizeof(seven));
}

__global__ void fault(int *x)
{
    *(volatile int *)(0x10) = *x;
}

__device__ int table[64];

__global__ void sum_table(int *result)
{
    int sum = 0;
    for (int i = 0; i < 64; i++) {
        sum += table[i];
    }
    *result = sum;
}

extern "C" const void *client_kernel(const char *name)
{
    struct {
        const char *name;
        const void *function;
    } static const all[] = {
        {"vector_add", (const void *)vector_add}, {"scale", (const void *)scale},
        {"slow_store", (const void *)slow_store}, {"layout_probe", (const void *)layout_probe},
        {"fault", (const void *)fault},           {"sum_table", (const void *)sum_table},
    };
    for (auto &entry : all) {
        if (strcmp(entry.name, name) == 0) {
            return entry.function;
        }
    }
    return nullptr;
}

extern "C" const void *client_table(void)
{
    return &table;
}
