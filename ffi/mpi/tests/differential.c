// SPDX-License-Identifier: MIT OR Apache-2.0

/* Random collectives; prints a checksum of every buffer after every call. Two runs with the same
 * arguments print the same, whoever moves the bytes.
 *
 * usage: differential ROUNDS SEED MOST     MOST: bytes of the largest message of one rank
 */
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint64_t state;

static uint64_t next(uint64_t below)
{
	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return (state >> 11) % below;
}

static uint64_t hash(const unsigned char *bytes, size_t length)
{
	uint64_t sum = 14695981039346656037u;
	for (size_t i = 0; i < length; i++)
		sum = (sum ^ bytes[i]) * 1099511628211u;
	return sum;
}

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
		MPI_Type_vector(doubles, 1, 2, MPI_DOUBLE, &type);
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

int main(int argc, char **argv)
{
	int rank, size;
	MPI_Init(&argc, &argv);
	if (argc != 4) {
		fprintf(stderr, "usage: differential ROUNDS SEED MOST\n");
		MPI_Abort(MPI_COMM_WORLD, 2);
	}
	int rounds = atoi(argv[1]);
	uint64_t seed = strtoull(argv[2], NULL, 10), most = strtoull(argv[3], NULL, 10);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &size);
	/* One half of the ranks, all in another order, and one rank alone. */
	MPI_Comm comms[4] = { MPI_COMM_WORLD };
	MPI_Comm_split(MPI_COMM_WORLD, rank % 2, rank, &comms[1]);
	MPI_Comm_split(MPI_COMM_WORLD, 0, -rank, &comms[2]);
	MPI_Comm_dup(MPI_COMM_SELF, &comms[3]);
	size_t room = 2 * (most + 64) * size + 4096;
	unsigned char *send = malloc(room), *recv = malloc(room);
	for (int round = 0; round < rounds; round++) {
		/* What all ranks decide alike. */
		state = seed + 1000003u * (round + 1);
		for (int i = 0; i < 5; i++)
			next(2);
		int which = next(8);
		MPI_Comm comm = comms[which < 4 ? which : 0];
		int me, n;
		MPI_Comm_rank(comm, &me);
		MPI_Comm_size(comm, &n);
		int op = next(4), root = next(n), in_place = next(3) == 0;
		int doubles = 1 + next(next(3) ? most / 8 : 64);
		int derived = next(2);
		if (which == 7 && round % 16 == 0) {
			MPI_Comm_free(&comms[2]);
			MPI_Comm_split(MPI_COMM_WORLD, 0, -rank, &comms[2]);
		}
		/* What each rank decides alone. */
		state += 7919u * (rank + 1);
		for (int i = 0; i < 5; i++)
			next(2);
		int send_count, recv_count;
		MPI_Datatype out = shape(doubles, derived ? (int)next(4) : 0, &send_count);
		MPI_Datatype in = shape(doubles, derived ? (int)next(4) : 0, &recv_count);
		for (size_t i = 0; i + 8 <= room; i += 8) {
			uint64_t word = (i + 1) * 0x9e3779b97f4a7c15u + round * 31 + rank;
			memcpy(send + i, &word, 8);
			word = ~word;
			memcpy(recv + i, &word, 8);
		}
		void *place = in_place ? MPI_IN_PLACE : (void *)send;
		int code;
		switch (op) {
		case 0:
			code = MPI_Bcast(recv, recv_count, in, root, comm);
			break;
		case 1:
			code = MPI_Gather(me == root ? place : send, send_count, out, recv,
					  recv_count, in, root, comm);
			break;
		case 2:
			code = MPI_Scatter(send, send_count, out,
					   me == root && in_place ? MPI_IN_PLACE : recv,
					   recv_count, in, root, comm);
			break;
		default:
			code = MPI_Allgather(place, send_count, out, recv, recv_count, in, comm);
		}
		uint64_t sums[2] = { hash(send, room), hash(recv, room) };
		uint64_t *all = malloc(sizeof(sums) * size);
		MPI_Gather(sums, 2, MPI_UINT64_T, all, 2, MPI_UINT64_T, 0, MPI_COMM_WORLD);
		if (rank == 0) {
			printf("%d op %d bytes %d root %d code %d:", round, op, doubles * 8, root, code);
			for (int i = 0; i < 2 * size; i++)
				printf(" %016llx", (unsigned long long)all[i]);
			printf("\n");
		}
		free(all);
		MPI_Type_free(&out);
		MPI_Type_free(&in);
	}
	for (int i = 1; i < 4; i++)
		MPI_Comm_free(&comms[i]);
	free(send);
	free(recv);
	MPI_Finalize();
	return 0;
}
