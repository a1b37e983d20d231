/*
 * refcublaslt.c - a test double of cuBLASLt: descriptors of a layout of its own, products of floats
 * and doubles with a bias. What it is for, refcuda.c says.
 */
#include <stdlib.h>

#include "reflibs.h"
#include "wh_cublaslt.h"

#define INVALID 7
#define NOT_SUPPORTED 15

REF_EXPORT const int wormhole_test_double = 1;

/* Padding is set, so that descriptors that are equal have equal bytes. */
struct matmul {
    int64_t compute, scale_type, pointer_mode, transa, transb, epilogue;
    void *bias;
    void *auxiliary;
    uint64_t magic;
};

struct layout {
    int64_t type;
    uint64_t rows, cols;
    int64_t ld, batch, stride;
};

struct preference {
    uint64_t mode, workspace_bytes;
};

struct algo {
    uint64_t id, tile;
    uint64_t rest[6];
};

struct heuristic {
    struct algo algo;
    size_t workspace_bytes;
    int state;
    float waves;
    int reserved[4];
};
_Static_assert(sizeof(struct heuristic) == WH_LT_HEURISTIC_BYTES, "as the real one");

struct cublasLtContext {
    int unused;
};

REF_EXPORT cublasStatus_t cublasLtCreate(cublasLtHandle_t *handle)
{
    *handle = calloc(1, sizeof(**handle));
    return *handle == NULL ? 3 : 0;
}

REF_EXPORT cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle)
{
    free(handle);
    return 0;
}

REF_EXPORT size_t cublasLtGetVersion(void)
{
    return 130099;
}

REF_EXPORT cublasStatus_t cublasLtMatmulDescInit_internal(void *to, size_t size_bytes, int compute,
                                                          int scale_type)
{
    const struct matmul value = {.compute = compute, .scale_type = scale_type, .magic = 77};
    if (size_bytes < sizeof(value) || (compute != 68 && compute != 70)) {
        return size_bytes < sizeof(value) ? INVALID : NOT_SUPPORTED;
    }
    memset(to, 0, size_bytes);
    memcpy(to, &value, sizeof(value));
    return 0;
}

REF_EXPORT cublasStatus_t cublasLtMatmulDescCreate(void **to, int compute, int scale_type)
{
    *to = malloc(256);
    return cublasLtMatmulDescInit_internal(*to, 256, compute, scale_type);
}

REF_EXPORT cublasStatus_t cublasLtMatrixLayoutInit_internal(void *to, size_t size_bytes, int type,
                                                            uint64_t rows, uint64_t cols,
                                                            int64_t ld)
{
    const struct layout value = {
        .type = type, .rows = rows, .cols = cols, .ld = ld, .batch = 1, .stride = 0};
    if (size_bytes < sizeof(value)) {
        return INVALID;
    }
    memset(to, 0, size_bytes);
    memcpy(to, &value, sizeof(value));
    return 0;
}

REF_EXPORT cublasStatus_t cublasLtMatrixLayoutCreate(void **to, int type, uint64_t rows,
                                                     uint64_t cols, int64_t ld)
{
    *to = malloc(64);
    return cublasLtMatrixLayoutInit_internal(*to, 64, type, rows, cols, ld);
}

REF_EXPORT cublasStatus_t cublasLtMatmulPreferenceInit_internal(void *to, size_t size_bytes)
{
    memset(to, 0, size_bytes);
    return 0;
}

REF_EXPORT cublasStatus_t cublasLtMatmulPreferenceCreate(void **to)
{
    *to = calloc(1, 64);
    return 0;
}

#define DESTROY(name)                                                                              \
    REF_EXPORT cublasStatus_t name(void *descriptor)                                               \
    {                                                                                              \
        free(descriptor);                                                                          \
        return 0;                                                                                  \
    }                                                                                              \
    _Static_assert(1, "for the semicolon")

