// SPDX-License-Identifier: MIT OR Apache-2.0

/* Collectives with buffers in host, pinned, managed and device memory, a space for each rank and buffer, each byte
 * compared with what the MPI library does with host memory. See device.c.
 *
 * usage: device_collectives ROUNDS [FIRST LAST]      FIRST, LAST: the functions, by their numbers below
 */
#include "device.h"
#include "persistent.h"

enum { RANKS = 8, TYPES = 4, SPACES = 4, FIRST_PERSISTENT = 44, BCAST_INIT = 58, SCATTER_INIT = 60 };
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

/* Other content in both. */
static void pair_renew(struct pair *pair, unsigned seed)
{
	char *content = noise(seed * 1000 + rank, pair->memory.bytes);
	memcpy(pair->host, content, pair->memory.bytes);
	memory_write(&pair->memory, content);
	free(content);
}

static void pair_compare(struct pair *pair, const char *what, int round)
{
	char *after = memory_read(&pair->memory);
	for (size_t i = 0; i < pair->memory.bytes; i++)
		CHECK(after[i] == pair->host[i], "%s, round %d, rank %d, space %d: byte %zu of %zu", what, round, rank,
		      pair->memory.space, i, pair->memory.bytes);
	free(after);
}

static void pair_check(struct pair *pair, const char *what, int round)
{
	pair_compare(pair, what, round);
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

/* The same of one that makes a persistent request, which is started three times, each time with other content. */
#define BOTH_PERSISTENT(name, ...)                                                                                     \
	do {                                                                                                           \
		MPI_Request request[2];                                                                                \
		{                                                                                                      \
			char *send = a.host, *recv = b.host;                                                           \
			(void)send;                                                                                    \
			(void)recv;                                                                                    \
			PROFILED_INIT(name)(__VA_ARGS__, MPI_INFO_NULL, &request[0]);                                  \
		}                                                                                                      \
		{                                                                                                      \
			char *send = a.memory.at, *recv = b.memory.at;                                                 \
			(void)send;                                                                                    \
			(void)recv;                                                                                    \
			INIT(name)(__VA_ARGS__, MPI_INFO_NULL, &request[1]);                                           \
		}                                                                                                      \
		starts(#name "_init", round, request, &a, &b);                                                                        \
	} while (0)

static void starts(const char *name, int round, MPI_Request *request, struct pair *a, struct pair *b)
{
	int renews = 1;
#ifndef OPEN_MPI
	/* MPICH 4.0 moves a rank's own part when it makes these requests, and not when they are started. */
	renews = strcmp(name, "Gather_init") && strcmp(name, "Allgather_init");
#endif
	for (int i = 0; i < 3; i++) {
		if (renews) {
			pair_renew(a, 3 * round + i);
			pair_renew(b, 3 * round + i + 1);
		}
		PMPI_Start(&request[0]);
		PMPI_Wait(&request[0], MPI_STATUS_IGNORE);
		if (i == 1)
			MPI_Startall(1, &request[1]);
		else
			MPI_Start(&request[1]);
		if (i == 2)
			MPI_Waitall(1, &request[1], &(MPI_Status){ 0 });
		else
			MPI_Wait(&request[1], MPI_STATUS_IGNORE);
		pair_compare(a, name, round);
		pair_compare(b, name, round);
	}
	PMPI_Request_free(&request[0]);
	MPI_Request_free(&request[1]);
}

static void one(int round, int which, MPI_Comm comm, int sources, int destinations)
{
	/* Elements of four integers, which each rank describes by a type of its own. */
	int each = 1 << below(below(4) ? 6 : 13), root = below(size), in_place = below(3) == 0;
	unsigned mixed = below(1 << 16);
	int plain = below(4) == 0;
#ifndef OPEN_MPI
	/* Each start of MPICH 4.0's persistent collectives drops a reference to derived types, and requests of its
	 * MPI_Scatter_init cannot be started again, with or without libcopy. */
	plain |= which >= FIRST_PERSISTENT;
	if (which == SCATTER_INIT)
		which = BCAST_INIT;
#endif
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
	/* What the root sends to rank i. */
	int out[RANKS], parts[RANKS];
	/* Everybody's neighbours get as much. */
	int to_each[RANKS], from_each[RANKS];
	for (int i = 0; i < RANKS; i++) {
		out[i] = (each + i % 3) * times(st);
		parts[i] = each + i % 3;
		to_each[i] = s;
		from_each[i] = r;
	}
	CHECK(sources <= size && destinations <= size, "%d and %d neighbours", sources, destinations);
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
	case 6:
		name = "Scatterv";
		BOTH(Scatterv, send, out, own_places, S, in_place && rank == root ? MPI_IN_PLACE : (void *)recv, kept, R,
		     root, comm);
		break;
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
	case 12:
		name = "Reduce_scatter";
		if (in_place) /* What is behind the result is undefined. */
			BOTH(Allreduce, IN_PLACE, recv, each, MPI_INT, MPI_SUM, comm);
		else
			BOTH(Reduce_scatter, send, recv, parts, MPI_INT, MPI_SUM, comm);
		break;
	case 13:
		name = "Reduce_scatter_block";
		BOTH(Reduce_scatter_block, send, recv, each, MPI_INT, MPI_SUM, comm);
		break;
	case 14: name = "Neighbor_alltoall"; BOTH(Neighbor_alltoall, send, s, S, recv, r, R, comm); break;
	case 15:
		name = "Neighbor_alltoallv";
		BOTH(Neighbor_alltoallv, send, to_each, own_places, S, recv, from_each, places, R, comm);
		break;
	case 16:
		name = "Neighbor_alltoallw";
		BOTH(Neighbor_alltoallw, send, to_each, own_wide, own_of, recv, from_each, wide, of, comm);
		break;
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
	case 25: name = "Barrier"; BOTH(Barrier, comm); break;
	case 26:
		name = "Scan";
		BOTH(Scan, IN_PLACE, recv, each, MPI_INT, MPI_SUM, comm);
		break;
	case 27:
		name = "Exscan";
		BOTH(Exscan, IN_PLACE, recv, each, MPI_INT, MPI_SUM, comm);
		break;
	case 28:
		name = "Neighbor_allgather";
		BOTH(Neighbor_allgather, send, s, S, recv, r, R, comm);
		break;
	case 29:
		name = "Neighbor_allgatherv";
		BOTH(Neighbor_allgatherv, send, s, S, recv, from_each, places, R, comm);
		break;
	case 30:
		name = "Iscan";
		BOTH_NONBLOCKING(Iscan, IN_PLACE, recv, each, MPI_INT, MPI_SUM, comm);
		break;
	case 31:
		name = "Iexscan";
		BOTH_NONBLOCKING(Iexscan, IN_PLACE, recv, each, MPI_INT, MPI_SUM, comm);
		break;
	case 32:
		name = "Ineighbor_allgather";
		BOTH_NONBLOCKING(Ineighbor_allgather, send, s, S, recv, r, R, comm);
		break;
	case 33:
		name = "Ineighbor_allgatherv";
		BOTH_NONBLOCKING(Ineighbor_allgatherv, send, s, S, recv, from_each, places, R, comm);
		break;
	case 34:
		name = "Igatherv";
		BOTH_NONBLOCKING(Igatherv, ROOT_IN_PLACE, mine, S, recv, all, all_places, R, root, comm);
		break;
	case 35:
		name = "Iscatterv";
		BOTH_NONBLOCKING(Iscatterv, send, out, own_places, S, in_place && rank == root ? MPI_IN_PLACE : (void *)recv, kept, R, root, comm);
		break;
	case 36:
		name = "Iallgatherv";
		BOTH_NONBLOCKING(Iallgatherv, IN_PLACE, mine, S, recv, all, all_places, R, comm);
		break;
	case 37:
		name = "Ialltoallv";
		BOTH_NONBLOCKING(Ialltoallv, send, own, own_places, S, recv, counts, places, R, comm);
		break;
	case 38:
		name = "Ialltoallw";
		BOTH_NONBLOCKING(Ialltoallw, send, own, own_bytes, own_of, recv, counts, bytes, of, comm);
		break;
	case 39:
		name = "Ireduce_scatter";
		BOTH_NONBLOCKING(Ireduce_scatter, send, recv, parts, MPI_INT, MPI_SUM, comm);
		break;
	case 40:
		name = "Ireduce_scatter_block";
		BOTH_NONBLOCKING(Ireduce_scatter_block, send, recv, each, MPI_INT, MPI_SUM, comm);
		break;
	case 41:
		name = "Ineighbor_alltoall";
		BOTH_NONBLOCKING(Ineighbor_alltoall, send, s, S, recv, r, R, comm);
		break;
	case 42:
		name = "Ineighbor_alltoallv";
		BOTH_NONBLOCKING(Ineighbor_alltoallv, send, to_each, own_places, S, recv, from_each, places, R, comm);
		break;
	case 43:
		name = "Ineighbor_alltoallw";
		BOTH_NONBLOCKING(Ineighbor_alltoallw, send, to_each, own_wide, own_of, recv, from_each, wide, of, comm);
		break;
	case 44:
		name = "Scan_init";
		BOTH_PERSISTENT(Scan, IN_PLACE, recv, each, MPI_INT, MPI_SUM, comm);
		break;
	case 45:
		name = "Exscan_init";
		BOTH_PERSISTENT(Exscan, IN_PLACE, recv, each, MPI_INT, MPI_SUM, comm);
		break;
	case 46:
		name = "Neighbor_allgather_init";
		BOTH_PERSISTENT(Neighbor_allgather, send, s, S, recv, r, R, comm);
		break;
	case 47:
		name = "Neighbor_allgatherv_init";
		BOTH_PERSISTENT(Neighbor_allgatherv, send, s, S, recv, from_each, places, R, comm);
		break;
	case 48:
		name = "Gatherv_init";
		BOTH_PERSISTENT(Gatherv, ROOT_IN_PLACE, mine, S, recv, all, all_places, R, root, comm);
		break;
	case 49:
		name = "Scatterv_init";
		BOTH_PERSISTENT(Scatterv, send, out, own_places, S, in_place && rank == root ? MPI_IN_PLACE : (void *)recv, kept, R, root, comm);
		break;
	case 50:
		name = "Allgatherv_init";
		BOTH_PERSISTENT(Allgatherv, IN_PLACE, mine, S, recv, all, all_places, R, comm);
		break;
	case 51:
		name = "Alltoallv_init";
		BOTH_PERSISTENT(Alltoallv, send, own, own_places, S, recv, counts, places, R, comm);
		break;
	case 52:
		name = "Alltoallw_init";
		BOTH_PERSISTENT(Alltoallw, send, own, own_bytes, own_of, recv, counts, bytes, of, comm);
		break;
	case 53:
		name = "Reduce_scatter_init";
		BOTH_PERSISTENT(Reduce_scatter, send, recv, parts, MPI_INT, MPI_SUM, comm);
		break;
	case 54:
		name = "Reduce_scatter_block_init";
		BOTH_PERSISTENT(Reduce_scatter_block, send, recv, each, MPI_INT, MPI_SUM, comm);
		break;
	case 55:
		name = "Neighbor_alltoall_init";
		BOTH_PERSISTENT(Neighbor_alltoall, send, s, S, recv, r, R, comm);
		break;
	case 56:
		name = "Neighbor_alltoallv_init";
		BOTH_PERSISTENT(Neighbor_alltoallv, send, to_each, own_places, S, recv, from_each, places, R, comm);
		break;
	case 57:
		name = "Neighbor_alltoallw_init";
		BOTH_PERSISTENT(Neighbor_alltoallw, send, to_each, own_wide, own_of, recv, from_each, wide, of, comm);
		break;
	case 58:
		name = "Bcast_init";
		BOTH_PERSISTENT(Bcast, recv, r, R, root, comm);
		break;
	case 59:
		name = "Gather_init";
		BOTH_PERSISTENT(Gather, ROOT_IN_PLACE, s, S, recv, r, R, root, comm);
		break;
	case 60:
		name = "Scatter_init";
		BOTH_PERSISTENT(Scatter, send, s, S, in_place && rank == root ? MPI_IN_PLACE : (void *)recv, r, R, root, comm);
		break;
	case 61:
		name = "Allgather_init";
		BOTH_PERSISTENT(Allgather, IN_PLACE, s, S, recv, r, R, comm);
		break;
	case 62:
		name = "Alltoall_init";
		BOTH_PERSISTENT(Alltoall, send, s, S, recv, r, R, comm);
		break;
	case 63:
		name = "Reduce_init";
		BOTH_PERSISTENT(Reduce, REDUCED, recv, each, MPI_INT, MPI_BXOR, root, comm);
		break;
	case 64:
		name = "Allreduce_init";
		BOTH_PERSISTENT(Allreduce, IN_PLACE, recv, each, MPI_INT, MPI_BXOR, comm);
		break;
	default: CHECK(0, "no function %d", which);
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
	int first = argc > 3 ? atoi(argv[2]) : 0, last = argc > 3 ? atoi(argv[3]) : 25;
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
		one(round, first + below(last + 1 - first), grid, 4, 4);
	for (int i = 1; i < TYPES; i++)
		MPI_Type_free(&types[i]);
	MPI_Comm_free(&grid);
	printf("rank %d: right\n", rank);
	MPI_Finalize();
	return 0;
}
