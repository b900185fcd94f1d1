// SPDX-License-Identifier: MIT OR Apache-2.0

/* Two threads of rank 1 look for the same messages: one probes, the other one receives. A probe
 * that finds a message says how long it is, also where another thread has received it meanwhile.
 * Two ranks.
 *
 * Prints the number of wrong lengths, or that there are no threads. With -DSHIM, a library to
 * preload behind libcopy_mpi.so, in which time passes between the moment when MPI_Probe finds a
 * message and its return.
 */
#ifdef SHIM
#define _GNU_SOURCE
#include <dlfcn.h>
#include <mpi.h>
#include <unistd.h>

int PMPI_Probe(int source, int tag, MPI_Comm comm, MPI_Status *status)
{
	int (*next)(int, int, MPI_Comm, MPI_Status *) =
		(int (*)(int, int, MPI_Comm, MPI_Status *))dlsym(RTLD_NEXT, "PMPI_Probe");
	int code = next(source, tag, comm, status);
	usleep(1000);
	return code;
}

int MPI_Probe(int source, int tag, MPI_Comm comm, MPI_Status *status)
{
	return PMPI_Probe(source, tag, comm, status);
}
#else
#include <mpi.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>

enum { BYTES = 400000, MANY = 200 };

static volatile int received;
static int wrong, found;
static char *last;

static void look(MPI_Status *status)
{
	int count;
	MPI_Get_count(status, MPI_BYTE, &count);
	found++;
	if (count != BYTES && wrong++ < 3)
		printf("a probe of %d says %d bytes\n", found, count);
}

static void *probe(void *none)
{
	MPI_Status status;
	/* The last message is left to this thread. */
	while (received < MANY) {
		int before = received;
		MPI_Probe(0, 1, MPI_COMM_WORLD, &status);
		look(&status);
		/* Once for each message. */
		while (received == before && before < MANY)
			sched_yield();
	}
	MPI_Probe(0, 1, MPI_COMM_WORLD, &status);
	look(&status);
	MPI_Recv(last, BYTES, MPI_BYTE, 0, 1, MPI_COMM_WORLD, &status);
	look(&status);
	return none;
}

int main(int argc, char **argv)
{
	int rank, provided;
	MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	char *bytes = calloc(1, BYTES);
	last = calloc(1, BYTES);
	if (provided < MPI_THREAD_MULTIPLE) {
		if (rank == 0)
			printf("no threads\n");
		MPI_Finalize();
		return 0;
	}
	if (rank == 0) {
		for (int i = 0; i < MANY + 1; i++)
			MPI_Send(bytes, BYTES, MPI_BYTE, 1, 1, MPI_COMM_WORLD);
	} else {
		pthread_t thread;
		pthread_create(&thread, NULL, probe, NULL);
		for (int i = 0; i < MANY; i++) {
			MPI_Recv(bytes, BYTES, MPI_BYTE, 0, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
			received = i + 1;
		}
		pthread_join(thread, NULL);
		printf("probes: %d wrong lengths\n", wrong);
	}
	MPI_Finalize();
	return 0;
}
#endif
