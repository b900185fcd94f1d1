// SPDX-License-Identifier: MIT OR Apache-2.0

/*
 * Messages and a stencil in GPU memory: what `libcopy-lab gpu` measures as E4 and E8. The CUDA
 * driver is loaded when the program runs; all ranks use GPU 0.
 *
 * usage: mpi_gpu messages MILLISECONDS BYTES:BLOCK...
 *        mpi_gpu stencil MILLISECONDS EDGE PTX
 *
 * messages: vectors of BYTES bytes in blocks of BLOCK bytes that begin every 512 bytes, from rank 0
 * to rank 1 and back. stencil: 9 points on EDGE x EDGE doubles of each rank (FALCON-X, figure 15),
 * its columns and rows exchanged as datatypes in GPU memory ("typed"), packed into host memory by
 * the program ("hand-staged"), and not at all ("compute"); PTX is a file with the kernel `stencil`.
 *
 * Rank 0 prints a line for each: CASE,BYTES,BLOCK,VERIFIED,TIMES: microseconds of half a round trip
 * or of a step, separated by semicolons.
 */
#include "mpi_bench.h"

#include <dlfcn.h>

enum { DEVICE_STRIDE = 512, MOST_TIMES = 200, FEWEST_TIMES = 5 };

/* ---- The CUDA driver (cuda.h of CUDA 12.0). ---- */

typedef unsigned long long address;

struct rectangle_end {
	size_t x, y;
	unsigned type;
	void *host;
	address device;
	void *array;
	size_t pitch;
};

/* CUDA_MEMCPY2D */
struct rectangle {
	struct rectangle_end from, to;
	size_t width, height;
};

static struct {
	int (*init)(unsigned);
	int (*retain)(void **, int);
	int (*push)(void *);
	int (*stream_create)(void **, unsigned);
	int (*stream_synchronize)(void *);
	int (*alloc)(address *, size_t);
	int (*host_alloc)(void **, size_t, unsigned);
	int (*release)(address);
	int (*copy)(address, address, size_t, void *);
	int (*copy_2d)(const struct rectangle *, void *);
	int (*module_load)(void **, const void *);
	int (*module_function)(void **, void *, const char *);
	int (*launch)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **,
		      void **);
} cuda;
static void *stream;

static void cuda_check(int code, const char *what)
{
	if (!code)
		return;
	fprintf(stderr, "mpi_gpu: rank %d: %s: CUDA error %d\n", rank, what, code);
	MPI_Abort(MPI_COMM_WORLD, 1);
}

#define CUDA(name, ...) cuda_check(cuda.name(__VA_ARGS__), #name)

static void cuda_start(void)
{
	static const char *const names[] = {
		"cuInit", "cuDevicePrimaryCtxRetain", "cuCtxPushCurrent_v2", "cuStreamCreate", "cuStreamSynchronize",
		"cuMemAlloc_v2", "cuMemHostAlloc", "cuMemFree_v2", "cuMemcpyAsync", "cuMemcpy2DAsync_v2",
		"cuModuleLoadData", "cuModuleGetFunction", "cuLaunchKernel",
	};
	void *library = dlopen("libcuda.so.1", RTLD_NOW), *context, *found;

	_Static_assert(sizeof(names) == sizeof(cuda), "a name for each function");
	for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++) {
		found = library ? dlsym(library, names[i]) : NULL;
		if (!found) {
			fprintf(stderr, "mpi_gpu: %s\n", dlerror());
			MPI_Abort(MPI_COMM_WORLD, 1);
		}
		memcpy((char *)&cuda + i * sizeof(found), &found, sizeof(found));
	}
	CUDA(init, 0);
	CUDA(retain, &context, 0);
	CUDA(push, context);
	CUDA(stream_create, &stream, 0);
}

static void *device_memory(size_t bytes)
{
	address made;

	CUDA(alloc, &made, bytes);
	return (void *)(uintptr_t)made;
}

static void device_free(void *memory)
{
	CUDA(release, (uintptr_t)memory);
}

