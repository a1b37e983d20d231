/*
 * client.h - the CUDA test program, whatever its kernels were compiled for: a GPU (kernels.cu) or
 * the tests' double of a device (image.c).
 */
#ifndef CUDA_CLIENT_H
#define CUDA_CLIENT_H

#ifdef __cplusplus
extern "C" {
#endif

/* A kernel by its name, as cudaLaunchKernel takes it. */
const void *client_kernel(const char *name);

/* The host's shadow of the device variable `table`, 64 ints. */
const void *client_table(void);

#ifdef __cplusplus
}
#endif

#endif
