// SPDX-License-Identifier: MIT OR Apache-2.0

/* Random collectives; prints a checksum of every buffer after every call. Two runs with the same
 * arguments print the same, with libcopy_mpi.so and without it.
 *
 * usage: differential ROUNDS SEED MOST [OP]     MOST: bytes of the largest message of one rank
 *                                               OP: only this operation
 *
 * With -DLARGE, the functions for large counts of MPI 4 are called, even if the library has none.
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "random.h"

#ifdef LARGE
typedef MPI_Count number;
typedef MPI_Aint distance;
#define CALL(function) function##_c
#if MPI_VERSION < 4
#define WEAK __attribute__((weak)) int
typedef const number *numbers;
typedef const distance *distances;
typedef const MPI_Datatype *types;
WEAK MPI_Bcast_c(void *, number, MPI_Datatype, int, MPI_Comm);
WEAK MPI_Gather_c(const void *, number, MPI_Datatype, void *, number, MPI_Datatype, int, MPI_Comm);
WEAK MPI_Scatter_c(const void *, number, MPI_Datatype, void *, number, MPI_Datatype, int, MPI_Comm);
WEAK MPI_Allgather_c(const void *, number, MPI_Datatype, void *, number, MPI_Datatype, MPI_Comm);
WEAK MPI_Alltoall_c(const void *, number, MPI_Datatype, void *, number, MPI_Datatype, MPI_Comm);
WEAK MPI_Gatherv_c(const void *, number, MPI_Datatype, void *, numbers, distances, MPI_Datatype,
		   int, MPI_Comm);
WEAK MPI_Scatterv_c(const void *, numbers, distances, MPI_Datatype, void *, number, MPI_Datatype,
		    int, MPI_Comm);
WEAK MPI_Allgatherv_c(const void *, number, MPI_Datatype, void *, numbers, distances, MPI_Datatype,
		      MPI_Comm);
WEAK MPI_Alltoallv_c(const void *, numbers, distances, MPI_Datatype, void *, numbers, distances,
		     MPI_Datatype, MPI_Comm);
WEAK MPI_Alltoallw_c(const void *, numbers, distances, types, void *, numbers, distances, types,
		     MPI_Comm);
WEAK MPI_Reduce_c(const void *, void *, number, MPI_Datatype, MPI_Op, int, MPI_Comm);
WEAK MPI_Allreduce_c(const void *, void *, number, MPI_Datatype, MPI_Op, MPI_Comm);
WEAK MPI_Reduce_scatter_c(const void *, void *, numbers, MPI_Datatype, MPI_Op, MPI_Comm);
WEAK MPI_Reduce_scatter_block_c(const void *, void *, number, MPI_Datatype, MPI_Op, MPI_Comm);
WEAK MPI_Scan_c(const void *, void *, number, MPI_Datatype, MPI_Op, MPI_Comm);
WEAK MPI_Exscan_c(const void *, void *, number, MPI_Datatype, MPI_Op, MPI_Comm);
#define MPI_Type_vector_c MPI_Type_vector
#endif
#else
typedef int number;
typedef int distance;
#define CALL(function) function
#endif

/* A datatype of some doubles; all ranks know how many, each chooses its own shape. */
static MPI_Datatype shape(int doubles, int kind, int *count)
{
	MPI_Datatype type;
	*count = 1;
	switch (kind) {
	case 0:
		*count = doubles;
		MPI_Type_dup(MPI_DOUBLE, &type);
		break;
	case 1:
		CALL(MPI_Type_vector)(doubles, 1, 2, MPI_DOUBLE, &type);
		break;
	case 2: {
		/* The last ones first. */
		int *places = malloc(sizeof(int) * doubles);
		for (int i = 0; i < doubles; i++)
			places[i] = doubles - 1 - i;
		MPI_Type_create_indexed_block(doubles, 1, places, MPI_DOUBLE, &type);
		free(places);
		break;
	}
	default: {
		MPI_Datatype block;
		MPI_Type_contiguous(doubles, MPI_DOUBLE, &block);
		MPI_Type_create_resized(block, 0, (doubles + 3) * sizeof(double), &type);
		MPI_Type_free(&block);
	}
	}
	MPI_Type_commit(&type);
	return type;
}

