// SPDX-License-Identifier: MIT OR Apache-2.0

/* What programs do with buffers in device memory besides sending and receiving them in turn:
 * messages that are too long, receives that are cancelled, requests that are freed, wildcards,
 * memory that is freed and allocated again at the same address, child processes, threads, a peer
 * that is killed. See device.c for the driver. Each rank prints a line for each case that was
 * right.
 *
 * usage: device_cases CASE...
 */
#define _GNU_SOURCE
#include "test_cases.h"

#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

/* A piece: 16 bytes of 24. */
enum { PIECE = 16, EXTENT = 24, SPACES = 4 };
/* A few pieces, and as many as are sent by another protocol. */
static const int counts[2] = { 20, 20000 };
static MPI_Datatype piece;
static int rank, size, provided;

static char *bytes_of(unsigned seed, int count) { return noise(seed, (size_t)count * EXTENT); }

/* Memory for pieces with content by this number. */
static struct memory filled(int space, unsigned seed, int count)
{
	struct memory memory = memory_new(space, (size_t)count * EXTENT);
	char *content = bytes_of(seed, count);
	memory_write(&memory, content);
	free(content);
	return memory;
}

/* What is wrong in memory that had the content `before` and received the first `count` pieces of
 * the content `sent`: how many bytes of pieces, and of the gaps between them and of what is behind.
 */
struct wrong {
	size_t data, rest;
};

static struct wrong compare(const struct memory *memory, unsigned before, unsigned sent, int count)
{
	int all = (int)(memory->bytes / EXTENT);
	char *old = bytes_of(before, all), *new = bytes_of(sent, all), *now = memory_read(memory);
	struct wrong wrong = { 0, 0 };
	for (size_t i = 0; i < memory->bytes; i++) {
		int is_data = i % EXTENT < PIECE && i / EXTENT < (size_t)count;
		if (is_data)
			wrong.data += now[i] != new[i];
		else
			wrong.rest += now[i] != old[i];
	}
	free(old), free(new), free(now);
	return wrong;
}

#define CHECK_MEMORY(memory, before, sent, count, ...)                                                                 \
	do {                                                                                                           \
		struct wrong wrong = compare(memory, before, sent, count);                                             \
		if (wrong.data || wrong.rest)                                                                          \
			fprintf(stderr, "space %d, %d pieces: %zu bytes of data wrong, %zu others\n", (memory)->space, \
				count, wrong.data, wrong.rest);                                                        \
		CHECK(!wrong.data && !wrong.rest, __VA_ARGS__);                                                        \
	} while (0)

/* ---- Messages that are longer than the receive. ---- */

enum way { RECV, WAIT, TEST, WAITALL, TESTALL, WAITANY, WAITSOME, PERSISTENT, MRECV, IMRECV, SENDRECV, WAYS };

/* Receives fewer pieces than are sent; the class of the error. */
static int too_few(enum way way, void *at, int count, int tag)
{
	MPI_Request requests[2] = { MPI_REQUEST_NULL, MPI_REQUEST_NULL }, *request = &requests[1];
	MPI_Status statuses[2] = { { 0 } }, *status = &statuses[1];
	MPI_Message message;
	int code = 0, flag = 0, index = -1, done = 0, indices[2], class;
	const MPI_Comm comm = MPI_COMM_WORLD;
	if (way == PERSISTENT) {
		MPI_Recv_init(at, count, piece, 0, tag, comm, request);
		MPI_Start(request);
	} else if (way == MRECV || way == IMRECV) {
		MPI_Mprobe(0, tag, comm, &message, status);
		if (way == IMRECV)
			MPI_Imrecv(at, count, piece, &message, request);
	} else if (way != RECV && way != SENDRECV) {
		MPI_Irecv(at, count, piece, 0, tag, comm, request);
	}
	switch (way) {
	case RECV: code = MPI_Recv(at, count, piece, 0, tag, comm, status); break;
	case MRECV: code = MPI_Mrecv(at, count, piece, &message, status); break;
	case SENDRECV:
		code = MPI_Sendrecv(NULL, 0, MPI_BYTE, MPI_PROC_NULL, 0, at, count, piece, 0, tag, comm, status);
		break;
	case TEST:
		while (!code && !flag)
			code = MPI_Test(request, &flag, status);
		break;
	case WAITALL: code = MPI_Waitall(2, requests, statuses); break;
	case TESTALL:
		while (!code && !flag)
			code = MPI_Testall(2, requests, &flag, statuses);
		break;
	case WAITANY: code = MPI_Waitany(2, requests, &index, status); break;
	case WAITSOME:
		code = MPI_Waitsome(2, requests, &done, indices, statuses);
		statuses[1] = statuses[0];
		break;
	default: code = MPI_Wait(request, status);
	}
	MPI_Error_class(code, &class);
	if (class == MPI_ERR_IN_STATUS)
		MPI_Error_class(status->MPI_ERROR, &class);
	if (way == PERSISTENT)
		MPI_Request_free(request);
	return class;
}

