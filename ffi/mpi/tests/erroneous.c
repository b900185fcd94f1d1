// SPDX-License-Identifier: MIT OR Apache-2.0

/* The error classes of calls that the MPI library refuses on all ranks, and that correct calls work after them.
 *
 * usage: erroneous FILE WHICH...    the numbers of the calls
 *
 * Rank 0 writes into FILE what they return. Libraries crash or hang in some of them, or see nothing wrong.
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST = 1 << 20 };

static char *one, *other;
static int rank, size;

static int refused(int which)
{
	int wrong[64], right[64], places[64], code;
	MPI_Comm comm = MPI_COMM_WORLD;
	MPI_Datatype row, column;
	for (int i = 0; i < size; i++) {
		wrong[i] = i == 0 ? -1 : MOST;
		right[i] = MOST;
		places[i] = i * MOST;
	}
	MPI_Type_contiguous(16, MPI_BYTE, &row);
	MPI_Type_vector(8, 1, 2, MPI_BYTE, &column);
	switch (which) {
	case 0:
		code = MPI_Bcast(one, -1, MPI_BYTE, 0, comm);
		break;
	case 1:
		code = MPI_Bcast(one, MOST / 16, row, 0, comm);
		break;
	case 2:
		code = MPI_Bcast(one, MOST / 16, column, 0, comm);
		break;
	case 3:
		code = MPI_Bcast(one, MOST, MPI_DATATYPE_NULL, 0, comm);
		break;
	case 4:
		code = MPI_Bcast(one, MOST, MPI_BYTE, size, comm);
		break;
	case 5:
		code = MPI_Allgather(one, MOST, MPI_BYTE, other, -1, MPI_BYTE, comm);
		break;
	case 6:
		code = MPI_Allgather(one, -1, MPI_BYTE, other, MOST, MPI_BYTE, comm);
		break;
	case 7:
		code = MPI_Allgather(one, MOST / 16, row, other, MOST, MPI_BYTE, comm);
		break;
	case 8:
		code = MPI_Alltoall(one, MOST, MPI_BYTE, other, -1, MPI_BYTE, comm);
		break;
	case 9:
		code = MPI_Alltoall(one, -1, MPI_BYTE, other, MOST, MPI_BYTE, comm);
		break;
	case 10:
		code = MPI_Alltoall(one, MOST / 16, row, other, MOST / 16, row, comm);
		break;
	case 11:
		code = MPI_Allreduce(one, other, -1, MPI_BYTE, MPI_BXOR, comm);
		break;
	case 12:
		code = MPI_Allreduce(one, other, MOST, MPI_BYTE, MPI_OP_NULL, comm);
		break;
	case 13:
		code = MPI_Allgatherv(one, MOST, MPI_BYTE, other, wrong, places, MPI_BYTE, comm);
		break;
	case 14:
		code = MPI_Alltoallv(one, right, places, MPI_BYTE, other, wrong, places, MPI_BYTE,
				     comm);
		break;
	case 15:
		code = MPI_Allreduce(one, one, MOST, MPI_BYTE, MPI_BXOR, comm);
		break;
	case 16:
		code = MPI_Reduce(one, one, MOST, MPI_BYTE, MPI_BXOR, 0, comm);
		break;
	case 17:
		code = MPI_Allgather(one + rank * MOST, MOST, MPI_BYTE, one, MOST, MPI_BYTE, comm);
		break;
	case 18:
		code = MPI_Alltoall(one, MOST, MPI_BYTE, one, MOST, MPI_BYTE, comm);
		break;
	default:
		code = MPI_SUCCESS;
	}
	MPI_Type_free(&row);
	MPI_Type_free(&column);
	return code;
}

int main(int argc, char **argv)
{
	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &size);
	if (argc < 3 || size > 4)
		MPI_Abort(MPI_COMM_WORLD, 2);
	one = calloc(size, MOST);
	other = calloc(size, MOST);
	MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
	FILE *file = rank == 0 ? fopen(argv[1], "w") : NULL;
	for (int i = 2; i < argc; i++) {
		int which = atoi(argv[i]), code = refused(which), class = MPI_SUCCESS;
		if (code != MPI_SUCCESS)
			MPI_Error_class(code, &class);
		MPI_Barrier(MPI_COMM_WORLD);
		memset(one, 1 << rank, (size_t)size * MOST);
		code = MPI_Allreduce(one, other, MOST, MPI_BYTE, MPI_BXOR, MPI_COMM_WORLD);
		int works = code == MPI_SUCCESS && other[MOST / 2] == (1 << size) - 1;
		if (file)
			fprintf(file, "%d: class %d, then %s\n", which, class, works ? "right" : "wrong");
	}
	if (file)
		fclose(file);
	MPI_Finalize();
	return 0;
}
