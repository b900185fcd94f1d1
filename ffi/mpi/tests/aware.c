// SPDX-License-Identifier: MIT OR Apache-2.0

/* Makes an MPI library take device memory, for tests: preloaded behind libcopy_mpi.so, it stands in
 * front of PMPI_ functions. Calls that wait get the device memory opened; others get copies in host
 * memory, which are copied back when the request is complete. The CUDA driver is the stand-in that
 * FAKECUDA names.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

int MPIX_Query_cuda_support(void);

int MPIX_Query_cuda_support(void)
{
	return 1;
}

static void fail(const char *what)
{
	fprintf(stderr, "aware: %s\n", what);
	abort();
}

/* A function of the library behind this one. */
#define NEXT(result, name, ...)                                                                                        \
	static result (*next)(__VA_ARGS__);                                                                            \
	if (!next)                                                                                                     \
		*(void **)&next = dlsym(RTLD_NEXT, #name);                                                             \
	if (!next)                                                                                                     \
	fail("no " #name)

static int cuda(const char *name, uintptr_t a, uintptr_t b, uintptr_t c, uintptr_t d)
{
	static void *driver;
	int (*function)(uintptr_t, uintptr_t, uintptr_t, uintptr_t);
	if (!driver)
		driver = dlopen(getenv("FAKECUDA"), RTLD_NOW | RTLD_NOLOAD);
	if (!driver)
		return -1;
	*(void **)&function = dlsym(driver, name);
	if (!function)
		fail(name);
	return function(a, b, c, d);
}

static int is_device(const void *at)
{
	unsigned attributes[2] = { 2, 8 }, kind = 0;
	int is_managed = 0;
	void *values[2] = { &kind, &is_managed };
	if (!at || at == MPI_IN_PLACE)
		return 0;
	return !cuda("cuPointerGetAttributes", 2, (uintptr_t)attributes, (uintptr_t)values, (uintptr_t)at) && kind == 2 &&
	       !is_managed;
}

static void copy(void *to, const void *from, size_t bytes)
{
	/* To the legacy stream, in the context that is current in this program. */
	int code = bytes ? cuda("cuMemcpyAsync", (uintptr_t)to, (uintptr_t)from, bytes, 0) : 0;
	if (code) {
		fprintf(stderr, "aware: %p from %p, %zu bytes: %d\n", to, from, bytes, code);
		fail("cuMemcpyAsync");
	}
}

/* The rights of the allocations that two addresses are in. The driver takes them away at the end of
 * each call of its own, so it is asked first. */
static void rights(const void *first, const void *second, int rights)
{
	const void *both[2] = { first, second };
	uintptr_t base[2] = { 0 }, bytes[2] = { 0 };
	for (int i = 0; i < 2; i++)
		if (is_device(both[i]))
			cuda("cuMemGetAddressRange_v2", (uintptr_t)&base[i], (uintptr_t)&bytes[i], (uintptr_t)both[i], 0);
	for (int i = 0; i < 2; i++)
		if (base[i] && mprotect((void *)base[i], (bytes[i] + 4095) & ~4095ul, rights))
			fail("no rights");
}

#define OPENED(first, second, call)                                                                                    \
	do {                                                                                                           \
		rights(first, second, PROT_READ | PROT_WRITE);                                                         \
		int code = call;                                                                                       \
		rights(first, second, PROT_NONE);                                                                      \
		return code;                                                                                           \
	} while (0)

int PMPI_Send(const void *at, int n, MPI_Datatype type, int dest, int tag, MPI_Comm comm)
{
	NEXT(int, PMPI_Send, const void *, int, MPI_Datatype, int, int, MPI_Comm);
	OPENED(at, NULL, next(at, n, type, dest, tag, comm));
}

int PMPI_Ssend(const void *at, int n, MPI_Datatype type, int dest, int tag, MPI_Comm comm)
{
	NEXT(int, PMPI_Ssend, const void *, int, MPI_Datatype, int, int, MPI_Comm);
	OPENED(at, NULL, next(at, n, type, dest, tag, comm));
}

int PMPI_Recv(void *at, int n, MPI_Datatype type, int source, int tag, MPI_Comm comm, MPI_Status *status)
{
	NEXT(int, PMPI_Recv, void *, int, MPI_Datatype, int, int, MPI_Comm, MPI_Status *);
	OPENED(at, NULL, next(at, n, type, source, tag, comm, status));
}

int PMPI_Neighbor_allgather(const void *send, int sends, MPI_Datatype send_type, void *recv, int receives,
			    MPI_Datatype recv_type, MPI_Comm comm)
{
	NEXT(int, PMPI_Neighbor_allgather, const void *, int, MPI_Datatype, void *, int, MPI_Datatype, MPI_Comm);
	OPENED(send, recv, next(send, sends, send_type, recv, receives, recv_type, comm));
}

/* Requests with device memory, and the host memory in its place. */
struct pending {
	MPI_Request request;
	char *host;
	void *device;
	size_t bytes;
	int is_send, is_persistent;
	struct pending *next;
};

static struct pending *all;

static size_t bytes_of(int n, MPI_Datatype type)
{
	int size = 0;
	PMPI_Type_size(type, &size);
	return (size_t)size * n;
}

/* Host memory in the place of device memory, which is there when the request is made. */
static struct pending *replace(const void *at, int n, MPI_Datatype type, int is_send)
{
	struct pending *made = calloc(1, sizeof *made);
	made->bytes = bytes_of(n, type);
	made->host = malloc(made->bytes + 1);
	made->device = (void *)at;
	made->is_send = is_send;
	copy(made->host, at, made->bytes);
	return made;
}

static int keep(struct pending *made, MPI_Request *request, int code)
{
	made->request = *request;
	made->next = all;
	all = made;
	return code;
}

static struct pending **find(MPI_Request request)
{
	struct pending **at = &all;
	while (*at && (*at)->request != request)
		at = &(*at)->next;
	return at;
}

/* It is complete, or is said to be. */
static void arrived(struct pending *pending)
{
	if (!pending->is_send)
		copy(pending->device, pending->host, pending->bytes);
}

static void forget(MPI_Request request)
{
	struct pending **at = find(request), *found = *at;
	if (!found)
		return;
	*at = found->next;
	free(found->host);
	free(found);
}

/* Those of an array that were there before a call and are not any more. */
static void settle(int count, MPI_Request *before, MPI_Request *after)
{
	for (int i = 0; i < count; i++) {
		struct pending *found = before[i] == MPI_REQUEST_NULL ? NULL : *find(before[i]);
		if (found && !found->is_persistent && after[i] != before[i]) {
			arrived(found);
			forget(before[i]);
		}
	}
	free(before);
}

static MPI_Request *noted(int count, MPI_Request *requests)
{
	MPI_Request *before = malloc((count + 1) * sizeof *before);
	memcpy(before, requests, count * sizeof *before);
	return before;
}

#define SENDS(name)                                                                                                    \
	int name(const void *at, int n, MPI_Datatype type, int dest, int tag, MPI_Comm comm, MPI_Request *request)     \
	{                                                                                                              \
		NEXT(int, name, const void *, int, MPI_Datatype, int, int, MPI_Comm, MPI_Request *);                   \
		if (!is_device(at))                                                                                    \
			return next(at, n, type, dest, tag, comm, request);                                            \
		struct pending *made = replace(at, n, type, 1);                                                        \
		made->is_persistent = !!strstr(#name, "_init");                                                        \
		return keep(made, request, next(made->host, n, type, dest, tag, comm, request));                       \
	}

SENDS(PMPI_Isend)
SENDS(PMPI_Issend)
SENDS(PMPI_Send_init)
SENDS(PMPI_Ssend_init)

int PMPI_Irecv(void *at, int n, MPI_Datatype type, int source, int tag, MPI_Comm comm, MPI_Request *request)
{
	NEXT(int, PMPI_Irecv, void *, int, MPI_Datatype, int, int, MPI_Comm, MPI_Request *);
	if (!is_device(at))
		return next(at, n, type, source, tag, comm, request);
	struct pending *made = replace(at, n, type, 0);
	return keep(made, request, next(made->host, n, type, source, tag, comm, request));
}

int PMPI_Start(MPI_Request *request)
{
	NEXT(int, PMPI_Start, MPI_Request *);
	struct pending *found = *find(*request);
	if (found)
		copy(found->host, found->device, found->bytes);
	return next(request);
}

int PMPI_Request_free(MPI_Request *request)
{
	NEXT(int, PMPI_Request_free, MPI_Request *);
	forget(*request);
	return next(request);
}

#define COMPLETES(name, count, requests, parameters, arguments)                                                        \
	int name parameters                                                                                            \
	{                                                                                                              \
		static int(*next) parameters;                                                                          \
		if (!next)                                                                                             \
			*(void **)&next = dlsym(RTLD_NEXT, #name);                                                     \
		MPI_Request *before = noted(count, requests);                                                          \
		int code = next arguments;                                                                             \
		settle(count, before, requests);                                                                       \
		return code;                                                                                           \
	}

COMPLETES(PMPI_Wait, 1, r, (MPI_Request * r, MPI_Status *s), (r, s))
COMPLETES(PMPI_Test, 1, r, (MPI_Request * r, int *f, MPI_Status *s), (r, f, s))
COMPLETES(PMPI_Waitall, n, r, (int n, MPI_Request r[], MPI_Status s[]), (n, r, s))
COMPLETES(PMPI_Testall, n, r, (int n, MPI_Request r[], int *f, MPI_Status s[]), (n, r, f, s))
COMPLETES(PMPI_Waitany, n, r, (int n, MPI_Request r[], int *i, MPI_Status *s), (n, r, i, s))
COMPLETES(PMPI_Testany, n, r, (int n, MPI_Request r[], int *i, int *f, MPI_Status *s), (n, r, i, f, s))
COMPLETES(PMPI_Waitsome, n, r, (int n, MPI_Request r[], int *d, int i[], MPI_Status s[]), (n, r, d, i, s))
COMPLETES(PMPI_Testsome, n, r, (int n, MPI_Request r[], int *d, int i[], MPI_Status s[]), (n, r, d, i, s))

int PMPI_Request_get_status(MPI_Request request, int *flag, MPI_Status *status)
{
	NEXT(int, PMPI_Request_get_status, MPI_Request, int *, MPI_Status *);
	int code = next(request, flag, status);
	struct pending *found = request == MPI_REQUEST_NULL ? NULL : *find(request);
	if (!code && *flag && found && !found->is_persistent)
		arrived(found);
	return code;
}

/* As in an MPI library, both names are one function: what has MPI_ names only is a tool. */
#define ALIAS(name) extern __typeof__(PMPI_##name) MPI_##name __attribute__((alias("PMPI_" #name)))

ALIAS(Send);
ALIAS(Ssend);
ALIAS(Recv);
ALIAS(Neighbor_allgather);
ALIAS(Isend);
ALIAS(Issend);
ALIAS(Send_init);
ALIAS(Ssend_init);
ALIAS(Irecv);
ALIAS(Start);
ALIAS(Request_free);
ALIAS(Wait);
ALIAS(Test);
ALIAS(Waitall);
ALIAS(Testall);
ALIAS(Waitany);
ALIAS(Testany);
ALIAS(Waitsome);
ALIAS(Testsome);
ALIAS(Request_get_status);
