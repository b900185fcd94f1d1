// SPDX-License-Identifier: MIT OR Apache-2.0

/* Messages that are cut off, requests that are looked at several at a time, and receivers that are
 * told nothing about a communicator. Prints the same with libcopy_mpi.so and without it. Two ranks,
 * with the functions of shim.c.
 */
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "checksum.h"

enum { ROWS = 20000, ROW = 24, STRIDE = 40, SPAN = ROWS * STRIDE, PART = 6000, MANY = 200 };

#define WEAK __attribute__((weak)) int
WEAK MPI_Request_get_status_any(int, const MPI_Request *, int *, int *, MPI_Status *);
WEAK MPI_Request_get_status_all(int, const MPI_Request *, int *, MPI_Status *);
WEAK MPI_Request_get_status_some(int, const MPI_Request *, int *, int *, MPI_Status *);

static int received(MPI_Status *status)
{
	int count;
	MPI_Get_count(status, MPI_BYTE, &count);
	return count;
}

static unsigned char *a, *b;
static MPI_Comm comm;
static MPI_Datatype rows;
static int rank;

/* Messages for receives that are shorter than anything that could stand for them; `waiting`: while
 * another one is expected. */
static void cut_off(int waiting)
{
	MPI_Request request;
	int count = 0;
	if (rank == 1 && waiting)
		MPI_Irecv(b, 1, rows, 0, 5, comm, &request);
	for (int i = 0; i < MANY; i++) {
		if (rank == 0) {
			MPI_Send(a, PART, MPI_BYTE, 1, 1, comm);
			continue;
		}
		int class = MPI_SUCCESS, length = i % 2 ? 64 : 200;
		int code = MPI_Recv(b + SPAN, length, MPI_BYTE, 0, 1, comm, MPI_STATUS_IGNORE);
		if (code)
			MPI_Error_class(code, &class);
		count += class == MPI_ERR_TRUNCATE;
	}
	if (rank == 0 && waiting)
		MPI_Send(a, 1, rows, 1, 5, comm);
	if (rank == 1 && waiting)
		MPI_Wait(&request, MPI_STATUS_IGNORE);
	if (rank == 1)
		printf("%d of %d cut off, %016llx\n", count, MANY,
		       (unsigned long long)hash(b, SPAN));
}

/* Two messages that are intercepted and one that is not, looked at by each function. */
static void look(int which)
{
	MPI_Request requests[4];
	MPI_Status statuses[4];
	int flag = 0, index, done, indices[4];
	memset(b, which, SPAN);
	if (rank == 0) {
		MPI_Isend(a, 1, rows, 1, 1, comm, &requests[0]);
		MPI_Isend(a, 3, MPI_BYTE, 1, 2, comm, &requests[1]);
		MPI_Isend(a + 1, PART, MPI_BYTE, 1, 3, comm, &requests[2]);
		MPI_Waitall(3, requests, statuses);
		return;
	}
	MPI_Irecv(b, 1, rows, 0, 1, comm, &requests[0]);
	requests[1] = MPI_REQUEST_NULL;
	MPI_Irecv(b + SPAN + PART, 100, MPI_BYTE, 0, 2, comm, &requests[2]);
	MPI_Irecv(b + SPAN, PART, MPI_BYTE, 0, 3, comm, &requests[3]);
	while (!flag) {
		switch (which) {
		case 0:
			MPI_Request_get_status_all(4, requests, &flag, statuses);
			break;
		case 1:
			/* Only the one with rows. */
			MPI_Request_get_status_any(2, requests, &index, &flag, statuses);
			break;
		default:
			MPI_Request_get_status_some(4, requests, &done, indices, statuses);
			flag = done == 3;
		}
	}
	if (which == 0)
		printf("all: %d %d %d\n", received(&statuses[0]), received(&statuses[2]),
		       received(&statuses[3]));
	else if (which == 1)
		printf("any: %d %d\n", index, received(&statuses[0]));
	else
		printf("some: %d %d %d of %d %d %d\n", indices[0], indices[1], indices[2],
		       received(&statuses[0]), received(&statuses[1]), received(&statuses[2]));
	MPI_Waitall(4, requests, statuses);
	printf("%d %016llx\n", received(&statuses[0]), (unsigned long long)hash(b, SPAN + PART));
	MPI_Request_get_status_any(4, requests, &index, &flag, statuses);
	printf("none: %d %d\n", index == MPI_UNDEFINED, flag);
}

int main(int argc, char **argv)
{
	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_dup(MPI_COMM_WORLD, &comm);
	MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
	MPI_Type_vector(ROWS, ROW, STRIDE, MPI_BYTE, &rows);
	MPI_Type_commit(&rows);
	a = calloc(2, SPAN);
	b = calloc(2, SPAN);
	for (size_t i = 0; i < SPAN; i++)
		a[i] = i * 7 + i / 251;
	for (int which = 0; which < 3; which++)
		look(which);
	for (int waiting = 0; waiting < 2; waiting++)
		cut_off(waiting);
	look(0);
	MPI_Finalize();
	return 0;
}