DESTROY(cublasLtMatmulDescDestroy);
DESTROY(cublasLtMatrixLayoutDestroy);
DESTROY(cublasLtMatmulPreferenceDestroy);

/* A field of 4 or 8 bytes. */
static cublasStatus_t set_number(int64_t *field, const void *value, size_t size_bytes)
{
    if (size_bytes == sizeof(int32_t)) {
        int32_t narrow = 0;
        memcpy(&narrow, value, sizeof(narrow));
        *field = narrow;
        return 0;
    }
    if (size_bytes == sizeof(*field)) {
        memcpy(field, value, sizeof(*field));
        return 0;
    }
    return INVALID;
}

static cublasStatus_t get_number(int64_t field, void *value, size_t size_bytes, size_t *written)
{
    int32_t narrow = (int32_t)field;
    if (value == NULL && size_bytes == 0) {
        *written = sizeof(narrow);
        return 0;
    }
    if (size_bytes == sizeof(narrow)) {
        memcpy(value, &narrow, sizeof(narrow));
    } else if (size_bytes == sizeof(field)) {
        memcpy(value, &field, sizeof(field));
    } else {
        return INVALID;
    }
    if (written != NULL) {
        *written = size_bytes;
    }
    return 0;
}

static int64_t *matmul_field(struct matmul *matmul, int attribute)
{
    int64_t *const fields[] = {&matmul->compute,
                               &matmul->scale_type,
                               &matmul->pointer_mode,
                               &matmul->transa,
                               &matmul->transb,
                               NULL,
                               NULL,
                               &matmul->epilogue};
    return attribute >= 0 && attribute < 8 ? fields[attribute] : NULL;
}

REF_EXPORT cublasStatus_t cublasLtMatmulDescSetAttribute(void *descriptor, int attribute,
                                                         const void *value, size_t size_bytes)
{
    struct matmul *matmul = descriptor;
    if ((attribute == 8 || attribute == 11) && size_bytes == sizeof(void *)) {
        memcpy(attribute == 8 ? &matmul->bias : &matmul->auxiliary, value, size_bytes);
        return 0;
    }
    int64_t *field = matmul_field(matmul, attribute);
    return field == NULL ? INVALID : set_number(field, value, size_bytes);
}

REF_EXPORT cublasStatus_t cublasLtMatmulDescGetAttribute(void *descriptor, int attribute,
                                                         void *value, size_t size_bytes,
                                                         size_t *written)
{
    struct matmul *matmul = descriptor;
    if (attribute == 8 || attribute == 11) {
        return get_number((int64_t)(attribute == 8 ? matmul->bias : matmul->auxiliary), value,
                          size_bytes, written);
    }
    const int64_t *field = matmul_field(matmul, attribute);
    return field == NULL ? INVALID : get_number(*field, value, size_bytes, written);
}

static int64_t *layout_field(struct layout *layout, int attribute)
{
    int64_t *const fields[] = {
        &layout->type, NULL,           (int64_t *)&layout->rows, (int64_t *)&layout->cols,
        &layout->ld,   &layout->batch, &layout->stride};
    return attribute >= 0 && attribute < 7 ? fields[attribute] : NULL;
}

REF_EXPORT cublasStatus_t cublasLtMatrixLayoutSetAttribute(void *descriptor, int attribute,
                                                           const void *value, size_t size_bytes)
{
    int64_t *field = layout_field(descriptor, attribute);
    return field == NULL ? INVALID : set_number(field, value, size_bytes);
}

REF_EXPORT cublasStatus_t cublasLtMatrixLayoutGetAttribute(void *descriptor, int attribute,
                                                           void *value, size_t size_bytes,
                                                           size_t *written)
{
    const int64_t *field = layout_field(descriptor, attribute);
    return field == NULL ? INVALID : get_number(*field, value, size_bytes, written);
}

REF_EXPORT cublasStatus_t cublasLtMatmulPreferenceSetAttribute(void *descriptor, int attribute,
                                                               const void *value, size_t size_bytes)
{
    struct preference *preference = descriptor;
    return attribute == 1 ? set_number((int64_t *)&preference->workspace_bytes, value, size_bytes)
                          : INVALID;
}

