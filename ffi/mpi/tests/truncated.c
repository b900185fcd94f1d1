// SPDX-License-Identifier: MIT OR Apache-2.0

/* Messages that are longer than the receives that they match: 19,984 bytes, which are intercepted,
 * into 9,984, which are fewer than any message has that is. Every function that completes a receive
 * says MPI_ERR_TRUNCATE. Messages of the program's own that are as long as headers arrive
 * meanwhile. Three ranks; prints what each function said.
 *
 * usage: truncated
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "error_class.h"

enum { PIECES = 1249, CAPACITY = 9984, SHORT = 400, TIMES = 5, ROOM = 1 << 17 };

static int rank;
static unsigned char *bytes, *more;
static MPI_Datatype pieces, half;
/* The compiler knows how long an array of statuses is that is ignored. */
static MPI_Status *volatile nowhere;

static void fill(int seed)
{
	for (int i = 0; i < ROOM; i++) {
		bytes[i] = rank == 0 ? i * 7 + i / 251 + seed : 0;
		more[i] = rank == 0 ? i * 11 + i / 241 + seed : 0;
	}
}

static int is_more(int count, int seed)
{
	for (int i = 0; i < count; i++)
		if (more[i] != (unsigned char)(i * 11 + i / 241 + seed))
			return 0;
	return 1;
}

enum way {
	RECV, WAIT, WAIT_IGNORE, TEST, TEST_IGNORE, WAITALL, WAITALL_IGNORE, TESTALL, WAITANY, TESTANY, WAITSOME,
	WAITSOME_IGNORE, TESTSOME, PERSISTENT, SENDRECV, MATCHED, FITS, WAYS
};
static const char *const names[] = { "recv", "wait", "wait, ignored", "test", "test, ignored", "waitall",
	"waitall, ignored", "testall", "waitany", "testany", "waitsome", "waitsome, ignored", "testsome",
	"persistent", "sendrecv", "matched", "fits" };

