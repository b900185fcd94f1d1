// SPDX-License-Identifier: MIT OR Apache-2.0

/* Messages that the receiver copies out of the sender's device memory: between all kinds of
 * layouts, by all functions, and where that cannot be done. A sender writes over its memory and
 * frees it as soon as it may. See device.c for the driver. Each rank prints how many messages it
 * has sent that their receivers can copy, and a line for each case that was right.
 *
 * usage: device_peer CASE...
 */
#define _GNU_SOURCE
#include "test_cases.h"

#include <signal.h>
#include <unistd.h>

enum { HOST, PINNED, MANAGED, DEVICE };
enum { TAG = 11, TOKEN = 12 };

static int rank, size;

/* Messages that this rank has sent and that were copied by their receivers, and those that had to
 * be packed. */
static int copied, packed;

/* ---- Types of doubles. ---- */

enum { DENSE, EVERY_THIRD, PAIRS, IRREGULAR, STRUCTURE, SHIFTED, TYPES };
static MPI_Datatype types[TYPES];

static void make_types(void)
{
	int lengths[5] = { 3, 1, 4, 1, 3 }, places[5] = { 0, 7, 9, 20, 23 }, two[2] = { 2, 2 };
	MPI_Aint bytes[2] = { 8, 80 };
	MPI_Datatype inner[2] = { MPI_DOUBLE, MPI_DOUBLE }, pair;

	types[DENSE] = MPI_DOUBLE;
	MPI_Type_create_resized(MPI_DOUBLE, 0, 24, &types[EVERY_THIRD]);
	MPI_Type_vector(6, 2, 5, MPI_DOUBLE, &types[PAIRS]);
	MPI_Type_indexed(5, lengths, places, MPI_DOUBLE, &types[IRREGULAR]);
	MPI_Type_create_struct(2, two, bytes, inner, &types[STRUCTURE]);
	/* One piece that does not begin where the buffer does. */
	bytes[0] = 64;
	MPI_Type_contiguous(2, MPI_DOUBLE, &pair);
	MPI_Type_create_hindexed_block(1, 1, bytes, pair, &types[SHIFTED]);
	MPI_Type_free(&pair);
	for (int i = 1; i < TYPES; i++)
		MPI_Type_commit(&types[i]);
}

/* All of these types divide this number of doubles, or 500 times as many. */
enum { DOUBLES = 1680, MANY = 500 };

static int elements(int type, int doubles)
{
	int bytes;
	MPI_Type_size(types[type], &bytes);
	return doubles * 8 / bytes;
}

/* Bytes from the buffer's first to the last of the elements. */
static size_t span(int type, int doubles)
{
	MPI_Aint lower, extent, true_lower, true_extent;
	MPI_Type_get_extent(types[type], &lower, &extent);
	MPI_Type_get_true_extent(types[type], &true_lower, &true_extent);
	return (elements(type, doubles) - 1) * extent + true_lower + true_extent;
}

/* ---- Buffers. ---- */

struct buffer {
	struct memory memory;
	int type, doubles, count;
	unsigned seed;
};

/* Room for doubles as elements of a type, filled by a number. */
static struct buffer filled(int space, int type, int doubles, unsigned seed)
{
	struct buffer made = { memory_new(space, span(type, doubles)), type, doubles, elements(type, doubles), seed };
	char *bytes = noise(seed, made.memory.bytes);
	memory_write(&made.memory, bytes);
	free(bytes);
	return made;
}

/* The message is sent: what is written now must not arrive. */
static void spoil(struct buffer *buffer)
{
	char *bytes = noise(~buffer->seed, buffer->memory.bytes);
	memory_write(&buffer->memory, bytes);
	free(bytes);
	memory_free(&buffer->memory);
}

/* Each byte of a buffer that has received doubles, which were sent as elements of `type` filled by
 * `seed`, or none. */
static void check(struct buffer *buffer, int type, int doubles, unsigned seed, const char *what)
{
	int position = 0, bytes = 8 * doubles, packed_bytes = 0, room = bytes + 64;
	char *sent = noise(seed, doubles ? span(type, doubles) : 0), *expected = noise(buffer->seed, buffer->memory.bytes);
	char *got = memory_read(&buffer->memory), *between = malloc(room);
	PMPI_Pack(sent, elements(type, doubles), types[type], between, room, &packed_bytes, MPI_COMM_WORLD);
	PMPI_Unpack(between, packed_bytes, &position, expected, elements(buffer->type, doubles), types[buffer->type],
		    MPI_COMM_WORLD);
	int is_right = memcmp(got, expected, buffer->memory.bytes) == 0;
	for (size_t i = 0; !is_right && i < buffer->memory.bytes; i++)
		CHECK(got[i] == expected[i], "%s: byte %zu of %zu, %d doubles from type %d to type %d", what, i,
		      buffer->memory.bytes, doubles, type, buffer->type);
	free(sent), free(expected), free(got), free(between);
}

static void check_count(const MPI_Status *status, int doubles, const char *what)
{
	int got;
	MPI_Get_count(status, MPI_DOUBLE, &got);
	CHECK(got == doubles, "%s: %d doubles instead of %d", what, got, doubles);
}

/* ---- All functions, between all layouts. ---- */

enum {
	RECV, SSEND, RECV_MORE, PROBE, MPROBE, IMPROBE, WILDCARD, PERSISTENT, REPLACE, WAIT, WAITALL, TESTALL, WAITANY,
	WAITSOME, STATUS, ISSEND, SEND_INIT, SSEND_INIT, RSEND, IRSEND, RSEND_INIT, SENDRECV, CROSSED,
	CROSSED_RECV, CROSSED_INIT, WAYS
};
static const char *const names[WAYS] = { "Recv",    "Ssend",  "Recv of more", "Probe",	  "Mprobe",  "Imrecv",
					 "wildcard", "Recv_init", "replace",  "Wait",	  "Waitall", "Testall",
					 "Waitany", "Waitsome", "Get_status", "Issend",	  "Send_init", "Ssend_init",
					 "Rsend",   "Irsend", "Rsend_init",
					 "Sendrecv", "crossed", "crossed Recv", "crossed init" };

