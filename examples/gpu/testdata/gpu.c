// SPDX-License-Identifier: Apache-2.0
//
// Fake libraries of the GPU makers, with the functions that the example calls: CUDA's driver
// library, AMD's HIP, and the HSA runtime below HIP. GPU memory is shared memory of this machine's. With
// GPU_DOUBLE=dmabuf nothing is mapped at its addresses, and it can only be reached by a DMA buffer, which the kernel's
// udmabuf makes. With "address" there are no DMA buffers, and the memory is mapped at its addresses, as with a module
// for peer memory. With any other value, neither works. Managed memory is always mapped at its addresses.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/udmabuf.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

static int mode(const char *name)
{
	const char *value = getenv("GPU_DOUBLE");
	return value && !strcmp(value, name);
}

struct allocation {
	char *address; // address for the GPU
	char *memory;  // address at which this library has mapped it
	size_t size;
	int memfd;
};

static struct allocation all[64];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

__attribute__((destructor)) static void leaks(void)
{
	for (int i = 0; i < 64; i++)
		if (all[i].size)
			fprintf(stderr, "the double: %zu bytes of GPU memory were not freed\n", all[i].size);
}

// find returns the allocation that contains a range, or NULL. For an empty range, it returns an unused place.
static struct allocation *find(const void *address, size_t size)
{
	const char *begin = address;
	for (int i = 0; i < 64; i++) {
		struct allocation *a = &all[i];
		if (!size ? !a->size : a->size && begin >= a->address && begin + size <= a->address + a->size)
			return a;
	}
	return NULL;
}

static int take(void **address, size_t size, int managed)
{
	struct allocation *a = find(NULL, 0);
	if (!a || !size || size % 65536)
		return -1;
	a->memfd = memfd_create("gpu", MFD_CLOEXEC | MFD_ALLOW_SEALING);
	if (a->memfd < 0 || ftruncate(a->memfd, size) || fcntl(a->memfd, F_ADD_SEALS, F_SEAL_SHRINK))
		return -1;
	a->memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, a->memfd, 0);
	a->address = a->memory;
	if (!mode("address") && !managed)
		a->address = mmap(NULL, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (a->memory == MAP_FAILED || a->address == MAP_FAILED)
		return -1;
	a->size = size;
	*address = a->address;
	return 0;
}

static int gpu_alloc(void **address, size_t size, int managed)
{
	pthread_mutex_lock(&lock); // the server's goroutines allocate at the same time
	int result = take(address, size, managed);
	pthread_mutex_unlock(&lock);
	return result;
}

static int gpu_free(void *address)
{
	struct allocation *a = find(address, 1);
	if (!a || a->address != address)
		return -1;
	if (a->address != a->memory)
		munmap(a->address, a->size);
	munmap(a->memory, a->size);
	close(a->memfd);
	a->size = 0;
	return 0;
}

// gpu_memory returns the address at which this library has mapped a range of GPU memory, or NULL.
static char *gpu_memory(const void *address, size_t size)
{
	struct allocation *a = find(address, size);
	return a ? a->memory + ((const char *)address - a->address) : NULL;
}

// gpu_export returns a descriptor of the whole allocation that contains a range, and the range's offset in it.
static int gpu_export(const void *address, size_t size, uint64_t *offset)
{
	struct allocation *a = find(address, size);
	if (!a || !mode("dmabuf"))
		return -1;
	int device = open("/dev/udmabuf", O_RDWR | O_CLOEXEC);
	if (device < 0)
		return -1;
	struct udmabuf_create create = {.memfd = a->memfd, .flags = UDMABUF_FLAGS_CLOEXEC, .size = a->size};
	int fd = ioctl(device, UDMABUF_CREATE, &create);
	close(device);
	*offset = (const char *)address - a->address;
	return fd;
}

#ifdef CUDA

enum { SUCCESS = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NOT_INITIALIZED = 3, INVALID_CONTEXT = 201, NOT_SUPPORTED = 801 };

static int initialized;
static int the_context;
static __thread void *current;

static int usable(void) { return !initialized ? NOT_INITIALIZED : current != &the_context ? INVALID_CONTEXT : SUCCESS; }

int cuInit(unsigned flags)
{
	initialized = flags == 0;
	return getenv("GPU_DOUBLE") ? SUCCESS : NOT_SUPPORTED;
}

int cuDeviceGet(int *device, int ordinal)
{
	*device = 7;
	return !initialized ? NOT_INITIALIZED : ordinal ? INVALID_VALUE : SUCCESS;
}