/* Two messages, the short one first, for two receives of which the second is too short. */
static void once(enum way way, int typed, int seed, int shown)
{
	MPI_Request requests[2] = { MPI_REQUEST_NULL, MPI_REQUEST_NULL };
	MPI_Status statuses[2];
	MPI_Message message;
	int code = 0, flag = 0, index = -1, done = 0, indices[2] = { -1, -1 }, large = 0;
	int count = way == FITS ? 16 * PIECES : CAPACITY;
	MPI_Datatype type = typed ? half : MPI_BYTE;
	char said[256] = "";
	fill(seed);
	if (typed)
		count /= 8;
	if (rank == 0) {
		MPI_Barrier(MPI_COMM_WORLD);
		MPI_Send(more, SHORT, MPI_BYTE, 1, 1, MPI_COMM_WORLD);
		if (way == SENDRECV)
			MPI_Sendrecv(bytes, PIECES, pieces, 1, 2, more, ROOM, MPI_BYTE, 1, 3, MPI_COMM_WORLD,
				     MPI_STATUS_IGNORE);
		else
			MPI_Send(bytes, PIECES, pieces, 1, 2, MPI_COMM_WORLD);
		return;
	}
	if (rank == 2) {
		MPI_Barrier(MPI_COMM_WORLD);
		return;
	}
	memset(statuses, 0, sizeof(statuses));
	MPI_Irecv(more, SHORT, MPI_BYTE, 0, 1, MPI_COMM_WORLD, &requests[0]);
	if (way == PERSISTENT) {
		MPI_Recv_init(bytes, count, type, 0, 2, MPI_COMM_WORLD, &requests[1]);
		MPI_Start(&requests[1]);
	} else if (way != RECV && way != SENDRECV && way != MATCHED) {
		MPI_Irecv(bytes, count, type, 0, 2, MPI_COMM_WORLD, &requests[1]);
	}
	MPI_Barrier(MPI_COMM_WORLD);
	if (way < WAITALL || way > TESTSOME || way == WAITANY || way == TESTANY)
		MPI_Wait(&requests[0], &statuses[0]);
	switch (way) {
	case RECV:
		code = MPI_Recv(bytes, count, type, 0, 2, MPI_COMM_WORLD, &statuses[1]);
		break;
	case SENDRECV:
		code = MPI_Sendrecv(more + ROOM / 2, PIECES, pieces, 0, 3, bytes, count, type, 0, 2, MPI_COMM_WORLD,
				    &statuses[1]);
		break;
	case MATCHED:
		MPI_Mprobe(0, 2, MPI_COMM_WORLD, &message, &statuses[1]);
		MPI_Get_count(&statuses[1], MPI_BYTE, &large);
		MPI_Imrecv(bytes, count, type, &message, &requests[1]);
		code = MPI_Wait(&requests[1], &statuses[1]);
		break;
	case WAIT:
	case FITS:
	case PERSISTENT:
		code = MPI_Wait(&requests[1], &statuses[1]);
		break;
	case WAIT_IGNORE:
		code = MPI_Wait(&requests[1], MPI_STATUS_IGNORE);
		break;
	case TEST:
		while (!flag && !code)
			code = MPI_Test(&requests[1], &flag, &statuses[1]);
		break;
	case TEST_IGNORE:
		while (!flag && !code)
			code = MPI_Test(&requests[1], &flag, MPI_STATUS_IGNORE);
		break;
	case WAITALL:
		code = MPI_Waitall(2, requests, statuses);
		break;
	case WAITALL_IGNORE:
		code = MPI_Waitall(2, requests, nowhere);
		break;
	case TESTALL:
		while (!flag && !code)
			code = MPI_Testall(2, requests, &flag, statuses);
		break;
	case WAITANY:
		code = MPI_Waitany(2, requests, &index, &statuses[1]);
		break;
	case TESTANY:
		while (!flag && !code)
			code = MPI_Testany(2, requests, &index, &flag, &statuses[1]);
		break;
	case WAITSOME:
	case WAITSOME_IGNORE:
	case TESTSOME:
		/* The short one may be complete before. */
		for (int left = 2; left > 0; left -= done) {
			int ignored = way == WAITSOME_IGNORE;
			code = way == TESTSOME ? MPI_Testsome(2, requests, &done, indices, statuses) :
						 MPI_Waitsome(2, requests, &done, indices,
							      ignored ? nowhere : statuses);
			if (done < 0)
				break;
			for (int i = 0; i < done; i++)
				if (indices[i] == 1 && code && !ignored)
					strcpy(said, class_name(statuses[i].MPI_ERROR));
		}
		break;
	default:
		break;
	}
	if (way == WAITALL || way == TESTALL)
		sprintf(said, "%s, %s", class_name(statuses[0].MPI_ERROR), class_name(statuses[1].MPI_ERROR));
	if (way == WAITANY || way == TESTANY)
		sprintf(said, "index %d", index);
	if (way == MATCHED)
		sprintf(said, "probed %d", large);
	if (way == FITS) {
		int wrong = 0;
		MPI_Get_count(&statuses[1], MPI_BYTE, &large);
		for (int i = 0; i < large; i++) {
			int at = typed ? i / 8 * 16 + i % 8 : i, from = i / 16 * 32 + i % 16;
			wrong += bytes[at] != (unsigned char)(from * 7 + from / 251 + seed);
		}
		sprintf(said, "%d bytes, %d wrong", large, wrong);
	}
	int left = requests[1] != MPI_REQUEST_NULL;
	if (left)
		MPI_Request_free(&requests[1]);
	/* The library may have left it, where another one had failed. */
	MPI_Wait(&requests[0], MPI_STATUS_IGNORE);
	if (shown)
		printf("%s, %s: %s (%s)%s; short %s\n", names[way], typed ? "typed" : "dense", class_name(code), said,
		       left && way != PERSISTENT ? ", left" : "", is_more(SHORT, seed) ? "right" : "wrong");
}

/* A message that is as long as a header, with the same tag, while one is under way with such a
 * header. */
static void beside(int length, int seed)
{
	MPI_Request large, small;
	MPI_Status status;
	int count, codes[2], wrong = 0;
	fill(seed);
	if (rank == 0) {
		MPI_Barrier(MPI_COMM_WORLD);
		MPI_Isend(bytes, PIECES, pieces, 1, 4, MPI_COMM_WORLD, &large);
		MPI_Isend(more, length, MPI_BYTE, 1, 4, MPI_COMM_WORLD, &small);
		MPI_Wait(&small, MPI_STATUS_IGNORE);
		MPI_Wait(&large, MPI_STATUS_IGNORE);
		return;
	}
	if (rank == 2) {
		MPI_Barrier(MPI_COMM_WORLD);
		return;
	}
	MPI_Irecv(bytes, PIECES, pieces, 0, 4, MPI_COMM_WORLD, &large);
	MPI_Irecv(more, CAPACITY, MPI_BYTE, 0, MPI_ANY_TAG, MPI_COMM_WORLD, &small);
	MPI_Barrier(MPI_COMM_WORLD);
	codes[0] = MPI_Wait(&small, &status);
	MPI_Get_count(&status, MPI_BYTE, &count);
	codes[1] = MPI_Wait(&large, MPI_STATUS_IGNORE);
	for (int i = 0; i < 16 * PIECES; i++) {
		int at = i / 16 * 32 + i % 16;
		wrong += bytes[at] != (unsigned char)(at * 7 + at / 251 + seed);
	}
	printf("beside %d: %s, %d bytes, %s; large %s, %d wrong\n", length, class_name(codes[0]), count,
	       is_more(length, seed) ? "right" : "wrong", class_name(codes[1]), wrong);
}

