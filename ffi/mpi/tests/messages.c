// SPDX-License-Identifier: MIT OR Apache-2.0

/* Random messages between all pairs of ranks; prints a checksum of what each rank has received.
 * Two runs with the same arguments print the same, with libcopy_mpi.so and without it.
 *
 * usage: messages ROUNDS SEED MOST [THREADS]    MOST: bytes of the largest message
 *
 * In every round all ranks know all messages of the round: which rank sends how many bytes of which
 * type to which other one, with which tag, on which communicator, and by which functions both sides
 * do it. Some are as long as what libcopy_mpi.so sends in place of others.
 */
#include <mpi.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MOST_RANKS = 16, MOST_MESSAGES = 24, SENDS = 9, RECVS = 8 };

struct message {
	int from, to, comm, tag;
	int bytes;
	/* Shapes of the types on both sides, and the functions. */
	int out, in, send, recv;
	/* Bytes that are more than the message, and whether the receiver takes any tag or
	 * source. */
	int room, any_tag, any_source;
	unsigned char *buffer;
	size_t span;
	int late;
};

static uint64_t next(uint64_t *state, uint64_t below)
{
	*state ^= *state << 13;
	*state ^= *state >> 7;
	*state ^= *state << 17;
	return (*state >> 11) % below;
}

static uint64_t hash(uint64_t sum, const void *data, size_t length)
{
	const unsigned char *bytes = data;
	for (size_t i = 0; i < length; i++)
		sum = (sum ^ bytes[i]) * 1099511628211u;
	return sum;
}

/* A type whose data are exactly `bytes` long, in `count` elements; how far they reach. */
static MPI_Datatype shape(int bytes, int kind, int *count, size_t *span)
{
	MPI_Datatype type, inner;
	*count = 1;
	*span = 4 * (size_t)bytes + 4096;
	if (bytes % 8 && kind > 1)
		kind = kind % 2;
	int words = bytes / 8;
	switch (words ? kind : 0) {
	case 0:
		*count = bytes;
		MPI_Type_dup(MPI_BYTE, &type);
		break;
	case 1:
		/* Every other byte. */
		MPI_Type_vector(bytes, 1, 2, MPI_CHAR, &type);
		break;
	case 2:
		MPI_Type_vector(words, 1, 3, MPI_DOUBLE, &type);
		break;
	case 3: {
		/* Blocks of uneven length, backwards. */
		int n = 0, left = words, *lengths = malloc((words + 1) * sizeof(int)),
		    *places = malloc((words + 1) * sizeof(int));
		while (left > 0) {
			int length = 1 + n % 7;
			length = length < left ? length : left;
			lengths[n] = length;
			places[n++] = 3 * (left - length);
			left -= length;
		}
		MPI_Type_indexed(n, lengths, places, MPI_INT64_T, &type);
		free(lengths);
		free(places);
		break;
	}
	case 4: {
		/* Elements with gaps, several of them. */
		int lengths[2] = { 1, 1 };
		MPI_Aint places[2] = { 4, 16 };
		MPI_Datatype types[2] = { MPI_INT, MPI_FLOAT };
		MPI_Type_create_struct(2, lengths, places, types, &inner);
		MPI_Type_create_resized(inner, 0, 24, &type);
		MPI_Type_free(&inner);
		*count = words;
		break;
	}
	case 5: {
		/* Part of a matrix. */
		int rows = words % 4 == 0 ? 4 : words % 3 == 0 ? 3 : 1;
		int sizes[2] = { rows + 2, words / rows + 5 }, parts[2] = { rows, words / rows },
		    starts[2] = { 1, 3 };
		*span = 8 * (size_t)sizes[0] * sizes[1] + 4096;
		MPI_Type_create_subarray(2, sizes, parts, starts, MPI_ORDER_C, MPI_DOUBLE, &type);
		break;
	}
	case 6:
		MPI_Type_contiguous(8, MPI_BYTE, &inner);
		MPI_Type_create_hvector(words, 1, 24, inner, &type);
		MPI_Type_free(&inner);
		break;
	default:
		/* Long rows. */
		inner = MPI_DOUBLE;
		if (words % 512) {
			*count = words;
			MPI_Type_dup(MPI_DOUBLE, &type);
		} else {
			MPI_Type_vector(words / 512, 512, 700, MPI_DOUBLE, &type);
		}
	}
	MPI_Type_commit(&type);
	return type;
}

