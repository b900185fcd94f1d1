// SPDX-License-Identifier: MIT OR Apache-2.0

/* Collectives with buffers in host, pinned, managed and device memory, a space for each rank and
 * buffer, each byte compared with what the MPI library does with host memory. See device.c.
 *
 * usage: device_collectives ROUNDS [GROUP]      GROUP: which functions, see below
 */
#include "device.h"
#include "persistent.h"

enum { RANKS = 8, TYPES = 4, SPACES = 4 };
static MPI_Datatype types[TYPES];
static MPI_Op users;
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

/* A pair of buffers with the same content: one in host memory, which PMPI works on, and one in a
 * random space. */
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

/* Adds the integers that elements of types[3] have, and nothing between them. */
static void sum_of_elements(void *from, void *to, int *count, MPI_Datatype *type)
{
	static const int where[4] = { 0, 3, 4, 9 };
	(void)type;
	for (int i = 0; i < *count; i++)
		for (int j = 0; j < 4; j++)
			((unsigned *)to)[10 * i + where[j]] += ((unsigned *)from)[10 * i + where[j]];
}

/* All functions: the name of the blocking one and of the nonblocking one, and the arguments of
 * both, which the persistent one has as well. */
#define FUNCTIONS(X)                                                                                                   \
	X(Bcast, Ibcast, recv, r, R, root, comm)                                                                       \
	X(Gather, Igather, ROOT_IN_PLACE, s, S, recv, r, R, root, comm)                                                \
	X(Scatter, Iscatter, send, s, S, RECV_IN_PLACE, r, R, root, comm)                                              \
	X(Allgather, Iallgather, IN_PLACE, s, S, recv, r, R, comm)                                                     \
	X(Alltoall, Ialltoall, NOT_PERSISTENT_IN_PLACE, s, S, recv, r, R, comm)                                        \
	X(Reduce, Ireduce, REDUCED, recv, each, MPI_INT, MPI_BXOR, root, comm)                                         \
	X(Allreduce, Iallreduce, IN_PLACE, recv, each, element, op, comm)                                              \
	X(Barrier, Ibarrier, comm)                                                                                     \
	X(Gatherv, Igatherv, ROOT_IN_PLACE, mine, S, recv, all, all_places, R, root, comm)                             \
	X(Scatterv, Iscatterv, send, out, own_places, S, RECV_IN_PLACE, kept, R, root, comm)                           \
	X(Allgatherv, Iallgatherv, IN_PLACE, mine, S, recv, all, all_places, R, comm)                                  \
	X(Alltoallv, Ialltoallv, BLOCKING_IN_PLACE, own, own_places, S, recv, counts, places, R, comm)                 \
	X(Alltoallw, Ialltoallw, BLOCKING_IN_PLACE, own, own_bytes, own_of, recv, counts, bytes, of, comm)             \
	X(Reduce_scatter, Ireduce_scatter, send, recv, parts, MPI_INT, MPI_SUM, comm)                                  \
	X(Reduce_scatter_block, Ireduce_scatter_block, send, recv, each, MPI_INT, MPI_SUM, comm)                       \
	X(Scan, Iscan, IN_PLACE, recv, each, MPI_INT, MPI_SUM, comm)                                                   \
	X(Exscan, Iexscan, IN_PLACE, recv, each, MPI_INT, MPI_SUM, comm)                                               \
	X(Neighbor_allgather, Ineighbor_allgather, send, s, S, recv, r, R, comm)                                       \
	X(Neighbor_allgatherv, Ineighbor_allgatherv, send, s, S, recv, from_each, places, R, comm)                     \
	X(Neighbor_alltoall, Ineighbor_alltoall, send, s, S, recv, r, R, comm)                                         \
	X(Neighbor_alltoallv, Ineighbor_alltoallv, send, to_each, own_places, S, recv, from_each, places, R, comm)     \
	X(Neighbor_alltoallw, Ineighbor_alltoallw, send, to_each, own_wide, own_of, recv, from_each, wide, of, comm)

#define NUMBER(name, ...) name,
enum function { FUNCTIONS(NUMBER) FUNCTION_COUNT };
enum form { BLOCKING, NONBLOCKING, PERSISTENT, FORMS };

