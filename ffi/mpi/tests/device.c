// SPDX-License-Identifier: MIT OR Apache-2.0

/* Messages and packing with buffers in host, pinned, managed and device memory, each byte compared
 * with what the MPI library does with host memory. The CUDA driver is the library that FAKECUDA
 * names: a processor that touches device memory dies there.
 *
 * usage: device CASES [SEED [messages]]
 *
 * CASES: random messages between the first two ranks, and packing before them
 */
#include "device.h"

enum { HOST, PINNED, MANAGED, DEVICE, SPACES };

/* Types of doubles, which all have the same signature, by number. */
enum { TYPES = 8 };
static MPI_Datatype types[TYPES];

static void make_types(void)
{
	int lengths[5] = { 3, 1, 4, 1, 5 }, places[5] = { 0, 7, 9, 20, 23 };
	int sizes[3] = { 5, 6, 7 }, parts[3] = { 2, 3, 4 }, starts[3] = { 1, 2, 3 };
	MPI_Aint bytes[2] = { 8, 80 };
	int two[2] = { 2, 3 };
	MPI_Datatype inner[2] = { MPI_DOUBLE, MPI_DOUBLE }, row;

	types[0] = MPI_DOUBLE;
	MPI_Type_contiguous(6, MPI_DOUBLE, &types[1]);
	MPI_Type_vector(6, 1, 3, MPI_DOUBLE, &types[2]);
	MPI_Type_indexed(5, lengths, places, MPI_DOUBLE, &types[3]);
	MPI_Type_create_subarray(3, sizes, parts, starts, MPI_ORDER_C, MPI_DOUBLE, &types[4]);
	MPI_Type_create_struct(2, two, bytes, inner, &types[5]);
	MPI_Type_vector(4, 2, 5, MPI_DOUBLE, &row);
	MPI_Type_create_hvector(3, 1, 17 * 16, row, &types[6]);
	MPI_Type_free(&row);
	MPI_Type_create_resized(MPI_DOUBLE, 0, 24, &types[7]);
	for (int i = 1; i < TYPES; i++)
		MPI_Type_commit(&types[i]);
}

static int doubles(int type)
{
	int size;
	MPI_Type_size(types[type], &size);
	return size / 8;
}

/* Bytes from the first to the last of count elements, all lower bounds being at least 0. */
static size_t span(int type, int count)
{
	MPI_Aint lower, extent, true_lower, true_extent;
	if (!count)
		return 1;
	MPI_Type_get_extent(types[type], &lower, &extent);
	MPI_Type_get_true_extent(types[type], &true_lower, &true_extent);
	return (count - 1) * extent + true_lower + true_extent;
}

/* The packed bytes of elements in host memory, by the library itself. */
static char *packed(const char *from, int type, int count, int *bytes)
{
	int room = 8 * doubles(type) * count + 64;
	char *to = malloc(room);
	*bytes = 0;
	PMPI_Pack(from, count, types[type], to, room, bytes, MPI_COMM_WORLD);
	return to;
}

/* What is in host memory after `bytes` packed bytes were received there. */
static void expect(char *at, int type, int count, const char *from, int bytes)
{
	int all, position = 0;
	char *whole = packed(at, type, count, &all);
	memcpy(whole, from, bytes);
	PMPI_Unpack(whole, all, &position, at, count, types[type], MPI_COMM_WORLD);
	free(whole);
}

enum {
	SEND, SSEND, BSEND, RSEND, ISEND, ISSEND, IBSEND, IRSEND, PERSISTENT, SENDRECV, REPLACE, SENDS
};
enum {
	RECV, IRECV_WAIT, IRECV_TEST, IRECV_ALL, IRECV_TESTALL, IRECV_ANY, IRECV_TESTANY, IRECV_SOME, IRECV_TESTSOME,
	STATUS, PROBED, MATCHED, IMATCHED, INIT, RECVS
};

static int rank;

struct message {
	int space, type, count;
};

