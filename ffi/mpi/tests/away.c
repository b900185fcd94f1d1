// SPDX-License-Identifier: MIT OR Apache-2.0

/* Long messages whose sender is in no call of MPI while they are received: the receiver comes when
 * it has left MPI_Isend, and each waits for a signal of the other's. Prints how many bytes were
 * wrong.
 */
#include <mpi.h>
#include <signal.h>
#include <stdio.h>
#include <unistd.h>

enum { BYTES = 500000, ROUNDS = 10, TAG = 4 };

int main(int argc, char **argv)
{
	static unsigned char bytes[BYTES];
	int rank, signal, wrong = 0, pids[2], mine = getpid();
	sigset_t signals;
	MPI_Request request;

	sigemptyset(&signals);
	sigaddset(&signals, SIGUSR1);
	sigprocmask(SIG_BLOCK, &signals, NULL);
	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Allgather(&mine, 1, MPI_INT, pids, 1, MPI_INT, MPI_COMM_WORLD);
	for (int round = 0; round < ROUNDS; round++) {
		if (rank == 0) {
			for (int i = 0; i < BYTES; i++)
				bytes[i] = (unsigned char)(i * 7 + i / 251 + round);
			MPI_Isend(bytes, BYTES, MPI_BYTE, 1, TAG, MPI_COMM_WORLD, &request);
			kill(pids[1], SIGUSR1);
			sigwait(&signals, &signal);
			MPI_Wait(&request, MPI_STATUS_IGNORE);
			continue;
		}
		sigwait(&signals, &signal);
		MPI_Recv(bytes, BYTES, MPI_BYTE, 0, TAG, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
		for (int i = 0; i < BYTES; i++)
			wrong += bytes[i] != (unsigned char)(i * 7 + i / 251 + round);
		kill(pids[0], SIGUSR1);
	}
	if (rank == 1)
		printf("%d messages: %d wrong\n", ROUNDS, wrong);
	MPI_Finalize();
	return 0;
}