static void fill(unsigned char *buffer, size_t span, uint64_t seed)
{
	uint64_t word = seed * 0x9e3779b97f4a7c15u + 1;
	for (size_t i = 0; i < span; i += 8) {
		word = word * 6364136223846793005u + 1442695040888963407u;
		memcpy(buffer + i, &word, span - i < 8 ? span - i : 8);
	}
}

struct context {
	int rank, size, rounds, number;
	uint64_t seed;
	int most;
	MPI_Comm comms[3];
	uint64_t sum;
	unsigned long long messages;
};

/* A length: short, one that headers have, just below or above thresholds, or long. */
static int length(uint64_t *state, int most)
{
	switch (next(state, 8)) {
	case 0:
		return next(state, 200);
	case 1:
		return 160 + 64 * next(state, 6);
	case 2:
		return 8 * next(state, 600);
	case 3:
		return 4096 + next(state, 64);
	case 4:
		return 4096 * (1 + next(state, most / 4096));
	default:
		return 8 * (1 + next(state, most / 8));
	}
}

static void fold(struct context *c, MPI_Status *status, int with_source)
{
	int count, cancelled;
	MPI_Get_count(status, MPI_BYTE, &count);
	MPI_Test_cancelled(status, &cancelled);
	int seen[4] = { count, cancelled, status->MPI_TAG, with_source ? status->MPI_SOURCE : 0 };
	c->sum = hash(c->sum, seen, sizeof(seen));
}

