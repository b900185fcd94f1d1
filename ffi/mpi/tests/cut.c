// SPDX-License-Identifier: MIT OR Apache-2.0

/* Receives that are shorter than the messages that they match, of every length up to 400 bytes and
 * of some above: each way to receive and each way to complete, posted before the message comes and
 * after it was probed for. Prints what the functions said and what is in the buffer, which has to
 * be what the MPI library says and delivers on its own. Two ranks.
 *
 * usage: cut [lengths between two that are tried] [first length]
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "error_class.h"

enum { DENSE = 300000, LARGE = 1 << 20, PIECES = 1249, ROOM = (1 << 20) + (1 << 16), UNTOUCHED = 0xee };

static int rank;
static unsigned char *bytes, *room;
static MPI_Datatype pieces, spread;
/* The compiler knows how long an array of statuses is that is ignored. */
static MPI_Status *volatile nowhere;

static unsigned char data(int i)
{
	unsigned char byte = i * 7 + i / 251;
	return byte == UNTOUCHED ? 1 : byte;
}

enum post { IRECV, PERSISTENT, IMRECV, RECV, MRECV, SENDRECV, REPLACE };
enum complete { WAIT, TEST, WAITALL, TESTALL, WAITANY, TESTANY, WAITSOME, TESTSOME, ASKED, COMPLETIONS };
enum order { BEFORE, AFTER, PROBED, ASKED_FOR };
static const char *const posts[] = { "irecv", "persistent", "imrecv", "recv", "mrecv", "sendrecv", "replace" };
static const char *const completions[] = { "wait", "test", "waitall", "testall", "waitany", "testany", "waitsome",
	"testsome", "get_status" };
static const char *const orders[] = { "before", "after", "probed", "iprobed" };