/* More receives than there is room for on a stack; the last message is too long. */
static void many(int ignored, int seed)
{
	enum { MANY = 40 };
	MPI_Request requests[MANY];
	MPI_Status statuses[MANY];
	fill(seed);
	for (int i = 0; rank == 1 && i < MANY; i++)
		MPI_Irecv(i < MANY - 1 ? more + i * SHORT : bytes, i < MANY - 1 ? SHORT : CAPACITY, MPI_BYTE, 0, i,
			  MPI_COMM_WORLD, &requests[i]);
	MPI_Barrier(MPI_COMM_WORLD);
	for (int i = 0; rank == 0 && i < MANY - 1; i++)
		MPI_Send(more + i * SHORT, SHORT, MPI_BYTE, 1, i, MPI_COMM_WORLD);
	if (rank == 0)
		MPI_Send(bytes, PIECES, pieces, 1, MANY - 1, MPI_COMM_WORLD);
	if (rank != 1)
		return;
	int code = MPI_Waitall(MANY, requests, ignored ? nowhere : statuses);
	printf("many%s: %s%s%s; short %s\n", ignored ? ", ignored" : "", class_name(code), ignored ? "" : ", ",
	       ignored ? "" : class_name(statuses[MANY - 1].MPI_ERROR),
	       is_more((MANY - 1) * SHORT, seed) ? "right" : "wrong");
	if (requests[MANY - 1] != MPI_REQUEST_NULL)
		MPI_Request_free(&requests[MANY - 1]);
}

/* Messages from a third rank that are as long as all headers, while one is under way. */
static void elsewhere(int seed)
{
	enum { LENGTHS = 60, EACH = 4096 };
	static unsigned char received[LENGTHS * EACH];
	MPI_Request requests[LENGTHS], large = MPI_REQUEST_NULL;
	MPI_Status statuses[LENGTHS];
	int wrong = 0, lengths = 0, code = 0;
	fill(seed);
	for (int i = 0; rank == 1 && i < LENGTHS; i++)
		MPI_Irecv(received + i * EACH, EACH, MPI_BYTE, 2, 4, MPI_COMM_WORLD, &requests[i]);
	if (rank == 0)
		MPI_Isend(bytes, PIECES, pieces, 1, 4, MPI_COMM_WORLD, &large);
	MPI_Barrier(MPI_COMM_WORLD);
	for (int i = 0; rank == 2 && i < LENGTHS; i++)
		MPI_Send(more, 160 + 64 * i, MPI_BYTE, 1, 4, MPI_COMM_WORLD);
	if (rank == 1) {
		code = MPI_Waitall(LENGTHS, requests, statuses);
		for (int i = 0; i < LENGTHS; i++) {
			int count;
			MPI_Get_count(&statuses[i], MPI_BYTE, &count);
			lengths += count == 160 + 64 * i;
		}
		MPI_Recv(bytes, PIECES, pieces, 0, 4, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
		for (int i = 0; i < 16 * PIECES; i++) {
			int at = i / 16 * 32 + i % 16;
			wrong += bytes[at] != (unsigned char)(at * 7 + at / 251 + seed);
		}
		printf("elsewhere: %s, %d lengths; large %d wrong\n", class_name(code), lengths, wrong);
	}
	MPI_Wait(&large, MPI_STATUS_IGNORE);
}

int main(int argc, char **argv)
{
	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
	nowhere = MPI_STATUSES_IGNORE;
	/* What is too long may be written as a whole. */
	bytes = malloc(ROOM);
	more = malloc(ROOM);
	MPI_Type_vector(1, 16, 16, MPI_BYTE, &half);
	MPI_Type_create_resized(half, 0, 32, &pieces);
	MPI_Type_commit(&pieces);
	MPI_Type_free(&half);
	MPI_Type_create_resized(MPI_DOUBLE, 0, 16, &half);
	MPI_Type_commit(&half);
	for (int way = 0; way < WAYS; way++)
		for (int typed = 0; typed < 2; typed++)
			for (int i = 0; i < TIMES; i++)
				once(way, typed, 100 * way + i, i == 0);
	for (int i = 0; i < 2; i++)
		many(i, i);
	elsewhere(1);
	for (int i = 0; i < 5; i++)
		beside(160 + 64 * i, i);
	MPI_Type_free(&pieces);
	MPI_Type_free(&half);
	MPI_Finalize();
	return 0;
}
