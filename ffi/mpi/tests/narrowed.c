// SPDX-License-Identifier: MIT OR Apache-2.0

/* Forms for large counts of collectives that are only forwarded, beside the others of the MPI
 * library: what they receive is the same. The library need not have them: they are declared weak,
 * as mpi4py does.
 *
 * usage: narrowed [MANY]
 *
 * MANY: with counts that no `int` has, which a library without these forms cannot do
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef const MPI_Count *counts_c;
typedef const MPI_Aint *places_c;
typedef const MPI_Datatype *types;
typedef MPI_Datatype type;
typedef MPI_Request *request;

#if MPI_VERSION < 4
#define WEAK(name, ...) __attribute__((weak)) int name(__VA_ARGS__)
#define TWO const void *, MPI_Count, type, void *, MPI_Count, type, MPI_Comm
#define ONE_MANY const void *, MPI_Count, type, void *, counts_c, places_c, type
#define MANY const void *, counts_c, places_c, type, void *, counts_c, places_c, type, MPI_Comm
#define TYPES const void *, counts_c, places_c, types, void *, counts_c, places_c, types, MPI_Comm
#define REDUCED const void *, void *, MPI_Count, type, MPI_Op, MPI_Comm
WEAK(MPI_Scan_c, REDUCED);
WEAK(MPI_Exscan_c, REDUCED);
WEAK(MPI_Neighbor_allgather_c, TWO);
WEAK(MPI_Neighbor_allgatherv_c, ONE_MANY, MPI_Comm);
WEAK(MPI_Igatherv_c, ONE_MANY, int, MPI_Comm, request);
WEAK(MPI_Iscatterv_c, const void *, counts_c, places_c, type, void *, MPI_Count, type, int, MPI_Comm,
     request);
WEAK(MPI_Iallgatherv_c, ONE_MANY, MPI_Comm, request);
WEAK(MPI_Ialltoallv_c, MANY, request);
WEAK(MPI_Ialltoallw_c, TYPES, request);
WEAK(MPI_Ireduce_scatter_c, const void *, void *, counts_c, type, MPI_Op, MPI_Comm, request);
WEAK(MPI_Ireduce_scatter_block_c, REDUCED, request);
WEAK(MPI_Iscan_c, REDUCED, request);
WEAK(MPI_Iexscan_c, REDUCED, request);
WEAK(MPI_Ineighbor_allgather_c, TWO, request);
WEAK(MPI_Ineighbor_allgatherv_c, ONE_MANY, MPI_Comm, request);
WEAK(MPI_Ineighbor_alltoall_c, TWO, request);
WEAK(MPI_Ineighbor_alltoallv_c, MANY, request);
WEAK(MPI_Ineighbor_alltoallw_c, TYPES, request);
WEAK(MPI_Alltoallv_init_c, MANY, MPI_Info, request);
WEAK(MPI_Neighbor_alltoallw_init_c, TYPES, MPI_Info, request);
#endif

/* Parts of one to three elements per rank, with a gap behind each. */
enum { MOST = 8, ROOM = 8 * MOST };

static int rank, size, failed;
static int counts[MOST], places[MOST], bytes[MOST];
static MPI_Count large[MOST];
static MPI_Aint far[MOST], far_bytes[MOST];
static MPI_Datatype kinds[MOST];
static double send[ROOM], got[ROOM], expected[ROOM];

static void clear(void)
{
	for (int i = 0; i < ROOM; i++)
		got[i] = expected[i] = -1;
}

static void check(const char *name, int code, int plain)
{
	int differs = memcmp(got, expected, sizeof(got)) != 0;
	if (code || plain || differs) {
		failed++;
		printf("rank %d: %s: code %d, without large counts %d, %s\n", rank, name, code, plain,
		       differs ? "differs" : "same");
	}
	clear();
}

/* A function for large counts beside the library's other one. */
#define BLOCKING(name, arguments, others) check(#name, MPI_##name##_c arguments, PMPI_##name others)

