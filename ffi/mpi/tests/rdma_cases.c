/* SPDX-License-Identifier: MIT OR Apache-2.0 */

/* Typed messages between two ranks on two machines where headers could be mistaken for others, or
 * for messages of the program's own. Prints a line per rank, the same with any library.
 */
#include "rdma.h"
#include <stdlib.h>
#include <string.h>

enum {
	SPAN = 2 * SIZE,
	COUNT = 4,
};

static MPI_Datatype type;
static MPI_Comm world = MPI_COMM_WORLD;
static unsigned char *buffer, *other, own[OWN];
static int rank;

static void fill(int count, int seed)
{
	for (int i = 0; i < count * SPAN; i++)
		buffer[i] = seed + i % 251;
}

static void check(const unsigned char *to, int count, int seed)
{
	for (int c = 0; c < count; c++)
		for (int i = 0; i < SIZE / 1024; i++)
			for (int j = 0; j < 1024; j++) {
				int at = c * SPAN + i * 2048 + j;
				wrong += to[at] != (unsigned char)(seed + at % 251);
			}
}

static void check_bytes(MPI_Status *status, int bytes, const char *what)
{
	int got;
	MPI_Get_count(status, MPI_BYTE, &got);
	if (got != bytes)
		printf("%s: %d bytes in place of %d\n", what, got, bytes);
	wrong_status += got != bytes;
}

static void probe(int tag, MPI_Comm comm, int bytes, const char *what)
{
	MPI_Status status;
	MPI_Probe(0, tag, comm, &status);
	check_bytes(&status, bytes, what);
}

static void send(int count, int tag, MPI_Comm comm)
{
	fill(count, tag + count);
	MPI_Send(buffer, count, type, 1, tag, comm);
}

static void receive(int count, int tag, MPI_Comm comm)
{
	MPI_Status status;
	MPI_Recv(buffer, COUNT, type, 0, tag, comm, &status);
	check_bytes(&status, count * SIZE, "receive");
	check(buffer, count, tag + count);
}

/* The other rank goes on. Receivers wait in the MPI library, so what was sent before has been
 * handed to that. */
static void signal_other(void)
{
	int one = 1;
	if (rank == 0)
		MPI_Send(&one, 1, MPI_INT, 1, 99, world);
	else
		MPI_Recv(&one, 1, MPI_INT, 0, 99, world, MPI_STATUS_IGNORE);
}

static void check_class(int code, int class, const char *what)
{
	int got = MPI_SUCCESS;
	if (code != MPI_SUCCESS)
		MPI_Error_class(code, &got);
	if (got != class)
		printf("%s: error class %d in place of %d\n", what, got, class);
	wrong_status += got != class;
}

static void check_own(int tag)
{
	MPI_Status status;
	memset(own, 0, OWN);
	MPI_Recv(own, OWN, MPI_BYTE, 0, tag, world, &status);
	check_bytes(&status, OWN, "own");
	for (int i = 0; i < OWN; i++)
		wrong += own[i] != (unsigned char)tag;
}

/* The length of a header, sent before the ranks know of headers. */
static void sent_before(void)
{
	if (rank == 0) {
		memset(own, 1, OWN);
		MPI_Send(own, OWN, MPI_BYTE, 1, 1, world);
	}
	commit_blocks(1024, 2048, SPAN, &type, world);
	if (rank == 1) {
		probe(1, world, OWN, "sent before");
		check_own(1);
	}
}

/* What is found is not what a receive has got that nobody has completed. */
static void received_and_not_completed(void)
{
	MPI_Request request;
	MPI_Status status;
	if (rank == 1)
		MPI_Irecv(other, COUNT, type, 0, 2, world, &request);
	if (rank == 0) {
		send(1, 2, world);
		send(2, 2, world);
	}
	signal_other();
	if (rank == 1) {
		probe(2, world, 2 * SIZE, "not completed");
		receive(2, 2, world);
		MPI_Wait(&request, &status);
		check_bytes(&status, SIZE, "not completed");
		check(other, 1, 3);
	}
}

