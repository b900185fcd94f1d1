// SPDX-License-Identifier: MIT OR Apache-2.0

/* A forked child that goes on with what its parent has under way, and ends as programs end. Its
 * parent and the other rank do not notice. Two ranks. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { LARGE = 4 << 20 };

static unsigned char *data, *room;

static void check(int is_right, const char *what)
{
	if (!is_right) {
		printf("wrong: %s\n", what);
		fflush(stdout);
		MPI_Abort(MPI_COMM_WORLD, 3);
	}
}

static void collectives(int rank, int seed)
{
	for (int i = 0; i < LARGE; i++)
		data[i] = rank ? 0 : i * 7 + seed;
	MPI_Bcast(data, LARGE, MPI_BYTE, 0, MPI_COMM_WORLD);
	for (int i = 0; i < LARGE; i++)
		check(data[i] == (unsigned char)(i * 7 + seed), "a broadcast");
}

/* Has the clock show as much as makes senders pack what they have waited for. */
static void child(MPI_Request *request)
{
	struct timespec nap = { 0, 5000000 };
	MPI_Datatype column;
	int flag = 0, position = 0;

	memset(data, 0xEE, LARGE);
	for (int i = 0; i < 60 && !flag; i++) {
		MPI_Test(request, &flag, MPI_STATUS_IGNORE);
		nanosleep(&nap, NULL);
	}
	MPI_Type_vector(1000, 8, 16, MPI_BYTE, &column);
	MPI_Type_commit(&column);
	MPI_Pack(data, 1, column, room, LARGE, &position, MPI_COMM_SELF);
	MPI_Type_free(&column);
	exit(position == 8000 && room[7999] == 0xEE ? 0 : 1);
}

int main(int argc, char **argv)
{
	MPI_Request request;
	int rank, token = 0, status = -1;

	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	data = malloc(LARGE);
	room = malloc(LARGE);
	collectives(rank, 1);
	if (rank == 1) {
		for (int i = 0; i < LARGE; i++)
			data[i] = i * 11 + 3;
		MPI_Isend(data, LARGE, MPI_BYTE, 0, 5, MPI_COMM_WORLD, &request);
		/* Nothing of the MPI library's is under way any more, which a child could take from
		 * its parent. */
		MPI_Recv(&token, 1, MPI_INT, 0, 7, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
		pid_t forked = fork();
		if (forked == 0)
			child(&request);
		waitpid(forked, &status, 0);
		check(status == 0, "the child's end");
		MPI_Send(&token, 1, MPI_INT, 0, 6, MPI_COMM_WORLD);
		MPI_Wait(&request, MPI_STATUS_IGNORE);
	} else {
		MPI_Probe(1, 5, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
		MPI_Send(&token, 1, MPI_INT, 1, 7, MPI_COMM_WORLD);
		MPI_Recv(&token, 1, MPI_INT, 1, 6, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
		MPI_Recv(room, LARGE, MPI_BYTE, 1, 5, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
		for (int i = 0; i < LARGE; i++)
			check(room[i] == (unsigned char)(i * 11 + 3), "a message");
	}
	collectives(rank, 2);
	printf("right\n");
	fflush(stdout);
	MPI_Finalize();
	return 0;
}
