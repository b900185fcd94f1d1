// SPDX-License-Identifier: MIT OR Apache-2.0

/* Packing and unpacking in the order of a CUDA stream, with the driver that LD_LIBRARY_PATH has: a
 * processor that touches device memory dies there, and with FAKECUDA_DELAYED=1 kernels run when
 * somebody waits for their stream. */
#include "expect.h"
#include <dlfcn.h>

#define WRONG(code, call, why)                                                                 \
	do {                                                                                   \
		EXPECT((call) == (code));                                                      \
		EXPECT(strstr(libcopy_error_detail(), why));                                   \
	} while (0)

enum { ROOM = 1 << 16 };

static void *library;

/* Calls a function of the driver; integers and addresses are passed alike. */
static void cuda(const char *name, size_t a, size_t b, size_t c, size_t d)
{
	int (*function)(size_t, size_t, size_t, size_t);

	*(void **)&function = dlsym(library, name);
	if (!function || function(a, b, c, d)) {
		fprintf(stderr, "%s failed\n", name);
		exit(1);
	}
}

static char *allocated(const char *function)
{
	char *place = NULL;

	cuda(function, (size_t)&place, ROOM, 1, 0);
	return place;
}

static void copy(void *to, const void *from, size_t bytes, void *stream)
{
	cuda("cuMemcpyAsync", (size_t)to, (size_t)from, bytes, (size_t)stream);
}

static void settle(void *stream) { cuda("cuStreamSynchronize", (size_t)stream, 0, 0, 0); }

/* Packs on a stream, copies the packed bytes on it, unpacks on it: only at the end somebody
 * waits. */
static void round_trip(const char *expression, uint64_t count, char *field, char *packed, void *stream)
{
	static char host[ROOM], expected[ROOM], found[ROOM], back[ROOM], zeros[ROOM];
	libcopy_type_t *type = parsed(expression);
	size_t bytes, submitted, half;

	for (size_t i = 0; i < ROOM; i++)
		host[i] = (char)(i * 31 + i / 256 + count);
	memset(found, 0, ROOM);
	GOOD(libcopy_type_pack(host, count, type, 0, expected, ROOM, &bytes));
	EXPECT(bytes > 100);

	copy(field, host, ROOM, stream);
	copy(packed, zeros, ROOM, stream);
	/* In two parts, of which the second one begins within a word. */
	half = bytes / 2 | 1;
	GOOD(libcopy_type_pack_gpu(field, count, type, 0, packed, half, stream, &submitted));
	EXPECT(submitted == half);
	GOOD(libcopy_type_pack_gpu(field, count, type, half, packed + half, ROOM - half, stream, &submitted));
	EXPECT(submitted == bytes - half);
	copy(found, packed, ROOM, stream);
	copy(field, zeros, ROOM, stream);
	GOOD(libcopy_type_unpack_gpu(packed, bytes, field, count, type, 0, stream, &submitted));
	EXPECT(submitted == bytes);
	copy(back, field, ROOM, stream);
	/* Though kernels that read its tables may not have run yet. */
	GOOD(libcopy_type_free(type));
	settle(stream);

	EXPECT(!memcmp(found, expected, bytes));
	for (size_t i = bytes; i < ROOM; i++)
		EXPECT(found[i] == 0);
	memset(expected, 0, ROOM);
	type = parsed(expression);
	GOOD(libcopy_type_unpack(found, bytes, expected, count, type, 0, &submitted));
	EXPECT(!memcmp(back, expected, ROOM));
	GOOD(libcopy_type_free(type));
}

int main(void)
{
	static char host[ROOM];
	libcopy_type_t *type = parsed("vector(4, 3, 7, int)"), *twice = parsed("hvector(4, 1, 2, int)");
	void *context = NULL, *stream = NULL, *streams[2];
	size_t bytes = 77;
	char *field, *packed;

	WRONG(LIBCOPY_EGPU, libcopy_type_pack_gpu(host, 1, type, 0, host + 4096, 4096, NULL, &bytes), "has not loaded");
	EXPECT(bytes == 77);
	library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
	if (!library) {
		fprintf(stderr, "%s\n", dlerror());
		return 1;
	}
	cuda("cuInit", 0, 0, 0, 0);
	cuda("cuDevicePrimaryCtxRetain", (size_t)&context, 0, 0, 0);
	cuda("cuCtxPushCurrent_v2", (size_t)context, 0, 0, 0);
	cuda("cuStreamCreate", (size_t)&stream, 0, 0, 0);
	field = allocated("cuMemAlloc_v2");
	packed = allocated("cuMemAlloc_v2");

	streams[0] = stream;
	streams[1] = NULL;
	for (int i = 0; i < 2; i++) {
		round_trip("vector(40, 3, 7, int)", 2, field, packed, streams[i]);
		round_trip("indexed([3, 1, 4, 1, 5, 9, 2, 6], [0, 9, 11, 30, 40, 77, 99, 120], byte)", 7, field, packed,
			   streams[i]);
		round_trip("vector(40, 3, 7, int)", 2, field, allocated("cuMemHostAlloc"), streams[i]);
		round_trip("vector(40, 3, 7, int)", 2, allocated("cuMemAllocManaged"), packed, streams[i]);
	}
	/* One type with more numbers of elements than plans are kept for. */
	for (uint64_t count = 1; count < 8; count++)
		GOOD(libcopy_type_pack_gpu(field, count, type, 0, packed, ROOM, stream, &bytes));
	EXPECT(bytes == 7 * 48);
	GOOD(libcopy_type_pack_gpu(field, 0, type, 0, packed, ROOM, stream, &bytes));
	EXPECT(bytes == 0);
	settle(stream);

	WRONG(LIBCOPY_EINVAL, libcopy_type_pack_gpu(field, 1, type, 0, host, ROOM, stream, &bytes), "do not reach");
	WRONG(LIBCOPY_EINVAL, libcopy_type_unpack_gpu(packed, 48, host, 1, type, 0, stream, &bytes), "do not reach");
	WRONG(LIBCOPY_EINVAL, libcopy_type_unpack_gpu(packed, 16, field, 1, twice, 0, stream, &bytes), "overlapping");
	WRONG(LIBCOPY_EINVAL, libcopy_type_pack_gpu(field, 1, NULL, 0, packed, 8, stream, &bytes), "datatype is null");
	WRONG(LIBCOPY_EINVAL, libcopy_type_pack_gpu(field, 1, type, 49, packed, 8, stream, &bytes), "behind the 48 bytes");
	WRONG(LIBCOPY_EINVAL, libcopy_type_pack_gpu(NULL, 1, type, 0, packed, 8, stream, &bytes), "buffer is null");
	WRONG(LIBCOPY_EINVAL, libcopy_type_pack_gpu(field, 1, type, 0, NULL, 8, stream, &bytes), "packed is null");
	WRONG(LIBCOPY_EINVAL, libcopy_type_pack_gpu(field, 1, type, 0, packed, 8, stream, NULL), "actual is null");
	/* A stream of the other GPU. */
	cuda("cuDevicePrimaryCtxRetain", (size_t)&context, 1, 0, 0);
	cuda("cuCtxPushCurrent_v2", (size_t)context, 0, 0, 0);
	cuda("cuStreamCreate", (size_t)&stream, 0, 0, 0);
	WRONG(LIBCOPY_EGPU, libcopy_type_pack_gpu(field, 1, type, 0, packed, 8, stream, &bytes), "cuLaunchKernel failed");
	GOOD(libcopy_type_free(type));
	GOOD(libcopy_type_free(twice));
	puts("all packed");
	return 0;
}
