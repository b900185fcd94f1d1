// SPDX-License-Identifier: MIT OR Apache-2.0

/* Receives and sends whose requests, or communicators, are freed while they are under way. Whatever
 * the receiver calls next that lets MPI get on completes them. Two ranks; prints one line for each
 * way of freeing and of going on.
 *
 * usage: orphans
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { ELEMENTS = 20000, DENSE = 1 << 20, BIG = 1 << 20 };

static int rank;
static unsigned char *bytes;
static MPI_Datatype rows;

static void fill(int seed)
{
	for (int i = 0; i < BIG; i++)
		bytes[i] = rank == 0 ? i * 7 + i / 251 + seed : 0;
}

/* Elements that are not there. */
static int wrong(int typed, int seed)
{
	int missing = 0;
	for (int i = 0; i < (typed ? ELEMENTS : DENSE); i++) {
		int at = typed ? i * 32 : i;
		missing += bytes[at] != (unsigned char)(at * 7 + at / 251 + seed);
	}
	return missing;
}

/* What rank 1 does when its receive is under way, or has arrived. */
enum way { RECV, IPROBE, BARRIER, TEST, SENDRECV, BCAST, WAIT, ALLREDUCE, PROBE, WAYS };
static const char *const names[] = { "recv",  "iprobe", "barrier",   "test", "sendrecv",
				     "bcast", "wait",	"allreduce", "probe" };

