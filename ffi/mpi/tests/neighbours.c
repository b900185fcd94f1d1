// SPDX-License-Identifier: MIT OR Apache-2.0

/* Random neighbourhoods, allgathers and alltoalls among them; prints a checksum of every buffer
 * after every call. Two runs with the same arguments print the same, with libcopy_mpi.so and
 * without it.
 *
 * usage: neighbours ROUNDS SEED MOST        MOST: bytes of the largest part
 *
 * With -DLARGE, the functions for large counts of MPI 4 are called, even if the library has none.
 */
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef LARGE
typedef MPI_Count number;
typedef MPI_Aint distance;
#define CALL(function) function##_c
#if MPI_VERSION < 4
#define WEAK __attribute__((weak)) int
typedef const MPI_Datatype *types;
WEAK MPI_Neighbor_allgather_c(const void *, number, MPI_Datatype, void *, number, MPI_Datatype,
			      MPI_Comm);
WEAK MPI_Neighbor_allgatherv_c(const void *, number, MPI_Datatype, void *, const number *,
			       const distance *, MPI_Datatype, MPI_Comm);
WEAK MPI_Neighbor_alltoall_c(const void *, number, MPI_Datatype, void *, number, MPI_Datatype,
			     MPI_Comm);
WEAK MPI_Neighbor_alltoallv_c(const void *, const number *, const distance *, MPI_Datatype, void *,
			      const number *, const distance *, MPI_Datatype, MPI_Comm);
WEAK MPI_Neighbor_alltoallw_c(const void *, const number *, const distance *, types, void *,
			      const number *, const distance *, types, MPI_Comm);
#endif
#else
typedef int number;
typedef int distance;
#define CALL(function) function
#endif

enum { MOST_NEIGHBOURS = 64, MOST_RANKS = 16 };

static uint64_t state, own;

static uint64_t step(uint64_t *state, uint64_t below)
{
	*state ^= *state << 13;
	*state ^= *state >> 7;
	*state ^= *state << 17;
	return (*state >> 11) % below;
}

/* The same on all ranks. */
static uint64_t next(uint64_t below)
{
	return step(&state, below);
}

static uint64_t hash(const unsigned char *bytes, size_t length)
{
	uint64_t sum = 14695981039346656037u;
	for (size_t i = 0; i < length; i++)
		sum = (sum ^ bytes[i]) * 1099511628211u;
	return sum;
}

static int rank, size, n_in, n_out, in[MOST_NEIGHBOURS], out[MOST_NEIGHBOURS];

static void of_grid(MPI_Comm grid, int dimensions)
{
	n_in = 2 * dimensions;
	for (int i = 0; i < dimensions; i++)
		MPI_Cart_shift(grid, i, 1, &in[2 * i], &in[2 * i + 1]);
	n_out = n_in;
	memcpy(out, in, sizeof(in));
}

/* A communicator whose neighbours are there once each, most of the time. */
static MPI_Comm neighbourhood(void)
{
	MPI_Comm comm;
	int kind = next(3);
	if (kind == 0) {
		int dimensions = 1 + next(2), sizes[2] = { 0, 0 }, periods[2];
		MPI_Dims_create(size, dimensions, sizes);
		for (int i = 0; i < 2; i++)
			/* With two in a row, the one before is the one behind. */
			periods[i] = sizes[i] > 2 && next(2);
		MPI_Cart_create(MPI_COMM_WORLD, dimensions, sizes, periods, 0, &comm);
		of_grid(comm, dimensions);
		return comm;
	}
	/* Who sends to whom: all ranks know. */
	unsigned char edges[MOST_RANKS][MOST_RANKS];
	for (int i = 0; i < size; i++)
		for (int k = 0; k < size; k++)
			edges[i][k] = next(3) > 0;
	if (kind == 1) {
		int index[MOST_RANKS], all[MOST_RANKS * MOST_RANKS], n = 0;
		for (int i = 0; i < size; i++) {
			for (int k = 0; k < size; k++)
				if (edges[i < k ? i : k][i < k ? k : i])
					all[n++] = k;
			index[i] = n;
		}
		MPI_Graph_create(MPI_COMM_WORLD, size, index, all, 0, &comm);
		MPI_Graph_neighbors_count(comm, rank, &n_in);
		MPI_Graph_neighbors(comm, rank, MOST_NEIGHBOURS, in);
		n_out = n_in;
		memcpy(out, in, sizeof(in));
		return comm;
	}
	n_in = n_out = 0;
	for (int k = size - 1; k >= 0; k--) {
		if (edges[k][rank])
			in[n_in++] = k;
		if (edges[rank][k])
			out[n_out++] = k;
	}
	int weights[MOST_NEIGHBOURS];
	for (int i = 0; i < MOST_NEIGHBOURS; i++)
		weights[i] = 1;
	MPI_Dist_graph_create_adjacent(MPI_COMM_WORLD, n_in, in, weights, n_out, out, weights,
				       MPI_INFO_NULL, 0, &comm);
	return comm;
}

/* Bytes that one rank has for another; a quarter of them are none. */
static int part(uint64_t round, int from, int to, int most)
{
	uint64_t x = (round * 131 + from * 31 + to + 1) * 0x9e3779b97f4a7c15u;
	x ^= x >> 29;
	x *= 0xbf58476d1ce4e5b9u;
	x ^= x >> 32;
	return x % 4 == 0 ? 0 : (int)(8 * (x / 4 % (most / 8 + 1)));
}

static unsigned char *send, *recv;
static size_t span;