static void two_communicators(void)
{
	MPI_Comm copy;
	MPI_Comm_dup(world, &copy);
	if (rank == 0) {
		send(1, 3, world);
		send(2, 3, copy);
	}
	if (rank == 1) {
		probe(3, copy, 2 * SIZE, "two communicators");
		probe(3, world, SIZE, "two communicators");
		receive(2, 3, copy);
		receive(1, 3, world);
	}
	MPI_Comm_free(&copy);
}

static void matched_probe(void)
{
	MPI_Message message;
	MPI_Status status;
	if (rank == 0) {
		send(1, 4, world);
		send(2, 4, world);
	}
	signal_other();
	if (rank == 1) {
		MPI_Mprobe(0, 4, world, &message, &status);
		check_bytes(&status, SIZE, "matched probe");
		probe(4, world, 2 * SIZE, "behind a matched probe");
		MPI_Mrecv(other, COUNT, type, &message, &status);
		check(other, 1, 5);
		receive(2, 4, world);
	}
}

/* Too little room: for the message, for what is intercepted otherwise, for a header. */
static void truncated(void)
{
	MPI_Request request;
	MPI_Comm_set_errhandler(world, MPI_ERRORS_RETURN);
	for (int packed = 0; packed < 2; packed++) {
		if (rank == 0) {
			for (int tag = 5; tag < 9; tag++)
				send(COUNT, tag, world);
			send(1, 9, world);
		}
		/* Else the sender waits for the receives. */
		if (packed)
			signal_other();
		if (rank == 1) {
			MPI_Irecv(other, 3960, MPI_BYTE, 0, 5, world, &request);
			check_class(MPI_Wait(&request, MPI_STATUS_IGNORE), MPI_ERR_TRUNCATE, "short receive");
			check_class(MPI_Recv(other, 8000, MPI_BYTE, 0, 6, world, MPI_STATUS_IGNORE), MPI_ERR_TRUNCATE,
				    "short blocking receive");
			check_class(MPI_Recv(other, 1000, MPI_BYTE, 0, 7, world, MPI_STATUS_IGNORE), MPI_ERR_TRUNCATE,
				    "shorter than a header");
			check_class(MPI_Recv(other, 2, type, 0, 8, world, MPI_STATUS_IGNORE), MPI_ERR_TRUNCATE,
				    "fewer elements");
			receive(1, 9, world);
		}
	}
	MPI_Comm_set_errhandler(world, MPI_ERRORS_ARE_FATAL);
}

/* A synchronous send is complete when it is received, however long that takes. */
static void synchronous(void)
{
	if (rank == 0) {
		fill(1, 11);
		MPI_Ssend(buffer, 1, type, 1, 10, world);
		signal_other();
	} else {
		double start = MPI_Wtime();
		int found = 0;
		while (!found && MPI_Wtime() - start < 0.5)
			MPI_Iprobe(0, 99, world, &found, MPI_STATUS_IGNORE);
		if (found)
			printf("MPI_Ssend is complete, and nobody has received\n");
		wrong_status += found;
		receive(1, 10, world);
		signal_other();
	}
}

/* More tags than anybody keeps a list of. */
static void many_tags(void)
{
	for (int tag = 1000; tag < 1300; tag++) {
		if (rank == 0) {
			memset(own, tag, OWN);
			MPI_Send(own, OWN, MPI_BYTE, 1, tag, world);
		} else {
			probe(tag, world, OWN, "many tags");
			check_own(tag);
		}
	}
	if (rank == 0) {
		send(2, 12, world);
	} else {
		probe(12, world, 2 * SIZE, "behind many tags");
		receive(2, 12, world);
	}
}

int main(int argc, char **argv)
{
	MPI_Init(&argc, &argv);
	MPI_Comm_rank(world, &rank);
	buffer = malloc(SPAN * COUNT);
	other = malloc(SPAN * COUNT);
	sent_before();
	received_and_not_completed();
	two_communicators();
	matched_probe();
	truncated();
	synchronous();
	many_tags();
	print_result(rank, 1);
	MPI_Type_free(&type);
	free(buffer);
	free(other);
	MPI_Finalize();
	return 0;
}
