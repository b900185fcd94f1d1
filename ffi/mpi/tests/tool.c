// SPDX-License-Identifier: MIT OR Apache-2.0

/* A tool with MPI_ names, to be preloaded or linked: counts what it wraps, hands it to PMPI_, and
 * tells at MPI_Finalize what it has counted. Which functions it wraps is chosen when it is
 * compiled:
 *
 * -DRECEIVING   MPI_Recv, MPI_Wait
 * -DCOMPLETING  MPI_Waitall
 * -DCOLLECTIVE  MPI_Bcast
 * -DINIT        MPI_Init
 */
#include <mpi.h>
#include <stdio.h>

static int inits, recvs, waits, waitalls, bcasts;

#ifdef INIT
int MPI_Init(int *argc, char ***argv)
{
	inits++;
	return PMPI_Init(argc, argv);
}
#endif

#ifdef RECEIVING
int MPI_Recv(void *buffer, int count, MPI_Datatype type, int source, int tag, MPI_Comm comm,
	     MPI_Status *status)
{
	recvs++;
	return PMPI_Recv(buffer, count, type, source, tag, comm, status);
}

int MPI_Wait(MPI_Request *request, MPI_Status *status)
{
	waits++;
	return PMPI_Wait(request, status);
}
#endif

#ifdef COMPLETING
int MPI_Waitall(int count, MPI_Request requests[], MPI_Status statuses[])
{
	waitalls++;
	return PMPI_Waitall(count, requests, statuses);
}
#endif

#ifdef COLLECTIVE
int MPI_Bcast(void *buffer, int count, MPI_Datatype type, int root, MPI_Comm comm)
{
	bcasts++;
	return PMPI_Bcast(buffer, count, type, root, comm);
}
#endif

int MPI_Finalize(void)
{
	int rank;
	PMPI_Comm_rank(MPI_COMM_WORLD, &rank);
	printf("tool: rank %d init %d recv %d wait %d waitall %d bcast %d\n", rank, inits, recvs,
	       waits, waitalls, bcasts);
	fflush(stdout);
	return PMPI_Finalize();
}