static void run(struct context *c)
{
	for (int round = 0; round < c->rounds; round++) {
		uint64_t state = c->seed + 1000003u * (round + 1) + 77777u * c->number;
		/* A later round's message must not come where any source's is taken. */
		MPI_Barrier(c->comms[2]);
		for (int i = 0; i < 5; i++)
			next(&state, 2);
		int n = 1 + next(&state, MOST_MESSAGES);
		struct message all[MOST_MESSAGES];
		/* In a round of blocking sends only, nobody sends back what somebody waits with. */
		int blocking = next(&state, 3) == 0;
		for (int i = 0; i < n; i++) {
			struct message *m = &all[i];
			m->from = next(&state, c->size);
			m->to = next(&state, c->size);
			m->comm = next(&state, 3);
			m->tag = next(&state, 4);
			m->bytes = length(&state, c->most);
			m->out = next(&state, 8);
			m->in = next(&state, 8);
			m->send = next(&state, SENDS);
			m->recv = next(&state, RECVS);
			m->room = next(&state, 3) ? 0 : 8 * next(&state, 2000);
			m->any_tag = 0;
			m->any_source = 0;
			m->late = next(&state, 16) == 0 ? next(&state, 3000) : 0;
			m->buffer = NULL;
			if (m->from == m->to || blocking) {
				/* Blocking sends to oneself would wait for oneself. */
				if (m->from == m->to)
					m->send = 2;
				m->recv = blocking ? 0 : m->recv % 2;
			}
		}
		/* Any tag, or any source, where that changes nothing: the receiver has one such
		 * message in this round and communicator. */
		for (int i = 0; i < n; i++) {
			int same_source = 0, same = 0;
			for (int k = 0; k < n; k++) {
				if (all[k].to != all[i].to || all[k].comm != all[i].comm)
					continue;
				same++;
				same_source += all[k].from == all[i].from;
			}
			all[i].any_tag = same_source == 1 && all[i].tag % 2;
			all[i].any_source = same == 1 && all[i].tag > 1;
		}
		MPI_Request requests[2 * MOST_MESSAGES];
		int which[2 * MOST_MESSAGES], used = 0;
		MPI_Datatype types[2 * MOST_MESSAGES];
		unsigned char *sent[MOST_MESSAGES] = { 0 };
		/* All receives that do not block come first, in the order of the messages; then
		 * sends; then receives that do. Messages of one source, tag and communicator keep
		 * their order only if they are received in one manner: so all those of a round
		 * are. */
		for (int i = 0; i < n; i++)
			for (int k = 0; k < i; k++)
				if (all[k].to == all[i].to && all[k].from == all[i].from &&
				    all[k].comm == all[i].comm && all[k].tag == all[i].tag &&
				    (all[k].recv < 3) != (all[i].recv < 3))
					all[i].recv = all[k].recv;
		for (int i = 0; i < n; i++) {
			struct message *m = &all[i];
			if (m->to != c->rank || m->recv < 3)
				continue;
			int count;
			MPI_Datatype type = shape(m->bytes + m->room, m->in, &count, &m->span);
			m->buffer = malloc(m->span);
			fill(m->buffer, m->span, 3 * i + 1);
			MPI_Comm comm = c->comms[m->comm];
			int source = m->any_source ? MPI_ANY_SOURCE : m->from,
			    tag = m->any_tag ? MPI_ANY_TAG : m->tag;
			if (m->recv == 3) {
				MPI_Recv_init(m->buffer, count, type, source, tag, comm,
					      &requests[used]);
				MPI_Start(&requests[used]);
			} else {
				MPI_Irecv(m->buffer, count, type, source, tag, comm, &requests[used]);
			}
			/* Nobody needs the type any more but the request. */
			if (i % 2)
				types[used] = type;
			else {
				types[used] = MPI_DATATYPE_NULL;
				MPI_Type_free(&type);
			}
			which[used++] = i;
		}
		for (int i = 0; i < n; i++) {
			struct message *m = &all[i];
			if (m->from != c->rank)
				continue;
			int count;
			size_t span;
			MPI_Datatype type = shape(m->bytes, m->out, &count, &span);
			sent[i] = malloc(span);
			fill(sent[i], span, 1000 * round + i);
			MPI_Comm comm = c->comms[m->comm];
			if (m->late)
				usleep(m->late);
			int kind = m->send;
			/* With receives that block behind, sends must not. */
			if (kind != 3 && kind != 4)
				kind = 2;
			MPI_Request *request = &requests[used];
			types[used] = type;
			which[used++] = -1 - i;
			switch (kind) {
			case 2:
				MPI_Isend(sent[i], count, type, m->to, m->tag, comm, request);
				break;
			case 3:
				MPI_Send_init(sent[i], count, type, m->to, m->tag, comm, request);
				MPI_Startall(1, request);
				break;
			default:
				MPI_Issend(sent[i], count, type, m->to, m->tag, comm, request);
			}
		}
		/* Receives that block, in the order of the messages. */
		for (int i = 0; i < n; i++) {
			struct message *m = &all[i];
			if (m->to != c->rank || m->recv >= 3)
				continue;
			MPI_Comm comm = c->comms[m->comm];
			int source = m->any_source ? MPI_ANY_SOURCE : m->from,
			    tag = m->any_tag ? MPI_ANY_TAG : m->tag, bytes = m->bytes + m->room;
			MPI_Status status;
			MPI_Message matched;
			int flag = 0;
			if (m->recv == 1) {
				/* As long as a probe says. */
				if (i % 2)
					MPI_Probe(source, tag, comm, &status);
				else
					while (!flag)
						MPI_Iprobe(source, tag, comm, &flag, &status);
				fold(c, &status, 1);
				MPI_Get_count(&status, MPI_BYTE, &bytes);
			} else if (m->recv == 2) {
				if (i % 2)
					MPI_Mprobe(source, tag, comm, &matched, &status);
				else
					while (!flag)
						MPI_Improbe(source, tag, comm, &flag, &matched, &status);
				fold(c, &status, 1);
				MPI_Get_count(&status, MPI_BYTE, &bytes);
			}
			int count;
			MPI_Datatype type = shape(bytes, m->in, &count, &m->span);
			m->buffer = malloc(m->span);
			fill(m->buffer, m->span, 3 * i + 1);
			if (m->recv == 2 && i % 3) {
				MPI_Request request;
				MPI_Imrecv(m->buffer, count, type, &matched, &request);
				MPI_Wait(&request, &status);
			} else if (m->recv == 2) {
				MPI_Mrecv(m->buffer, count, type, &matched, &status);
			} else {
				MPI_Recv(m->buffer, count, type, source, tag, comm, &status);
			}
			fold(c, &status, 1);
			MPI_Type_free(&type);
		}
		/* Everything that is under way, in some way. */
		MPI_Status statuses[2 * MOST_MESSAGES];
		int left = used, indices[2 * MOST_MESSAGES], done, flag = 0,
		    persistent[2 * MOST_MESSAGES];
		int way = (round + c->rank) % 8;
		memset(statuses, 0, sizeof(statuses));
		for (int i = 0; i < used; i++)
			persistent[i] = which[i] < 0 ? all[-1 - which[i]].send == 3 :
						       all[which[i]].recv == 3;
		MPI_Request kept[2 * MOST_MESSAGES];
		memcpy(kept, requests, sizeof(kept));
		switch (way) {
		case 0:
			MPI_Waitall(used, requests, statuses);
			break;
		case 1:
			while (!flag)
				MPI_Testall(used, requests, &flag, statuses);
			break;
		case 2:
			for (int i = used - 1; i >= 0; i--)
				MPI_Wait(&requests[i], &statuses[i]);
			break;
		case 3:
			for (int i = 0; i < used; i++)
				for (flag = 0; !flag;)
					MPI_Test(&requests[i], &flag, &statuses[i]);
			break;
		case 4:
			for (;; left--) {
				MPI_Status one;
				int index;
				MPI_Waitany(used, requests, &index, &one);
				if (index == MPI_UNDEFINED)
					break;
				statuses[index] = one;
			}
			break;
		case 5:
			for (;;) {
				MPI_Status one;
				int index;
				MPI_Testany(used, requests, &index, &flag, &one);
				if (flag && index == MPI_UNDEFINED)
					break;
				if (flag)
					statuses[index] = one;
			}
			break;
		default:
			for (;;) {
				MPI_Status some[2 * MOST_MESSAGES];
				if (way == 6)
					MPI_Waitsome(used, requests, &done, indices, some);
				else
					MPI_Testsome(used, requests, &done, indices, some);
				if (done == MPI_UNDEFINED)
					break;
				for (int i = 0; i < done; i++)
					statuses[indices[i]] = some[i];
			}
		}
		for (int i = 0; i < used; i++) {
			if (which[i] >= 0)
				fold(c, &statuses[i], 1);
			if (requests[i] != MPI_REQUEST_NULL && !persistent[i]) {
				printf("rank %d: a request is left\n", c->rank);
				MPI_Abort(MPI_COMM_WORLD, 4);
			}
			if (requests[i] != MPI_REQUEST_NULL)
				MPI_Request_free(&requests[i]);
			if (types[i] != MPI_DATATYPE_NULL)
				MPI_Type_free(&types[i]);
		}
		for (int i = 0; i < n; i++) {
			if (all[i].to == c->rank) {
				c->sum = hash(c->sum, all[i].buffer, all[i].span);
				c->messages++;
				free(all[i].buffer);
			}
			free(sent[i]);
		}
		/* Exchanges with neighbours, of what is long and what is not. */
		MPI_Barrier(c->comms[2]);
		int right = (c->rank + 1) % c->size, before = (c->rank + c->size - 1) % c->size;
		if (round % 3 == 2) {
			/* Not around: the first receives from nobody, and the last one sends to
			 * nobody. */
			right = right == 0 ? MPI_PROC_NULL : right;
			before = c->rank == 0 ? MPI_PROC_NULL : before;
		}
		int counts[2], out = next(&state, 8), in = next(&state, 8);
		size_t spans[2];
		int bytes = length(&state, c->most), replace = next(&state, 2);
		MPI_Datatype to = shape(bytes, out, &counts[0], &spans[0]),
			     from = shape(bytes, in, &counts[1], &spans[1]);
		unsigned char *a = malloc(spans[0]), *b = malloc(spans[1]);
		fill(a, spans[0], round * 100 + c->rank);
		fill(b, spans[1], round);
		MPI_Status status;
		if (replace)
			MPI_Sendrecv_replace(a, counts[0], to, right, 9, before, 9, c->comms[0], &status);
		else
			MPI_Sendrecv(a, counts[0], to, right, 9, b, counts[1], from, before, 9,
				     c->comms[0], &status);
		fold(c, &status, 1);
		c->sum = hash(hash(c->sum, a, spans[0]), b, spans[1]);
		c->messages++;
		/* And blocking sends, from lower ranks to higher ones. */
		for (int i = 0; i < c->size; i++) {
			int peer = i, first = c->rank < peer, size = length(&state, c->most);
			if (peer == c->rank)
				continue;
			(void)size;
			if (first && peer == c->rank + 1) {
				MPI_Send(a, counts[0], to, peer, 11, c->comms[1]);
				MPI_Ssend(a, counts[0], to, peer, 11, c->comms[1]);
			} else if (!first && c->rank == peer + 1) {
				MPI_Recv(b, counts[1], from, peer, 11, c->comms[1], &status);
				fold(c, &status, 1);
				c->sum = hash(c->sum, b, spans[1]);
				MPI_Recv(b, counts[1], from, peer, 11, c->comms[1],
					 MPI_STATUS_IGNORE);
				c->sum = hash(c->sum, b, spans[1]);
				c->messages += 2;
			}
		}
		free(a);
		free(b);
		MPI_Type_free(&to);
		MPI_Type_free(&from);
	}
}

