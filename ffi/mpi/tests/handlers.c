/* SPDX-License-Identifier: MIT OR Apache-2.0 */

/* MPI_THREAD_MULTIPLE: errors of a communicator go to its own error handler, and MPI_COMM_WORLD
 * keeps its, which ends the program, while one thread receives what is too long and another what
 * is not. */
#include <mpi.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

enum { PIECES = 4000, TIMES = 40 };

static int rank;
static MPI_Datatype pieces;

static unsigned char *elements(void)
{
	unsigned char *bytes = malloc(32 * PIECES);
	for (int i = 0; bytes && i < 32 * PIECES; i++)
		bytes[i] = i * 7;
	return bytes;
}

/* Messages on MPI_COMM_WORLD that are as long as they should be. */
static void *whole(void *unused)
{
	unsigned char *bytes = elements();
	long wrong = 0;
	for (int i = 0; i < TIMES; i++) {
		if (rank == 0) {
			MPI_Send(bytes, PIECES, pieces, 1, 1, MPI_COMM_WORLD);
			continue;
		}
		for (int at = 0; at < 32 * PIECES; at++)
			bytes[at] = 0;
		MPI_Recv(bytes, PIECES, pieces, 0, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
		for (int at = 0; at < 32 * PIECES; at++)
			wrong += bytes[at] != (at % 32 < 16 ? (unsigned char)(at * 7) : 0);
	}
	if (rank == 1)
		printf("whole: %ld wrong\n", wrong);
	free(bytes);
	return unused;
}

/* Messages on a communicator whose errors are returned: each rank sends one and receives half. */
static void cut(MPI_Comm comm)
{
	unsigned char *bytes = elements(), *half = elements();
	int truncated = 0;
	for (int i = 0; i < TIMES; i++) {
		int code, class;
		MPI_Request request;
		MPI_Isend(bytes, PIECES, pieces, 1 - rank, 2, comm, &request);
		code = MPI_Recv(half, PIECES / 2, pieces, 1 - rank, 2, comm, MPI_STATUS_IGNORE);
		MPI_Error_class(code, &class);
		truncated += class == MPI_ERR_TRUNCATE;
		MPI_Wait(&request, MPI_STATUS_IGNORE);
	}
	printf("rank %d: %d truncated\n", rank, truncated);
	free(bytes);
	free(half);
}

int main(int argc, char **argv)
{
	int provided;
	MPI_Comm comm;
	MPI_Errhandler handler;
	MPI_Datatype sixteen;
	pthread_t other;
	MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	if (provided < MPI_THREAD_MULTIPLE) {
		printf("no threads\n");
		MPI_Finalize();
		return 0;
	}
	MPI_Comm_dup(MPI_COMM_WORLD, &comm);
	MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
	MPI_Type_contiguous(16, MPI_BYTE, &sixteen);
	MPI_Type_create_resized(sixteen, 0, 32, &pieces);
	MPI_Type_commit(&pieces);
	pthread_create(&other, NULL, whole, NULL);
	cut(comm);
	pthread_join(other, NULL);
	MPI_Comm_get_errhandler(MPI_COMM_WORLD, &handler);
	printf("rank %d: the handler is %s\n", rank, handler == MPI_ERRORS_ARE_FATAL ? "still there" : "another one");
	MPI_Type_free(&sixteen);
	MPI_Type_free(&pieces);
	MPI_Comm_free(&comm);
	MPI_Finalize();
	return 0;
}
