// SPDX-License-Identifier: MIT OR Apache-2.0

/* Buffers in device memory: sends that return before they are packed, receives that are unpacked at
 * the same time, collectives with large counts, libraries that a program loads and closes.
 *
 * usage: gpu_methods later|together|large|elsewhere CASES       gpu_methods plugins FIRST SECOND
 */
#include "device.h"
#include <time.h>

enum { DEVICE = 3, TAG = 7 };

static int rank, size;

/* Every third double of many. */
enum { LEAST = 1000, STEP = 3 };
static MPI_Datatype strided;

static size_t span(int count)
{
	return (size_t)count * STEP * 8;
}

/* The doubles of a buffer that are sent. */
static void check(struct memory *memory, const char *sent, int count, const char *what)
{
	char *got = memory_read(memory);
	for (int i = 0; i < count; i++)
		CHECK(!memcmp(got + 8 * i, sent + (size_t)i * STEP * 8, 8), "%s: double %d of %d", what, i, count);
	free(got);
}

/* What the first rank sends in a case, as both know. */
static char *content(unsigned number, int count)
{
	return noise(number * 977 + 3, span(count));
}

static struct memory sent_memory(unsigned number, int count)
{
	struct memory memory = memory_new(DEVICE, span(count));
	char *bytes = content(number, count);
	memory_write(&memory, bytes);
	free(bytes);
	return memory;
}