/* Elements of four doubles; each rank chooses its own shape. */
enum { UNIT = 4 };

/* The doubles of a part that rank `from` has for rank `to`; a quarter of them are empty. */
static int part(uint64_t round, int from, int to, uint64_t most)
{
	uint64_t x = (round * 131 + from * 31 + to + 1) * 0x9e3779b97f4a7c15u;
	x ^= x >> 29;
	x *= 0xbf58476d1ce4e5b9u;
	x ^= x >> 32;
	return x % 4 == 0 ? 0 : (int)(UNIT * (x / 4 % (most / 8 / UNIT + 1)));
}

/* Where parts are, in no order and with gaps: each rank chooses its own. */
static void place(int n, const number *counts, distance *places)
{
	distance start = next(3), first = next(n);
	for (int i = 0; i < n; i++) {
		int rank = (first + i) % n;
		places[rank] = start;
		start += counts[rank] + next(3);
	}
}

/* A random type and predefined operation that do not round, whatever the order. */
static const struct {
	MPI_Datatype type;
	int bytes, shape;
	MPI_Op op;
} reductions[] = {
	{ MPI_UINT64_T, 8, 0, MPI_SUM }, { MPI_INT, 4, 0, MPI_MAX },
	{ MPI_DOUBLE, 8, 1, MPI_SUM },	 { MPI_DOUBLE, 8, 1, MPI_MIN },
	{ MPI_2INT, 8, 0, MPI_MAXLOC },	 { MPI_BYTE, 1, 0, MPI_BXOR },
	{ MPI_FLOAT, 4, 2, MPI_PROD },	 { MPI_UNSIGNED_SHORT, 2, 0, MPI_BOR },
	{ MPI_INT, 4, 0, MPI_LAND },
};

/* The user's own operation, which is not commutative: the first rank's elements win. */
static void first_wins(void *in, void *inout, int *length, MPI_Datatype *type)
{
	(void)type;
	memcpy(inout, in, 8 * (size_t)*length);
}

static const char *const names[] = { "bcast",	  "gather",    "scatter",   "allgather",
				     "gatherv",	  "scatterv",  "allgatherv", "alltoall",
				     "alltoallv", "alltoallw", "reduce",    "allreduce",
				     "reduce_scatter", "reduce_scatter_block", "scan", "exscan", "user_allreduce" };
enum { OPS = sizeof(names) / sizeof(names[0]), MOST_RANKS = 64 };