static void go_on(enum way way, int typed, int seed)
{
	int word = 0, other = 0, flag = 0;
	MPI_Request request;
	MPI_Status status;
	/* Where it is not known when the message has come: after so long it never will. */
	double end = MPI_Wtime() + 300;
	switch (way) {
	case RECV:
		if (rank == 0)
			MPI_Send(&word, 1, MPI_INT, 1, 2, MPI_COMM_WORLD);
		else
			MPI_Recv(&word, 1, MPI_INT, 0, 2, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
		break;
	case IPROBE:
		while (rank == 1 && wrong(typed, seed) && MPI_Wtime() < end)
			MPI_Iprobe(0, 3, MPI_COMM_WORLD, &flag, &status);
		break;
	case BARRIER:
		MPI_Barrier(MPI_COMM_WORLD);
		break;
	case TEST:
		if (rank == 0)
			break;
		MPI_Irecv(&word, 1, MPI_INT, 0, 4, MPI_COMM_WORLD, &request);
		while (wrong(typed, seed) && MPI_Wtime() < end)
			MPI_Test(&request, &flag, &status);
		MPI_Cancel(&request);
		MPI_Wait(&request, &status);
		break;
	case SENDRECV:
		MPI_Sendrecv(&word, 1, MPI_INT, 1 - rank, 5, &other, 1, MPI_INT, 1 - rank, 5,
			     MPI_COMM_WORLD, MPI_STATUS_IGNORE);
		break;
	case BCAST:
		MPI_Bcast(&word, 1, MPI_INT, 0, MPI_COMM_WORLD);
		break;
	case WAIT:
		if (rank == 0) {
			MPI_Send(&word, 1, MPI_INT, 1, 6, MPI_COMM_WORLD);
			break;
		}
		MPI_Irecv(&word, 1, MPI_INT, 0, 6, MPI_COMM_WORLD, &request);
		MPI_Wait(&request, MPI_STATUS_IGNORE);
		break;
	case ALLREDUCE:
		MPI_Allreduce(&word, &other, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
		break;
	case PROBE:
		if (rank == 0) {
			MPI_Send(&word, 1, MPI_INT, 1, 7, MPI_COMM_WORLD);
			break;
		}
		MPI_Probe(0, 7, MPI_COMM_WORLD, &status);
		other = wrong(typed, seed);
		MPI_Recv(&word, 1, MPI_INT, 0, 7, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
		if (other)
			bytes[0] += 1;
		break;
	default:
		break;
	}
}

/* A receive. */
static void receives(enum way way, int typed, int persistent)
{
	int seed = way * 3 + typed + persistent;
	MPI_Request request;
	fill(seed);
	MPI_Datatype type = typed ? rows : MPI_BYTE;
	int count = typed ? 1 : DENSE;
	if (rank == 1) {
		if (persistent) {
			MPI_Recv_init(bytes, count, type, 0, 1, MPI_COMM_WORLD, &request);
			MPI_Start(&request);
		} else {
			MPI_Irecv(bytes, count, type, 0, 1, MPI_COMM_WORLD, &request);
		}
		MPI_Request_free(&request);
		if (request != MPI_REQUEST_NULL)
			printf("a request is left\n");
		MPI_Send(&seed, 0, MPI_INT, 0, 8, MPI_COMM_WORLD);
	} else {
		MPI_Recv(&seed, 0, MPI_INT, 1, 8, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
		/* It has arrived when this returns. */
		MPI_Ssend(bytes, count, type, 1, 1, MPI_COMM_WORLD);
	}
	go_on(way, typed, seed);
	if (rank == 1)
		printf("receive, %s, %s%s: %d wrong\n", names[way], typed ? "rows" : "dense",
		       persistent ? ", persistent" : "", wrong(typed, seed));
	fflush(stdout);
	MPI_Barrier(MPI_COMM_WORLD);
}

/* A send: all kinds of them; the sender may use its memory again when the receiver says so. */
static void sends(int kind, int count, MPI_Datatype type, const char *name)
{
	int seed = kind * 5 + count % 91, word = 0, missing = 0;
	MPI_Request request;
	fill(seed);
	for (int round = 0; round < 3; round++) {
		if (rank == 0) {
			switch (kind) {
			case 0:
				MPI_Isend(bytes, count, type, 1, 1, MPI_COMM_WORLD, &request);
				break;
			case 1:
				MPI_Issend(bytes, count, type, 1, 1, MPI_COMM_WORLD, &request);
				break;
			case 2:
				MPI_Send_init(bytes, count, type, 1, 1, MPI_COMM_WORLD, &request);
				MPI_Start(&request);
				break;
			default:
				MPI_Ssend_init(bytes, count, type, 1, 1, MPI_COMM_WORLD, &request);
				MPI_Start(&request);
			}
			MPI_Request_free(&request);
			if (request != MPI_REQUEST_NULL)
				missing++;
			MPI_Recv(&word, 1, MPI_INT, 1, 2, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
		} else {
			memset(bytes, 0, BIG);
			MPI_Recv(bytes, count, type, 0, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
			MPI_Send(&word, 1, MPI_INT, 0, 2, MPI_COMM_WORLD);
			if (type == MPI_BYTE) {
				for (int i = 0; i < count; i++)
					missing += bytes[i] != (unsigned char)(i * 7 + i / 251 + seed + round);
			} else {
				missing += bytes[0] != (unsigned char)(seed + round);
				missing += bytes[(count - 1) * 32] !=
					   (unsigned char)((count - 1) * 32 * 7 + (count - 1) * 32 / 251 + seed + round);
			}
		}
		fill(seed + round + 1);
	}
	if (rank == 1)
		printf("send %d, %s, %d: %d wrong\n", kind, name, count, missing);
	fflush(stdout);
	MPI_Barrier(MPI_COMM_WORLD);
}

/* The communicator is freed while a message is under way, and before persistent requests are
 * started. */
static void communicators(int typed)
{
	int seed = 40 + typed, missing = 0, count = typed ? 1 : DENSE;
	MPI_Datatype type = typed ? rows : MPI_BYTE;
	MPI_Request request, persistent;
	MPI_Comm comm;
	MPI_Comm_dup(MPI_COMM_WORLD, &comm);
	fill(seed);
	if (rank == 0) {
		MPI_Send_init(bytes, count, type, 1, 1, comm, &persistent);
		MPI_Isend(bytes, count, type, 1, 2, comm, &request);
	} else {
		MPI_Recv_init(bytes, count, type, 0, 1, comm, &persistent);
		MPI_Irecv(bytes, count, type, 0, 2, comm, &request);
	}
	MPI_Comm_free(&comm);
	MPI_Wait(&request, MPI_STATUS_IGNORE);
	if (rank == 1)
		missing += wrong(typed, seed);
	for (int round = 1; round < 4; round++) {
		fill(seed + round);
		MPI_Start(&persistent);
		MPI_Wait(&persistent, MPI_STATUS_IGNORE);
		if (rank == 1)
			missing += wrong(typed, seed + round);
	}
	MPI_Request_free(&persistent);
	if (rank == 1)
		printf("communicator freed, %s: %d wrong\n", typed ? "rows" : "dense", missing);
	fflush(stdout);
	MPI_Barrier(MPI_COMM_WORLD);
}

int main(int argc, char **argv)
{
	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	bytes = malloc(BIG);
	MPI_Datatype row;
	MPI_Type_vector(ELEMENTS, 1, 32, MPI_BYTE, &rows);
	MPI_Type_commit(&rows);
	MPI_Type_create_resized(MPI_BYTE, 0, 32, &row);
	MPI_Type_commit(&row);
	for (enum way way = 0; way < WAYS; way++)
		for (int typed = 0; typed < 2; typed++)
			for (int persistent = 0; persistent < 2; persistent++)
				receives(way, typed, persistent);
	for (int kind = 0; kind < 4; kind++) {
		sends(kind, DENSE, MPI_BYTE, "dense");
		sends(kind, 2000, row, "rows");
		sends(kind, 20000, row, "rows");
	}
	for (int typed = 0; typed < 2; typed++)
		communicators(typed);
	MPI_Finalize();
	return 0;
}
