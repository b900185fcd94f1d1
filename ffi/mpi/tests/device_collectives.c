// SPDX-License-Identifier: MIT OR Apache-2.0

/* Collectives with buffers in host, pinned, managed and device memory, a space for each rank and buffer, each byte
 * compared with what the MPI library does with host memory. See device.c.
 *
 * usage: device_collectives ROUNDS
 */
#include "device.h"

enum { RANKS = 8, TYPES = 4, SPACES = 4 };
static MPI_Datatype types[TYPES];
static int rank, size;

static void make_types(void)
{
	int lengths[3] = { 1, 2, 1 }, places[3] = { 0, 3, 9 };
	types[0] = MPI_INT;
	MPI_Type_contiguous(4, MPI_INT, &types[1]);
	MPI_Type_vector(2, 2, 5, MPI_INT, &types[2]);
	MPI_Type_indexed(3, lengths, places, MPI_INT, &types[3]);
	for (int i = 1; i < TYPES; i++)
		MPI_Type_commit(&types[i]);
}

/* Elements of a type that are four integers together. */
static int times(int type) { return type == 0 ? 4 : 1; }

/* Room for elements, some bytes apart from each other at most. */
enum { EXTENT = 40 };

/* A pair of buffers with the same content: one in host memory, which PMPI works on, and one in a random space. */
struct pair {
	char *host;
	struct memory memory;
};

static struct pair pair_new(size_t bytes, unsigned seed)
{
	struct pair pair = { noise(seed * 1000 + rank, bytes), { 0 } };
	/* The ranks' spaces differ. */
	unsigned space = below(1 << 16) >> 2 * (rank % 8);
	pair.memory = memory_new(space % SPACES, bytes);
	memory_write(&pair.memory, pair.host);
	return pair;
}

static void pair_check(struct pair *pair, const char *what, int round)
{
	char *after = memory_read(&pair->memory);
	for (size_t i = 0; i < pair->memory.bytes; i++)
		CHECK(after[i] == pair->host[i], "%s, round %d, rank %d, space %d: byte %zu of %zu", what, round, rank,
		      pair->memory.space, i, pair->memory.bytes);
	free(after);
	free(pair->host);
	memory_free(&pair->memory);
}

/* Calls the function on both buffers. */
#define BOTH(name, ...)                                                                                                \
	do {                                                                                                           \
		{                                                                                                      \
			char *send = a.host, *recv = b.host;                                                           \
			(void)send;                                                                                    \
			(void)recv;                                                                                    \
			PMPI_##name(__VA_ARGS__);                                                                      \
		}                                                                                                      \
		{                                                                                                      \
			char *send = a.memory.at, *recv = b.memory.at;                                                 \
			(void)send;                                                                                    \
			(void)recv;                                                                                    \
			MPI_##name(__VA_ARGS__);                                                                       \
		}                                                                                                      \
	} while (0)

/* The same of one that makes a request. */
#define BOTH_NONBLOCKING(name, ...)                                                                                    \
	do {                                                                                                           \
		MPI_Request request;                                                                                   \
		{                                                                                                      \
			char *send = a.host, *recv = b.host;                                                           \
			(void)send;                                                                                    \
			(void)recv;                                                                                    \
			PMPI_##name(__VA_ARGS__, &request);                                                            \
			PMPI_Wait(&request, MPI_STATUS_IGNORE);                                                        \
		}                                                                                                      \
		{                                                                                                      \
			char *send = a.memory.at, *recv = b.memory.at;                                                 \
			(void)send;                                                                                    \
			(void)recv;                                                                                    \
			MPI_##name(__VA_ARGS__, &request);                                                             \
			if (round % 2)                                                                                 \
				MPI_Waitall(1, &request, &(MPI_Status){ 0 });                                          \
			else                                                                                           \
				MPI_Wait(&request, MPI_STATUS_IGNORE);                                                 \
		}                                                                                                      \
	} while (0)