int main(int argc, char **argv)
{
	int rank, size;
	MPI_Init(&argc, &argv);
	if (argc != 4 && argc != 5) {
		fprintf(stderr, "usage: differential ROUNDS SEED MOST [OP]\n");
		MPI_Abort(MPI_COMM_WORLD, 2);
	}
	int rounds = atoi(argv[1]);
	uint64_t seed = strtoull(argv[2], NULL, 10), most = strtoull(argv[3], NULL, 10);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &size);
	if (size > MOST_RANKS)
		MPI_Abort(MPI_COMM_WORLD, 2);
	/* One half of the ranks, all in two other orders, and one rank alone. */
	MPI_Comm comms[5] = { MPI_COMM_WORLD };
	MPI_Comm_split(MPI_COMM_WORLD, rank % 2, rank, &comms[1]);
	MPI_Comm_split(MPI_COMM_WORLD, 0, -rank, &comms[2]);
	MPI_Comm_dup(MPI_COMM_SELF, &comms[3]);
	MPI_Comm_split(MPI_COMM_WORLD, 0, rank * 5 % 8, &comms[4]);
	MPI_Op own_op;
	MPI_Op_create(first_wins, 0, &own_op);
	size_t room = 2 * (most + 512) * size + 4096;
	unsigned char *send = malloc(room), *recv = malloc(room);
	for (int round = 0; round < rounds; round++) {
		/* What all ranks decide alike. */
		state = seed + 1000003u * (round + 1);
		for (int i = 0; i < 5; i++)
			next(2);
		int which = next(8);
		MPI_Comm comm = comms[which < 5 ? which : 0];
		int me, n;
		MPI_Comm_rank(comm, &me);
		MPI_Comm_size(comm, &n);
		int op = next(OPS);
		for (int i = 0; argc == 5 && i < OPS; i++)
			op = strcmp(argv[4], names[i]) ? op : i;
		int root = next(n), in_place = next(3) == 0;
		uint64_t limit = next(3) ? most : 512;
		int doubles = 1 + next(limit / 8);
		int derived = next(2), chosen = next(sizeof(reductions) / sizeof(reductions[0]));
		int alike = next(4);
		/* MPICH 4.0 follows MPI_IN_PLACE as an address where another root than 0 passes
		 * it. */
		if (op == 10 && root != 0)
			in_place = 0;
		if (which == 7 && round % 16 == 0) {
			MPI_Comm_free(&comms[2]);
			MPI_Comm_split(MPI_COMM_WORLD, 0, -rank, &comms[2]);
		}
		/* What each rank decides alone. */
		state += 7919u * (rank + 1);
		for (int i = 0; i < 5; i++)
			next(2);
		int irregular = (op >= 4 && op <= 6) || op == 8 || op == 9;
		int unit = irregular ? UNIT : doubles;
		int send_count, recv_count;
		MPI_Datatype out = shape(unit, derived ? (int)next(4) : 0, &send_count);
		MPI_Datatype in = shape(unit, derived ? (int)next(4) : 0, &recv_count);
		if (op == 6) {
			/* Open MPI 4.1 hangs where ranks count an allgatherv in different types. */
			MPI_Type_free(&out);
			MPI_Type_free(&in);
			out = shape(unit, derived ? alike : 0, &send_count);
			in = shape(unit, derived ? alike : 0, &recv_count);
		}
		number send_each[MOST_RANKS], recv_each[MOST_RANKS];
		distance send_at[MOST_RANKS], recv_at[MOST_RANKS];
		MPI_Datatype send_types[MOST_RANKS], recv_types[MOST_RANKS];
		/* Elements of a part: of one double, or of four. */
		int send_unit = UNIT / send_count, recv_unit = UNIT / recv_count, own_send = 0,
		    own_recv = 0;
		if (irregular) {
			int two_sided = op >= 8;
			for (int i = 0; i < n; i++) {
				uint64_t third = two_sided ? limit / n : limit;
				int to = part(round, two_sided ? me : 0, i, third);
				int from = part(round, two_sided ? i : 0, two_sided ? me : i, third);
				send_each[i] = to / send_unit;
				recv_each[i] = from / recv_unit;
				if (i == me) {
					own_send = to / send_unit;
					own_recv = from / recv_unit;
				}
				send_types[i] = out;
				recv_types[i] = in;
			}
			place(n, send_each, send_at);
			place(n, recv_each, recv_at);
			if (op == 9) {
				MPI_Aint lower, extent;
				MPI_Type_get_extent(out, &lower, &extent);
				for (int i = 0; i < n; i++)
					send_at[i] *= (int)extent;
				MPI_Type_get_extent(in, &lower, &extent);
				for (int i = 0; i < n; i++)
					recv_at[i] *= (int)extent;
			}
		}
		for (size_t i = 0; i + 8 <= room; i += 8) {
			uint64_t word = (i + 1) * 0x9e3779b97f4a7c15u + round * 31 + rank;
			if (op >= 10 && op < 16 && reductions[chosen].shape == 1) {
				double small = (double)(word >> 52);
				memcpy(&word, &small, 8);
			} else if (op >= 10 && op < 16 && reductions[chosen].shape == 2) {
				float small[2] = { 1 + (word >> 63), 1 + (word >> 62 & 1) };
				memcpy(&word, small, 8);
			}
			memcpy(send + i, &word, 8);
			if (op < 10 || op == 16 || !in_place)
				word = ~word;
			memcpy(recv + i, &word, 8);
		}
		void *from = in_place ? MPI_IN_PLACE : (void *)send;
		MPI_Datatype type = reductions[chosen].type;
		int count = doubles * 8 / reductions[chosen].bytes;
		int code;
		switch (op) {
		case 0:
			code = CALL(MPI_Bcast)(recv, recv_count, in, root, comm);
			break;
		case 1:
			code = CALL(MPI_Gather)(me == root ? from : send, send_count, out, recv,
					  recv_count, in, root, comm);
			break;
		case 2:
			code = CALL(MPI_Scatter)(send, send_count, out,
					   me == root && in_place ? MPI_IN_PLACE : recv,
					   recv_count, in, root, comm);
			break;
		case 3:
			code = CALL(MPI_Allgather)(from, send_count, out, recv, recv_count, in, comm);
			break;
		case 4:
			code = CALL(MPI_Gatherv)(me == root ? from : send, own_send, out, recv,
					   me == root ? recv_each : NULL,
					   me == root ? recv_at : NULL, in, root, comm);
			break;
		case 5:
			code = CALL(MPI_Scatterv)(send, me == root ? send_each : NULL,
					    me == root ? send_at : NULL, out,
					    me == root && in_place ? MPI_IN_PLACE : recv, own_recv,
					    in, root, comm);
			break;
		case 6:
			code = CALL(MPI_Allgatherv)(from, own_send, out, recv, recv_each, recv_at, in,
					      comm);
			break;
		case 7:
			/* As many for each as fit. */
			MPI_Type_free(&out);
			MPI_Type_free(&in);
			doubles = 1 + doubles / n;
			out = shape(doubles, derived ? (int)next(4) : 0, &send_count);
			in = shape(doubles, derived ? (int)next(4) : 0, &recv_count);
			code = CALL(MPI_Alltoall)(from, send_count, out, recv, recv_count, in, comm);
			break;
		case 8:
			/* In place, both sides are as long. */
			if (in_place)
				for (int i = 0; i < n; i++)
					recv_each[i] = part(round, me < i ? me : i, me < i ? i : me,
							    limit / n) / recv_unit;
			place(n, recv_each, recv_at);
			code = CALL(MPI_Alltoallv)(from, send_each, send_at, out, recv, recv_each,
					     recv_at, in, comm);
			break;
		case 9:
			code = CALL(MPI_Alltoallw)(send, send_each, send_at, send_types, recv, recv_each,
					     recv_at, recv_types, comm);
			break;
		case 10:
			code = CALL(MPI_Reduce)(me == root ? from : send, recv, count, type,
					  reductions[chosen].op, root, comm);
			break;
		case 11:
			code = CALL(MPI_Allreduce)(from, recv, count, type, reductions[chosen].op, comm);
			break;
		case 12:
			for (int i = 0; i < n; i++)
				recv_each[i] = part(round, 0, i, limit / n) * 8 /
					       reductions[chosen].bytes;
			code = CALL(MPI_Reduce_scatter)(from, recv, recv_each, type,
						  reductions[chosen].op, comm);
			break;
		case 13:
			code = CALL(MPI_Reduce_scatter_block)(from, recv, count / n, type,
							reductions[chosen].op, comm);
			break;
		case 14:
			code = CALL(MPI_Scan)(from, recv, count, type, reductions[chosen].op, comm);
			break;
		case 15:
			code = CALL(MPI_Exscan)(from, recv, count, type, reductions[chosen].op, comm);
			/* What the first rank receives is anything. */
			for (size_t i = 0; me == 0 && i < room; i++)
				recv[i] = 0;
			break;
		default:
			code = CALL(MPI_Allreduce)(from, recv, doubles, MPI_DOUBLE, own_op, comm);
		}
		if (op == 12 || op == 13)
			/* In place, what is behind the result is anything. */
			for (size_t i = (op == 12 ? (size_t)recv_each[me] : (size_t)(count / n)) *
					reductions[chosen].bytes;
			     in_place && i < room; i++)
				recv[i] = 0;
		uint64_t sums[2] = { hash(send, room), hash(recv, room) };
		uint64_t *all = malloc(sizeof(sums) * size);
		MPI_Gather(sums, 2, MPI_UINT64_T, all, 2, MPI_UINT64_T, 0, MPI_COMM_WORLD);
		if (rank == 0) {
			printf("%d %s bytes %d root %d in place %d code %d:", round, names[op],
			       doubles * 8, root, in_place, code);
			for (int i = 0; i < 2 * size; i++)
				printf(" %016llx", (unsigned long long)all[i]);
			printf("\n");
			fflush(stdout);
		}
		free(all);
		MPI_Type_free(&out);
		MPI_Type_free(&in);
	}
	for (int i = 1; i < 5; i++)
		MPI_Comm_free(&comms[i]);
	MPI_Op_free(&own_op);
	free(send);
	free(recv);
	MPI_Finalize();
	return 0;
}
