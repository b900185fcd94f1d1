// SPDX-License-Identifier: MIT OR Apache-2.0

/* Messages of the C API among several ranks: bytes and columns of a matrix, short and long, with
 * wildcards, requests and errors. */
#define _DEFAULT_SOURCE
#include "ranks.h"

#include <sys/wait.h>
#include <unistd.h>

enum { ROWS = 4000, COLUMNS = 8, LENGTH = ROWS * (int)sizeof(double) };

static double matrix[ROWS][COLUMNS], column[ROWS];

static double element(size_t from, int row, int round)
{
	return (double)from * 1e6 + row + round * 0.25;
}

/* Everybody sends the third column of a matrix to the right, where it becomes the first one, or
 * dense. */
static void columns(int round, const libcopy_type_t *type)
{
	size_t right = (rank + 1) % size, left = (rank + size - 1) % size;
	libcopy_request_t *requests[2];
	libcopy_status_t status;
	int flag = 0;

	memset(matrix, 0, sizeof(matrix));
	for (int row = 0; row < ROWS; row++)
		matrix[row][2] = element(rank, row, round);
	if (round % 2) {
		EXPECT(!libcopy_team_sendrecv(team, &matrix[0][2], 1, type, right, round, &matrix[0][0], 1,
					      type, (ptrdiff_t)left, round, &status));
	} else {
		EXPECT(!libcopy_team_irecv(team, column, LENGTH, NULL, LIBCOPY_ANY_SOURCE,
					   LIBCOPY_ANY_TAG, &requests[0]));
		EXPECT(!libcopy_team_isend(team, &matrix[0][2], 1, type, right, round, &requests[1]));
		while (!flag)
			EXPECT(!libcopy_team_test(team, &requests[0], &flag, &status));
		EXPECT(!libcopy_team_wait(team, &requests[1], NULL));
		EXPECT(!requests[0] && !requests[1]);
	}
	EXPECT(status.source == left && status.tag == round && status.bytes == LENGTH);
	for (int row = 0; row < ROWS; row++) {
		double found = round % 2 ? matrix[row][0] : column[row];

		EXPECT(found == element(left, row, round));
		EXPECT(matrix[row][1] == 0 && matrix[row][2] == element(rank, row, round));
	}
	EXPECT(!libcopy_team_barrier(team));
}

static void errors(void)
{
	libcopy_request_t *none = NULL;
	libcopy_status_t status;
	char bytes[8] = "message";
	int flag = 2;

	EXPECT(libcopy_team_send(team, bytes, 8, NULL, size, 0) == LIBCOPY_EINVAL);
	EXPECT(libcopy_team_send(team, bytes, 8, NULL, 0, -1) == LIBCOPY_EINVAL);
	EXPECT(libcopy_team_send(team, NULL, 8, NULL, 0, 0) == LIBCOPY_EINVAL);
	EXPECT(libcopy_team_recv(team, bytes, 8, NULL, -2, 0, NULL) == LIBCOPY_EINVAL);
	EXPECT(libcopy_team_isend(team, bytes, 8, NULL, 0, 0, NULL) == LIBCOPY_EINVAL);
	EXPECT(libcopy_team_wait(team, &none, NULL) == LIBCOPY_EINVAL);
	EXPECT(libcopy_team_test(team, &none, &flag, NULL) == LIBCOPY_EINVAL);
	EXPECT(!libcopy_team_iprobe(team, LIBCOPY_ANY_SOURCE, 5, &flag, &status) && !flag);
	EXPECT(!libcopy_team_send(team, bytes, 8, NULL, rank, 5));
	EXPECT(!libcopy_team_iprobe(team, LIBCOPY_ANY_SOURCE, 5, &flag, &status) && flag);
	EXPECT(status.source == rank && status.bytes == 8);
	EXPECT(libcopy_team_recv(team, bytes, 7, NULL, (ptrdiff_t)rank, 5, NULL) == LIBCOPY_ETRUNCATE);
	EXPECT(!libcopy_team_barrier(team));
}

/* A child has inherited its parent's team, and may do nothing with it but free its copy. */
static void forked(void)
{
	libcopy_request_t *request;
	int status = -1, flag;
	char byte = 1;

	EXPECT(!libcopy_team_irecv(team, &byte, 1, NULL, (ptrdiff_t)rank, 9, &request));
	EXPECT(!libcopy_team_barrier(team));
	pid_t child = fork();
	if (!child) {
		EXPECT(libcopy_team_barrier(team) == LIBCOPY_EFORKED);
		EXPECT(strstr(libcopy_error_detail(), "forked child"));
		EXPECT(libcopy_team_bcast(team, &byte, 1, 0) == LIBCOPY_EFORKED);
		EXPECT(libcopy_team_send(team, &byte, 1, NULL, (rank + 1) % size, 9) == LIBCOPY_EFORKED);
		EXPECT(libcopy_team_send(team, &byte, 1, NULL, rank, 9) == LIBCOPY_EFORKED);
		EXPECT(libcopy_team_test(team, &request, &flag, NULL) == LIBCOPY_EFORKED);
		EXPECT(libcopy_team_set_transport(team, NULL) == LIBCOPY_EFORKED);
		EXPECT(!libcopy_team_free(team));
		_exit(0);
	}
	EXPECT(waitpid(child, &status, 0) == child && !status);
	EXPECT(!libcopy_team_barrier(team));
	EXPECT(!libcopy_team_send(team, "\5", 1, NULL, rank, 9));
	EXPECT(!libcopy_team_wait(team, &request, NULL) && byte == 5);
	EXPECT(!libcopy_team_barrier(team));
}

int main(void)
{
	libcopy_type_t *number, *type;

	EXPECT(!libcopy_team_from_env(&team));
	EXPECT(!libcopy_team_rank(team, &rank) && !libcopy_team_size(team, &size));
	EXPECT(!libcopy_type_parse("double", &number));
	EXPECT(!libcopy_type_vector(ROWS, 1, COLUMNS, number, &type));
	EXPECT(!libcopy_type_commit(type));
	for (int round = 0; round < 20; round++)
		columns(round, type);
	errors();
	forked();
	EXPECT(!libcopy_type_free(type) && !libcopy_type_free(number));
	EXPECT(!libcopy_team_free(team));
	printf("rank %zu is done\n", rank);
	return 0;
}