static void one(int round, MPI_Comm comm, int sources, int destinations)
{
	/* Elements of four integers, which each rank describes by a type of its own. */
	int each = 1 << below(below(4) ? 6 : 13), root = below(size), in_place = below(3) == 0, which = below(26);
	unsigned mixed = below(1 << 16);
	int plain = below(4) == 0;
	/* Open MPI chooses algorithms by the size of the local type's elements: ranks that describe them by types of
	 * different sizes hang in it, with or without libcopy. */
	int st = plain ? 0 : 1 + (mixed >> 2 * (rank % 4)) % 3, rt = plain ? 0 : 1 + (mixed >> (1 + 2 * (rank % 4))) % 3;
	int s = each * times(st), r = each * times(rt);
	size_t whole = (size_t)size * 2 * (each + 1) * EXTENT + 200;
	struct pair a = pair_new(whole, 2 * round), b = pair_new(whole, 2 * round + 1);
	int counts[RANKS], places[RANKS], own[RANKS], own_places[RANKS], all[RANKS], all_places[RANKS];
	int bytes[RANKS], own_bytes[RANKS];
	MPI_Aint wide[RANKS], own_wide[RANKS];
	MPI_Datatype of[RANKS], own_of[RANKS];
	MPI_Datatype S = types[st], R = types[rt];
	const char *name = "";
	for (int i = 0; i < size; i++) {
		/* What rank i sends to rank j is (i + j) % 3 less than each. */
		counts[i] = (each + 2 - (i + rank) % 3) * times(rt);
		own[i] = (each + 2 - (i + rank) % 3) * times(st);
		places[i] = i * (each + 3) * times(rt);
		own_places[i] = i * (each + 3) * times(st);
		/* What rank i has for everybody. */
		all[i] = (each + i % 3) * times(rt);
		all_places[i] = i * (each + 3) * times(rt);
		wide[i] = bytes[i] = i * (each + 3) * EXTENT;
		own_wide[i] = own_bytes[i] = (size - 1 - i) * (each + 3) * EXTENT;
		of[i] = types[rt];
		own_of[i] = types[st];
	}
	int mine = (each + rank % 3) * times(st), kept = (each + rank % 3) * times(rt);
#define IN_PLACE (in_place ? MPI_IN_PLACE : (void *)send)
/* MPICH 4.0 reads at MPI_IN_PLACE in some reductions whose root is not 0. */
#define REDUCED (in_place && rank == root && root == 0 ? MPI_IN_PLACE : (void *)send)
#define ROOT_IN_PLACE (in_place && rank == root ? MPI_IN_PLACE : (void *)send)
	switch (which) {
	case 0: name = "Bcast"; BOTH(Bcast, recv, r, R, root, comm); break;
	case 1: name = "Gather"; BOTH(Gather, ROOT_IN_PLACE, s, S, recv, r, R, root, comm); break;
	case 2:
		name = "Scatter";
		BOTH(Scatter, send, s, S, in_place && rank == root ? MPI_IN_PLACE : (void *)recv, r, R, root, comm);
		break;
	case 3: name = "Allgather"; BOTH(Allgather, IN_PLACE, s, S, recv, r, R, comm); break;
	case 4: name = "Alltoall"; BOTH(Alltoall, IN_PLACE, s, S, recv, r, R, comm); break;
	case 5:
		name = "Gatherv";
		BOTH(Gatherv, ROOT_IN_PLACE, mine, S, recv, all, all_places, R, root, comm);
		break;
	case 6: {
		int out[RANKS];
		for (int i = 0; i < size; i++)
			out[i] = (each + i % 3) * times(st);
		name = "Scatterv";
		BOTH(Scatterv, send, out, own_places, S, in_place && rank == root ? MPI_IN_PLACE : (void *)recv, kept, R,
		     root, comm);
		break;
	}
	case 7: name = "Allgatherv"; BOTH(Allgatherv, IN_PLACE, mine, S, recv, all, all_places, R, comm); break;
	case 8:
		name = "Alltoallv";
		BOTH(Alltoallv, IN_PLACE, own, own_places, S, recv, counts, places, R, comm);
		break;
	case 9:
		name = "Alltoallw";
		BOTH(Alltoallw, IN_PLACE, own, own_bytes, own_of, recv, counts, bytes, of, comm);
		break;
	case 10: name = "Reduce"; BOTH(Reduce, REDUCED, recv, each, MPI_INT, MPI_BXOR, root, comm); break;
	case 11: name = "Allreduce"; BOTH(Allreduce, IN_PLACE, recv, each, MPI_INT, MPI_BXOR, comm); break;
	case 12: {
		int parts[RANKS];
		for (int i = 0; i < size; i++)
			parts[i] = each + i % 3;
		name = "Reduce_scatter";
		if (in_place) /* What is behind the result is undefined. */
			BOTH(Allreduce, IN_PLACE, recv, each, MPI_INT, MPI_SUM, comm);
		else
			BOTH(Reduce_scatter, send, recv, parts, MPI_INT, MPI_SUM, comm);
		break;
	}
	case 13:
		name = "Reduce_scatter_block";
		BOTH(Reduce_scatter_block, send, recv, each, MPI_INT, MPI_SUM, comm);
		break;
	case 14: name = "Neighbor_alltoall"; BOTH(Neighbor_alltoall, send, s, S, recv, r, R, comm); break;
	case 15:
	case 16: {
		/* Everybody's neighbours get as much. */
		int out[RANKS], in[RANKS];
		for (int i = 0; i < RANKS; i++) {
			out[i] = s;
			in[i] = r;
		}
		CHECK(sources <= size && destinations <= size, "%d and %d neighbours", sources, destinations);
		if (which == 15) {
			name = "Neighbor_alltoallv";
			BOTH(Neighbor_alltoallv, send, out, own_places, S, recv, in, places, R, comm);
		} else {
			name = "Neighbor_alltoallw";
			BOTH(Neighbor_alltoallw, send, out, own_wide, own_of, recv, in, wide, of, comm);
		}
		break;
	}
	case 17: name = "Ibcast"; BOTH_NONBLOCKING(Ibcast, recv, r, R, root, comm); break;
	case 18: name = "Igather"; BOTH_NONBLOCKING(Igather, ROOT_IN_PLACE, s, S, recv, r, R, root, comm); break;
	case 19:
		name = "Iscatter";
		BOTH_NONBLOCKING(Iscatter, send, s, S, in_place && rank == root ? MPI_IN_PLACE : (void *)recv, r, R,
				 root, comm);
		break;
	case 20: name = "Iallgather"; BOTH_NONBLOCKING(Iallgather, IN_PLACE, s, S, recv, r, R, comm); break;
	case 21: name = "Ialltoall"; BOTH_NONBLOCKING(Ialltoall, IN_PLACE, s, S, recv, r, R, comm); break;
	case 22: name = "Ireduce"; BOTH_NONBLOCKING(Ireduce, REDUCED, recv, each, MPI_INT, MPI_BXOR, root, comm); break;
	case 23: name = "Iallreduce"; BOTH_NONBLOCKING(Iallreduce, IN_PLACE, recv, each, MPI_INT, MPI_BXOR, comm); break;
	case 24: {
		/* A user's operation on a derived type. */
		extern void sum_of_elements(void *, void *, int *, MPI_Datatype *);
		MPI_Op op;
		MPI_Op_create(sum_of_elements, 1, &op);
		name = "Allreduce with an operation of the user's";
		BOTH(Allreduce, IN_PLACE, recv, each, types[3], op, comm);
		MPI_Op_free(&op);
		break;
	}
	default: name = "Barrier"; BOTH(Barrier, comm);
	}
	pair_check(&a, name, round);
	pair_check(&b, name, round);
}