static void send(int sender)
{
	MPI_Request request;
	if (sender == 2)
		MPI_Isend(bytes, PIECES, pieces, 1, 2, MPI_COMM_WORLD, &request);
	else
		MPI_Isend(bytes, sender ? LARGE : DENSE, MPI_BYTE, 1, 2, MPI_COMM_WORLD, &request);
	MPI_Barrier(MPI_COMM_WORLD);
	MPI_Wait(&request, MPI_STATUS_IGNORE);
	/* What some of them send. */
	MPI_Recv(room, ROOM, MPI_BYTE, 1, 3, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
	MPI_Barrier(MPI_COMM_WORLD);
}

/* Byte `i` of the message. */
static unsigned char sent(int sender, int i)
{
	return data(sender == 2 ? i / 16 * 32 + i % 16 : i);
}

/* Where that is in a buffer of this type. */
static int place(int typed, int i)
{
	return typed ? i / 8 * 16 + i % 8 : i;
}

static void once(enum post post, enum complete complete, int ignored, int length, int variant)
{
	int typed = variant % 2 && length % 8 == 0, sender = variant / 2 % 3, order = variant / 6 % 4,
	    any = variant / 24 % 2;
	if (rank == 0) {
		if (order == BEFORE)
			MPI_Barrier(MPI_COMM_WORLD);
		send(sender);
		return;
	}
	MPI_Request requests[2] = { MPI_REQUEST_NULL, MPI_REQUEST_NULL };
	MPI_Status statuses[2], status, probed;
	MPI_Message message;
	int code = 0, flag = 0, index = -1, done = 0, indices[2] = { -1, -1 }, asked = 0;
	int from = any ? MPI_ANY_SOURCE : 0, tag = any ? MPI_ANY_TAG : 2, count = typed ? length / 8 : length;
	MPI_Datatype type = typed ? spread : MPI_BYTE;
	unsigned char none = 0;
	memset(room, UNTOUCHED, ROOM);
	memset(statuses, 0, sizeof(statuses));
	memset(&status, 0, sizeof(status));
	int posted = post == IRECV || post == PERSISTENT, sends = post == SENDRECV || post == REPLACE;
	for (int step = 0; step < 2; step++) {
		if (step == (order != BEFORE)) {
			if (post == IRECV) {
				MPI_Irecv(room, count, type, from, tag, MPI_COMM_WORLD, &requests[1]);
			} else if (post == PERSISTENT) {
				MPI_Recv_init(room, count, type, from, tag, MPI_COMM_WORLD, &requests[1]);
				MPI_Start(&requests[1]);
			}
			if (order == BEFORE)
				MPI_Barrier(MPI_COMM_WORLD);
		}
		if (step == 0) {
			/* The sender's second one. */
			if (order != BEFORE)
				MPI_Barrier(MPI_COMM_WORLD);
			if (order == PROBED)
				MPI_Probe(from, tag, MPI_COMM_WORLD, &probed);
			for (flag = 0; order == ASKED_FOR && !flag;)
				MPI_Iprobe(from, tag, MPI_COMM_WORLD, &flag, &probed);
			flag = 0;
		}
	}
	if (order == BEFORE)
		MPI_Barrier(MPI_COMM_WORLD);
	if (post == IMRECV || post == MRECV) {
		if (post == IMRECV)
			for (flag = 0; !flag;)
				MPI_Improbe(from, tag, MPI_COMM_WORLD, &flag, &message, &probed);
		else
			MPI_Mprobe(from, tag, MPI_COMM_WORLD, &message, &probed);
		flag = 0;
	}
	if (post == IMRECV) {
		MPI_Imrecv(room, count, type, &message, &requests[1]);
		posted = 1;
	}
	MPI_Status *at = ignored ? MPI_STATUS_IGNORE : &status, *all = ignored ? nowhere : statuses;
	if (post == RECV)
		code = MPI_Recv(room, count, type, from, tag, MPI_COMM_WORLD, at);
	else if (post == MRECV)
		code = MPI_Mrecv(room, count, type, &message, at);
	else if (post == SENDRECV)
		code = MPI_Sendrecv(&none, 1, MPI_BYTE, 0, 3, room, count, type, from, tag, MPI_COMM_WORLD, at);
	else if (post == REPLACE)
		code = MPI_Sendrecv_replace(room, count, type, 0, 3, from, tag, MPI_COMM_WORLD, at);
	while (posted && !done) {
		switch (complete) {
		case ASKED:
			while (!flag && !asked)
				asked = MPI_Request_get_status(requests[1], &flag, at);
			/* Fall through. */
		case WAIT:
			code = MPI_Wait(&requests[1], at);
			flag = 1;
			break;
		case TEST:
			code = MPI_Test(&requests[1], &flag, at);
			break;
		case WAITALL:
			code = MPI_Waitall(2, requests, all);
			flag = 1;
			break;
		case TESTALL:
			code = MPI_Testall(2, requests, &flag, all);
			break;
		case WAITANY:
			code = MPI_Waitany(2, requests, &index, at);
			flag = 1;
			break;
		case TESTANY:
			code = MPI_Testany(2, requests, &index, &flag, at);
			break;
		case WAITSOME:
			code = MPI_Waitsome(2, requests, &flag, indices, all);
			break;
		case TESTSOME:
			code = MPI_Testsome(2, requests, &flag, indices, all);
			break;
		default:
			break;
		}
		done = code || flag;
	}
	if (complete == WAITALL || complete == TESTALL)
		status = statuses[1];
	if (complete == WAITSOME || complete == TESTSOME)
		status = statuses[0];
	int number = 0, elements = 0, wrong = 0, prefix = 0, left = requests[1] != MPI_REQUEST_NULL;
	MPI_Get_count(&status, MPI_BYTE, &number);
	MPI_Get_elements(&status, MPI_BYTE, &elements);
	while (prefix < length && room[place(typed, prefix)] == sent(sender, prefix))
		prefix++;
	for (int i = 0; i < length; i++)
		if (i >= prefix)
			wrong += room[place(typed, i)] != UNTOUCHED;
	/* What is between elements, and behind them. */
	for (int i = 0; typed && i < length; i++)
		wrong += i % 8 == 0 && room[place(typed, i) + 8] != UNTOUCHED;
	for (int i = place(typed, length); i < ROOM; i++)
		wrong += room[i] != UNTOUCHED;
	printf("%s %s%s %s %d%s of %d%s: %s, asked %s, error %s, %d bytes, %d elements, %d from %d, index %d%s; "
	       "%d right, %d foreign\n",
	       posts[post], posted ? completions[complete] : "", ignored ? ", ignored" : "", orders[order], length,
	       typed ? " typed" : "", sender, any ? " any" : "", class_name(code), class_name(asked),
	       class_name(status.MPI_ERROR), number, elements, status.MPI_TAG, status.MPI_SOURCE,
	       complete == WAITSOME || complete == TESTSOME ? indices[0] : index, left ? ", left" : "", prefix, wrong);
	if (left)
		MPI_Request_free(&requests[1]);
	if (!sends)
		MPI_Send(&none, 1, MPI_BYTE, 0, 3, MPI_COMM_WORLD);
	MPI_Barrier(MPI_COMM_WORLD);
}

int main(int argc, char **argv)
{
	static const int above[] = { 416, 1000, 3936, 3999, 4000, 9984, 19976, 100000, 262136, 299992 };
	int step = argc > 1 ? atoi(argv[1]) : 1, first = argc > 2 ? atoi(argv[2]) : 0, variant = 0;
	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
	nowhere = MPI_STATUSES_IGNORE;
	bytes = malloc(ROOM);
	room = malloc(ROOM);
	for (int i = 0; i < ROOM; i++)
		bytes[i] = data(i);
	MPI_Type_vector(1, 16, 16, MPI_BYTE, &spread);
	MPI_Type_create_resized(spread, 0, 32, &pieces);
	MPI_Type_commit(&pieces);
	MPI_Type_free(&spread);
	MPI_Type_create_resized(MPI_DOUBLE, 0, 16, &spread);
	MPI_Type_commit(&spread);
	for (int i = first; i < 401 + (int)(sizeof(above) / sizeof(*above)); i += step) {
		int length = i <= 400 ? i : above[i - 401];
		for (int post = 0; post <= REPLACE; post++)
			for (int complete = 0; complete < (post < RECV ? COMPLETIONS : 1); complete++)
				for (int ignored = 0; ignored < 2; ignored++)
					once(post, complete, ignored, length, variant = (variant * 13 + 7) % 9973);
	}
	MPI_Type_free(&pieces);
	MPI_Type_free(&spread);
	MPI_Finalize();
	return 0;
}