REF_EXPORT cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, void *operation,
                                                         void *a, void *b, void *c, void *d,
                                                         void *preference, int wanted,
                                                         void *results, int *count)
{
    struct heuristic *found = results;
    const struct matmul *matmul = operation;
    const struct preference *limits = preference;
    if (handle == NULL || a == NULL || b == NULL || c == NULL || d == NULL) {
        return INVALID;
    }
    /* Some algorithms want an aligned bias. */
    int there = (uintptr_t)matmul->bias % 16 == 0 ? 2 : 1;
    *count = wanted < there ? wanted : there;
    for (int i = 0; i < *count; i++) {
        found[i].algo.id = (uint64_t)(10 + i);
        found[i].workspace_bytes = limits->workspace_bytes;
        found[i].waves = 0.5f;
    }
    return 0;
}

REF_EXPORT cublasStatus_t cublasLtMatmulAlgoConfigSetAttribute(void *algo, int attribute,
                                                               const void *value, size_t size_bytes)
{
    return attribute == 1 ? set_number((int64_t *)&((struct algo *)algo)->tile, value, size_bytes)
                          : INVALID;
}

REF_EXPORT cublasStatus_t cublasLtMatmulAlgoConfigGetAttribute(const void *algo, int attribute,
                                                               void *value, size_t size_bytes,
                                                               size_t *written)
{
    const struct algo *config = algo;
    return attribute > 1 ? INVALID
                         : get_number((int64_t)(attribute == 0 ? config->id : config->tile), value,
                                      size_bytes, written);
}

static double element(const void *matrix, int64_t type, int64_t index)
{
    return type == 1 ? ((const double *)matrix)[index] : (double)((const float *)matrix)[index];
}

REF_EXPORT cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, void *operation,
                                         const void *alpha, const void *a, void *a_layout,
                                         const void *b, void *b_layout, const void *beta,
                                         const void *c, void *c_layout, void *d, void *d_layout,
                                         const void *algo, void *workspace, size_t workspace_bytes,
                                         cudaStream_t stream)
{
    const struct matmul *matmul = operation;
    const struct layout *la = a_layout;
    const struct layout *lb = b_layout;
    const struct layout *lc = c_layout;
    const struct layout *ld = d_layout;
    (void)workspace;
    (void)workspace_bytes;
    if (handle == NULL || matmul->magic != 77 || la->type != ld->type ||
        (algo != NULL && ((const struct algo *)algo)->id < 10)) {
        return handle == NULL ? 1 : INVALID;
    }
    int64_t type = ld->type;
    int64_t depth = (int64_t)(matmul->transa != 0 ? la->rows : la->cols);
    if (!ref_bounded((int64_t)ld->cols, (int64_t)ld->rows, depth)) {
        return INVALID;
    }
    ref_wait(stream);
    double scale = element(alpha, matmul->scale_type, 0);
    double old = beta == NULL ? 0 : element(beta, matmul->scale_type, 0);
    for (int64_t j = 0; j < (int64_t)ld->cols; j++) {
        for (int64_t i = 0; i < (int64_t)ld->rows; i++) {
            double sum = 0;
            for (int64_t l = 0; l < depth; l++) {
                sum += element(a, type, matmul->transa != 0 ? i * la->ld + l : l * la->ld + i) *
                       element(b, type, matmul->transb != 0 ? l * lb->ld + j : j * lb->ld + l);
            }
            double value = scale * sum + (old == 0 ? 0 : old * element(c, type, j * lc->ld + i));
            if (matmul->epilogue == 4) {
                value += element(matmul->bias, type, i);
            }
            if (type == 1) {
                ((double *)d)[j * ld->ld + i] = value;
            } else {
                ((float *)d)[j * ld->ld + i] = (float)value;
            }
        }
    }
    return 0;
}