/* Adds the integers that elements of types[3] have, and nothing between them. */
void sum_of_elements(void *from, void *to, int *count, MPI_Datatype *type)
{
	static const int where[4] = { 0, 3, 4, 9 };
	(void)type;
	for (int i = 0; i < *count; i++)
		for (int j = 0; j < 4; j++)
			((unsigned *)to)[10 * i + where[j]] += ((unsigned *)from)[10 * i + where[j]];
}

int main(int argc, char **argv)
{
	int rounds = argc > 1 ? atoi(argv[1]) : 100, periodic[2] = { 1, 0 }, shape[2] = { 0, 0 };
	MPI_Comm grid;
	MPI_Init(&argc, &argv);
	MPI_Comm_size(MPI_COMM_WORLD, &size);
	MPI_Dims_create(size, 2, shape);
	MPI_Cart_create(MPI_COMM_WORLD, 2, shape, periodic, 0, &grid);
	MPI_Comm_rank(grid, &rank);
	CHECK(size >= 4 && size <= RANKS, "%d ranks", size);
	make_types();
	cuda_load();
	for (int round = 0; round < rounds; round++)
		one(round, grid, 4, 4);
	for (int i = 1; i < TYPES; i++)
		MPI_Type_free(&types[i]);
	MPI_Comm_free(&grid);
	printf("rank %d: right\n", rank);
	MPI_Finalize();
	return 0;
}