/* The same with requests. */
#define STARTED(name, arguments, others)                                  \
	do {                                                              \
		MPI_Request own, other;                                   \
		int code = MPI_##name##_c arguments;                      \
		int plain = PMPI_##name others;                           \
		code = code ? code : MPI_Wait(&own, MPI_STATUS_IGNORE);   \
		plain = plain ? plain : MPI_Wait(&other, MPI_STATUS_IGNORE); \
		check(#name, code, plain);                                \
	} while (0)

/* A persistent one, started three times, beside the blocking one. */
#define PERSISTENT(name, arguments, other)                                       \
	do {                                                                     \
		MPI_Request own;                                                 \
		int code = MPI_##name##_c arguments;                             \
		for (int i = 0; i < 3 && !code; i++) {                           \
			memset(got, i, sizeof(got));                             \
			memset(expected, i, sizeof(got));                        \
			int plain = other;                                       \
			MPI_Start(&own);                                         \
			code = MPI_Wait(&own, MPI_STATUS_IGNORE);                \
			check(#name, code, plain);                               \
		}                                                                \
		if (code)                                                        \
			check(#name, code, 0);                                   \
		else                                                             \
			MPI_Request_free(&own);                                  \
	} while (0)

int main(int argc, char **argv)
{
	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &size);
	MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
	if (size > MOST)
		MPI_Abort(MPI_COMM_WORLD, 2);
	const MPI_Comm world = MPI_COMM_WORLD;
	/* A ring: fewer neighbours than ranks. */
	int before[] = { (rank + size - 1) % size, (rank + 1) % size }, after[] = { (rank + 1) % size, before[0] };
	const int weights[] = { 1, 1 };
	MPI_Comm ring;
	MPI_Dist_graph_create_adjacent(world, 2, before, weights, 2, after, weights, MPI_INFO_NULL, 0, &ring);
	MPI_Comm_set_errhandler(ring, MPI_ERRORS_RETURN);
	for (int i = 0; i < MOST; i++) {
		counts[i] = large[i] = 1 + (rank + i) % 3;
		places[i] = far[i] = 4 * i;
		bytes[i] = far_bytes[i] = 32 * i;
		kinds[i] = MPI_DOUBLE;
	}
	int same[MOST];
	MPI_Count same_c[MOST];
	for (int i = 0; i < MOST; i++)
		same[i] = same_c[i] = 1 + i % 3;
	for (int i = 0; i < ROOM; i++)
		send[i] = 1000 * rank + i;
	clear();
	const int mine = same[rank];

	BLOCKING(Scan, (send, got, 9, MPI_DOUBLE, MPI_SUM, world), (send, expected, 9, MPI_DOUBLE, MPI_SUM, world));
	BLOCKING(Exscan, (send, got, 9, MPI_DOUBLE, MPI_SUM, world), (send, expected, 9, MPI_DOUBLE, MPI_SUM, world));
	BLOCKING(Neighbor_allgather, (send, 3, MPI_DOUBLE, got, 3, MPI_DOUBLE, ring),
		 (send, 3, MPI_DOUBLE, expected, 3, MPI_DOUBLE, ring));
	const MPI_Count three_c[] = { 3, 3 };
	const int three[] = { 3, 3 };
	BLOCKING(Neighbor_allgatherv, (send, 3, MPI_DOUBLE, got, three_c, far, MPI_DOUBLE, ring),
		 (send, 3, MPI_DOUBLE, expected, three, places, MPI_DOUBLE, ring));

	/* Arrays that only the root has may be anything elsewhere. */
	const int root = size - 1;
	const MPI_Count *counts_at_root = rank == root ? same_c : NULL;
	const MPI_Aint *places_at_root = rank == root ? far : NULL;
	STARTED(Igatherv,
		(send, mine, MPI_DOUBLE, got, counts_at_root, places_at_root, MPI_DOUBLE, root, world, &own),
		(send, mine, MPI_DOUBLE, expected, same, places, MPI_DOUBLE, root, world, &other));
	STARTED(Iscatterv,
		(send, counts_at_root, places_at_root, MPI_DOUBLE, got, mine, MPI_DOUBLE, root, world, &own),
		(send, same, places, MPI_DOUBLE, expected, mine, MPI_DOUBLE, root, world, &other));
	STARTED(Iallgatherv, (send, mine, MPI_DOUBLE, got, same_c, far, MPI_DOUBLE, world, &own),
		(send, mine, MPI_DOUBLE, expected, same, places, MPI_DOUBLE, world, &other));
	/* Of rank i to rank k as many as the other way round. */
	STARTED(Ialltoallv, (send, large, far, MPI_DOUBLE, got, large, far, MPI_DOUBLE, world, &own),
		(send, counts, places, MPI_DOUBLE, expected, counts, places, MPI_DOUBLE, world, &other));
	/* What is sent is not looked at. */
	memcpy(got, send, sizeof(got));
	memcpy(expected, send, sizeof(got));
	STARTED(Ialltoallv, (MPI_IN_PLACE, NULL, NULL, MPI_DATATYPE_NULL, got, large, far, MPI_DOUBLE, world, &own),
		(MPI_IN_PLACE, NULL, NULL, MPI_DATATYPE_NULL, expected, counts, places, MPI_DOUBLE, world, &other));
	STARTED(Ialltoallw, (send, large, far_bytes, kinds, got, large, far_bytes, kinds, world, &own),
		(send, counts, bytes, kinds, expected, counts, bytes, kinds, world, &other));
	STARTED(Ireduce_scatter, (send, got, same_c, MPI_DOUBLE, MPI_SUM, world, &own),
		(send, expected, same, MPI_DOUBLE, MPI_SUM, world, &other));
	STARTED(Ireduce_scatter_block, (send, got, 3, MPI_DOUBLE, MPI_SUM, world, &own),
		(send, expected, 3, MPI_DOUBLE, MPI_SUM, world, &other));
	STARTED(Iscan, (send, got, 9, MPI_DOUBLE, MPI_SUM, world, &own),
		(send, expected, 9, MPI_DOUBLE, MPI_SUM, world, &other));
	STARTED(Iexscan, (send, got, 9, MPI_DOUBLE, MPI_SUM, world, &own),
		(send, expected, 9, MPI_DOUBLE, MPI_SUM, world, &other));
	STARTED(Ineighbor_allgather, (send, 3, MPI_DOUBLE, got, 3, MPI_DOUBLE, ring, &own),
		(send, 3, MPI_DOUBLE, expected, 3, MPI_DOUBLE, ring, &other));
	STARTED(Ineighbor_allgatherv, (send, 3, MPI_DOUBLE, got, three_c, far, MPI_DOUBLE, ring, &own),
		(send, 3, MPI_DOUBLE, expected, three, places, MPI_DOUBLE, ring, &other));
	STARTED(Ineighbor_alltoall, (send, 3, MPI_DOUBLE, got, 3, MPI_DOUBLE, ring, &own),
		(send, 3, MPI_DOUBLE, expected, 3, MPI_DOUBLE, ring, &other));
	STARTED(Ineighbor_alltoallv, (send, three_c, far, MPI_DOUBLE, got, three_c, far, MPI_DOUBLE, ring, &own),
		(send, three, places, MPI_DOUBLE, expected, three, places, MPI_DOUBLE, ring, &other));
	STARTED(Ineighbor_alltoallw, (send, three_c, far_bytes, kinds, got, three_c, far_bytes, kinds, ring, &own),
		(send, three, far_bytes, kinds, expected, three, far_bytes, kinds, ring, &other));

	PERSISTENT(Alltoallv_init, (send, large, far, MPI_DOUBLE, got, large, far, MPI_DOUBLE, world, MPI_INFO_NULL, &own),
		   PMPI_Alltoallv(send, counts, places, MPI_DOUBLE, expected, counts, places, MPI_DOUBLE, world));
	PERSISTENT(Neighbor_alltoallw_init,
		   (send, three_c, far_bytes, kinds, got, three_c, far_bytes, kinds, ring, MPI_INFO_NULL, &own),
		   PMPI_Neighbor_alltoallw(send, three, far_bytes, kinds, expected, three, far_bytes, kinds, ring));

	/* What no `int` counts is an error where only `int`s can be handed on. */
	if (argc > 1 && dlsym(RTLD_DEFAULT, "PMPI_Scan_c"))
		printf("rank %d: the library has them\n", rank);
	else if (argc > 1) {
		MPI_Request none;
		same_c[0] = (MPI_Count)1 << 33;
		int first = MPI_Scan_c(send, got, same_c[0], MPI_DOUBLE, MPI_SUM, world);
		int second = MPI_Iallgatherv_c(send, mine, MPI_DOUBLE, got, same_c, far, MPI_DOUBLE, world, &none);
		printf("rank %d: too many: %s\n", rank, first && second ? "refused" : "not refused");
	}
	MPI_Comm_free(&ring);
	printf("rank %d: %d failed\n", rank, failed);
	MPI_Finalize();
	return 0;
}
