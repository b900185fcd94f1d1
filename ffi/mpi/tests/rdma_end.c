/* SPDX-License-Identifier: MIT OR Apache-2.0 */

/* The end of a program in which one rank calls MPI_Finalize while the other still receives what
 * that has sent, and does not receive all of it. Prints a line per rank.
 *
 * usage: rdma_end 1 [dead|killed|aborted|received]
 * With `dead' the receiver ends without MPI_Finalize; with `killed' it is killed; with `aborted' it
 * ends and the sender calls MPI_Abort, with 3 if all is right, once it has sent everything (MPICH's
 * launcher may lose what was printed before): MPI_Finalize of MPICH, without libcopy_mpi.so too,
 * waits for the dead. With `received' all is received at last: with MPICH 4.2, without
 * libcopy_mpi.so too, MPI_Finalize of a process fails that has messages left, and the others wait
 * for it.
 */
#include "rdma.h"
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
	SPAN = 2 * SIZE,
	BLOCK = 1024,
	UNRECEIVED = 1,
	LATE,
	CUT, /* There is no room for what says which message it is. */
	SHORT,
	LATER,
	LAST,
};

static MPI_Datatype type;
static unsigned char *buffer;

static void receive(int from, int tag)
{
	MPI_Status status;
	int got;
	memset(buffer, 0, SPAN);
	MPI_Recv(buffer, 1, type, from, tag, MPI_COMM_WORLD, &status);
	MPI_Get_count(&status, MPI_BYTE, &got);
	wrong_status += got != SIZE;
	for (int i = 0; i < SPAN; i++)
		wrong += buffer[i] != (i % (2 * BLOCK) < BLOCK ? (unsigned char)(tag + i % 251) : 0);
}

static void receive_short(int from, int tag, int room)
{
	int code = MPI_Recv(buffer, room, MPI_BYTE, from, tag, MPI_COMM_WORLD, MPI_STATUS_IGNORE), class = MPI_SUCCESS;
	if (code != MPI_SUCCESS)
		MPI_Error_class(code, &class);
	wrong_status += class != MPI_ERR_TRUNCATE;
}

int main(int argc, char **argv)
{
	int rank, ranks;
	const char *mode = argc > 2 ? argv[2] : "";
	int aborted = strcmp(mode, "aborted") == 0;
	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
	commit_blocks(BLOCK, 2 * BLOCK, SPAN, &type, MPI_COMM_WORLD);
	buffer = malloc(SPAN);
	if (rank == 0) {
		for (int tag = UNRECEIVED; tag < LAST; tag++) {
			for (int i = 0; i < SPAN; i++)
				buffer[i] = tag + i % 251;
			MPI_Send(buffer, 1, type, ranks - 1, tag, MPI_COMM_WORLD);
		}
	} else if (rank == ranks - 1) {
		/* Without MPI, so that the sender gives up on its receiver. */
		sleep(1);
		if (strcmp(mode, "killed") == 0)
			raise(SIGKILL);
		if (aborted || strcmp(mode, "dead") == 0)
			_exit(7);
		receive(0, LATE);
		receive_short(0, CUT, 16);
		receive_short(0, SHORT, 8000);
		sleep(1);
		receive(0, LATER);
		if (strcmp(mode, "received") == 0)
			receive(0, UNRECEIVED);
	}
	print_result(rank, 1);
	fflush(stdout);
	if (aborted)
		MPI_Abort(MPI_COMM_WORLD, wrong || wrong_status ? 4 : 3);
	free(buffer);
	MPI_Type_free(&type);
	MPI_Finalize();
	return 0;
}
