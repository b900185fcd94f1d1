// SPDX-License-Identifier: MIT OR Apache-2.0

/* Random nonblocking collectives on several communicators, several under way at once, between
 * messages and blocking collectives, completed by all functions in any order; prints a checksum of
 * every buffer. Two runs with the same arguments print the same, with libcopy_mpi.so and without
 * it.
 *
 * usage: nonblocking ROUNDS SEED MOST     MOST: bytes of the largest message of one rank
 *
 * With -DLARGE, the functions for large counts of MPI 4 are called, even if the library has none.
 */
#include <time.h>

#include "completion.h"

#ifdef LARGE
typedef MPI_Count number;
typedef MPI_Aint distance;
#define CALL(function) function##_c
#if MPI_VERSION < 4
#define WEAK __attribute__((weak)) int
#define TWO const void *, number, MPI_Datatype, void *, number, MPI_Datatype
#define MANY(constant) constant void *, const number *, const distance *, MPI_Datatype
#define TYPED(constant, place) \
	constant void *, const number *, const place *, const MPI_Datatype *
#define COMBINED const void *, void *, number, MPI_Datatype, MPI_Op, MPI_Comm, MPI_Request *
#define ONE const void *, number, MPI_Datatype
WEAK MPI_Igatherv_c(ONE, MANY(), int, MPI_Comm, MPI_Request *);
WEAK MPI_Iscatterv_c(MANY(const), void *, number, MPI_Datatype, int, MPI_Comm, MPI_Request *);
WEAK MPI_Iallgatherv_c(ONE, MANY(), MPI_Comm, MPI_Request *);
WEAK MPI_Ialltoallv_c(MANY(const), MANY(), MPI_Comm, MPI_Request *);
WEAK MPI_Ialltoallw_c(TYPED(const, distance), TYPED(, distance), MPI_Comm, MPI_Request *);
WEAK MPI_Ireduce_scatter_c(const void *, void *, const number *, MPI_Datatype, MPI_Op, MPI_Comm,
			   MPI_Request *);
WEAK MPI_Ireduce_scatter_block_c(COMBINED);
WEAK MPI_Iscan_c(COMBINED);
WEAK MPI_Iexscan_c(COMBINED);
WEAK MPI_Ineighbor_allgather_c(TWO, MPI_Comm, MPI_Request *);
WEAK MPI_Ineighbor_allgatherv_c(ONE, MANY(), MPI_Comm, MPI_Request *);
WEAK MPI_Ineighbor_alltoall_c(TWO, MPI_Comm, MPI_Request *);
WEAK MPI_Ineighbor_alltoallv_c(MANY(const), MANY(), MPI_Comm, MPI_Request *);
WEAK MPI_Ineighbor_alltoallw_c(TYPED(const, MPI_Aint), TYPED(, MPI_Aint), MPI_Comm,
			       MPI_Request *);
WEAK MPI_Ibcast_c(void *, number, MPI_Datatype, int, MPI_Comm, MPI_Request *);
WEAK MPI_Igather_c(TWO, int, MPI_Comm, MPI_Request *);
WEAK MPI_Iscatter_c(TWO, int, MPI_Comm, MPI_Request *);
WEAK MPI_Iallgather_c(TWO, MPI_Comm, MPI_Request *);
WEAK MPI_Ialltoall_c(TWO, MPI_Comm, MPI_Request *);
WEAK MPI_Ireduce_c(const void *, void *, number, MPI_Datatype, MPI_Op, int, MPI_Comm,
		   MPI_Request *);
WEAK MPI_Iallreduce_c(const void *, void *, number, MPI_Datatype, MPI_Op, MPI_Comm, MPI_Request *);
#endif
#else
typedef int number, distance;
#define CALL(function) function
#endif

enum op {
	BCAST, GATHER, SCATTER, ALLGATHER, ALLTOALL, REDUCE, ALLREDUCE, BARRIER,
	GATHERV, SCATTERV, ALLGATHERV, ALLTOALLV, ALLTOALLW,
	REDUCE_SCATTER, REDUCE_SCATTER_BLOCK, SCAN, EXSCAN,
	NEIGHBOR_ALLGATHER, NEIGHBOR_ALLGATHERV, NEIGHBOR_ALLTOALL, NEIGHBOR_ALLTOALLV,
	NEIGHBOR_ALLTOALLW, OPS
};
static const char *const names[OPS] = {
	"ibcast", "igather", "iscatter", "iallgather", "ialltoall", "ireduce", "iallreduce",
	"ibarrier", "igatherv", "iscatterv", "iallgatherv", "ialltoallv", "ialltoallw",
	"ireduce_scatter", "ireduce_scatter_block", "iscan", "iexscan", "ineighbor_allgather",
	"ineighbor_allgatherv", "ineighbor_alltoall", "ineighbor_alltoallv",
	"ineighbor_alltoallw"
};
/* The last communicator has neighbours, the one before is a copy of all. */
enum { DEEP = 6, COMMS = 5, RING = 4 };