/* Between memory of any kinds; returns when the bytes are there. */
static void copy(void *to, const void *from, size_t bytes)
{
	CUDA(copy, (uintptr_t)to, (uintptr_t)from, bytes, stream);
	CUDA(stream_synchronize, stream);
}

/* ---- Times. ---- */

/* Runs it for some milliseconds, together with the other ranks, and prints the line. */
static void measure(const char *label, size_t bytes, size_t block, int verified, double scale, double budget,
		    void (*run)(void))
{
	double times[MOST_TIMES], begin = microseconds();
	int count = 0, more = 1, all;

	MPI_Allreduce(&verified, &all, 1, MPI_INT, MPI_LAND, MPI_COMM_WORLD);
	run();
	while (more) {
		double start;

		MPI_Barrier(MPI_COMM_WORLD);
		start = microseconds();
		run();
		times[count++] = (microseconds() - start) / scale;
		more = count < FEWEST_TIMES || (count < MOST_TIMES && microseconds() - begin < budget * 1e3);
		MPI_Bcast(&more, 1, MPI_INT, 0, MPI_COMM_WORLD);
	}
	if (rank)
		return;
	printf("%s,%zu,%zu,%s,", label, bytes, block, all ? "yes" : "no");
	for (int i = 0; i < count; i++)
		printf("%s%.3f", i ? ";" : "", times[i]);
	printf("\n");
	fflush(stdout);
}

/* ---- Messages. ---- */

static MPI_Datatype vector;
static char *outgoing, *incoming;