/* Waits for a request in one of the ways that there are. */
static void complete(int how, MPI_Request *request, MPI_Status *status)
{
	MPI_Request all[3] = { MPI_REQUEST_NULL, *request, MPI_REQUEST_NULL };
	MPI_Status statuses[3];
	int flag = 0, index = -1, done = 0, indices[3];
	switch (how) {
	case IRECV_TEST:
		while (!flag)
			MPI_Test(request, &flag, status);
		return;
	case IRECV_ALL:
		MPI_Waitall(3, all, statuses);
		*status = statuses[1];
		break;
	case IRECV_TESTALL:
		while (!flag)
			MPI_Testall(3, all, &flag, statuses);
		*status = statuses[1];
		break;
	case IRECV_ANY:
		MPI_Waitany(3, all, &index, status);
		CHECK(index == 1, "index %d", index);
		break;
	case IRECV_TESTANY:
		while (!flag)
			MPI_Testany(3, all, &index, &flag, status);
		CHECK(index == 1, "index %d", index);
		break;
	case IRECV_SOME:
		MPI_Waitsome(3, all, &done, indices, statuses);
		CHECK(done == 1 && indices[0] == 1, "%d complete", done);
		*status = statuses[0];
		break;
	case IRECV_TESTSOME:
		while (!done)
			MPI_Testsome(3, all, &done, indices, statuses);
		CHECK(done == 1 && indices[0] == 1, "%d complete", done);
		*status = statuses[0];
		break;
	default:
		MPI_Wait(request, status);
		return;
	}
	*request = all[1];
}

