// SPDX-License-Identifier: MIT OR Apache-2.0

/* Short messages of derived types between two ranks, each several times with the same types, as
 * programs that exchange halos send them; prints what arrived, gaps included, and what the statuses
 * say.
 *
 * usage: short
 */
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "checksum.h"

enum { SPAN = 1 << 17, TIMES = 9, SHAPES = 5 };

static int rank;
static unsigned char *from, *to;

static void fill(unsigned char *data, uint64_t seed)
{
	uint64_t word = seed * 0x9e3779b97f4a7c15u + 1;
	for (size_t i = 0; i < SPAN; i += 8) {
		word = word * 6364136223846793005u + 1442695040888963407u;
		memcpy(data + i, &word, 8);
	}
}

/* `doubles` doubles, laid out in one of several ways. */
static MPI_Datatype shape(int which, int doubles)
{
	MPI_Datatype type, inner;
	if (which == 0) {
		MPI_Type_vector(doubles, 1, 3, MPI_DOUBLE, &type);
	} else if (which == 1) {
		MPI_Type_vector(doubles / 4, 4, 7, MPI_DOUBLE, &type);
	} else if (which == 2) {
		int *places = malloc(doubles * sizeof(int));
		for (int i = 0; i < doubles; i++)
			places[i] = 2 * (doubles - i) + i % 2;
		MPI_Type_create_indexed_block(doubles, 1, places, MPI_DOUBLE, &type);
		free(places);
	} else if (which == 3) {
		int sizes[3] = { 4, 5, doubles / 4 + 1 }, parts[3] = { 2, 2, doubles / 4 },
		    starts[3] = { 1, 2, 0 };
		MPI_Type_create_subarray(3, sizes, parts, starts, MPI_ORDER_C, MPI_DOUBLE, &type);
	} else {
		/* Two pieces, the second one first. */
		int lengths[2] = { doubles / 2, doubles - doubles / 2 };
		MPI_Aint places[2] = { 8 * (doubles + 11), 16 };
		MPI_Datatype types[2] = { MPI_DOUBLE, MPI_DOUBLE };
		MPI_Type_create_struct(2, lengths, places, types, &inner);
		MPI_Type_dup(inner, &type);
		MPI_Type_free(&inner);
	}
	MPI_Type_commit(&type);
	return type;
}

static void show(const char *what, int i, MPI_Datatype type, MPI_Status *status)
{
	int count, elements, bytes;
	MPI_Get_count(status, type, &count);
	MPI_Get_elements(status, type, &elements);
	MPI_Get_count(status, MPI_BYTE, &bytes);
	printf("rank %d %s %d: %016llx count %d elements %d bytes %d source %d tag %d\n", rank, what, i,
	       (unsigned long long)hash(to, SPAN), count == MPI_UNDEFINED ? -1 : count, elements, bytes,
	       status->MPI_SOURCE, status->MPI_TAG);
}

int main(int argc, char **argv)
{
	static const int sizes[] = { 4, 20, 28, 60, 132, 400, 496, 508, 800, 1000, 1200 };
	MPI_Status status;
	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	int peer = 1 - rank;
	from = malloc(SPAN);
	to = malloc(SPAN);
	for (unsigned s = 0; s < sizeof(sizes) / sizeof(*sizes); s++) {
		for (int way = 0; way < SHAPES; way++) {
			MPI_Datatype out = shape((way + rank) % SHAPES, sizes[s]);
			MPI_Datatype in = shape((way + 2 * rank) % SHAPES, sizes[s]);
			for (int i = 0; i < TIMES; i++) {
				fill(from, 1000 * s + 10 * i + rank);
				fill(to, 7);
				if (i % 3 == 2) {
					MPI_Sendrecv(from, 1, out, peer, i, to, 1, in,
						     i % 2 ? MPI_ANY_SOURCE : peer, MPI_ANY_TAG,
						     MPI_COMM_WORLD, &status);
				} else if (rank == 0) {
					MPI_Request requests[2];
					MPI_Status both[2];
					if (i % 2) {
						MPI_Ssend(from, 1, out, 1, i, MPI_COMM_WORLD);
					} else if (i % 4) {
						MPI_Send(from, 1, out, 1, i, MPI_COMM_WORLD);
					} else {
						/* The second one is not received before the first
						 * one is complete. */
						MPI_Issend(from, 1, out, 1, i, MPI_COMM_WORLD, requests);
						MPI_Isend(from, 1, out, 1, 99, MPI_COMM_WORLD, requests + 1);
						MPI_Waitall(2, requests, both);
					}
					MPI_Recv(to, 1, in, MPI_ANY_SOURCE, MPI_ANY_TAG,
						 MPI_COMM_WORLD, &status);
				} else {
					MPI_Recv(to, 1, in, 0, i, MPI_COMM_WORLD, &status);
					if (i % 4 == 0)
						MPI_Recv(to, 1, in, 0, 99, MPI_COMM_WORLD, &status);
					MPI_Send(from, 1, out, 0, i, MPI_COMM_WORLD);
				}
				show("whole", sizes[s], in, &status);
			}
			/* Fewer elements than there is room for, with a probe before, and more. */
			for (int i = 0; i < TIMES; i++) {
				fill(to, 8);
				if (rank == 0) {
					MPI_Send(from, 2, out, 1, 1, MPI_COMM_WORLD);
					MPI_Send(from, sizes[s] / 2, MPI_DOUBLE, 1, 2, MPI_COMM_WORLD);
					continue;
				}
				MPI_Probe(MPI_ANY_SOURCE, 1, MPI_COMM_WORLD, &status);
				show("probed", sizes[s], in, &status);
				MPI_Recv(to, 3, in, 0, 1, MPI_COMM_WORLD, &status);
				show("fewer", sizes[s], in, &status);
				MPI_Recv(to, 1, in, 0, 2, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
				printf("rank 1 half %d: %016llx\n", sizes[s],
				       (unsigned long long)hash(to, SPAN));
			}
			MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
			for (int i = 0; i < TIMES; i++) {
				int class = MPI_SUCCESS;
				if (rank == 0)
					MPI_Send(from, 2, out, 1, 3, MPI_COMM_WORLD);
				else
					MPI_Error_class(MPI_Recv(to, 1, in, 0, 3, MPI_COMM_WORLD,
								 MPI_STATUS_IGNORE), &class);
				if (rank)
					printf("rank 1 longer %d: %s\n", sizes[s],
					       class == MPI_ERR_TRUNCATE ? "truncated" : "not");
			}
			MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_ARE_FATAL);
			MPI_Type_free(&out);
			MPI_Type_free(&in);
		}
	}
	free(from);
	free(to);
	MPI_Finalize();
	return 0;
}