/* The functions of a group, by form, a bit for each. */
#define BIT(function) (1u << (function))
static const unsigned everything = BIT(FUNCTION_COUNT) - 1;
/* Those whose nonblocking and persistent forms libcopy intercepts. */
static const unsigned simple = BIT(Bcast) | BIT(Gather) | BIT(Scatter) | BIT(Allgather) | BIT(Alltoall) | BIT(Reduce) |
			       BIT(Allreduce);

struct group {
	const char *name;
	unsigned functions[FORMS];
};

static struct group group_named(const char *name)
{
	const struct group groups[] = {
		{ "intercepted", { everything, simple | BIT(Barrier), 0 } },
		{ "forwarded", { 0, everything & ~simple & ~BIT(Barrier), 0 } },
		{ "persistent", { 0, 0, everything & ~BIT(Barrier) } },
		{ "persistent-intercepted", { 0, 0, simple } },
	};
	for (size_t i = 0; i < sizeof groups / sizeof *groups; i++)
		if (!strcmp(groups[i].name, name))
			return groups[i];
	CHECK(0, "no group %s", name);
	return groups[0];
}

/* One of its functions, and its form. */
static enum function choose(const struct group *group, enum form *form)
{
	int count = 0, number = 0;
	for (int i = 0; i < FORMS; i++)
		count += __builtin_popcount(group->functions[i]);
	int chosen = below(count);
	for (*form = 0; *form < FORMS; ++*form)
		for (int function = 0; function < FUNCTION_COUNT; function++)
			if (group->functions[*form] >> function & 1 && number++ == chosen)
				return function;
	return 0;
}

/* Starts persistent requests for host memory and for ours three times, each time with other
 * content. */