static void send_one(int how, struct memory *memory, const struct message *out, int tag)
{
	MPI_Request request = MPI_REQUEST_NULL;
	char *at = memory->at;
	int n = out->count;
	MPI_Datatype type = types[out->type];
	switch (how) {
	case SSEND: MPI_Ssend(at, n, type, 1, tag, MPI_COMM_WORLD); break;
	case BSEND: MPI_Bsend(at, n, type, 1, tag, MPI_COMM_WORLD); break;
	case RSEND:
		MPI_Recv(NULL, 0, MPI_BYTE, 1, 99, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
		MPI_Rsend(at, n, type, 1, tag, MPI_COMM_WORLD);
		break;
	case ISEND: MPI_Isend(at, n, type, 1, tag, MPI_COMM_WORLD, &request); break;
	case ISSEND: MPI_Issend(at, n, type, 1, tag, MPI_COMM_WORLD, &request); break;
	case IBSEND: MPI_Ibsend(at, n, type, 1, tag, MPI_COMM_WORLD, &request); break;
	case IRSEND:
		MPI_Recv(NULL, 0, MPI_BYTE, 1, 99, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
		MPI_Irsend(at, n, type, 1, tag, MPI_COMM_WORLD, &request);
		break;
	case PERSISTENT:
		MPI_Send_init(at, n, type, 1, tag, MPI_COMM_WORLD, &request);
		MPI_Start(&request);
		MPI_Wait(&request, MPI_STATUS_IGNORE);
		MPI_Request_free(&request);
		break;
	case SENDRECV:
		MPI_Sendrecv(at, n, type, 1, tag, NULL, 0, MPI_BYTE, MPI_PROC_NULL, 0, MPI_COMM_WORLD,
			     MPI_STATUS_IGNORE);
		break;
	case REPLACE:
		MPI_Sendrecv_replace(at, n, type, 1, tag, MPI_PROC_NULL, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
		break;
	default: MPI_Send(at, n, type, 1, tag, MPI_COMM_WORLD);
	}
	if (request != MPI_REQUEST_NULL)
		complete(IRECV_WAIT + tag % 8, &request, &(MPI_Status){ 0 });
}

static void receive_one(int how, int ready, struct memory *memory, const struct message *in, int tag, int wild,
			MPI_Status *status)
{
	MPI_Request request = MPI_REQUEST_NULL;
	MPI_Message message;
	char *at = memory->at;
	int n = in->count, flag = 0;
	int source = wild ? MPI_ANY_SOURCE : 0, which = wild ? MPI_ANY_TAG : tag;
	MPI_Datatype type = types[in->type];
	if (ready && (how == RECV || how >= PROBED))
		how = IRECV_WAIT;
	switch (how) {
	case RECV: MPI_Recv(at, n, type, source, which, MPI_COMM_WORLD, status); return;
	case PROBED:
		MPI_Probe(source, which, MPI_COMM_WORLD, status);
		MPI_Recv(at, n, type, status->MPI_SOURCE, status->MPI_TAG, MPI_COMM_WORLD, status);
		return;
	case MATCHED:
		MPI_Mprobe(source, which, MPI_COMM_WORLD, &message, status);
		MPI_Mrecv(at, n, type, &message, status);
		return;
	case IMATCHED:
		MPI_Mprobe(source, which, MPI_COMM_WORLD, &message, status);
		MPI_Imrecv(at, n, type, &message, &request);
		MPI_Wait(&request, status);
		return;
	case INIT:
		MPI_Recv_init(at, n, type, source, which, MPI_COMM_WORLD, &request);
		MPI_Start(&request);
		MPI_Wait(&request, status);
		MPI_Request_free(&request);
		return;
	default: MPI_Irecv(at, n, type, source, which, MPI_COMM_WORLD, &request);
	}
	if (ready)
		MPI_Send(NULL, 0, MPI_BYTE, 0, 99, MPI_COMM_WORLD);
	if (how == STATUS) {
		/* What is said to be complete has arrived, before anybody waits. */
		while (!flag)
			MPI_Request_get_status(request, &flag, status);
		char *before = memory_read(memory);
		MPI_Wait(&request, status);
		char *after = memory_read(memory);
		CHECK(!memcmp(before, after, memory->bytes), "bytes arrived after MPI_Request_get_status");
		free(before);
		free(after);
	} else {
		complete(how, &request, status);
	}
}

/* A random message. */
static void message(unsigned number)
{
	struct message out = { below(SPACES), below(TYPES), 0 }, in = { below(SPACES), below(TYPES), 0 };
	/* From a few bytes to a megabyte, so that all protocols are used. */
	int words = 1 << below(below(6) ? 12 : 18), how = below(SENDS), recv = below(RECVS), wild = below(3) == 0;
	out.count = words / doubles(out.type) + below(3);
	int sent = out.count * doubles(out.type);
	in.count = (sent + doubles(in.type) - 1) / doubles(in.type) + below(3);
	if (how == BSEND || how == IBSEND)
		words = words > 4096 ? 4096 : words;
	if ((how == BSEND || how == IBSEND) && sent > 8192)
		how = SEND;
	unsigned seed = number * 2654435761u + 1;
	size_t from_bytes = span(out.type, out.count), to_bytes = span(in.type, in.count);
	int tag = number % 90;
	char *from = noise(seed, from_bytes);
	if (rank == 0) {
		struct memory memory = memory_new(out.space, from_bytes);
		memory_write(&memory, from);
		send_one(how, &memory, &out, tag);
		memory_free(&memory);
	}
	if (rank == 1) {
		struct memory memory = memory_new(in.space, to_bytes);
		char *before = noise(seed + 1, to_bytes);
		MPI_Status status;
		int bytes, count = -1;
		memory_write(&memory, before);
		char *stream = packed(from, out.type, out.count, &bytes);
		receive_one(recv, how == RSEND || how == IRSEND, &memory, &in, tag, wild, &status);
		expect(before, in.type, in.count, stream, bytes);
		char *after = memory_read(&memory);
		MPI_Get_elements(&status, types[in.type], &count);
		CHECK(count == sent && status.MPI_SOURCE == 0 && status.MPI_TAG == tag,
		      "message %u (%d, %d): %d of %d doubles, from %d with %d", number, how, recv, count, sent,
		      status.MPI_SOURCE, status.MPI_TAG);
		CHECK(!memcmp(before, after, to_bytes), "message %u: %d doubles, sent by %d from space %d, type %d, "
		      "received by %d in space %d, type %d", number, sent, how, out.space, out.type, recv, in.space,
		      in.type);
		free(stream);
		free(before);
		free(after);
		memory_free(&memory);
	}
	free(from);
}

/* Packing and unpacking between all pairs of spaces. */
static void packing(void)
{
	for (int type = 0; type < TYPES; type++)
		for (int pair = 0; pair < SPACES * SPACES; pair++) {
			int count = 1 + below(3000), bytes, position = 40;
			size_t all = span(type, count);
			char *content = noise(type + 7 * pair + 1, all);
			char *stream = packed(content, type, count, &bytes);
			struct memory user = memory_new(pair % SPACES, all);
			struct memory flat = memory_new(pair / SPACES, bytes + 100);
			char *around = noise(5, bytes + 100);
			memory_write(&user, content);
			memory_write(&flat, around);
			MPI_Pack(user.at, count, types[type], flat.at, bytes + 100, &position, MPI_COMM_WORLD);
			memcpy(around + 40, stream, bytes);
			char *after = memory_read(&flat);
			CHECK(position == 40 + bytes, "position %d", position);
			CHECK(!memcmp(after, around, bytes + 100), "packed: type %d, spaces %d", type, pair);
			free(after);
			char *before = noise(77, all);
			memory_write(&user, before);
			position = 40;
			MPI_Unpack(flat.at, bytes + 100, &position, user.at, count, types[type], MPI_COMM_WORLD);
			expect(before, type, count, stream, bytes);
			after = memory_read(&user);
			CHECK(position == 40 + bytes, "position %d", position);
			CHECK(!memcmp(after, before, all), "unpacked: type %d, spaces %d", type, pair);
			free(after);
			free(before);
			free(around);
			free(content);
			free(stream);
			memory_free(&user);
			memory_free(&flat);
		}
}

/* The same in external32. */
static void packing_external(void)
{
	for (int type = 0; type < TYPES; type++)
		for (int pair = 0; pair < SPACES * SPACES; pair++) {
			int count = 1 + below(2000);
			size_t all = span(type, count);
			MPI_Aint bytes = 8 * (MPI_Aint)doubles(type) * count, position = 0;
			char *content = noise(type + 7 * pair + 3, all), *around = noise(5, bytes + 100);
			struct memory user = memory_new(pair % SPACES, all);
			struct memory flat = memory_new(pair / SPACES, bytes + 100);
			memory_write(&user, content);
			memory_write(&flat, around);
			PMPI_Pack_external("external32", content, count, types[type], around + 40, bytes, &position);
			CHECK(position == bytes, "%ld bytes", (long)position);
			position = 40;
			MPI_Pack_external("external32", user.at, count, types[type], flat.at, bytes + 100, &position);
			char *after = memory_read(&flat);
			CHECK(position == 40 + bytes, "position %ld", (long)position);
			CHECK(!memcmp(after, around, bytes + 100), "external32 packed: type %d, spaces %d", type, pair);
			free(after);
			char *before = noise(77, all);
			memory_write(&user, before);
			position = 0;
			PMPI_Unpack_external("external32", around + 40, bytes, &position, before, count, types[type]);
			position = 40;
			MPI_Unpack_external("external32", flat.at, bytes + 100, &position, user.at, count, types[type]);
			after = memory_read(&user);
			CHECK(position == 40 + bytes, "position %ld", (long)position);
			CHECK(!memcmp(after, before, all), "external32 unpacked: type %d, spaces %d", type, pair);
			free(after);
			free(before);
			free(around);
			free(content);
			memory_free(&user);
			memory_free(&flat);
		}
}

int main(int argc, char **argv)
{
	int cases = argc > 1 ? atoi(argv[1]) : 100, size;
	static char room[1 << 20];
	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &size);
	MPI_Buffer_attach(room, sizeof room);
	make_types();
	/* Host memory before the driver is there, which the library must notice. */
	random_state = argc > 2 ? (unsigned)atoi(argv[2]) : 1;
	if (rank < 2) {
		double one = rank;
		if (rank == 0)
			MPI_Send(&one, 1, MPI_DOUBLE, 1, 0, MPI_COMM_WORLD);
		else
			MPI_Recv(&one, 1, MPI_DOUBLE, 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
		CHECK(one == 0, "%f", one);
		cuda_load();
		if (argc < 4) {
			packing();
			packing_external();
		}
		random_state = argc > 2 ? (unsigned)atoi(argv[2]) : 1;
		for (int i = 0; i < cases; i++)
			message(i);
	}
	for (int i = 1; i < TYPES; i++)
		MPI_Type_free(&types[i]);
	if (rank < 2)
		printf("rank %d: right\n", rank);
	MPI_Finalize();
	return 0;
}