/* One that is under way. */
struct pending {
	unsigned char *send, *recv;
	size_t room;
	enum op op;
	int doubles, root, in_place, n, me;
	/* Parts of different lengths. */
	number sent[MOST_RANKS], received[MOST_RANKS];
	distance sent_at[MOST_RANKS], received_at[MOST_RANKS];
	MPI_Aint sent_bytes[MOST_RANKS], received_bytes[MOST_RANKS];
	MPI_Datatype out[MOST_RANKS], in[MOST_RANKS];
};

static int rank, size;

/* Doubles from one rank to another, some of them none. */
static int part(int doubles, int from, int to)
{
	return doubles * ((3 * from + 5 * to) % 4) / 3;
}

/* Begins one whose parts differ in length, of elements of these two types, each a double. */
static void begin_irregular(struct pending *p, int me, MPI_Datatype out, MPI_Datatype in,
			    MPI_Comm comm, MPI_Request *r)
{
	int n = p->n, is_root = me == p->root, is_ring = p->op >= NEIGHBOR_ALLGATHER;
	int peers = n, next = (me + 1) % n, last = (me + n - 1) % n;
	int to[MOST_RANKS], from[MOST_RANKS];
	void *s = p->in_place ? MPI_IN_PLACE : (void *)p->send;
	/* What one sends to all is the same. */
	int is_alike = p->op == GATHERV || p->op == ALLGATHERV || p->op == NEIGHBOR_ALLGATHER ||
		       p->op == NEIGHBOR_ALLGATHERV;
	int is_equal = p->op == NEIGHBOR_ALLGATHER || p->op == NEIGHBOR_ALLTOALL;
	/* A rank that has nothing to do with an exchange may give one address for both buffers. */
	int is_idle = (p->op == ALLTOALLV || p->op == ALLTOALLW) && p->doubles % 2;
#ifdef OPEN_MPI
	/* Open MPI 4.1 takes that for an exchange in place, and hangs. */
	is_idle = 0;
#endif
	unsigned char *send = is_idle && is_root ? p->recv : p->send;
	MPI_Aint lower, out_extent, in_extent;

	for (int i = 0; i < n; i++)
		to[i] = from[i] = i;
	if (is_ring) {
		peers = n > 2 ? 2 : 1;
		to[0] = next, to[1] = last;
		from[0] = last, from[1] = next;
	}
	MPI_Type_get_extent(out, &lower, &out_extent);
	MPI_Type_get_extent(in, &lower, &in_extent);
	for (int i = 0; i < peers; i++) {
		int column = is_alike ? 0 : to[i];
		p->sent[i] = is_equal ? p->doubles : part(p->doubles, me, column);
		p->received[i] = is_equal ? p->doubles : part(p->doubles, from[i], is_alike ? 0 : me);
		if (p->op == REDUCE_SCATTER)
			p->received[i] = part(p->doubles, i, 0);
		if (is_idle && (is_root || i == p->root))
			p->sent[i] = p->received[i] = 0;
		p->sent_at[i] = is_alike ? 0 : i * p->doubles;
		p->received_at[i] = (peers - 1 - i) * p->doubles;
		p->sent_bytes[i] = p->sent_at[i] * out_extent;
		p->received_bytes[i] = p->received_at[i] * in_extent;
		p->out[i] = out, p->in[i] = in;
	}
	number own = part(p->doubles, me, 0);
	if (p->op == SCATTERV)
		own = part(p->doubles, p->root, me);
	distance sent_bytes[MOST_RANKS], received_bytes[MOST_RANKS];
	for (int i = 0; i < peers; i++)
		sent_bytes[i] = p->sent_bytes[i], received_bytes[i] = p->received_bytes[i];
	switch (p->op) {
	case GATHERV:
		CALL(MPI_Igatherv)(is_root ? s : p->send, own, out, p->recv, p->received,
				   p->received_at, in, p->root, comm, r);
		break;
	case SCATTERV:
		CALL(MPI_Iscatterv)(p->send, p->sent, p->sent_at, out,
				    is_root && p->in_place ? MPI_IN_PLACE : p->recv, own, in,
				    p->root, comm, r);
		break;
	case ALLGATHERV:
		CALL(MPI_Iallgatherv)(s, own, out, p->recv, p->received, p->received_at, in, comm,
				      r);
		break;
	case ALLTOALLV:
		CALL(MPI_Ialltoallv)(send, p->sent, p->sent_at, out, p->recv, p->received,
				     p->received_at, in, comm, r);
		break;
	case ALLTOALLW:
		memcpy(p->sent_at, sent_bytes, sizeof sent_bytes);
		memcpy(p->received_at, received_bytes, sizeof received_bytes);
		CALL(MPI_Ialltoallw)(send, p->sent, p->sent_at, p->out, p->recv, p->received,
				     p->received_at, p->in, comm, r);
		break;
	case REDUCE_SCATTER:
		CALL(MPI_Ireduce_scatter)(s, p->recv, p->received, MPI_DOUBLE, MPI_SUM, comm, r);
		break;
	case REDUCE_SCATTER_BLOCK:
		CALL(MPI_Ireduce_scatter_block)(s, p->recv, p->doubles, MPI_DOUBLE, MPI_MAX, comm,
						r);
		break;
	case SCAN:
		CALL(MPI_Iscan)(s, p->recv, p->doubles, MPI_DOUBLE, MPI_SUM, comm, r);
		break;
	case EXSCAN:
		CALL(MPI_Iexscan)(s, p->recv, p->doubles, MPI_DOUBLE, MPI_SUM, comm, r);
		break;
	case NEIGHBOR_ALLGATHER:
		CALL(MPI_Ineighbor_allgather)(p->send, p->doubles, out, p->recv, p->doubles, in,
					      comm, r);
		break;
	case NEIGHBOR_ALLGATHERV:
		CALL(MPI_Ineighbor_allgatherv)(p->send, own, out, p->recv, p->received,
					       p->received_at, in, comm, r);
		break;
	case NEIGHBOR_ALLTOALL:
		CALL(MPI_Ineighbor_alltoall)(p->send, p->doubles, out, p->recv, p->doubles, in,
					     comm, r);
		break;
	case NEIGHBOR_ALLTOALLV:
		CALL(MPI_Ineighbor_alltoallv)(p->send, p->sent, p->sent_at, out, p->recv,
					      p->received, p->received_at, in, comm, r);
		break;
	default:
		CALL(MPI_Ineighbor_alltoallw)(p->send, p->sent, p->sent_bytes, p->out, p->recv,
					      p->received, p->received_bytes, p->in, comm, r);
	}
}

