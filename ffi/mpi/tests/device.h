// SPDX-License-Identifier: MIT OR Apache-2.0

/* Memory of a GPU for test programs, by a CUDA driver that is loaded when the program is
 * running. */
#include <dlfcn.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(condition, ...)                                                                                          \
	do {                                                                                                           \
		if (!(condition)) {                                                                                    \
			fprintf(stderr, "%s:%d: ", __FILE__, __LINE__);                                                \
			fprintf(stderr, __VA_ARGS__);                                                                  \
			fprintf(stderr, "\n");                                                                         \
			MPI_Abort(MPI_COMM_WORLD, 1);                                                                  \
		}                                                                                                      \
	} while (0)

static void *cuda;
static void *cuda_stream;

/* Calls a function of the driver; integers and addresses are passed alike. */
static void cuda_call(const char *name, unsigned long a, unsigned long b, unsigned long c, unsigned long d)
{
	int (*function)(unsigned long, unsigned long, unsigned long, unsigned long);
	*(void **)&function = dlsym(cuda, name);
	CHECK(function, "no %s", name);
	int code = function(a, b, c, d);
	CHECK(code == 0, "%s: %d", name, code);
}

static void cuda_load(void)
{
	unsigned long context;
	cuda = dlopen(getenv("FAKECUDA"), RTLD_NOW | RTLD_LOCAL);
	CHECK(cuda, "%s", dlerror());
	cuda_call("cuInit", 0, 0, 0, 0);
	cuda_call("cuDevicePrimaryCtxRetain", (unsigned long)&context, 0, 0, 0);
	cuda_call("cuCtxPushCurrent_v2", context, 0, 0, 0);
	cuda_call("cuStreamCreate", (unsigned long)&cuda_stream, 0, 0, 0);
}

static void cuda_copy(void *to, const void *from, size_t bytes)
{
	cuda_call("cuMemcpyAsync", (unsigned long)to, (unsigned long)from, bytes, (unsigned long)cuda_stream);
	cuda_call("cuStreamSynchronize", (unsigned long)cuda_stream, 0, 0, 0);
}

/* Memory: 0 host, 1 pinned, 2 managed, 3 device. */
struct memory {
	int space;
	char *at;
	size_t bytes;
};

static inline struct memory memory_new(int space, size_t bytes)
{
	struct memory memory = { space, NULL, bytes };
	unsigned long place = (unsigned long)&memory.at, room = bytes ? bytes : 1;
	switch (space) {
	case 0: memory.at = malloc(room); break;
	case 1: cuda_call("cuMemHostAlloc", place, room, 0, 0); break;
	case 2: cuda_call("cuMemAllocManaged", place, room, 1, 0); break;
	default: cuda_call("cuMemAlloc_v2", place, room, 0, 0);
	}
	return memory;
}

static inline void memory_free(struct memory *memory)
{
	if (memory->space == 0)
		free(memory->at);
	else
		cuda_call(memory->space == 1 ? "cuMemFreeHost" : "cuMemFree_v2", (unsigned long)memory->at, 0, 0, 0);
}

static inline void memory_write(struct memory *memory, const char *from)
{
	if (memory->space == 3)
		cuda_copy(memory->at, from, memory->bytes);
	else
		memcpy(memory->at, from, memory->bytes);
}

/* A copy in host memory, which is the caller's. */
static inline char *memory_read(const struct memory *memory)
{
	char *copy = malloc(memory->bytes + 1);
	if (memory->space == 3)
		cuda_copy(copy, memory->at, memory->bytes);
	else
		memcpy(copy, memory->at, memory->bytes);
	return copy;
}

static unsigned long random_state = 1;

/* A number below another, the same on all ranks that have asked as often. */
static inline unsigned below(unsigned limit)
{
	random_state = random_state * 6364136223846793005ul + 1442695040888963407ul;
	return (unsigned)(random_state >> 33) % limit;
}

/* Bytes that look random, which are the caller's. */
static inline char *noise(unsigned seed, size_t bytes)
{
	char *made = malloc(bytes + 1);
	unsigned long state = seed * 2ul + 1;
	for (size_t i = 0; i < bytes; i += 8) {
		state = state * 6364136223846793005ul + 1442695040888963407ul;
		/* The low bits alone would soon be the same again. */
		unsigned long word = state ^ state >> 32;
		memcpy(made + i, &word, bytes - i < 8 ? bytes - i : 8);
	}
	return made;
}
