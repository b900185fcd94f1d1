// SPDX-License-Identifier: MIT OR Apache-2.0

/* An MPI library as libcopy_mpi.so finds it when this is preloaded behind it: with the functions of
 * MPI 4.1 that look at several requests, and, if SHIM_FAIL is set, without an answer to rank 1
 * about who is who in its groups.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <mpi.h>
#include <stdlib.h>

int PMPI_Group_translate_ranks(MPI_Group group, int n, const int ranks[], MPI_Group other,
			       int translated[])
{
	int (*next)(MPI_Group, int, const int[], MPI_Group, int[]) =
		(int (*)(MPI_Group, int, const int[], MPI_Group, int[]))dlsym(
			RTLD_NEXT, "PMPI_Group_translate_ranks");
	int rank;
	PMPI_Comm_rank(MPI_COMM_WORLD, &rank);
	if (getenv("SHIM_FAIL") && rank == 1)
		return MPI_ERR_OTHER;
	return next(group, n, ranks, other, translated);
}

int PMPI_Request_get_status_any(int count, const MPI_Request requests[], int *index, int *flag,
				MPI_Status *status)
{
	int active = 0;
	for (int i = 0; i < count; i++) {
		if (requests[i] == MPI_REQUEST_NULL)
			continue;
		active = 1;
		int code = PMPI_Request_get_status(requests[i], flag, status);
		if (code || *flag) {
			*index = i;
			return code;
		}
	}
	*index = MPI_UNDEFINED;
	*flag = !active;
	return active ? MPI_SUCCESS : PMPI_Request_get_status(MPI_REQUEST_NULL, flag, status);
}

int PMPI_Request_get_status_all(int count, const MPI_Request requests[], int *flag,
				MPI_Status statuses[])
{
	int all = 1;
	for (int i = 0; i < count; i++) {
		int code = PMPI_Request_get_status(requests[i], flag, &statuses[i]);
		if (code)
			return code;
		all &= *flag;
	}
	*flag = all;
	return MPI_SUCCESS;
}

int PMPI_Request_get_status_some(int count, const MPI_Request requests[], int *done, int indices[],
				 MPI_Status statuses[])
{
	int active = 0, found = 0;
	for (int i = 0; i < count; i++) {
		int flag;
		if (requests[i] == MPI_REQUEST_NULL)
			continue;
		active = 1;
		int code = PMPI_Request_get_status(requests[i], &flag, &statuses[found]);
		if (code)
			return code;
		if (flag)
			indices[found++] = i;
	}
	*done = active ? found : MPI_UNDEFINED;
	return MPI_SUCCESS;
}

int MPI_Request_get_status_any(int count, const MPI_Request requests[], int *index, int *flag,
			       MPI_Status *status)
{
	return PMPI_Request_get_status_any(count, requests, index, flag, status);
}

int MPI_Request_get_status_all(int count, const MPI_Request requests[], int *flag,
			       MPI_Status statuses[])
{
	return PMPI_Request_get_status_all(count, requests, flag, statuses);
}

int MPI_Request_get_status_some(int count, const MPI_Request requests[], int *done, int indices[],
				MPI_Status statuses[])
{
	return PMPI_Request_get_status_some(count, requests, done, indices, statuses);
}
