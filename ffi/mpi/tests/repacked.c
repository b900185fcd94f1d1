// SPDX-License-Identifier: MIT OR Apache-2.0

/*
 * Sends short messages of a derived type again and again, and checks all bytes.
 *
 *   repacked MESSAGES
 *
 * With -DSLOW -shared, to be preloaded behind libcopy_mpi.so: the library takes some nanoseconds of
 * the virtual clock to pack elements, until a thousand messages are sent, and nothing later.
 */
#ifdef SLOW
#define _GNU_SOURCE
#include <dlfcn.h>
#include <mpi.h>

int PMPI_Pack(const void *from, int count, MPI_Datatype type, void *to, int room, int *position,
	      MPI_Comm comm)
{
	int (*next)(const void *, int, MPI_Datatype, void *, int, int *, MPI_Comm) =
		(int (*)(const void *, int, MPI_Datatype, void *, int, int *, MPI_Comm))dlsym(RTLD_NEXT,
											    "PMPI_Pack");
	void (*pack)(void) = (void (*)(void))dlsym(RTLD_DEFAULT, "library_packs");
	if (pack && count > 0)
		pack();
	return next(from, count, type, to, room, position, comm);
}
#else
#include "virtual_clock.h"

#include <mpi.h>
#include <stdio.h>

enum { PIECES = 16, NANOSECONDS = 20 };

static int is_fast;

/* Of the preloaded MPI_Pack. */
void library_packs(void)
{
	if (!is_fast)
		virtual_add(NANOSECONDS);
}

int main(int argc, char **argv)
{
	MPI_Init(&argc, &argv);
	int rank, messages = atoi(argv[1]);
	long from[2 * PIECES], to[2 * PIECES] = { 0 }, wrong = 0;
	MPI_Datatype type;
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Type_vector(PIECES, 1, 2, MPI_LONG, &type);
	MPI_Type_commit(&type);
	for (int i = 0; i < messages; i++) {
		is_fast = i >= 1000;
		for (int k = 0; k < 2 * PIECES; k++)
			from[k] = i + k;
		if (rank == 0)
			MPI_Send(from, 1, type, 1, 0, MPI_COMM_WORLD);
		else
			MPI_Recv(to, 1, type, 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
		for (int k = 0; rank == 1 && k < 2 * PIECES; k++)
			wrong += to[k] != (k % 2 ? 0 : i + k);
	}
	printf("%ld wrong\n", wrong);
	MPI_Type_free(&type);
	MPI_Finalize();
	return wrong != 0;
}
#endif