static void send_by(int how, struct buffer *from)
{
	MPI_Request request;
	int count = from->count;
	char *at = from->memory.at;
	MPI_Datatype type = types[from->type];
	/* A send in ready mode is for a receiver that waits. */
	if (how >= RSEND && how <= RSEND_INIT)
		MPI_Recv(NULL, 0, MPI_BYTE, 1, TOKEN, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
	switch (how) {
	case RSEND: MPI_Rsend(at, count, type, 1, TAG, MPI_COMM_WORLD); break;
	case IRSEND:
		MPI_Irsend(at, count, type, 1, TAG, MPI_COMM_WORLD, &request);
		MPI_Wait(&request, MPI_STATUS_IGNORE);
		break;
	case SSEND: MPI_Ssend(at, count, type, 1, TAG, MPI_COMM_WORLD); break;
	case ISSEND:
		MPI_Issend(at, count, type, 1, TAG, MPI_COMM_WORLD, &request);
		MPI_Wait(&request, MPI_STATUS_IGNORE);
		break;
	case WAIT:
	case WAITALL:
	case STATUS:
		MPI_Isend(at, count, type, 1, TAG, MPI_COMM_WORLD, &request);
		CHECK(request != MPI_REQUEST_NULL, "no request");
		MPI_Wait(&request, MPI_STATUS_IGNORE);
		CHECK(request == MPI_REQUEST_NULL, "a request that is left");
		break;
	case SEND_INIT:
	case SSEND_INIT:
	case RSEND_INIT:
		if (how == SEND_INIT)
			MPI_Send_init(at, count, type, 1, TAG, MPI_COMM_WORLD, &request);
		else if (how == RSEND_INIT)
			MPI_Rsend_init(at, count, type, 1, TAG, MPI_COMM_WORLD, &request);
		else
			MPI_Ssend_init(at, count, type, 1, TAG, MPI_COMM_WORLD, &request);
		MPI_Start(&request);
		MPI_Wait(&request, MPI_STATUS_IGNORE);
		CHECK(request != MPI_REQUEST_NULL, "no request any more");
		MPI_Request_free(&request);
		break;
	default: MPI_Send(at, count, type, 1, TAG, MPI_COMM_WORLD);
	}
	copied++;
}

static void receive_by(int how, struct buffer *to, MPI_Status *status)
{
	MPI_Request requests[2] = { MPI_REQUEST_NULL, MPI_REQUEST_NULL }, *request = &requests[1];
	MPI_Status statuses[2];
	MPI_Message message;
	int flag = 0, index, done, indices[2];
	char *at = to->memory.at;
	MPI_Datatype type = types[to->type];
	switch (how) {
	case WAIT:
	case WAITALL:
	case TESTALL:
	case WAITANY:
	case WAITSOME:
	case RSEND:
	case IRSEND:
	case RSEND_INIT:
	case STATUS: MPI_Irecv(at, to->count, type, 0, TAG, MPI_COMM_WORLD, request);
	}
	if (how >= RSEND && how <= RSEND_INIT)
		MPI_Send(NULL, 0, MPI_BYTE, 0, TOKEN, MPI_COMM_WORLD);
	switch (how) {
	case PROBE:
		MPI_Probe(0, TAG, MPI_COMM_WORLD, status);
		check_count(status, to->doubles, "Probe");
		MPI_Recv(at, to->count, type, 0, TAG, MPI_COMM_WORLD, status);
		break;
	case MPROBE:
		MPI_Mprobe(0, TAG, MPI_COMM_WORLD, &message, status);
		check_count(status, to->doubles, "Mprobe");
		MPI_Mrecv(at, to->count, type, &message, status);
		break;
	case IMPROBE:
		while (!flag)
			MPI_Improbe(MPI_ANY_SOURCE, TAG, MPI_COMM_WORLD, &flag, &message, status);
		MPI_Imrecv(at, to->count, type, &message, request);
		MPI_Wait(request, status);
		break;
	case WILDCARD: MPI_Recv(at, to->count, type, MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, status); break;
	case PERSISTENT:
		MPI_Recv_init(at, to->count, type, 0, TAG, MPI_COMM_WORLD, request);
		MPI_Start(request);
		MPI_Wait(request, status);
		MPI_Request_free(request);
		break;
	case REPLACE:
		MPI_Sendrecv_replace(at, to->count, type, MPI_PROC_NULL, 0, 0, TAG, MPI_COMM_WORLD, status);
		break;
	case WAIT:
	case RSEND:
	case IRSEND:
	case RSEND_INIT: MPI_Wait(request, status); break;
	case WAITALL:
		MPI_Waitall(2, requests, statuses);
		*status = statuses[1];
		break;
	case TESTALL:
		while (!flag)
			MPI_Testall(2, requests, &flag, statuses);
		*status = statuses[1];
		break;
	case WAITANY: MPI_Waitany(2, requests, &index, status); break;
	case WAITSOME:
		MPI_Waitsome(2, requests, &done, indices, statuses);
		*status = statuses[0];
		break;
	case STATUS:
		while (!flag)
			MPI_Request_get_status(*request, &flag, status);
		check_count(status, to->doubles, "Get_status");
		MPI_Wait(request, status);
		break;
	default: MPI_Recv(at, to->count, type, 0, TAG, MPI_COMM_WORLD, status);
	}
	CHECK(status->MPI_SOURCE == 0 && status->MPI_TAG == TAG, "source %d, tag %d", status->MPI_SOURCE, status->MPI_TAG);
}

/* Both ranks send and receive at the same time. */
static void exchange_by(int how, struct buffer *from, struct buffer *to, MPI_Status *status)
{
	MPI_Request requests[2];
	MPI_Status statuses[2];
	int other = !rank, out = from->count, in = to->count;
	MPI_Datatype sent = types[from->type], received = types[to->type];
	switch (how) {
	case SENDRECV:
		MPI_Sendrecv(from->memory.at, out, sent, other, TAG, to->memory.at, in, received, other, TAG, MPI_COMM_WORLD,
			     status);
		break;
	case CROSSED:
		MPI_Irecv(to->memory.at, in, received, other, TAG, MPI_COMM_WORLD, &requests[0]);
		MPI_Isend(from->memory.at, out, sent, other, TAG, MPI_COMM_WORLD, &requests[1]);
		MPI_Waitall(2, requests, statuses);
		*status = statuses[0];
		break;
	case CROSSED_INIT:
		MPI_Recv_init(to->memory.at, in, received, other, TAG, MPI_COMM_WORLD, &requests[0]);
		MPI_Send_init(from->memory.at, out, sent, other, TAG, MPI_COMM_WORLD, &requests[1]);
		MPI_Startall(2, requests);
		MPI_Waitall(2, requests, statuses);
		*status = statuses[0];
		MPI_Request_free(&requests[0]);
		MPI_Request_free(&requests[1]);
		break;
	default:
		MPI_Isend(from->memory.at, out, sent, other, TAG, MPI_COMM_WORLD, &requests[1]);
		MPI_Recv(to->memory.at, in, received, other, TAG, MPI_COMM_WORLD, status);
		MPI_Wait(&requests[1], MPI_STATUS_IGNORE);
	}
	copied++;
}

static void functions(void)
{
	for (int i = 0; i < 6 * WAYS && rank < 2; i++) {
		int how = i % WAYS, out = (i / WAYS + i) % TYPES, in = (i / 3 + 2 * i) % TYPES;
		int doubles = DOUBLES * (i % 5 == 4 ? MANY : 1 + (int)below(8)), more = how == RECV_MORE ? DOUBLES : 0;
		struct buffer from = { 0 }, to = { 0 };
		MPI_Status status = { 0 };
		if (how >= SENDRECV || rank == 0)
			from = filled(DEVICE, out, doubles, 10 * i + rank);
		if (how >= SENDRECV || rank == 1)
			to = filled(DEVICE, in, doubles + more, 10 * i + 5);
		to.doubles = doubles;
		if (how >= SENDRECV)
			exchange_by(how, &from, &to, &status);
		else if (rank == 0)
			send_by(how, &from);
		else
			receive_by(how, &to, &status);
		if (from.memory.at)
			spoil(&from);
		if (to.memory.at) {
			check_count(&status, doubles, names[how]);
			check(&to, out, doubles, 10 * i + (how >= SENDRECV ? !rank : 0), names[how]);
			memory_free(&to.memory);
		}
	}
}

/* ---- Messages that one call completes are copied at the same time. ---- */

static void together(void)
{
	enum { ALL = 8 };
	static const int hows[] = { WAITALL, TESTALL, WAITSOME };
	unsigned long (*launches)(void);
	*(void **)&launches = dlsym(cuda, "fakecuda_launches_in_a_row");
	CHECK(launches, "not the stand-in");
	/* The first one opens the memory. */
	for (int i = 0; i < 7 && rank < 2; i++) {
		struct buffer buffers[ALL];
		MPI_Request requests[ALL];
		MPI_Status statuses[ALL];
		int flag = 0, done = 0, indices[ALL];
		for (int n = 0; n < ALL; n++) {
			buffers[n] = filled(DEVICE, rank ? PAIRS : EVERY_THIRD, DOUBLES, 100 * i + 10 * rank + n);
			if (rank == 0)
				MPI_Isend(buffers[n].memory.at, buffers[n].count, types[EVERY_THIRD], 1, n, MPI_COMM_WORLD,
					  &requests[n]);
			else
				MPI_Irecv(buffers[n].memory.at, buffers[n].count, types[PAIRS], 0, n, MPI_COMM_WORLD,
					  &requests[n]);
		}
		if (rank == 0) {
			MPI_Waitall(ALL, requests, statuses);
			copied += ALL;
			for (int n = 0; n < ALL; n++)
				spoil(&buffers[n]);
			continue;
		}
		/* As far as the MPI library knows, all are there. */
		for (int n = 0; n < ALL; n++)
			for (flag = 0; !flag;)
				PMPI_Request_get_status(requests[n], &flag, &statuses[n]);
		launches();
		switch (hows[i % 3]) {
		case TESTALL:
			for (flag = 0; !flag;)
				MPI_Testall(ALL, requests, &flag, statuses);
			break;
		case WAITSOME:
			for (int left = ALL; left; left -= done)
				MPI_Waitsome(ALL, requests, &done, indices, statuses);
			break;
		default: MPI_Waitall(ALL, requests, statuses);
		}
		unsigned long most = launches();
		CHECK(!i || most >= ALL, "way %d: %lu launches before a wait", i % 3, most);
		for (int n = 0; n < ALL; n++) {
			check(&buffers[n], EVERY_THIRD, DOUBLES, 100 * i + n, "together");
			memory_free(&buffers[n].memory);
		}
	}
}

/* A call returns with one of two messages that are being copied. The sender of the other one waits
 * for that, and the receiver for what comes behind it.
 */
static void under_way(void)
{
	for (int i = 0; i < 12 && rank < 2; i++) {
		struct buffer buffers[2];
		MPI_Request requests[2];
		MPI_Status statuses[2];
		int flag, index = 0, done = 0, indices[2], token = 0;
		for (int n = 0; n < 2; n++) {
			buffers[n] = filled(DEVICE, rank ? PAIRS : EVERY_THIRD, DOUBLES, 100 * i + 10 * rank + n);
			if (rank == 1)
				MPI_Irecv(buffers[n].memory.at, buffers[n].count, types[PAIRS], 0, n, MPI_COMM_WORLD,
					  &requests[n]);
		}
		if (rank == 0) {
			MPI_Isend(buffers[0].memory.at, buffers[0].count, types[EVERY_THIRD], 1, 0, MPI_COMM_WORLD, &requests[0]);
			MPI_Send(buffers[1].memory.at, buffers[1].count, types[EVERY_THIRD], 1, 1, MPI_COMM_WORLD);
			copied += 2;
			MPI_Send(&token, 1, MPI_INT, 1, TOKEN, MPI_COMM_WORLD);
			MPI_Wait(&requests[0], statuses);
			spoil(&buffers[0]), spoil(&buffers[1]);
			continue;
		}
		for (int n = 0; n < 2; n++)
			for (flag = 0; !flag;)
				PMPI_Request_get_status(requests[n], &flag, &statuses[n]);
		switch (i % 4) {
		case 0: MPI_Waitany(2, requests, &index, statuses); break;
		case 1: MPI_Waitsome(2, requests, &done, indices, statuses); break;
		case 2:
			for (flag = 0; !flag;)
				MPI_Testany(2, requests, &index, &flag, statuses);
			break;
		default: MPI_Wait(&requests[0], statuses);
		}
		MPI_Recv(&token, 1, MPI_INT, 0, TOKEN, MPI_COMM_WORLD, statuses);
		MPI_Waitall(2, requests, statuses);
		for (int n = 0; n < 2; n++) {
			check(&buffers[n], EVERY_THIRD, DOUBLES, 100 * i + n, "under way");
			memory_free(&buffers[n].memory);
		}
	}
}

/* ---- Many messages before any is received: there are slots for some of them only. ---- */

static void many(void)
{
	enum { ALL = 150 };
	struct buffer buffers[ALL];
	MPI_Request requests[ALL];
	MPI_Status statuses[ALL];
	for (int i = 0; i < ALL && rank < 2; i++)
		buffers[i] = filled(DEVICE, (i + rank) % TYPES, DOUBLES, 1000 * rank + i);
	for (int i = 0; i < ALL && rank == 0; i++)
		MPI_Isend(buffers[i].memory.at, buffers[i].count, types[buffers[i].type], 1, TAG, MPI_COMM_WORLD, &requests[i]);
	for (int i = 0; i < ALL && rank == 1; i++)
		MPI_Irecv(buffers[i].memory.at, buffers[i].count, types[buffers[i].type], 0, TAG, MPI_COMM_WORLD, &requests[i]);
	if (rank < 2)
		MPI_Waitall(ALL, requests, statuses);
	for (int i = 0; i < ALL && rank < 2; i++) {
		if (rank == 1)
			check(&buffers[i], i % TYPES, DOUBLES, i, "one of many");
		memory_free(&buffers[i].memory);
	}
}

/* ---- Memory that is freed and allocated again between messages, at the same addresses. ---- */

static void recycled(void)
{
	char *last = NULL;
	int again = 0, rounds = 60;
	for (int i = 0; i < rounds && rank < 2; i++) {
		struct buffer buffer = filled(DEVICE, EVERY_THIRD, DOUBLES, 10 * i + rank);
		MPI_Status status;
		again += buffer.memory.at == last;
		last = buffer.memory.at;
		if (rank == i % 2) {
			MPI_Send(buffer.memory.at, buffer.count, types[buffer.type], !rank, TAG, MPI_COMM_WORLD);
			copied++;
			spoil(&buffer);
		} else {
			MPI_Recv(buffer.memory.at, buffer.count, types[buffer.type], !rank, TAG, MPI_COMM_WORLD, &status);
			check(&buffer, EVERY_THIRD, DOUBLES, 10 * i + !rank, "recycled");
			memory_free(&buffer.memory);
		}
	}
	CHECK(rank > 1 || again > rounds / 2, "memory was at the same address %d times", again);
}

/* ---- Receivers that have no device memory for the message, or are not allowed to open others'.
 * ---- */

static void one_way(int rounds, int space, const char *what)
{
	for (int i = 0; i < rounds && rank < 2; i++) {
		int in = (3 * i) % TYPES, out = i % TYPES, doubles = DOUBLES * (i % 4 == 3 ? MANY / 10 : 1 + i % 5);
		MPI_Request request;
		MPI_Status status;
		if (rank == 0) {
			struct buffer from = filled(DEVICE, out, doubles, i);
			if (i % 3 == 0) {
				MPI_Isend(from.memory.at, from.count, types[out], 1, TAG, MPI_COMM_WORLD, &request);
				MPI_Wait(&request, MPI_STATUS_IGNORE);
			} else if (i % 3 == 1) {
				MPI_Send_init(from.memory.at, from.count, types[out], 1, TAG, MPI_COMM_WORLD, &request);
				MPI_Start(&request);
				MPI_Wait(&request, MPI_STATUS_IGNORE);
				MPI_Request_free(&request);
			} else {
				MPI_Send(from.memory.at, from.count, types[out], 1, TAG, MPI_COMM_WORLD);
			}
			packed++;
			spoil(&from);
		} else {
			struct buffer to = filled(space, in, doubles, 500 + i);
			if (i % 2) {
				MPI_Recv(to.memory.at, to.count, types[in], 0, TAG, MPI_COMM_WORLD, &status);
			} else {
				MPI_Irecv(to.memory.at, to.count, types[in], 0, TAG, MPI_COMM_WORLD, &request);
				MPI_Wait(&request, &status);
			}
			check_count(&status, doubles, what);
			check(&to, out, doubles, i, what);
			memory_free(&to.memory);
		}
	}
}

static void to_host(void)
{
	one_way(20, HOST, "to host memory");
	one_way(12, PINNED, "to pinned memory");
	one_way(12, MANAGED, "to managed memory");
}

static void refused_receiver(void)
{
	if (rank == 1)
		setenv("FAKECUDA_IPC", "0", 1);
	one_way(24, DEVICE, "refused");
}

/* What cannot be exported is not even offered. */
static void refused_sender(void)
{
	if (rank == 0)
		setenv("FAKECUDA_IPC", "0", 1);
	one_way(24, DEVICE, "not exported");
	packed = 0;
}

/* One message out of several allocations. */
static void scattered(void)
{
	for (int i = 0; i < 6 && rank < 2; i++) {
		if (rank == 0) {
			struct buffer parts[2];
			MPI_Aint places[2];
			int lengths[2] = { DOUBLES, DOUBLES };
			MPI_Datatype both;
			for (int part = 0; part < 2; part++) {
				parts[part] = filled(DEVICE, DENSE, DOUBLES, 2 * i + part);
				MPI_Get_address(parts[part].memory.at, &places[part]);
			}
			MPI_Type_create_hindexed(2, lengths, places, MPI_DOUBLE, &both);
			MPI_Type_commit(&both);
			MPI_Send(MPI_BOTTOM, 1, both, 1, TAG, MPI_COMM_WORLD);
			MPI_Type_free(&both);
			spoil(&parts[0]), spoil(&parts[1]);
		} else {
			struct buffer to = filled(DEVICE, DENSE, 2 * DOUBLES, 99);
			MPI_Recv(to.memory.at, 2 * DOUBLES, MPI_DOUBLE, 0, TAG, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
			char *got = memory_read(&to.memory);
			for (int part = 0; part < 2; part++) {
				char *sent = noise(2 * i + part, 8 * DOUBLES);
				CHECK(!memcmp(got + part * 8 * DOUBLES, sent, 8 * DOUBLES), "part %d", part);
				free(sent);
			}
			free(got);
			memory_free(&to.memory);
		}
	}
}

/* ---- Messages that are too long. ---- */

static void truncated(void)
{
	MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
	for (int i = 0; i < 12 && rank < 2; i++) {
		int doubles = DOUBLES * (i % 3 ? 2 : MANY), room = doubles - (i % 2 ? 12 : doubles / 2), type = i % TYPES, class = 0;
		MPI_Request request;
		MPI_Status status;
		if (rank == 0) {
			struct buffer from = filled(DEVICE, EVERY_THIRD, doubles, i);
			CHECK(!MPI_Send(from.memory.at, from.count, types[from.type], 1, TAG, MPI_COMM_WORLD), "a send");
			spoil(&from);
			from = filled(DEVICE, EVERY_THIRD, doubles, 100 + i);
			MPI_Send(from.memory.at, from.count, types[from.type], 1, TAG, MPI_COMM_WORLD);
			copied++;
			spoil(&from);
			continue;
		}
		struct buffer to = filled(DEVICE, type, doubles, 200 + i);
		int count = elements(type, room), code;
		if (i % 4 < 2) {
			code = MPI_Recv(to.memory.at, count, types[type], 0, TAG, MPI_COMM_WORLD, &status);
		} else {
			MPI_Irecv(to.memory.at, count, types[type], 0, TAG, MPI_COMM_WORLD, &request);
			code = MPI_Wait(&request, &status);
		}
		MPI_Error_class(code, &class);
		CHECK(class == MPI_ERR_TRUNCATE, "class %d", class);
		check(&to, DENSE, 0, 0, "too long, so nothing arrives");
		MPI_Recv(to.memory.at, to.count, types[type], 0, TAG, MPI_COMM_WORLD, &status);
		check(&to, EVERY_THIRD, doubles, 100 + i, "behind one that is too long");
		memory_free(&to.memory);
	}
	MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_ARE_FATAL);
}

/* ---- A sender that waits elsewhere for the receiver, which cannot copy the message. ---- */

enum {
	TOKEN_RECV, LONG_RECV, PROBE_TOKEN, MPROBE_TOKEN, WAIT_TOKEN, WAITALL_TOKEN, WAITANY_TOKEN, WAITSOME_TOKEN, LONG_SEND,
	TOKEN_SSEND, TOKEN_SENDRECV, MIXED_WAITALL, BARRIER, BCAST, ALLREDUCE, SCAN, COMM_DUP, SPLIT, IBARRIER, PLACES
};

/* What rank 0 does between MPI_Isend and MPI_Wait; rank 1 does its part when it has the message. */
static void elsewhere(int where, MPI_Request *sent)
{
	enum { LONG = 1 << 20 };
	static char longer[LONG];
	MPI_Request requests[2] = { MPI_REQUEST_NULL, MPI_REQUEST_NULL };
	MPI_Status statuses[2];
	MPI_Message message;
	MPI_Comm made = MPI_COMM_NULL;
	int token = rank, sum, index, done, indices[2], other = !rank;
	switch (where) {
	case BARRIER: MPI_Barrier(MPI_COMM_WORLD); return;
	case BCAST: MPI_Bcast(&token, 1, MPI_INT, 1, MPI_COMM_WORLD); return;
	case ALLREDUCE: MPI_Allreduce(&token, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD); return;
	case SCAN:
		MPI_Scan(&token, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
		MPI_Barrier(MPI_COMM_WORLD);
		return;
	case COMM_DUP: MPI_Comm_dup(MPI_COMM_WORLD, &made); break;
	case SPLIT: MPI_Comm_split(MPI_COMM_WORLD, 0, rank, &made); break;
	case IBARRIER:
		MPI_Ibarrier(MPI_COMM_WORLD, &requests[0]);
		MPI_Wait(&requests[0], statuses);
		return;
	}
	if (made != MPI_COMM_NULL) {
		MPI_Comm_free(&made);
		return;
	}
	if (rank > 1)
		return;
	if (rank == 1) {
		switch (where) {
		case LONG_SEND: MPI_Recv(longer, LONG, MPI_CHAR, 0, TOKEN, MPI_COMM_WORLD, statuses); break;
		case TOKEN_SSEND: MPI_Recv(&token, 1, MPI_INT, 0, TOKEN, MPI_COMM_WORLD, statuses); break;
		case LONG_RECV: MPI_Send(longer, LONG, MPI_CHAR, 0, TOKEN, MPI_COMM_WORLD); break;
		case TOKEN_SENDRECV:
			MPI_Sendrecv(&token, 1, MPI_INT, 0, TOKEN, &sum, 1, MPI_INT, 0, TOKEN, MPI_COMM_WORLD, statuses);
			break;
		default: MPI_Send(&token, 1, MPI_INT, 0, TOKEN, MPI_COMM_WORLD);
		}
		return;
	}
	switch (where) {
	case WAIT_TOKEN:
	case WAITALL_TOKEN:
	case WAITANY_TOKEN:
	case WAITSOME_TOKEN:
	case MIXED_WAITALL: MPI_Irecv(&token, 1, MPI_INT, other, TOKEN, MPI_COMM_WORLD, &requests[1]);
	}
	switch (where) {
	case LONG_SEND: MPI_Send(longer, LONG, MPI_CHAR, other, TOKEN, MPI_COMM_WORLD); break;
	case TOKEN_SSEND: MPI_Ssend(&token, 1, MPI_INT, other, TOKEN, MPI_COMM_WORLD); break;
	case LONG_RECV: MPI_Recv(longer, LONG, MPI_CHAR, other, TOKEN, MPI_COMM_WORLD, statuses); break;
	case TOKEN_SENDRECV:
		MPI_Sendrecv(&token, 1, MPI_INT, other, TOKEN, &sum, 1, MPI_INT, other, TOKEN, MPI_COMM_WORLD, statuses);
		break;
	case PROBE_TOKEN:
		MPI_Probe(other, TOKEN, MPI_COMM_WORLD, statuses);
		MPI_Recv(&token, 1, MPI_INT, other, TOKEN, MPI_COMM_WORLD, statuses);
		break;
	case MPROBE_TOKEN:
		MPI_Mprobe(other, TOKEN, MPI_COMM_WORLD, &message, statuses);
		MPI_Mrecv(&token, 1, MPI_INT, &message, statuses);
		break;
	case WAIT_TOKEN: MPI_Wait(&requests[1], statuses); break;
	case WAITALL_TOKEN: MPI_Waitall(2, requests, statuses); break;
	case WAITANY_TOKEN: MPI_Waitany(2, requests, &index, statuses); break;
	case WAITSOME_TOKEN: MPI_Waitsome(2, requests, &done, indices, statuses); break;
	case MIXED_WAITALL:
		requests[0] = *sent;
		MPI_Waitall(2, requests, statuses);
		*sent = requests[0];
		break;
	default: MPI_Recv(&token, 1, MPI_INT, other, TOKEN, MPI_COMM_WORLD, statuses);
	}
}

static void away(void)
{
	for (int i = 0; i < 2 * PLACES; i++) {
		int doubles = DOUBLES * (i % 2 ? 3 : 40), is_persistent = i >= PLACES;
		MPI_Request request = MPI_REQUEST_NULL;
		struct buffer from, to;
		if (rank == 0) {
			from = filled(DEVICE, EVERY_THIRD, doubles, i);
			if (is_persistent) {
				MPI_Send_init(from.memory.at, from.count, types[from.type], 1, TAG, MPI_COMM_WORLD, &request);
				MPI_Start(&request);
			} else {
				MPI_Isend(from.memory.at, from.count, types[from.type], 1, TAG, MPI_COMM_WORLD, &request);
			}
			packed++;
		} else if (rank == 1) {
			to = filled(HOST, PAIRS, doubles, 300 + i);
			MPI_Recv(to.memory.at, to.count, types[to.type], 0, TAG, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
			check(&to, EVERY_THIRD, doubles, i, "sender is elsewhere");
			memory_free(&to.memory);
		}
		elsewhere(i % PLACES, &request);
		if (rank == 0) {
			MPI_Wait(&request, MPI_STATUS_IGNORE);
			if (is_persistent)
				MPI_Request_free(&request);
			spoil(&from);
		}
	}
}

/* The sender waits for some of its messages, and for an answer to another one. */
static void left_out(void)
{
	struct buffer buffers[2];
	MPI_Request requests[2], other;
	MPI_Status statuses[2];
	int token = 0;
	for (int i = 0; i < 2 && rank < 2; i++) {
		buffers[i] = filled(rank ? HOST : DEVICE, PAIRS, DOUBLES, i + 7 * rank);
		if (rank == 0)
			MPI_Isend(buffers[i].memory.at, buffers[i].count, types[PAIRS], 1, TAG, MPI_COMM_WORLD,
				  i ? &other : &requests[0]);
		else
			MPI_Recv(buffers[i].memory.at, buffers[i].count, types[PAIRS], 0, TAG, MPI_COMM_WORLD,
				 &statuses[i]);
		packed += rank == 0;
	}
	if (rank == 0) {
		MPI_Irecv(&token, 1, MPI_INT, 1, TOKEN, MPI_COMM_WORLD, &requests[1]);
		MPI_Waitall(2, requests, statuses);
		MPI_Wait(&other, &statuses[0]);
	} else if (rank == 1) {
		MPI_Send(&token, 1, MPI_INT, 0, TOKEN, MPI_COMM_WORLD);
	}
	for (int i = 0; i < 2 && rank < 2; i++) {
		if (rank == 1)
			check(&buffers[i], PAIRS, DOUBLES, i, "left out");
		memory_free(&buffers[i].memory);
	}
}

/* ---- A receiver that is elsewhere: the sender does not wait for it, and still sends the right
 * bytes. ---- */

static void late(void)
{
	for (int i = 0; i < 6; i++) {
		struct buffer buffer = { 0 };
		MPI_Request request = MPI_REQUEST_NULL;
		if (rank < 2)
			buffer = filled(DEVICE, i % TYPES, DOUBLES, 10 * i + rank);
		if (rank == 1)
			MPI_Irecv(buffer.memory.at, buffer.count, types[buffer.type], 0, TAG, MPI_COMM_WORLD, &request);
		if (rank == 0 && i % 2)
			MPI_Isend(buffer.memory.at, buffer.count, types[buffer.type], 1, TAG, MPI_COMM_WORLD, &request);
		else if (rank == 0)
			MPI_Send(buffer.memory.at, buffer.count, types[buffer.type], 1, TAG, MPI_COMM_WORLD);
		packed += rank == 0;
		MPI_Barrier(MPI_COMM_WORLD);
		MPI_Wait(&request, MPI_STATUS_IGNORE);
		if (rank == 1)
			check(&buffer, i % TYPES, DOUBLES, 10 * i, "late");
		if (rank == 0)
			spoil(&buffer);
		else if (rank == 1)
			memory_free(&buffer.memory);
	}
}

/* ---- Persistent requests, which are started again and again. ---- */

/* Other content for the next start. */
static void refill(struct buffer *buffer, unsigned seed)
{
	char *bytes = noise(seed, buffer->memory.bytes);
	memory_write(&buffer->memory, bytes);
	free(bytes);
	buffer->seed = seed;
}

/* Receives into a buffer, by one request for all rounds or by a function of its own for each. */
static void receive_round(struct buffer *to, MPI_Request *request, int how)
{
	MPI_Status status;
	MPI_Datatype type = types[to->type];
	switch (how) {
	case 0:
		MPI_Start(request);
		MPI_Wait(request, &status);
		break;
	case 1: MPI_Recv(to->memory.at, to->count, type, 0, TAG, MPI_COMM_WORLD, &status); break;
	default:
		MPI_Irecv(to->memory.at, to->count, type, 0, TAG, MPI_COMM_WORLD, request);
		MPI_Wait(request, &status);
	}
	check_count(&status, to->doubles, "persistent");
}

/* Sends a round, waiting in different ways. */
static void send_round(MPI_Request *request, int how)
{
	MPI_Status status;
	int flag = 0, index = 7, done = 0;
	if (how % 2)
		MPI_Start(request);
	else
		MPI_Startall(1, request);
	switch (how) {
	case 0: MPI_Wait(request, &status); break;
	case 1: MPI_Waitall(1, request, &status); break;
	case 2:
		while (!flag)
			MPI_Test(request, &flag, &status);
		break;
	case 3: MPI_Waitany(1, request, &index, &status); break;
	case 4: MPI_Waitsome(1, request, &done, &index, &status); break;
	case 5:
		while (!flag)
			MPI_Request_get_status(*request, &flag, &status);
		MPI_Wait(request, &status);
		break;
	default:
		while (!flag)
			MPI_Testall(1, request, &flag, &status);
	}
	CHECK((how != 3 && how != 4) || index == 0, "way %d: index %d", how, index);
	copied++;
}

/* A persistent request for a buffer, whose type is freed: rank 0 sends, in one of two modes. */
static MPI_Request made(struct buffer *buffer, int is_synchronous)
{
	MPI_Request request;
	MPI_Datatype type;
	char *at = buffer->memory.at;
	MPI_Type_dup(types[buffer->type], &type);
	if (rank)
		MPI_Recv_init(at, buffer->count, type, 0, TAG, MPI_COMM_WORLD, &request);
	else if (is_synchronous)
		MPI_Ssend_init(at, buffer->count, type, 1, TAG, MPI_COMM_WORLD, &request);
	else
		MPI_Send_init(at, buffer->count, type, 1, TAG, MPI_COMM_WORLD, &request);
	MPI_Type_free(&type);
	return request;
}

/* The content changes between the starts, and so does the memory now and then, at the same address
 * or with a new request. */
static void persistent(void)
{
	enum { ROUNDS = 9 };
	int again = 0;
	for (int i = 0; i < 3 * TYPES && rank < 2; i++) {
		int out = i % TYPES, in = (i + i / TYPES) % TYPES, doubles = DOUBLES * (i == 7 ? MANY / 5 : 1 + i % 3), how = i % 3;
		struct buffer buffer = filled(DEVICE, rank ? in : out, doubles, 1000 * i);
		MPI_Request request = rank == 0 || how == 0 ? made(&buffer, i % 2) : MPI_REQUEST_NULL;
		for (int round = 0; round < ROUNDS; round++) {
			unsigned seed = 1000 * i + 10 * round;
			char *at = buffer.memory.at;
			if (round % 4 == 3) {
				spoil(&buffer);
				buffer = filled(DEVICE, rank ? in : out, doubles, seed + rank);
				if (buffer.memory.at == at) {
					again++;
				} else if (request != MPI_REQUEST_NULL) {
					MPI_Request_free(&request);
					request = made(&buffer, i % 2);
				}
			}
			refill(&buffer, seed + rank);
			if (rank == 0) {
				send_round(&request, round % 7);
			} else {
				receive_round(&buffer, &request, how);
				check(&buffer, out, doubles, seed, "persistent");
			}
		}
		if (request != MPI_REQUEST_NULL)
			MPI_Request_free(&request);
		spoil(&buffer);
	}
	CHECK(rank > 1 || again > 3 * TYPES / 2, "memory was at the same address %d times", again);
}

/* As programs exchange what is at the borders of their domains: all requests are started and
 * completed together, some of them in host memory.
 */
static void halo(void)
{
	enum { ALL = 12, ROUNDS = 8 };
	struct buffer buffers[ALL];
	MPI_Request requests[ALL];
	MPI_Status statuses[ALL];
	int hosts = 0;
	for (int i = 0; i < ALL && rank < 2; i++) {
		int is_send = i % 2, tag = i / 2, type = (tag + is_send) % TYPES, space = i / 4 % 3 == 2 ? HOST : DEVICE;
		buffers[i] = filled(space, type, DOUBLES * (1 + tag), 0);
		hosts += is_send && space == HOST;
		if (is_send)
			MPI_Send_init(buffers[i].memory.at, buffers[i].count, types[type], !rank, tag, MPI_COMM_WORLD, &requests[i]);
		else
			MPI_Recv_init(buffers[i].memory.at, buffers[i].count, types[type], !rank, tag, MPI_COMM_WORLD, &requests[i]);
	}
	for (int round = 0; round < ROUNDS && rank < 2; round++) {
		int flag = 0, done = 0, index, indices[ALL];
		for (int i = 0; i < ALL; i++)
			refill(&buffers[i], 1000 * round + 100 * rank + i);
		MPI_Startall(ALL, requests);
		switch (round % 4) {
		case 0: MPI_Waitall(ALL, requests, statuses); break;
		case 1:
			while (!flag)
				MPI_Testall(ALL, requests, &flag, statuses);
			break;
		case 2:
			for (int left = ALL; left; left -= done)
				MPI_Waitsome(ALL, requests, &done, indices, statuses);
			break;
		default:
			for (int left = ALL; left; left--)
				MPI_Waitany(ALL, requests, &index, statuses);
		}
		copied += ALL / 2 - hosts;
		for (int i = 0; i < ALL; i += 2)
			check(&buffers[i], buffers[i + 1].type, buffers[i].doubles, 1000 * round + 100 * !rank + i + 1, "halo");
	}
	for (int i = 0; i < ALL && rank < 2; i++) {
		MPI_Request_free(&requests[i]);
		spoil(&buffers[i]);
	}
}

/* A receiver that waits for what its sender does when it has waited for the message. Offered or
 * not, a long message that is not packed for it would keep both waiting.
 */
static void persistent_late(void)
{
	struct buffer buffer = filled(DEVICE, EVERY_THIRD, 40 * DOUBLES, rank);
	MPI_Request request;
	int token = 0;
	if (rank == 0) {
		MPI_Send_init(buffer.memory.at, buffer.count, types[EVERY_THIRD], 1, TAG, MPI_COMM_WORLD, &request);
		MPI_Start(&request);
		packed++;
		MPI_Wait(&request, MPI_STATUS_IGNORE);
		refill(&buffer, 777);
		MPI_Send(&token, 1, MPI_INT, 1, TOKEN, MPI_COMM_WORLD);
		MPI_Request_free(&request);
	} else if (rank == 1) {
		MPI_Recv(&token, 1, MPI_INT, 0, TOKEN, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
		MPI_Recv(buffer.memory.at, buffer.count, types[EVERY_THIRD], 0, TAG, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
		check(&buffer, EVERY_THIRD, 40 * DOUBLES, 0, "late, persistent");
	}
	spoil(&buffer);
}

/* Requests that are freed or cancelled when they have been started: what they send arrives. */
static void persistent_left(void)
{
	for (int i = 0; i < 12 && rank < 2; i++) {
		struct buffer buffer = filled(DEVICE, (i + rank) % TYPES, DOUBLES, 10 * i + rank);
		MPI_Request request = MPI_REQUEST_NULL, answer;
		MPI_Status status;
		int token = 0, flag = 0;
		if (rank == 0) {
			MPI_Irecv(&token, 1, MPI_INT, 1, TOKEN, MPI_COMM_WORLD, &answer);
			MPI_Send_init(buffer.memory.at, buffer.count, types[buffer.type], 1, TAG, MPI_COMM_WORLD, &request);
			MPI_Start(&request);
			if (i % 2) {
				MPI_Cancel(&request);
				MPI_Wait(&request, &status);
				MPI_Test_cancelled(&status, &flag);
				CHECK(!flag, "cancelled");
			}
			MPI_Request_free(&request);
			CHECK(request == MPI_REQUEST_NULL, "a request that is left");
			copied++;
			/* Waiting would have it packed. */
			for (flag = 0; !flag;)
				MPI_Test(&answer, &flag, &status);
		} else {
			MPI_Recv(buffer.memory.at, buffer.count, types[buffer.type], 0, TAG, MPI_COMM_WORLD, &status);
			check(&buffer, i % TYPES, DOUBLES, 10 * i, "freed or cancelled");
			MPI_Send(&token, 1, MPI_INT, 0, TOKEN, MPI_COMM_WORLD);
		}
		spoil(&buffer);
	}
}

/* ---- Ranks that are killed. ---- */

/* The receiver dies when it copies. */
static void killed_receiver(void)
{
	struct buffer buffer = filled(DEVICE, EVERY_THIRD, DOUBLES, rank);
	for (int i = 0; i < 2 && rank < 2; i++) {
		if (rank == 0) {
			MPI_Send(buffer.memory.at, buffer.count, types[buffer.type], 1, TAG, MPI_COMM_WORLD);
		} else {
			if (i == 1)
				setenv("FAKECUDA_KILL", "copy", 1);
			MPI_Recv(buffer.memory.at, buffer.count, types[buffer.type], 0, TAG, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
		}
		printf("rank %d: message %d\n", rank, i);
		fflush(stdout);
	}
	MPI_Barrier(MPI_COMM_WORLD);
}

/* The sender dies when its message is under way. */
static void killed_sender(void)
{
	struct buffer buffer = filled(DEVICE, EVERY_THIRD, DOUBLES, rank);
	MPI_Request request;
	if (rank == 0) {
		MPI_Send(buffer.memory.at, buffer.count, types[buffer.type], 1, TAG, MPI_COMM_WORLD);
		printf("rank 0: message 0\n");
		fflush(stdout);
		MPI_Isend(buffer.memory.at, buffer.count, types[buffer.type], 1, TAG, MPI_COMM_WORLD, &request);
		raise(SIGKILL);
	} else if (rank == 1) {
		for (int i = 0; i < 2; i++)
			MPI_Recv(buffer.memory.at, buffer.count, types[buffer.type], 0, TAG, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
	}
	MPI_Barrier(MPI_COMM_WORLD);
}

static const struct test_case cases[] = {
	{ "functions", functions },
	{ "together", together },
	{ "under_way", under_way },
	{ "many", many },
	{ "recycled", recycled },
	{ "to_host", to_host },
	{ "refused_receiver", refused_receiver },
	{ "refused_sender", refused_sender },
	{ "scattered", scattered },
	{ "truncated", truncated },
	{ "away", away },
	{ "left_out", left_out },
	{ "late", late },
	{ "persistent", persistent },
	{ "halo", halo },
	{ "persistent_late", persistent_late },
	{ "persistent_left", persistent_left },
	{ "killed_receiver", killed_receiver },
	{ "killed_sender", killed_sender },
};

int main(int argc, char **argv)
{
	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &size);
	CHECK(size >= 2, "%d ranks", size);
	make_types();
	cuda_load();
	run_cases(cases, sizeof cases / sizeof *cases, argc, argv);
	printf("copied %d\npacked %d\n", copied, packed);
	for (int i = 1; i < TYPES; i++)
		MPI_Type_free(&types[i]);
	MPI_Finalize();
	return 0;
}
