// SPDX-License-Identifier: MIT OR Apache-2.0

/* Preloaded behind libcopy_mpi.so, counts the functions of the MPI library that libcopy_mpi.so calls and in which
 * ranks wait for each other.
 */
#include <mpi.h>

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
