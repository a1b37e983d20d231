/*
 * texts.c - what cuBLAS and cuBLASLt call their results.
 */
#include "cuda.h"

struct text {
    int status;
    const char *name;
    const char *words;
};

static const struct text texts[] = {
    {0, "CUBLAS_STATUS_SUCCESS", "success"},
    {1, "CUBLAS_STATUS_NOT_INITIALIZED", "the library was not initialized"},
    {3, "CUBLAS_STATUS_ALLOC_FAILED", "the resource allocation failed"},
    {7, "CUBLAS_STATUS_INVALID_VALUE",
     "an unsupported value or parameter was passed to the function"},
    {8, "CUBLAS_STATUS_ARCH_MISMATCH",
     "the function requires an architectural feature absent from the architecture of the device"},
    {11, "CUBLAS_STATUS_MAPPING_ERROR", "an access to GPU memory space failed"},
    {13, "CUBLAS_STATUS_EXECUTION_FAILED", "the function failed to launch on the GPU"},
    {14, "CUBLAS_STATUS_INTERNAL_ERROR", "an internal operation failed"},
    {15, "CUBLAS_STATUS_NOT_SUPPORTED", "the functionality requested is not supported"},
    {16, "CUBLAS_STATUS_LICENSE_ERROR", "the license check failed"},
};

static const struct text *find(int status)
{
    static const struct text unknown = {-1, "CUBLAS_STATUS_UNKNOWN", "unknown status code"};
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        if (texts[i].status == status) {
            return &texts[i];
        }
    }
    return &unknown;
}

const char *wh_cublas_status_name(int status)
{
    return find(status)->name;
}

const char *wh_cublas_status_words(int status)
{
    return find(status)->words;
}