static void receive(unsigned number, int count, int tag, const char *what)
{
	struct memory memory = memory_new(number % 4, (size_t)count * 8);
	char *bytes = content(number, count);
	MPI_Recv(memory.at, count, MPI_DOUBLE, 0, tag, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
	check(&memory, bytes, count, what);
	free(bytes);
	memory_free(&memory);
}

enum {
	BY_WAIT, BY_TEST, BY_WAITALL, BY_TESTALL, BY_WAITANY, BY_TESTANY, BY_WAITSOME, BY_TESTSOME, BY_STATUS, BY_FREE,
	BY_CANCEL, WAYS
};

static const char *const names[WAYS] = { "Wait",     "Test",	 "Waitall",  "Testall",	   "Waitany", "Testany",
					 "Waitsome", "Testsome", "Get_status", "Request_free", "Cancel" };

enum { MANY = 3 };

/* Completes sends in one of the ways that there are. */
static void complete(int how, MPI_Request *requests)
{
	int flag = 0, index, done, indices[MANY], left = MANY;
	MPI_Status statuses[MANY];
	switch (how) {
	case BY_TEST:
		for (int i = 0; i < MANY; i++)
			for (flag = 0; !flag;)
				MPI_Test(&requests[i], &flag, MPI_STATUS_IGNORE);
		break;
	case BY_WAITALL: MPI_Waitall(MANY, requests, statuses); break;
	case BY_TESTALL:
		while (!flag)
			MPI_Testall(MANY, requests, &flag, statuses);
		break;
	case BY_WAITANY:
		for (; left; left--) {
			MPI_Waitany(MANY, requests, &index, MPI_STATUS_IGNORE);
			CHECK(index >= 0 && index < MANY, "index %d of %d left", index, left);
		}
		break;
	case BY_TESTANY:
		for (; left; left -= flag) {
			MPI_Testany(MANY, requests, &index, &flag, MPI_STATUS_IGNORE);
			CHECK(!flag || (index >= 0 && index < MANY), "index %d of %d left", index, left);
		}
		break;
	case BY_WAITSOME:
		for (; left; left -= done) {
			MPI_Waitsome(MANY, requests, &done, indices, statuses);
			CHECK(done > 0, "%d done of %d left", done, left);
		}
		break;
	case BY_TESTSOME:
		for (; left; left -= done) {
			MPI_Testsome(MANY, requests, &done, indices, statuses);
			CHECK(done >= 0, "%d done of %d left", done, left);
		}
		break;
	case BY_STATUS:
		for (int i = 0; i < MANY; i++) {
			for (flag = 0; !flag;)
				MPI_Request_get_status(requests[i], &flag, MPI_STATUS_IGNORE);
			MPI_Wait(&requests[i], &statuses[i]);
		}
		break;
	case BY_FREE:
		for (int i = 0; i < MANY; i++)
			MPI_Request_free(&requests[i]);
		break;
	default:
		for (int i = 0; i < MANY; i++)
			MPI_Wait(&requests[i], &statuses[i]);
	}
	for (int i = 0; i < MANY; i++)
		CHECK(requests[i] == MPI_REQUEST_NULL, "request %d is left by %s", i, names[how]);
}

/* Sends of one tag, each started later, and one from host memory behind them, which must not
 * overtake them. */
static void in_order(unsigned number, int how, int count)
{
	if (rank == 0) {
		MPI_Request requests[MANY];
		struct memory memories[MANY];
		double last = number;
		for (int i = 0; i < MANY; i++) {
			memories[i] = sent_memory(number + i, count);
			if (i == 1)
				MPI_Issend(memories[i].at, count, strided, 1, TAG, MPI_COMM_WORLD, &requests[i]);
			else
				MPI_Isend(memories[i].at, count, strided, 1, TAG, MPI_COMM_WORLD, &requests[i]);
			CHECK(requests[i] != MPI_REQUEST_NULL, "no request");
		}
		if (how == BY_CANCEL) {
			/* Whether a library cancels a send that has been matched is its affair: all
			 * are received. */
			MPI_Send(&last, 1, MPI_DOUBLE, 1, TAG, MPI_COMM_WORLD);
			MPI_Recv(NULL, 0, MPI_BYTE, 1, TAG, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
			MPI_Cancel(&requests[0]);
		} else if (number % 2) {
			MPI_Send(&last, 1, MPI_DOUBLE, 1, TAG, MPI_COMM_WORLD);
		}
		complete(how, requests);
		if (how != BY_CANCEL && number % 2 == 0)
			MPI_Send(&last, 1, MPI_DOUBLE, 1, TAG, MPI_COMM_WORLD);
		/* What was freed has arrived when the receiver says so. */
		MPI_Recv(NULL, 0, MPI_BYTE, 1, TAG + 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
		for (int i = 0; i < MANY; i++)
			memory_free(&memories[i]);
	}
	if (rank == 1) {
		double last = -1;
		for (int i = 0; i < MANY; i++)
			receive(number + i, count, TAG, names[how]);
		MPI_Recv(&last, 1, MPI_DOUBLE, 0, TAG, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
		CHECK(last == number, "%s: %f instead of %u", names[how], last, number);
		if (how == BY_CANCEL)
			MPI_Send(NULL, 0, MPI_BYTE, 0, TAG, MPI_COMM_WORLD);
		MPI_Send(NULL, 0, MPI_BYTE, 0, TAG + 1, MPI_COMM_WORLD);
	}
}

enum { BARRIER, BCAST, COMM_DUP, COMM_SPLIT, CART, PROBE, RECV, HOST_WAIT, SCAN, MEETINGS };

/* The receiver gets the message before it does what the sender waits for. */
static void before_meeting(unsigned number, int how, int count)
{
	static char what[32];
	double value = 5;
	snprintf(what, sizeof what, "meeting %d", how);
	MPI_Request request = MPI_REQUEST_NULL, other;
	struct memory memory = { 0 };
	if (rank == 0) {
		memory = sent_memory(number, count);
		MPI_Isend(memory.at, count, strided, 1, TAG, MPI_COMM_WORLD, &request);
	}
	if (rank == 1)
		receive(number, count, TAG, what);
	MPI_Comm made = MPI_COMM_NULL;
	int ends[1] = { size }, periods[1] = { 0 };
	switch (how) {
	case BARRIER: MPI_Barrier(MPI_COMM_WORLD); break;
	case BCAST: MPI_Bcast(&value, 1, MPI_DOUBLE, 1, MPI_COMM_WORLD); break;
	case COMM_DUP: MPI_Comm_dup(MPI_COMM_WORLD, &made); break;
	case COMM_SPLIT: MPI_Comm_split(MPI_COMM_WORLD, 0, rank, &made); break;
	case CART: MPI_Cart_create(MPI_COMM_WORLD, 1, ends, periods, 0, &made); break;
	case SCAN: MPI_Scan(MPI_IN_PLACE, &value, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD); break;
	case PROBE:
		if (rank == 0)
			MPI_Probe(1, TAG + 2, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
		/* fall through */
	case RECV:
		if (rank == 0)
			MPI_Recv(&value, 1, MPI_DOUBLE, 1, TAG + 2, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
		else if (rank == 1)
			MPI_Send(&value, 1, MPI_DOUBLE, 0, TAG + 2, MPI_COMM_WORLD);
		break;
	default:
		if (rank == 0) {
			MPI_Irecv(&value, 1, MPI_DOUBLE, 1, TAG + 2, MPI_COMM_WORLD, &other);
			MPI_Wait(&other, MPI_STATUS_IGNORE);
		} else if (rank == 1) {
			MPI_Send(&value, 1, MPI_DOUBLE, 0, TAG + 2, MPI_COMM_WORLD);
		}
	}
	if (made != MPI_COMM_NULL)
		MPI_Comm_free(&made);
	if (rank == 0) {
		MPI_Wait(&request, MPI_STATUS_IGNORE);
		memory_free(&memory);
	}
}

static void later(int cases)
{
	for (int i = 0; i < cases; i++) {
		in_order(10 * i + i % 3, i % WAYS, LEAST + below(3) * 20000);
		before_meeting(10 * i + 5, i % MEETINGS, LEAST + below(3) * 20000);
	}
}

enum { TOGETHER = 8 };
enum { BY_ALL, BY_ALL_TESTED, BY_SOME, BY_SOME_TESTED, BY_PERSISTENT, COMPLETIONS };

/* Completes all receives by one function; in each call of it, the kernels of all that it completes
 * are launched before any of them is waited for.
 */
static void complete_together(int how, MPI_Request *requests)
{
	unsigned long (*launches)(void);
	int flag = 0, done = TOGETHER, indices[TOGETHER];
	MPI_Status statuses[TOGETHER];
	*(void **)&launches = dlsym(cuda, "fakecuda_launches_in_a_row");
	CHECK(launches, "not the stand-in");
	for (int left = TOGETHER; left; left -= done) {
		launches();
		switch (how) {
		case BY_ALL_TESTED:
			while (!flag)
				MPI_Testall(TOGETHER, requests, &flag, statuses);
			break;
		case BY_SOME: MPI_Waitsome(TOGETHER, requests, &done, indices, statuses); break;
		case BY_SOME_TESTED:
			for (done = 0; !done;)
				MPI_Testsome(TOGETHER, requests, &done, indices, statuses);
			break;
		default: MPI_Waitall(TOGETHER, requests, statuses);
		}
		unsigned long most = launches();
		CHECK(most >= (unsigned)done, "way %d: %d done, but %lu launches before a wait", how, done, most);
	}
}

/* Receives of one call are unpacked at the same time. */
static void together(int cases)
{
	for (int i = 0; i < cases; i++) {
		int how = i % COMPLETIONS, count = LEAST + below(3) * 4000;
		struct memory memories[TOGETHER];
		MPI_Request requests[TOGETHER];
		for (int n = 0; n < TOGETHER && rank == 1; n++) {
			memories[n] = memory_new(DEVICE, span(count));
			if (how == BY_PERSISTENT)
				MPI_Recv_init(memories[n].at, count, strided, 0, n, MPI_COMM_WORLD, &requests[n]);
			else
				MPI_Irecv(memories[n].at, count, strided, 0, n, MPI_COMM_WORLD, &requests[n]);
		}
		if (rank == 1 && how == BY_PERSISTENT)
			MPI_Startall(TOGETHER, requests);
		for (int n = 0; n < TOGETHER && rank == 0; n++) {
			char *bytes = content(i + n, count);
			MPI_Send(bytes, count, strided, 1, n, MPI_COMM_WORLD);
			free(bytes);
		}
		if (rank != 1)
			continue;
		complete_together(how, requests);
		for (int n = 0; n < TOGETHER; n++) {
			char *sent = content(i + n, count), *got = memory_read(&memories[n]);
			for (int at = 0; at < count; at++)
				CHECK(!memcmp(got + at * STEP * 8, sent + at * STEP * 8, 8), "way %d: double %d of %d", how,
				      at, count);
			free(sent), free(got);
			memory_free(&memories[n]);
			if (how == BY_PERSISTENT)
				MPI_Request_free(&requests[n]);
		}
	}
}

/* A long message out of host memory into device memory, whose receiver is elsewhere after it has
 * begun to receive. */
static void elsewhere(int cases)
{
	enum { BYTES = 1 << 20 };
	struct timespec while_elsewhere = { 0, 60000000 };
	for (int i = 0; i < cases; i++) {
		char *bytes = noise(i, BYTES);
		if (rank == 0) {
			MPI_Recv(NULL, 0, MPI_BYTE, 1, TAG, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
			MPI_Send(bytes, BYTES, MPI_BYTE, 1, TAG, MPI_COMM_WORLD);
		} else if (rank == 1) {
			struct memory memory = memory_new(DEVICE, BYTES);
			MPI_Request request;
			MPI_Irecv(memory.at, BYTES, MPI_BYTE, 0, TAG, MPI_COMM_WORLD, &request);
			MPI_Send(NULL, 0, MPI_BYTE, 0, TAG, MPI_COMM_WORLD);
			nanosleep(&while_elsewhere, NULL);
			MPI_Wait(&request, MPI_STATUS_IGNORE);
			char *got = memory_read(&memory);
			CHECK(!memcmp(got, bytes, BYTES), "message %d", i);
			free(got);
			memory_free(&memory);
		}
		free(bytes);
	}
}

#if MPI_VERSION >= 4
/* Collectives with large counts that libcopy forwards, each compared with the library's own in host
 * memory. */
static void large(int cases)
{
	for (int number = 0; number < cases; number++) {
		MPI_Count n = 1 + below(3000), counts[8];
		MPI_Aint places[8], bytes[8];
		MPI_Datatype types[8];
		size_t own = span(n), all = span(n) * size;
		for (int i = 0; i < size; i++) {
			counts[i] = n;
			places[i] = (MPI_Aint)n * i;
			bytes[i] = (MPI_Aint)span(n) * i;
			types[i] = strided;
		}
		struct memory send = memory_new((rank + number) % 4, all), recv = memory_new((rank + 2 * number) % 4, all);
		struct memory sums = memory_new((rank + 3 * number) % 4, all);
		char *from = noise(number * 31 + rank, all), *to = noise(number + 1000 * rank, all);
		double *values = malloc(all);
		for (size_t i = 0; i < all / 8; i++)
			values[i] = (double)(i % 1000) + rank;
		memory_write(&send, from);
		memory_write(&recv, to);
		memory_write(&sums, (char *)values);
		MPI_Request request = MPI_REQUEST_NULL, plain = MPI_REQUEST_NULL;
		MPI_Comm comm = MPI_COMM_WORLD;
		int how = number % 8, reduces = how < 4, done = 0;
		switch (how) {
		case 0:
			MPI_Scan_c(sums.at, recv.at, n, MPI_DOUBLE, MPI_SUM, comm);
			PMPI_Scan_c(values, to, n, MPI_DOUBLE, MPI_SUM, comm);
			break;
		case 1:
			MPI_Iexscan_c(sums.at, recv.at, n, MPI_DOUBLE, MPI_SUM, comm, &request);
			PMPI_Iexscan_c(values, to, n, MPI_DOUBLE, MPI_SUM, comm, &plain);
			break;
		case 2:
			MPI_Ireduce_scatter_c(sums.at, recv.at, counts, MPI_DOUBLE, MPI_SUM, comm, &request);
			PMPI_Ireduce_scatter_c(values, to, counts, MPI_DOUBLE, MPI_SUM, comm, &plain);
			break;
		case 3:
			MPI_Ireduce_scatter_block_c(sums.at, recv.at, n, MPI_DOUBLE, MPI_SUM, comm, &request);
			PMPI_Ireduce_scatter_block_c(values, to, n, MPI_DOUBLE, MPI_SUM, comm, &plain);
			break;
		case 4:
			MPI_Iallgatherv_c(send.at, n, strided, recv.at, counts, places, strided, comm, &request);
			PMPI_Iallgatherv_c(from, n, strided, to, counts, places, strided, comm, &plain);
			break;
		case 5:
			MPI_Ialltoallw_c(send.at, counts, bytes, types, recv.at, counts, bytes, types, comm, &request);
			PMPI_Ialltoallw_c(from, counts, bytes, types, to, counts, bytes, types, comm, &plain);
			break;
		case 6:
			MPI_Igatherv_c(send.at, n, strided, recv.at, counts, places, strided, 0, comm, &request);
			PMPI_Igatherv_c(from, n, strided, to, counts, places, strided, 0, comm, &plain);
			break;
		default:
			MPI_Alltoallv_init_c(send.at, counts, places, strided, recv.at, counts, places, strided, comm,
					     MPI_INFO_NULL, &request);
			PMPI_Ialltoallv_c(from, counts, places, strided, to, counts, places, strided, comm, &plain);
			MPI_Start(&request);
		}
		while (!done)
			MPI_Test(&request, &done, MPI_STATUS_IGNORE);
		PMPI_Wait(&plain, MPI_STATUS_IGNORE);
		if (request != MPI_REQUEST_NULL)
			MPI_Request_free(&request);
		/* What Exscan leaves in the first rank means nothing. */
		char *got = memory_read(&recv);
		size_t compared = how == 1 && rank == 0 ? 0 : reduces ? (size_t)n * 8 : all;
		CHECK(!memcmp(got, to, compared), "case %d, function %d, %zu bytes of each", number, how, own);
		free(got);
		free(from);
		free(to);
		free(values);
		memory_free(&send);
		memory_free(&recv);
		memory_free(&sums);
	}
}
#endif

/* A call that is intercepted, so that new libraries are noticed. */
static void call(void)
{
	double one = 1;
	MPI_Allreduce(MPI_IN_PLACE, &one, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
	MPI_Sendrecv_replace(&one, 1, MPI_DOUBLE, rank, 1, rank, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
}

static int is_there(const char *path)
{
	void *library = dlopen(path, RTLD_LAZY | RTLD_NOLOAD);
	if (library)
		dlclose(library);
	return library != NULL;
}

/* A library that the program closes does not stay for ever because it was the last one. */
static void plugins(const char *first, const char *second)
{
	void *plugin = dlopen(first, RTLD_NOW | RTLD_LOCAL);
	CHECK(plugin, "%s", dlerror());
	call();
	dlclose(plugin);
	call();
	plugin = dlopen(second, RTLD_NOW | RTLD_LOCAL);
	CHECK(plugin, "%s", dlerror());
	call();
	CHECK(!is_there(first), "%s is still loaded", first);
	CHECK(is_there(second), "%s is not loaded", second);
	dlclose(plugin);
	call();
}

int main(int argc, char **argv)
{
	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &size);
	CHECK(argc > 2, "no arguments");
	MPI_Type_create_resized(MPI_DOUBLE, 0, STEP * 8, &strided);
	MPI_Type_commit(&strided);
	if (!strcmp(argv[1], "plugins")) {
		plugins(argv[2], argv[3]);
	} else {
		cuda_load();
		if (!strcmp(argv[1], "later"))
			later(atoi(argv[2]));
		if (!strcmp(argv[1], "elsewhere"))
			elsewhere(atoi(argv[2]));
		if (!strcmp(argv[1], "together"))
			together(atoi(argv[2]));
#if MPI_VERSION >= 4
		if (!strcmp(argv[1], "large"))
			large(atoi(argv[2]));
#endif
	}
	MPI_Type_free(&strided);
	printf("rank %d: right\n", rank);
	MPI_Finalize();
	return 0;
}
