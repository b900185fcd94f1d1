// SPDX-License-Identifier: MIT OR Apache-2.0

/* Preloaded behind libcopy_mpi.so, counts the functions of the MPI library that libcopy_mpi.so
 * calls and in which ranks wait for each other. With KILLED=RANK this rank is killed when the MPI
 * library's MPI_Init has returned, and the ranks agree next. Not earlier: mpirun of Open MPI 4.1.4
 * hangs now and then, without libcopy_mpi.so too, where a rank is killed while it connects to
 * mpirun (4 of 107 runs).
 */
#include <mpi.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

int meetings;

#define COUNTED(name, types, names)    \
	int MPI_##name types           \
	{                              \
		meetings++;            \
		return PMPI_##name names; \
	}

COUNTED(Barrier, (MPI_Comm c), (c))
COUNTED(Bcast, (void *b, int n, MPI_Datatype t, int r, MPI_Comm c), (b, n, t, r, c))
COUNTED(Gather, (const void *s, int n, MPI_Datatype t, void *b, int m, MPI_Datatype u, int r, MPI_Comm c),
	(s, n, t, b, m, u, r, c))
COUNTED(Allgather, (const void *s, int n, MPI_Datatype t, void *b, int m, MPI_Datatype u, MPI_Comm c),
	(s, n, t, b, m, u, c))
COUNTED(Allreduce, (const void *s, void *b, int n, MPI_Datatype t, MPI_Op o, MPI_Comm c), (s, b, n, t, o, c))
COUNTED(Comm_dup, (MPI_Comm c, MPI_Comm *d), (c, d))
COUNTED(Comm_split, (MPI_Comm c, int k, int r, MPI_Comm *d), (c, k, r, d))
COUNTED(Comm_split_type, (MPI_Comm c, int k, int r, MPI_Info i, MPI_Comm *d), (c, k, r, i, d))

static int start(int answer)
{
	const char *killed = getenv("KILLED");
	int rank;
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	if (killed && atoi(killed) == rank)
		kill(getpid(), SIGKILL);
	return answer;
}

int MPI_Init(int *argc, char ***argv)
{
	return start(PMPI_Init(argc, argv));
}