int cuDeviceGetName(char *name, int size, int device)
{
	snprintf(name, size, "an NVIDIA GPU");
	return device == 7 ? SUCCESS : INVALID_VALUE;
}

int cuDeviceGetAttribute(int *value, int attribute, int device)
{
	if (attribute != 124 || device != 7)
		return INVALID_VALUE;
	*value = mode("dmabuf");
	return SUCCESS;
}

int cuDevicePrimaryCtxRetain(void **context, int device)
{
	*context = &the_context;
	return device == 7 ? SUCCESS : INVALID_VALUE;
}

int cuCtxSetCurrent(void *context)
{
	current = context;
	return usable();
}

int cuMemAlloc_v2(void **address, size_t size)
{
	return usable() ? usable() : gpu_alloc(address, size, 0) ? OUT_OF_MEMORY : SUCCESS;
}

int cuMemAllocManaged(void **address, size_t size, unsigned flags)
{
	return usable() ? usable() : flags != 1 ? INVALID_VALUE : gpu_alloc(address, size, 1) ? OUT_OF_MEMORY : SUCCESS;
}

int cuMemFree_v2(void *address)
{
	return usable() ? usable() : gpu_free(address) ? INVALID_VALUE : SUCCESS;
}

int cuPointerSetAttribute(const void *value, int attribute, void *address)
{
	return usable() ? usable() : attribute == 6 && *(const unsigned *)value == 1 && gpu_memory(address, 1) ? SUCCESS : INVALID_VALUE;
}

int cuMemcpyHtoD_v2(void *to, const void *from, size_t size)
{
	char *memory = gpu_memory(to, size);
	if (usable() || !memory)
		return usable() ? usable() : INVALID_VALUE;
	memcpy(memory, from, size);
	return SUCCESS;
}

int cuMemcpyDtoH_v2(void *to, const void *from, size_t size)
{
	char *memory = gpu_memory(from, size);
	if (usable() || !memory)
		return usable() ? usable() : INVALID_VALUE;
	memcpy(to, memory, size);
	return SUCCESS;
}

int cuMemGetHandleForAddressRange(void *handle, void *address, size_t size, int type, unsigned long long flags)
{
	uint64_t offset;
	size_t page = sysconf(_SC_PAGESIZE);
	if (usable())
		return usable();
	if (type != 1 || flags || (uintptr_t)address % page || size % page)
		return INVALID_VALUE;
	int fd = gpu_export(address, size, &offset);
	*(int *)handle = fd;
	return fd < 0 || offset ? NOT_SUPPORTED : SUCCESS; // the double exports whole allocations
}

int cuGetErrorName(int result, const char **name)
{
	*name = result == OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY" : result == NOT_SUPPORTED ? "CUDA_ERROR_NOT_SUPPORTED" : "CUDA_ERROR_OTHER";
	return SUCCESS;
}

#else

enum { SUCCESS = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, HSA_ERROR = 0x1000 };

int hipInit(unsigned flags) { return flags ? INVALID_VALUE : SUCCESS; }
int hipMalloc(void **address, size_t size) { return gpu_alloc(address, size, 0) ? OUT_OF_MEMORY : SUCCESS; }
int hipMallocManaged(void **address, size_t size, unsigned flags)
{
	return flags != 1 ? INVALID_VALUE : gpu_alloc(address, size, 1) ? OUT_OF_MEMORY : SUCCESS;
}
int hipFree(void *address) { return gpu_free(address) ? INVALID_VALUE : SUCCESS; }
const char *hipGetErrorName(int result) { return result == OUT_OF_MEMORY ? "hipErrorOutOfMemory" : "hipErrorInvalidValue"; }

int hipMemcpy(void *to, const void *from, size_t size, int kind)
{
	char *memory = gpu_memory(kind == 1 ? to : from, size);
	if (!memory || (kind != 1 && kind != 2))
		return INVALID_VALUE;
	memcpy(kind == 1 ? memory : to, kind == 1 ? from : memory, size);
	return SUCCESS;
}

static int hsa_initialized;

int hsa_init(void)
{
	hsa_initialized = 1;
	return SUCCESS;
}

int hsa_amd_portable_export_dmabuf(const void *address, size_t size, int *fd, uint64_t *offset)
{
	*fd = hsa_initialized ? gpu_export(address, size, offset) : -1;
	return *fd < 0 ? HSA_ERROR : SUCCESS;
}

#endif