static void round_trip(void)
{
	if (rank == 0) {
		MPI_Send(outgoing, 1, vector, 1, 1, MPI_COMM_WORLD);
		MPI_Recv(incoming, 1, vector, 1, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
	} else if (rank == 1) {
		MPI_Recv(incoming, 1, vector, 0, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
		MPI_Send(incoming, 1, vector, 0, 1, MPI_COMM_WORLD);
	}
}

static void message(size_t bytes, size_t block, double budget)
{
	size_t count = bytes / block, span = (count - 1) * DEVICE_STRIDE + block;
	unsigned char *content = malloc(span), *back = malloc(span);
	int right = 1;

	if (!content || !back)
		die("no memory");
	for (size_t i = 0; i < span; i++)
		content[i] = (unsigned char)(i * 131 + i / 251);
	memset(back, 0, span);
	MPI_Type_vector((int)count, (int)block, DEVICE_STRIDE, MPI_BYTE, &vector);
	MPI_Type_commit(&vector);
	outgoing = device_memory(span);
	incoming = device_memory(span);
	copy(outgoing, content, span);
	copy(incoming, back, span);
	round_trip();
	copy(back, incoming, span);
	for (size_t i = 0; i < span && rank < 2; i++)
		right &= back[i] == (i % DEVICE_STRIDE < block ? content[i] : 0);
	measure("message", bytes, block, right, 2, budget, round_trip);
	device_free(outgoing);
	device_free(incoming);
	MPI_Type_free(&vector);
	free(content);
	free(back);
}

/* ---- The stencil. ---- */

/* The parameter of the kernel: two fields of ROWS x COLUMNS doubles with a halo of one. */
struct stencil {
	address to, from, rows, columns;
};

enum { WEST, EAST, NORTH, SOUTH, SIDES, LAUNCH_THREADS = 256, LAUNCH_BLOCKS = 1024 };

static size_t edge, width;
static double *now_field, *next_field, *staged[2][SIDES];
static int neighbour[SIDES], place[2];
static MPI_Datatype column, row;
static MPI_Comm grid;
static void *kernel;

/* Where a side's own cells and its halo begin: the column or row next to the edge, and the one
 * behind it. */
static size_t first_cell(int side, int is_halo)
{
	switch (side) {
	case WEST: return width + !is_halo;
	case EAST: return width + edge + is_halo;
	case NORTH: return is_halo ? 0 : width;
	default: return (edge + is_halo) * width;
	}
}

static void compute(void)
{
	struct stencil task = { (uintptr_t)next_field, (uintptr_t)now_field, edge, edge };
	void *parameters[1] = { &task };

	CUDA(launch, kernel, LAUNCH_BLOCKS, 1, 1, LAUNCH_THREADS, 1, 1, 0, stream, parameters, NULL);
	CUDA(stream_synchronize, stream);
}

/* Columns first: rows have the corners. */
static void exchange_typed(void)
{
	for (int first = WEST; first < SIDES; first += 2) {
		MPI_Request requests[4];
		MPI_Status statuses[4];
		MPI_Datatype type = first == WEST ? column : row;
		int count = 0;

		for (int side = first; side < first + 2; side++)
			MPI_Irecv(now_field + first_cell(side, 1), 1, type, neighbour[side], side ^ 1, grid,
				  &requests[count++]);
		for (int side = first; side < first + 2; side++)
			MPI_Isend(now_field + first_cell(side, 0), 1, type, neighbour[side], side, grid,
				  &requests[count++]);
		MPI_Waitall(count, requests, statuses);
	}
}

/* Copies a side between the field and pinned memory. */
static void stage(int side, int is_halo, int is_out)
{
	double *cells = now_field + first_cell(side, is_halo), *host = staged[is_halo][side];
	const unsigned unified = 4;
	struct rectangle_end field = { .type = unified, .device = (uintptr_t)cells, .pitch = 8 * width };
	struct rectangle_end flat = { .type = unified, .device = (uintptr_t)host, .pitch = 8 };
	struct rectangle plane = { is_out ? field : flat, is_out ? flat : field, 8, edge };

	if (neighbour[side] == MPI_PROC_NULL)
		return;
	if (side < NORTH)
		CUDA(copy_2d, &plane, stream);
	else
		CUDA(copy, (uintptr_t)(is_out ? host : cells), (uintptr_t)(is_out ? cells : host), 8 * width, stream);
}

static void exchange_staged(void)
{
	for (int first = WEST; first < SIDES; first += 2) {
		MPI_Request requests[4];
		MPI_Status statuses[4];
		int count = 0, doubles = (int)(first == WEST ? edge : width);

		for (int side = first; side < first + 2; side++) {
			MPI_Irecv(staged[1][side], doubles, MPI_DOUBLE, neighbour[side], side ^ 1, grid,
				  &requests[count++]);
			stage(side, 0, 1);
		}
		CUDA(stream_synchronize, stream);
		for (int side = first; side < first + 2; side++)
			MPI_Isend(staged[0][side], doubles, MPI_DOUBLE, neighbour[side], side, grid, &requests[count++]);
		MPI_Waitall(count, requests, statuses);
		for (int side = first; side < first + 2; side++)
			stage(side, 1, 0);
		CUDA(stream_synchronize, stream);
	}
}

static void swap(void)
{
	double *field = now_field;

	now_field = next_field;
	next_field = field;
}

static void step_typed(void)
{
	exchange_typed();
	compute();
	swap();
}

static void step_staged(void)
{
	exchange_staged();
	compute();
	swap();
}

/* The value of a cell by its place in the whole field, also of those outside, which nobody
 * sends. */
static double value(long y, long x)
{
	return (double)((y * 7919 + x * 104729 + 2097143) % 1009);
}

/* One step from the same values, looked at cell by cell; the halo has other values where somebody
 * sends. */
static int check(void (*one)(void))
{
	size_t cells = (edge + 2) * width;
	double *host = malloc(8 * cells);
	int right = 1;

	if (!host)
		die("no memory");
	for (size_t i = 0; i < cells; i++) {
		long y = (long)(i / width) - 1, x = (long)(i % width) - 1, n = (long)edge;
		/* Rows have the corners. */
		int side = y < 0 ? NORTH : y >= n ? SOUTH : x < 0 ? WEST : x >= n ? EAST : SIDES;

		host[i] = side < SIDES && neighbour[side] != MPI_PROC_NULL ? -1e9 : value(y + place[0] * n, x + place[1] * n);
	}
	/* The halo that nobody sends is in both fields. */
	copy(next_field, host, 8 * cells);
	copy(now_field, host, 8 * cells);
	one();
	copy(host, now_field, 8 * cells);
	for (size_t y = 0; y < edge; y++)
		for (size_t x = 0; x < edge; x++) {
			double sum = 0;

			for (long i = 0; i < 9; i++)
				sum += value((long)(y + place[0] * edge) + i / 3 - 1,
					     (long)(x + place[1] * edge) + i % 3 - 1);
			right &= host[(y + 1) * width + x + 1] == sum * (1.0 / 9);
		}
	free(host);
	return right;
}

static char *text_of(const char *path)
{
	FILE *file = fopen(path, "rb");
	char *text;
	long size;

	if (!file || fseek(file, 0, SEEK_END) || (size = ftell(file)) < 0)
		die(path);
	rewind(file);
	text = calloc(1, (size_t)size + 1);
	if (!text || fread(text, 1, (size_t)size, file) != (size_t)size)
		die(path);
	fclose(file);
	return text;
}

static void stencil(double budget, size_t cells, const char *ptx)
{
	int dims[2] = { 1, size }, periods[2] = { 0, 0 }, sides = 0;
	char *text = text_of(ptx);
	void *module;
	size_t halo;

	edge = cells;
	width = edge + 2;
	/* As square as can be, but two ranks are side by side, since columns are what is exchanged
	 * as blocks. */
	for (int i = 1; i * i <= size; i++)
		if (size % i == 0) {
			dims[0] = i;
			dims[1] = size / i;
		}
	MPI_Cart_create(MPI_COMM_WORLD, 2, dims, periods, 0, &grid);
	MPI_Cart_coords(grid, rank, 2, place);
	MPI_Cart_shift(grid, 0, 1, &neighbour[NORTH], &neighbour[SOUTH]);
	MPI_Cart_shift(grid, 1, 1, &neighbour[WEST], &neighbour[EAST]);
	MPI_Type_vector((int)edge, 1, (int)width, MPI_DOUBLE, &column);
	MPI_Type_contiguous((int)width, MPI_DOUBLE, &row);
	MPI_Type_commit(&column);
	MPI_Type_commit(&row);
	CUDA(module_load, &module, text);
	CUDA(module_function, &kernel, module, "stencil");
	now_field = device_memory(8 * width * width);
	next_field = device_memory(8 * width * width);
	for (int i = 0; i < 2 * SIDES; i++)
		CUDA(host_alloc, (void **)&staged[i / SIDES][i % SIDES], 8 * width, 0);
	for (int side = 0; side < SIDES; side++)
		sides += neighbour[side] != MPI_PROC_NULL;
	halo = (size_t)sides * 8 * edge;
	measure("typed", halo, 8, check(step_typed), 1, budget, step_typed);
	measure("hand-staged", halo, 8, check(step_staged), 1, budget, step_staged);
	measure("compute", halo, 8, 1, 1, budget, compute);
	MPI_Type_free(&column);
	MPI_Type_free(&row);
	MPI_Comm_free(&grid);
	device_free(now_field);
	device_free(next_field);
	free(text);
}

int main(int argc, char **argv)
{
	double budget = argc > 2 ? atof(argv[2]) : 0;

	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &size);
	if (argc < 4 || size < 2 || budget <= 0) {
		fprintf(stderr, "usage: mpirun -n 2 mpi_gpu messages MILLISECONDS BYTES:BLOCK...\n"
				"       mpirun -n RANKS mpi_gpu stencil MILLISECONDS EDGE PTX\n");
		MPI_Abort(MPI_COMM_WORLD, 2);
	}
	cuda_start();
	if (!strcmp(argv[1], "stencil") && argc > 4) {
		stencil(budget, (size_t)atol(argv[3]), argv[4]);
	} else {
		for (int i = 3; i < argc; i++) {
			size_t bytes, block;

			if (sscanf(argv[i], "%zu:%zu", &bytes, &block) != 2 || !block || block > DEVICE_STRIDE ||
			    bytes < block)
				die(argv[i]);
			message(bytes, block, budget);
		}
	}
	MPI_Finalize();
	return 0;
}
