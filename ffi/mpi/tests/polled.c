// SPDX-License-Identifier: MIT OR Apache-2.0

/* MPI_Test, and MPI_Testany of one request, asked again and again: about messages that are
 * intercepted and others, with a status and without, about no request, one that is not active, and
 * one whose message is too long. Some are of numbers of which libraries copy ten of sixteen bytes.
 * Two ranks; prints what each said. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "error_class.h"

enum { PIECES = 2048, DENSE = 1024, UNSET = -77 };

static unsigned char *bytes;
static MPI_Datatype pieces, numbers;
static int rank;
/* The compiler knows how long a status is that is ignored. */
static MPI_Status *volatile nowhere;

enum what { LONG, SHORT, TOO_LONG, NUMBERS, WHATS };
static const char *const whats[] = { "long", "short", "too long", "long double" };

/* Every second one of these is data. */
static void set_number(int i)
{
	long double number = i + 0.25L;
	memcpy(bytes + 16 * i, &number, 10);
}

static int is_number(int i, int is_sent)
{
	long double number = is_sent ? i + 0.25L : 0;
	return memcmp(bytes + 16 * i, &number, 10) == 0;
}

static int ask(int any, MPI_Request *request, int *index, int *flag, MPI_Status *status)
{
	*index = UNSET;
	return any ? MPI_Testany(1, request, index, flag, status) : MPI_Test(request, flag, status);
}

static void once(enum what what, int any, int ignored, int persistent)
{
	MPI_Request request = MPI_REQUEST_NULL, other;
	MPI_Status status;
	int flag, index, asked = 0, code, count = UNSET, right = 1;
	unsigned char more[DENSE];

	memset(&status, 0, sizeof(status));
	if (rank == 0) {
		for (int i = 0; i < 16 * PIECES; i++)
			bytes[i] = (unsigned char)(i * 7 + what);
		for (int i = 0; i < PIECES && what == NUMBERS; i++)
			set_number(i);
		MPI_Barrier(MPI_COMM_WORLD);
		if (what == NUMBERS)
			MPI_Send(bytes, PIECES / 2, numbers, 1, 1, MPI_COMM_WORLD);
		else if (what == SHORT)
			MPI_Send(bytes, DENSE, MPI_BYTE, 1, 1, MPI_COMM_WORLD);
		else
			MPI_Send(bytes, PIECES, pieces, 1, 1, MPI_COMM_WORLD);
		MPI_Send(bytes, DENSE, MPI_BYTE, 1, 2, MPI_COMM_WORLD);
		return;
	}
	memset(bytes, 0, 16 * PIECES);
	const int elements = what == LONG ? PIECES : what == SHORT ? DENSE : PIECES / 2;
	const MPI_Datatype type = what == SHORT ? MPI_BYTE : what == NUMBERS ? numbers : pieces;
	if (persistent) {
		MPI_Recv_init(bytes, elements, type, 0, 1, MPI_COMM_WORLD, &request);
		code = ask(any, &request, &index, &flag, &status);
		printf("inactive: %s, flag %d, %s; ", class_name(code), flag, index == MPI_UNDEFINED ? "undefined" : "none");
		MPI_Start(&request);
	} else {
		MPI_Irecv(bytes, elements, type, 0, 1, MPI_COMM_WORLD, &request);
	}
	/* Another one that is known, whatever becomes of this one. */
	MPI_Irecv(more, DENSE, MPI_BYTE, 0, 2, MPI_COMM_WORLD, &other);
	for (int i = 0; i < 1000; i++) {
		code = ask(any, &request, &index, &flag, ignored ? nowhere : &status);
		asked += code == MPI_SUCCESS && !flag && (index == UNSET || index == MPI_UNDEFINED);
	}
	MPI_Barrier(MPI_COMM_WORLD);
	do
		code = ask(any, &request, &index, &flag, ignored ? nowhere : &status);
	while (code == MPI_SUCCESS && !flag);
	if (code == MPI_SUCCESS) {
		if (!ignored)
			MPI_Get_count(&status, type, &count);
		for (int i = 0; i < PIECES && what == NUMBERS; i++)
			right &= is_number(i, i % 2 == 0);
		for (int i = 0; i < (what == NUMBERS ? 0 : what == SHORT ? DENSE : 16 * PIECES); i++) {
			const int is_data = what == SHORT || i % 16 < 8;
			right &= bytes[i] == (is_data ? (unsigned char)(i * 7 + what) : 0);
		}
	}
	printf("%d of 1000 asked in vain, %s, index %d, %d elements from %d with %d, %s; ", asked, class_name(code), index,
	       ignored ? 0 : count, code || ignored ? 0 : status.MPI_SOURCE, code || ignored ? 0 : status.MPI_TAG,
	       right ? "right" : "WRONG");
	if (persistent && request != MPI_REQUEST_NULL)
		MPI_Request_free(&request);
	if (code == MPI_SUCCESS) {
		code = ask(any, &request, &index, &flag, &status);
		printf("null: %s, flag %d, %s\n", class_name(code), flag, index == MPI_UNDEFINED ? "undefined" : "none");
	} else {
		printf("\n");
	}
	MPI_Wait(&other, MPI_STATUS_IGNORE);
}

int main(int argc, char **argv)
{
	MPI_Datatype wide;
	nowhere = MPI_STATUS_IGNORE;
	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
	bytes = malloc(16 * PIECES);
	MPI_Type_contiguous(8, MPI_BYTE, &wide);
	MPI_Type_create_resized(wide, 0, 16, &pieces);
	MPI_Type_commit(&pieces);
	MPI_Type_free(&wide);
	MPI_Type_create_resized(MPI_LONG_DOUBLE, 0, 32, &numbers);
	MPI_Type_commit(&numbers);
	for (int round = 0; round < 3; round++)
		for (int what = 0; what < WHATS; what++)
			for (int any = 0; any < 2; any++)
				for (int ignored = 0; ignored < 2; ignored++)
					/* MPICH says that a persistent one has come that was cut
					 * off. */
					for (int persistent = 0; persistent < (what == TOO_LONG ? 1 : 2); persistent++) {
						if (rank == 1)
							printf("%s, %s%s: ", whats[what], any ? "testany" : "test",
							       ignored ? ", ignored" : "");
						once(what, any, ignored, persistent);
					}
	MPI_Type_free(&pieces);
	MPI_Type_free(&numbers);
	free(bytes);
	MPI_Finalize();
	return 0;
}