static void show(const char *what)
{
	uint64_t mine = hash(recv, span), all[MOST_RANKS];
	MPI_Gather(&mine, 1, MPI_UINT64_T, all, 1, MPI_UINT64_T, 0, MPI_COMM_WORLD);
	if (rank == 0) {
		printf("%s", what);
		for (int i = 0; i < size; i++)
			printf(" %016llx", (unsigned long long)all[i]);
		printf("\n");
	}
}

static void fill(int round)
{
	for (size_t i = 0; i < span; i++) {
		send[i] = i * 7 + i / 253 + rank * 31 + round;
		recv[i] = i * 3;
	}
}

/* Doubles with gaps, dense ones, or bytes. */
static MPI_Datatype shape(int bytes, int kind, number *count)
{
	MPI_Datatype type;
	*count = 1;
	switch (kind) {
	case 0:
		MPI_Type_dup(MPI_BYTE, &type);
		*count = bytes;
		break;
	case 1:
		MPI_Type_vector(bytes / 8, 1, 2, MPI_DOUBLE, &type);
		break;
	default:
		MPI_Type_contiguous(bytes, MPI_BYTE, &type);
	}
	MPI_Type_commit(&type);
	return type;
}

static void once(int round, int most)
{
	MPI_Comm comm = neighbourhood();
	number counts_in[MOST_NEIGHBOURS], counts_out[MOST_NEIGHBOURS];
	distance places_in[MOST_NEIGHBOURS], places_out[MOST_NEIGHBOURS];
	MPI_Aint far_in[MOST_NEIGHBOURS], far_out[MOST_NEIGHBOURS];
	MPI_Datatype types_in[MOST_NEIGHBOURS], types_out[MOST_NEIGHBOURS];
	int bytes = 8 * (1 + next(most / 8));
	/* All alike. */
	number n, m;
	MPI_Datatype from = shape(bytes, 0, &n), to = shape(bytes, 2, &m);
	for (int again = 0; again < 3; again++) {
		fill(round + again);
		CALL(MPI_Neighbor_alltoall)(send, n, from, recv, m, to, comm);
		show("alltoall");
		fill(round + again);
		CALL(MPI_Neighbor_allgather)(send, n, from, recv, m, to, comm);
		show("allgather");
	}
	MPI_Type_free(&from);
	MPI_Type_free(&to);
	/* In another order than the neighbours'. */
	size_t at = 0;
	for (int i = n_in - 1; i >= 0; i--) {
		counts_in[i] = in[i] < 0 ? 5 : part(round, in[i], rank, most);
		places_in[i] = at;
		at += counts_in[i] + step(&own, 40);
	}
	/* All ranks receive what the first one would send to itself. */
	number same = part(round, 0, 0, most), each[MOST_NEIGHBOURS];
	distance apart[MOST_NEIGHBOURS];
	for (int i = 0; i < n_in; i++) {
		each[i] = same;
		apart[i] = (n_in - 1 - i) * (same + 3);
	}
	for (int again = 0; again < 3; again++) {
		fill(round + again);
		CALL(MPI_Neighbor_allgatherv)(send, same, MPI_BYTE, recv, each, apart, MPI_BYTE, comm);
		show("allgatherv");
	}
	at = 0;
	for (int i = n_out - 1; i >= 0; i--) {
		counts_out[i] = out[i] < 0 ? 5 : part(round, rank, out[i], most);
		places_out[i] = at;
		at += counts_out[i] + step(&own, 40);
	}
	for (int again = 0; again < 3; again++) {
		fill(round + again);
		CALL(MPI_Neighbor_alltoallv)(send, counts_out, places_out, MPI_BYTE, recv,
					     counts_in, places_in, MPI_BYTE, comm);
		show("alltoallv");
	}
	/* Each with its own type. */
	for (int i = 0, place = 0; i < n_in; i++) {
		int bytes = in[i] < 0 ? 8 : part(round + 7, in[i], rank, most);
		types_in[i] = shape(bytes, step(&own, 3), &counts_in[i]);
		far_in[i] = place;
		place += 2 * bytes + 8 * step(&own, 4);
	}
	for (int i = 0, place = 0; i < n_out; i++) {
		int bytes = out[i] < 0 ? 8 : part(round + 7, rank, out[i], most);
		types_out[i] = shape(bytes, step(&own, 3), &counts_out[i]);
		far_out[i] = place;
		place += 2 * bytes + 8 * step(&own, 4);
	}
	for (int again = 0; again < 3; again++) {
		fill(round + again);
		CALL(MPI_Neighbor_alltoallw)(send, counts_out, far_out, types_out, recv, counts_in,
					     far_in, types_in, comm);
		show("alltoallw");
	}
	for (int i = 0; i < n_in; i++)
		MPI_Type_free(&types_in[i]);
	for (int i = 0; i < n_out; i++)
		MPI_Type_free(&types_out[i]);
	MPI_Comm_free(&comm);
}

int main(int argc, char **argv)
{
	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &size);
	if (argc < 4 || size > MOST_RANKS) {
		fprintf(stderr, "usage: neighbours ROUNDS SEED MOST\n");
		MPI_Abort(MPI_COMM_WORLD, 2);
	}
	state = strtoull(argv[2], NULL, 10) * 0x9e3779b97f4a7c15u + 1;
	own = state + rank;
	span = (size_t)(2 * atoi(argv[3]) + 64) * 2 * MOST_RANKS;
	send = malloc(span);
	recv = malloc(span);
	for (int round = 0; round < atoi(argv[1]); round++)
		once(round, atoi(argv[3]));
	free(send);
	free(recv);
	MPI_Finalize();
	return 0;
}