/* All ranks, each with the next and the one before as neighbours. */
static void ring(MPI_Comm *comm)
{
	int next = (rank + 1) % size, last = (rank + size - 1) % size;
	int to[2] = { next, last }, from[2] = { last, next }, n = size > 2 ? 2 : 1;
	/* Compilers take its address for an array without elements. */
	int *volatile none = MPI_UNWEIGHTED;
	MPI_Dist_graph_create_adjacent(MPI_COMM_WORLD, n, from, none, n, to, none, MPI_INFO_NULL,
				       0, comm);
}

int main(int argc, char **argv)
{
	MPI_Init(&argc, &argv);
	if (argc != 4) {
		fprintf(stderr, "usage: nonblocking ROUNDS SEED MOST\n");
		MPI_Abort(MPI_COMM_WORLD, 2);
	}
	int rounds = atoi(argv[1]);
	uint64_t seed = strtoull(argv[2], NULL, 10), most = strtoull(argv[3], NULL, 10);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &size);
	if (size > MOST_RANKS)
		MPI_Abort(MPI_COMM_WORLD, 2);
	MPI_Comm comms[COMMS];
	communicators(comms, rank % 2);
	MPI_Comm_dup(MPI_COMM_WORLD, &comms[3]);
	ring(&comms[RING]);
	int token = 0;
	for (int round = 0; round < rounds; round++) {
		/* What all ranks decide alike. */
		state = seed + 1000003u * (round + 1);
		for (int i = 0; i < 5; i++)
			next(2);
		int deep = 1 + next(DEEP), messages = next(2), late = next(4);
		struct pending all[DEEP];
		MPI_Request requests[DEEP + 2];
		int count = 0, sent[8], got[8];
		if (round % 8 == 7) {
			MPI_Comm_free(&comms[2]);
			MPI_Comm_split(MPI_COMM_WORLD, 0, -rank, &comms[2]);
		}
		/* A message that is under way meanwhile. */
		if (messages) {
			for (int i = 0; i < 8; i++)
				sent[i] = rank * 100 + round + i;
			MPI_Irecv(got, 8, MPI_INT, (rank + 1) % size, 7, MPI_COMM_WORLD,
				  &requests[count++]);
			MPI_Isend(sent, 8, MPI_INT, (rank + size - 1) % size, 7, MPI_COMM_WORLD,
				  &requests[count++]);
		}
		/* A rank that comes late, and waits for one that does not wait for it but for its
		 * own part. */
		if (late == 0 && size > 1 && rank == size - 1)
			MPI_Recv(&token, 1, MPI_INT, 0, 9, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
		for (int k = 0; k < deep; k++) {
			struct pending *p = &all[k];
			MPI_Comm comm = comms[next(COMMS)];
			int me;
			p->op = next(OPS);
			if (p->op >= NEIGHBOR_ALLGATHER)
				comm = comms[RING];
			MPI_Comm_rank(comm, &me);
			MPI_Comm_size(comm, &p->n);
			p->me = me;
			/* Mixed with blocking ones on the same communicator, in which ranks may
			 * meet. */
			int blocking = next(6), kinds[2] = { next(2) ? (int)next(3) : 0, 0 };
			p->root = next(p->n);
			p->in_place = next(3) == 0;
			uint64_t limit = next(4) ? most : 512;
			p->doubles = 1 + next(limit / 8);
			/* Each chooses its own shape. */
			kinds[0] = (kinds[0] + me) % 3;
			kinds[1] = (kinds[0] + 1 + me) % 3;
			if (p->op == ALLTOALL || p->op == ALLTOALLV || p->op == ALLTOALLW ||
			    p->op == REDUCE_SCATTER_BLOCK || p->op >= NEIGHBOR_ALLGATHER)
				p->doubles = 1 + p->doubles / p->n;
			if (p->op == ALLTOALL || p->op == ALLTOALLV || p->op == ALLTOALLW ||
			    p->op >= NEIGHBOR_ALLGATHER)
				p->in_place = 0;
			/* MPICH 4.0 follows MPI_IN_PLACE as an address where another root than 0
			 * passes it. */
			if (p->op == REDUCE && p->root != 0)
				p->in_place = 0;
			p->room = (2 * 8 * (size_t)p->doubles + 64) * (p->n + 1);
			p->send = malloc(p->room);
			p->recv = malloc(p->room);
			for (size_t i = 0; i + 8 <= p->room; i += 8) {
				double value = (double)((i * 31 + round * 7 + rank * 3 + k) % 1001);
				memcpy(p->send + i, &value, 8);
				memcpy(p->recv + i, &value, 8);
			}
			memset(p->send + p->room / 8 * 8, 0, p->room % 8);
			memset(p->recv + p->room / 8 * 8, 0, p->room % 8);
			int out_count, in_count;
			MPI_Datatype out = doubles_of(p->doubles, kinds[0], &out_count);
			MPI_Datatype in = doubles_of(p->doubles, kinds[1], &in_count);
			void *s = p->in_place ? MPI_IN_PLACE : (void *)p->send;
			int is_root = me == p->root;
			MPI_Request *r = &requests[count++];
			switch (p->op) {
			case BCAST:
				CALL(MPI_Ibcast)(p->recv, in_count, in, p->root, comm, r);
				break;
			case GATHER:
				CALL(MPI_Igather)(is_root ? s : p->send, out_count, out, p->recv,
						  in_count, in, p->root, comm, r);
				break;
			case SCATTER:
				CALL(MPI_Iscatter)(p->send, out_count, out,
						   is_root && p->in_place ? MPI_IN_PLACE : p->recv,
						   in_count, in, p->root, comm, r);
				break;
			case ALLGATHER:
				CALL(MPI_Iallgather)(s, out_count, out, p->recv, in_count, in, comm,
						     r);
				break;
			case ALLTOALL:
				CALL(MPI_Ialltoall)(s, out_count, out, p->recv, in_count, in, comm,
						    r);
				break;
			case REDUCE:
				CALL(MPI_Ireduce)(is_root ? s : p->send, p->recv, p->doubles,
						  MPI_DOUBLE, p->root % 2 ? MPI_SUM : MPI_MAX,
						  p->root, comm, r);
				break;
			case ALLREDUCE:
				CALL(MPI_Iallreduce)(s, p->recv, p->doubles, MPI_DOUBLE,
						     p->in_place ? MPI_MIN : MPI_SUM, comm, r);
				break;
			case BARRIER:
				MPI_Ibarrier(comm, r);
				break;
			default:
				MPI_Type_free(&out);
				MPI_Type_free(&in);
				/* MPICH 4.0 hangs where ranks count it in different types. */
				if (p->op == ALLGATHERV)
					kinds[0] = kinds[1] = p->root % 2;
				out = doubles_of(1, kinds[0] ? SPACED : DENSE, &out_count);
				in = doubles_of(1, kinds[1] ? SPACED : DENSE, &in_count);
				begin_irregular(p, me, out, in, comm, r);
			}
			/* A program may free its types while they are in use. */
			MPI_Type_free(&out);
			MPI_Type_free(&in);
			if (late == 0)
				continue;
			if (blocking == 0)
				MPI_Barrier(comm);
			else if (blocking == 1) {
				int one = k;
				MPI_Bcast(&one, 1, MPI_INT, 0, comm);
			}
		}
		if (late == 0 && size > 1 && rank == 0)
			MPI_Send(&token, 1, MPI_INT, size - 1, 9, MPI_COMM_WORLD);
		/* One that waits in a receive for somebody who waits for his collectives first. */
		if (late == 1 && size > 1 && rank == size - 1)
			MPI_Recv(&token, 1, MPI_INT, 0, 9, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
		uint64_t own = (seed + round * 17 + rank * 5) % 8;
		complete(count, requests, count, (int)own);
		for (int i = 0; i < count; i++)
			if (requests[i] != MPI_REQUEST_NULL)
				MPI_Abort(MPI_COMM_WORLD, 5);
		if (late == 1 && size > 1 && rank == 0)
			MPI_Send(&token, 1, MPI_INT, size - 1, 9, MPI_COMM_WORLD);
		if (messages)
			for (int i = 0; i < 8; i++)
				if (got[i] != (rank + 1) % size * 100 + round + i)
					MPI_Abort(MPI_COMM_WORLD, 6);
		for (int k = 0; k < deep; k++) {
			struct pending *p = &all[k];
			/* What was combined in place is nothing behind the result. */
			size_t kept = 8 * (size_t)p->doubles;
			if (p->op == REDUCE_SCATTER)
				kept = 8 * (size_t)p->received[p->me];
			if (p->in_place && (p->op == REDUCE_SCATTER || p->op == REDUCE_SCATTER_BLOCK))
				memset(p->recv + kept, 0, p->room - kept);
			char what[128];
			snprintf(what, sizeof what, "%d.%d %s bytes %d root %d in place %d", round, k, names[all[k].op],
				 8 * all[k].doubles, all[k].root, all[k].in_place);
			print_checksums(what, all[k].send, all[k].recv, all[k].room);
			free(all[k].send);
			free(all[k].recv);
		}
	}
	/* Nobody leaves a barrier before all have come. */
	for (int i = 0; i < 2 * COMMS; i++) {
		struct timespec t, pause = { 0, 3000000L * ((rank + i) % size) };
		int64_t times[2], most_late, least;
		nanosleep(&pause, NULL);
		for (int k = 0; k < 2; k++) {
			clock_gettime(CLOCK_MONOTONIC, &t);
			times[k] = (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
			if (k == 0)
				MPI_Barrier(comms[i % COMMS]);
		}
		MPI_Allreduce(&times[0], &most_late, 1, MPI_INT64_T, MPI_MAX, comms[i % COMMS]);
		MPI_Allreduce(&times[1], &least, 1, MPI_INT64_T, MPI_MIN, comms[i % COMMS]);
		if (most_late > least)
			MPI_Abort(MPI_COMM_WORLD, 8);
	}
	for (int i = 1; i < COMMS; i++)
		MPI_Comm_free(&comms[i]);
	MPI_Finalize();
	return 0;
}