static void starts(const char *name, int round, MPI_Request *request, int renews, struct pair *a, struct pair *b)
{
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

/* Calls a function for both buffers: the library's own with host memory, the program's with the
 * other. */
#define CALL(name, nonblocking, ...)                                                                                   \
	case name:                                                                                                     \
		label = #name;                                                                                         \
		for (int ours = 0; ours < 2; ours++) {                                                                 \
			char *send = ours ? a.memory.at : a.host, *recv = ours ? b.memory.at : b.host;                 \
			(void)send, (void)recv;                                                                        \
			if (form == BLOCKING)                                                                          \
				(ours ? MPI_##name : PMPI_##name)(__VA_ARGS__);                                        \
			else if (form == NONBLOCKING)                                                                  \
				(ours ? MPI_##nonblocking : PMPI_##nonblocking)(__VA_ARGS__, &request[ours]);          \
			else                                                                                           \
				(ours ? INIT(name) : PROFILED_INIT(name))(__VA_ARGS__, MPI_INFO_NULL, &request[ours]); \
			if (form == NONBLOCKING && !ours)                                                              \
				PMPI_Wait(&request[0], MPI_STATUS_IGNORE);                                             \
			else if (form == NONBLOCKING && round % 2)                                                     \
				MPI_Waitall(1, &request[1], &(MPI_Status){ 0 });                                       \
			else if (form == NONBLOCKING)                                                                  \
				MPI_Wait(&request[1], MPI_STATUS_IGNORE);                                              \
		}                                                                                                      \
		break;

static void one(int round, const struct group *group, MPI_Comm comm)
{
	enum form form;
	enum function function = choose(group, &form);
	/* Elements of four integers, which each rank describes by a type of its own. */
	int each = 1 << below(below(4) ? 6 : 13), root = below(size), in_place = below(3) == 0;
	unsigned mixed = below(1 << 16);
	int plain = below(4) == 0;
#ifndef OPEN_MPI
	/* Each start of MPICH 4.0's persistent collectives drops a reference to derived types, and
	 * requests of its MPI_Scatter_init cannot be started again, with or without libcopy. */
	plain |= form == PERSISTENT;
	if (form == PERSISTENT && function == Scatter)
		function = Bcast;
#endif
	/* Open MPI chooses algorithms by the size of the local type's elements: ranks that describe
	 * them by types of different sizes hang in it, with or without libcopy. */
	int st = plain ? 0 : 1 + (mixed >> 2 * (rank % 4)) % 3, rt = plain ? 0 : 1 + (mixed >> (1 + 2 * (rank % 4))) % 3;
	int s = each * times(st), r = each * times(rt);
	size_t whole = (size_t)size * 2 * (each + 1) * EXTENT + 200;
	struct pair a = pair_new(whole, 2 * round), b = pair_new(whole, 2 * round + 1);
	int counts[RANKS], places[RANKS], own[RANKS], own_places[RANKS], all[RANKS], all_places[RANKS];
	int bytes[RANKS], own_bytes[RANKS];
	MPI_Aint wide[RANKS], own_wide[RANKS];
	MPI_Datatype of[RANKS], own_of[RANKS];
	MPI_Datatype S = types[st], R = types[rt];
	const char *label = "";
	MPI_Request request[2] = { MPI_REQUEST_NULL, MPI_REQUEST_NULL };
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
	/* All neighbours get as much. */
	int to_each[RANKS], from_each[RANKS];
	for (int i = 0; i < RANKS; i++) {
		out[i] = (each + i % 3) * times(st);
		parts[i] = each + i % 3;
		to_each[i] = s;
		from_each[i] = r;
	}
	int mine = (each + rank % 3) * times(st), kept = (each + rank % 3) * times(rt);
	/* What is behind the result of a reduction in place that is scattered is undefined. */
	if (function == Reduce_scatter && form == BLOCKING && in_place)
		function = Allreduce;
	/* A user's operation on a derived type. */
	int is_users = function == Allreduce && form != PERSISTENT && below(3) == 0;
	MPI_Datatype element = is_users ? types[3] : MPI_INT;
	MPI_Op op = is_users ? users : MPI_BXOR;
#define IN_PLACE_IF(condition, buffer) (in_place && (condition) ? MPI_IN_PLACE : (void *)(buffer))
#define IN_PLACE IN_PLACE_IF(1, send)
#define ROOT_IN_PLACE IN_PLACE_IF(rank == root, send)
#define RECV_IN_PLACE IN_PLACE_IF(rank == root, recv)
#define NOT_PERSISTENT_IN_PLACE IN_PLACE_IF(form != PERSISTENT, send)
#define BLOCKING_IN_PLACE IN_PLACE_IF(form == BLOCKING, send)
/* MPICH 4.0 reads at MPI_IN_PLACE in some reductions whose root is not 0. */
#define REDUCED IN_PLACE_IF(rank == root && root == 0, send)
	switch (function) {
		FUNCTIONS(CALL)
	default: CHECK(0, "no function %d", function);
	}
	/* MPICH 4.0 moves a rank's own part when it makes these requests, and not when they are
	 * started. */
	if (form == PERSISTENT)
		starts(label, round, request, NEEDS_TYPES || (function != Gather && function != Allgather), &a, &b);
	pair_check(&a, label, round);
	pair_check(&b, label, round);
}

int main(int argc, char **argv)
{
	int rounds = argc > 1 ? atoi(argv[1]) : 100, periodic[2] = { 1, 0 }, shape[2] = { 0, 0 };
	MPI_Comm grid;
	MPI_Init(&argc, &argv);
	struct group group = group_named(argc > 2 ? argv[2] : "intercepted");
	MPI_Comm_size(MPI_COMM_WORLD, &size);
	MPI_Dims_create(size, 2, shape);
	MPI_Cart_create(MPI_COMM_WORLD, 2, shape, periodic, 0, &grid);
	MPI_Comm_rank(grid, &rank);
	/* Each rank of the grid has four neighbours. */
	CHECK(size >= 4 && size <= RANKS, "%d ranks", size);
	make_types();
	MPI_Op_create(sum_of_elements, 1, &users);
	cuda_load();
	for (int round = 0; round < rounds; round++)
		one(round, &group, grid);
	MPI_Op_free(&users);
	for (int i = 1; i < TYPES; i++)
		MPI_Type_free(&types[i]);
	MPI_Comm_free(&grid);
	printf("rank %d: right\n", rank);
	MPI_Finalize();
	return 0;
}