static void *thread(void *argument)
{
	run(argument);
	return NULL;
}

int main(int argc, char **argv)
{
	int provided, rank, size;
	int threads = argc > 4 ? atoi(argv[4]) : 1;
	MPI_Init_thread(&argc, &argv, threads > 1 ? MPI_THREAD_MULTIPLE : MPI_THREAD_SINGLE,
			&provided);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &size);
	if (argc < 4 || size > MOST_RANKS || threads > 4 ||
	    (threads > 1 && provided < MPI_THREAD_MULTIPLE)) {
		fprintf(stderr, "usage: messages ROUNDS SEED MOST [THREADS]\n");
		MPI_Abort(MPI_COMM_WORLD, 2);
	}
	struct context contexts[4];
	pthread_t started[4];
	for (int i = 0; i < threads; i++) {
		contexts[i] = (struct context){ .rank = rank,
						.size = size,
						.rounds = atoi(argv[1]),
						.number = i,
						.seed = strtoull(argv[2], NULL, 10),
						.most = atoi(argv[3]),
						.sum = 14695981039346656037u };
		MPI_Comm_dup(MPI_COMM_WORLD, &contexts[i].comms[0]);
		MPI_Comm_split(MPI_COMM_WORLD, 0, rank, &contexts[i].comms[1]);
		MPI_Comm_dup(contexts[i].comms[1], &contexts[i].comms[2]);
	}
	for (int i = 1; i < threads; i++)
		pthread_create(&started[i], NULL, thread, &contexts[i]);
	run(&contexts[0]);
	for (int i = 1; i < threads; i++)
		pthread_join(started[i], NULL);
	unsigned long long messages = 0, total;
	for (int i = 0; i < threads; i++) {
		uint64_t sums[MOST_RANKS];
		MPI_Gather(&contexts[i].sum, 1, MPI_UINT64_T, sums, 1, MPI_UINT64_T, 0,
			   MPI_COMM_WORLD);
		for (int k = 0; rank == 0 && k < size; k++)
			printf("thread %d rank %d: %016llx\n", i, k, (unsigned long long)sums[k]);
		messages += contexts[i].messages;
	}
	MPI_Reduce(&messages, &total, 1, MPI_UNSIGNED_LONG_LONG, MPI_SUM, 0, MPI_COMM_WORLD);
	if (rank == 0)
		printf("%llu messages\n", total);
	for (int i = 0; i < threads; i++)
		for (int k = 0; k < 3; k++)
			MPI_Comm_free(&contexts[i].comms[k]);
	MPI_Finalize();
	return 0;
}
