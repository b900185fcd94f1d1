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
#define CALL(function) function##_c
#if MPI_VERSION < 4
#define WEAK __attribute__((weak)) int
#define TWO const void *, number, MPI_Datatype, void *, number, MPI_Datatype
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
typedef int number;
#define CALL(function) function
#endif

static const char *const names[] = { "ibcast",	  "igather",  "iscatter",   "iallgather",
				     "ialltoall", "ireduce",  "iallreduce", "ibarrier" };
enum { OPS = 8, DEEP = 6, COMMS = 4 };

/* One that is under way. */
struct pending {
	unsigned char *send, *recv;
	size_t room;
	int op, doubles, root, in_place, n;
};

static int rank, size;

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
			MPI_Comm_rank(comm, &me);
			MPI_Comm_size(comm, &p->n);
			p->op = next(OPS);
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
			if (p->op == 4) {
				p->doubles = 1 + p->doubles / p->n;
				p->in_place = 0;
			}
			/* MPICH 4.0 follows MPI_IN_PLACE as an address where another root than 0
			 * passes it. */
			if (p->op == 5 && p->root != 0)
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
			case 0:
				CALL(MPI_Ibcast)(p->recv, in_count, in, p->root, comm, r);
				break;
			case 1:
				CALL(MPI_Igather)(is_root ? s : p->send, out_count, out, p->recv,
						  in_count, in, p->root, comm, r);
				break;
			case 2:
				CALL(MPI_Iscatter)(p->send, out_count, out,
						   is_root && p->in_place ? MPI_IN_PLACE : p->recv,
						   in_count, in, p->root, comm, r);
				break;
			case 3:
				CALL(MPI_Iallgather)(s, out_count, out, p->recv, in_count, in, comm,
						     r);
				break;
			case 4:
				CALL(MPI_Ialltoall)(s, out_count, out, p->recv, in_count, in, comm,
						    r);
				break;
			case 5:
				CALL(MPI_Ireduce)(is_root ? s : p->send, p->recv, p->doubles,
						  MPI_DOUBLE, p->root % 2 ? MPI_SUM : MPI_MAX,
						  p->root, comm, r);
				break;
			case 6:
				CALL(MPI_Iallreduce)(s, p->recv, p->doubles, MPI_DOUBLE,
						     p->in_place ? MPI_MIN : MPI_SUM, comm, r);
				break;
			default:
				MPI_Ibarrier(comm, r);
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