static void truncated(void)
{
	MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
	for (int way = 0; way < WAYS; way++)
		for (int i = 0; i < 8 && rank < 2; i++) {
			int count = counts[i % 2], tag = 1 + way, class;
			unsigned seed = 100 * way + i;
			if (rank == 0) {
				/* The same message from host memory to host memory first. */
				struct memory host = filled(0, seed, count), from = filled(1 + i % 3, seed, count);
				MPI_Send(host.at, count, piece, 1, tag, MPI_COMM_WORLD);
				MPI_Send(from.at, count, piece, 1, tag, MPI_COMM_WORLD);
				MPI_Send(from.at, count, piece, 1, tag, MPI_COMM_WORLD);
				memory_free(&from), memory_free(&host);
				continue;
			}
			struct memory host = filled(0, 7, count), to = filled(3 - i / 4, 7, count);
			int expected = too_few(way, host.at, count / 2, tag);
			class = too_few(way, to.at, count / 2, tag);
			CHECK(expected == MPI_ERR_TRUNCATE && class == expected, "way %d, %d pieces: class %d, not %d", way,
			      count, class, expected);
			/* What arrives of such a message is the library's choice, but nothing
			 * arrives elsewhere. */
			struct wrong wrong = compare(&to, 7, seed, count / 2);
			CHECK(!wrong.rest, "way %d, %d pieces: %zu bytes written outside", way, count, wrong.rest);
			memory_free(&to);
			to = filled(3 - i / 4, 7, count);
			MPI_Recv(to.at, count, piece, 0, tag, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
			CHECK_MEMORY(&to, 7, seed, count, "the message after a truncated one, way %d", way);
			memory_free(&to), memory_free(&host);
		}
	MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_ARE_FATAL);
}

/* ---- Receives that are cancelled. ---- */

static void cancelled(void)
{
	MPI_Status status, statuses[2];
	int flag, is_cancelled;
	for (int i = 0; i < 8; i++) {
		int count = counts[i % 2], way = i / 2;
		struct memory to = filled(3 - i % 2, i, count);
		MPI_Request requests[2] = { MPI_REQUEST_NULL, MPI_REQUEST_NULL }, *request = &requests[1];
		/* Nothing is sent with this tag. */
		if (way == 3) {
			MPI_Recv_init(to.at, count, piece, MPI_ANY_SOURCE, 99, MPI_COMM_WORLD, request);
			MPI_Start(request);
		} else {
			MPI_Irecv(to.at, count, piece, MPI_ANY_SOURCE, 99, MPI_COMM_WORLD, request);
		}
		MPI_Test(request, &flag, &status);
		CHECK(!flag, "a message that nobody has sent");
		MPI_Cancel(request);
		if (way == 1) {
			MPI_Waitall(2, requests, statuses);
			status = statuses[1];
		} else if (way == 2) {
			for (flag = 0; !flag;)
				MPI_Test(request, &flag, &status);
		} else {
			MPI_Wait(request, &status);
		}
		MPI_Test_cancelled(&status, &is_cancelled);
		CHECK(is_cancelled, "way %d: not cancelled", way);
		CHECK_MEMORY(&to, i, i, 0, "a receive that was cancelled, way %d", way);
		if (way == 3)
			MPI_Request_free(request);
		memory_free(&to);
	}
	/* One that a message may have matched: it is received, or the next receive gets it. */
	for (int i = 0; i < 8 && rank < 2; i++) {
		int count = counts[i % 2];
		MPI_Request request;
		if (rank == 0) {
			struct memory from = filled(3, i, count);
			MPI_Recv(NULL, 0, MPI_BYTE, 1, 2, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
			MPI_Send(from.at, count, piece, 1, 3, MPI_COMM_WORLD);
			memory_free(&from);
			continue;
		}
		struct memory to = filled(3, 50, count);
		MPI_Irecv(to.at, count, piece, 0, 3, MPI_COMM_WORLD, &request);
		MPI_Send(NULL, 0, MPI_BYTE, 0, 2, MPI_COMM_WORLD);
		MPI_Cancel(&request);
		MPI_Wait(&request, &status);
		MPI_Test_cancelled(&status, &is_cancelled);
		if (is_cancelled) {
			CHECK_MEMORY(&to, 50, 50, 0, "a receive that was cancelled in time");
			MPI_Recv(to.at, count, piece, 0, 3, MPI_COMM_WORLD, &status);
		}
		CHECK_MEMORY(&to, 50, i, count, "a receive that was cancelled or not: %d", is_cancelled);
		memory_free(&to);
	}
}

/* ---- Requests that are freed while they are active. ---- */

static void freed(void)
{
	enum { POLLS = 10000000 };
	MPI_Request request;
	for (int i = 0; i < 16 && rank < 2; i++) {
		int count = counts[i % 2], is_persistent = i / 2 % 2, is_receive = i / 8, token = 0;
		/* The rank whose request is freed, and the other one. */
		int us = is_receive ? 1 : 0, other = !us;
		struct memory memory = filled(i / 4 % 2 ? 2 : 3, 10 * i + rank, count);
		if (rank == us && is_persistent && is_receive)
			MPI_Recv_init(memory.at, count, piece, other, 4, MPI_COMM_WORLD, &request);
		else if (rank == us && is_persistent)
			MPI_Send_init(memory.at, count, piece, other, 4, MPI_COMM_WORLD, &request);
		else if (rank == us && is_receive)
			MPI_Irecv(memory.at, count, piece, other, 4, MPI_COMM_WORLD, &request);
		else if (rank == us)
			MPI_Isend(memory.at, count, piece, other, 4, MPI_COMM_WORLD, &request);
		if (rank == us) {
			if (is_persistent)
				MPI_Start(&request);
			/* Nobody has sent or received yet: this must not wait for the other
			 * rank. */
			MPI_Request_free(&request);
			CHECK(request == MPI_REQUEST_NULL, "a request that was freed");
			MPI_Send(&token, 1, MPI_INT, other, 5, MPI_COMM_WORLD);
		} else {
			MPI_Recv(&token, 1, MPI_INT, us, 5, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
		}
		if (!is_receive && rank == other) {
			MPI_Recv(memory.at, count, piece, us, 4, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
			CHECK_MEMORY(&memory, 10 * i + 1, 10 * i, count, "sent by a freed request, %d", i);
		} else if (is_receive && rank == other) {
			MPI_Send(memory.at, count, piece, us, 4, MPI_COMM_WORLD);
		} else if (is_receive) {
			/* It arrives during other calls. */
			struct wrong wrong = { 1, 0 };
			int polls = 0, flag;
			for (; wrong.data && polls < POLLS; polls++) {
				MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &flag, MPI_STATUS_IGNORE);
				/* Rarely, since comparing takes long. */
				if ((polls & (polls - 1)) == 0)
					wrong = compare(&memory, 10 * i + 1, 10 * i, count);
			}
			CHECK(polls < POLLS && !wrong.rest, "received by a freed request, %d", i);
		}
		/* Before it may change its memory, the sender hears that it has arrived. */
		if (rank == 1)
			MPI_Send(&token, 1, MPI_INT, 0, 6, MPI_COMM_WORLD);
		else
			MPI_Recv(&token, 1, MPI_INT, 1, 6, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
		memory_free(&memory);
	}
}

/* ---- Receives from any rank with any tag. ---- */

static void wildcards(void)
{
	enum { EACH = 30 };
	for (int i = 0; rank && i < EACH; i++) {
		int count = i % 5 ? counts[0] + i : counts[1] / 4;
		struct memory from = filled((i + rank) % SPACES, 1000 * rank + i, count);
		MPI_Send(from.at, count, piece, 0, 10 + i, MPI_COMM_WORLD);
		memory_free(&from);
	}
	for (int i = 0; !rank && i < EACH * (size - 1); i++) {
		struct memory to = filled(i % SPACES, 77, counts[1] / 4);
		int room = counts[1] / 4, pieces;
		MPI_Request request;
		MPI_Message message;
		MPI_Status status;
		switch (i / 4 % 4) {
		case 0: MPI_Recv(to.at, room, piece, MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &status); break;
		case 1:
			MPI_Irecv(to.at, room, piece, MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &request);
			MPI_Wait(&request, &status);
			break;
		case 2:
			MPI_Probe(MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &status);
			MPI_Recv(to.at, room, piece, status.MPI_SOURCE, status.MPI_TAG, MPI_COMM_WORLD, &status);
			break;
		default:
			MPI_Mprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &message, &status);
			MPI_Mrecv(to.at, room, piece, &message, &status);
		}
		MPI_Get_count(&status, piece, &pieces);
		int of = status.MPI_TAG - 10, expected = of % 5 ? counts[0] + of : counts[1] / 4;
		CHECK(pieces == expected, "%d pieces, not %d", pieces, expected);
		CHECK_MEMORY(&to, 77, 1000 * status.MPI_SOURCE + of, pieces, "from rank %d with tag %d", status.MPI_SOURCE,
			     status.MPI_TAG);
		memory_free(&to);
	}
	MPI_Barrier(MPI_COMM_WORLD);
}

/* ---- Addresses that are used again for memory of another kind. ---- */

/* Host memory at this address; NULL if something else is there. */
static char *host_at(char *address, size_t bytes)
{
	char *at = mmap(address, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
	return at == MAP_FAILED ? NULL : at;
}

static void recycled(void)
{
	enum { ROUNDS = 120, PIECES = 900 };
	char *last = NULL;
	int again = 0, before = -1;
	for (int i = 0; i < ROUNDS && rank < 2; i++) {
		struct memory memory = { (int)(below(SPACES) + rank) % SPACES, NULL, PIECES * EXTENT };
		char *content = bytes_of(10 * i + rank, PIECES);
		if (memory.space == 0 && last)
			memory.at = host_at(last, memory.bytes);
		if (!memory.at)
			memory = memory_new(memory.space, memory.bytes);
		again += memory.at == last && memory.space != before;
		memory_write(&memory, content);
		free(content);
		if (rank == i % 2) {
			MPI_Send(memory.at, PIECES, piece, !rank, 7, MPI_COMM_WORLD);
		} else {
			MPI_Recv(memory.at, PIECES, piece, !rank, 7, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
			CHECK_MEMORY(&memory, 10 * i + rank, 10 * i + !rank, PIECES, "round %d", i);
		}
		before = memory.space;
		if (memory.space == 0 && memory.at == last) {
			munmap(memory.at, memory.bytes);
		} else {
			if (memory.space)
				last = memory.at;
			memory_free(&memory);
		}
	}
	CHECK(rank > 1 || again > ROUNDS / 4, "memory was at the same address as another kind before %d times", again);
}

/* ---- Child processes. ---- */

static void forked(void)
{
	for (int i = 0; i < 6 && rank < 2; i++) {
		int count = counts[i % 2], status;
		struct memory memory = filled(3, 10 * i + rank, count);
		MPI_Request request = MPI_REQUEST_NULL;
		if (rank == 1)
			MPI_Irecv(memory.at, count, piece, 0, 8, MPI_COMM_WORLD, &request);
		pid_t child = fork();
		if (child == 0) {
			if (i % 3 == 0)
				execlp("true", "true", (char *)NULL);
			_exit(0);
		}
		CHECK(child > 0, "fork");
		/* In some rounds while the child lives, or is not waited for. */
		if (i % 3 != 1)
			CHECK(waitpid(child, &status, 0) == child && status == 0, "a child ended with %x", status);
		if (rank == 0)
			MPI_Send(memory.at, count, piece, 1, 8, MPI_COMM_WORLD);
		else
			MPI_Wait(&request, MPI_STATUS_IGNORE);
		if (rank == 1)
			CHECK_MEMORY(&memory, 10 * i + 1, 10 * i, count, "after fork, round %d", i);
		if (i % 3 == 1)
			CHECK(waitpid(child, &status, 0) == child && status == 0, "a child ended with %x", status);
		memory_free(&memory);
	}
}

/* ---- Threads. ---- */

enum { THREADS = 4, MESSAGES = 30 };
static unsigned long context;

/* A thread's memory is allocated, written and freed with the context current, but half of the
 * threads call MPI without one. */
static void current(int is_current)
{
	unsigned long popped;
	if (is_current)
		cuda_call("cuCtxPushCurrent_v2", context, 0, 0, 0);
	else
		cuda_call("cuCtxPopCurrent_v2", (unsigned long)&popped, 0, 0, 0);
}

static void *exchange(void *argument)
{
	int number = (int)(intptr_t)argument, tag = 20 + number, other = !rank;
	unsigned state = 1 + number;
	for (int i = 0; i < MESSAGES; i++) {
		int count = rand_r(&state) % 8 ? 1 + rand_r(&state) % 500 : 8000, how = rand_r(&state) % 3;
		int spaces[2] = { rand_r(&state) % SPACES, rand_r(&state) % SPACES };
		unsigned seed = 100000 * (number + 1) + 10 * i;
		MPI_Request requests[2];
		MPI_Status statuses[2];
		current(1);
		struct memory from = filled(spaces[rank], seed + rank, count), to = filled(spaces[!rank], 3, count);
		if (number % 2)
			current(0);
		if (how == 0) {
			MPI_Sendrecv(from.at, count, piece, other, tag, to.at, count, piece, other, tag, MPI_COMM_WORLD,
				     MPI_STATUS_IGNORE);
		} else {
			MPI_Irecv(to.at, count, piece, other, tag, MPI_COMM_WORLD, &requests[0]);
			if (how == 1) {
				MPI_Isend(from.at, count, piece, other, tag, MPI_COMM_WORLD, &requests[1]);
				MPI_Waitall(2, requests, statuses);
			} else {
				MPI_Send(from.at, count, piece, other, tag, MPI_COMM_WORLD);
				MPI_Wait(&requests[0], MPI_STATUS_IGNORE);
			}
		}
		if (number % 2)
			current(1);
		CHECK_MEMORY(&to, 3, seed + other, count, "thread %d, message %d", number, i);
		memory_free(&from), memory_free(&to);
		current(0);
	}
	return NULL;
}

static void threads(void)
{
	pthread_t all[THREADS];
	if (provided < MPI_THREAD_MULTIPLE || rank > 1)
		return;
	cuda_call("cuCtxGetCurrent", (unsigned long)&context, 0, 0, 0);
	for (int i = 0; i < THREADS; i++)
		CHECK(!pthread_create(&all[i], NULL, exchange, (void *)(intptr_t)i), "a thread");
	for (int i = 0; i < THREADS; i++)
		pthread_join(all[i], NULL);
}

/* ---- A rank that is killed while the other one receives from it. ---- */

static void killed(void)
{
	struct memory memory = filled(3, rank, counts[1]);
	MPI_Request request;
	if (rank == 0) {
		/* The first one arrives, the third one is never sent. */
		MPI_Recv(memory.at, counts[1], piece, 1, 9, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
		CHECK_MEMORY(&memory, 0, 1, counts[1], "before the other one is killed");
		printf("rank 0: received\n");
		fflush(stdout);
		MPI_Send(NULL, 0, MPI_BYTE, 1, 9, MPI_COMM_WORLD);
		MPI_Recv(memory.at, counts[1], piece, 1, 9, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
		MPI_Recv(memory.at, counts[1], piece, 1, 9, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
	} else if (rank == 1) {
		MPI_Send(memory.at, counts[1], piece, 0, 9, MPI_COMM_WORLD);
		MPI_Recv(NULL, 0, MPI_BYTE, 0, 9, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
		MPI_Isend(memory.at, counts[1], piece, 0, 9, MPI_COMM_WORLD, &request);
		raise(SIGKILL);
	}
	MPI_Barrier(MPI_COMM_WORLD);
}

static const struct test_case cases[] = {
	{ "truncated", truncated }, { "cancelled", cancelled }, { "freed", freed },	{ "wildcards", wildcards },
	{ "recycled", recycled },   { "forked", forked },	{ "threads", threads }, { "killed", killed },
};

int main(int argc, char **argv)
{
	MPI_Datatype block;
	/* Only there: libcopy forwards messages of some libraries where threads may call at
	 * once. */
	int has_threads = argc > 1 && !strcmp(argv[1], "threads");
	MPI_Init_thread(&argc, &argv, has_threads ? MPI_THREAD_MULTIPLE : MPI_THREAD_SINGLE, &provided);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &size);
	CHECK(size >= 2, "%d ranks", size);
	MPI_Type_contiguous(PIECE, MPI_BYTE, &block);
	MPI_Type_create_resized(block, 0, EXTENT, &piece);
	MPI_Type_commit(&piece);
	MPI_Type_free(&block);
	cuda_load();
	run_cases(cases, sizeof cases / sizeof *cases, argc, argv);
	MPI_Type_free(&piece);
	MPI_Finalize();
	return 0;
}
