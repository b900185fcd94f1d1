// SPDX-License-Identifier: MIT OR Apache-2.0

/* Random messages and collectives. Each rank writes a line for each call into OUT.RANK.THREAD:
 * the step, the call, its arguments, its error class, its status, and digests of the whole
 * buffers with what is around them. Two runs with the same arguments write the same, with
 * libcopy_mpi.so and without it.
 *
 *   random_calls CALLS SEED OUT [THREADS [MOST [FROM [UNTIL [SILENT [ONLY]]]]]]
 *
 * CALLS: messages and collectives, all ranks together, at least. THREADS: with communicators of
 * their own. MOST: bytes of the largest message. FROM, UNTIL: only these steps, each of which
 * depends on the seed and its number alone, and ONLY: of one kind. SILENT: a rank that has written
 * no line for SILENT seconds ends the program, which hangs. What is received by a wildcard is
 * determined: either one message only matches, or all do, and each sender's are looked at in
 * their order. */
#define _GNU_SOURCE
#include "error_class.h"
#include "random_calls.h"

#include <dlfcn.h>
#include <sched.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/syscall.h>

/* MPICH over UCX polls and never gives up its processor, so that with more ranks than processors
 * each message takes a time slice. It calls this function before UCX's own. */
unsigned ucp_worker_progress(void *worker)
{
	static unsigned (*own)(void *);
	static __thread int idle;
	if (!own)
		own = (unsigned (*)(void *))dlsym(RTLD_NEXT, "ucp_worker_progress");
	CHECK(own);
	unsigned done = own(worker);
	idle = done ? 0 : idle + 1;
	if (idle % 16 == 15)
		sched_yield();
	return done;
}

/* Short time slices, where Linux lets a process choose them (6.12). */
static void shorten_slices(void)
{
	/* `struct sched_attr`, whose header does not go together with the C library's. */
	struct {
		uint32_t size, policy;
		uint64_t flags;
		int32_t nice;
		uint32_t priority;
		uint64_t runtime, deadline, period;
	} attributes = { .size = sizeof(attributes), .nice = getpriority(PRIO_PROCESS, 0), .runtime = 100000 };
	syscall(SYS_sched_setattr, 0, &attributes, 0);
}

static void end_silent(int number)
{
	static const char what[] = "random_calls hangs\n";
	(void)number;
	ssize_t written = write(STDERR_FILENO, what, sizeof(what) - 1);
	(void)written;
	_exit(4);
}

/* Completes requests in some way. `statuses` are those of their last operations. */
static void complete(int count, MPI_Request *requests, MPI_Status *statuses, int way)
{
	int flag = 0, index, n, indices[64];
	MPI_Status one, some[64];
	CHECK(count <= 64);
	/* MPICH 5.0.2: MPI_Testall fails with inactive persistent requests, so it is not called
	 * with any. */
	switch (way) {
	case 0:
		MPI_Waitall(count, requests, statuses);
		return;
	case 1:
		while (!flag)
			MPI_Testall(count, requests, &flag, statuses);
		return;
	case 2:
		for (int i = count - 1; i >= 0; i--)
			MPI_Wait(&requests[i], &statuses[i]);
		return;
	case 3:
		for (int i = 0; i < count; i++)
			for (flag = 0; !flag;)
				MPI_Test(&requests[i], &flag, &statuses[i]);
		return;
	case 4:
		for (int i = 0; i < count; i++) {
			MPI_Waitany(count, requests, &index, &one);
			CHECK(index >= 0 && index < count);
			statuses[index] = one;
		}
		return;
	case 5:
		for (int left = count; left > 0; left -= flag) {
			MPI_Testany(count, requests, &index, &flag, &one);
			if (!flag)
				continue;
			CHECK(index >= 0 && index < count);
			statuses[index] = one;
		}
		return;
	case 6:
	case 7:
		for (int left = count; left > 0; left -= n) {
			if (way == 6)
				MPI_Waitsome(count, requests, &n, indices, some);
			else
				MPI_Testsome(count, requests, &n, indices, some);
			CHECK(n >= 0 && n <= left);
			for (int i = 0; i < n; i++)
				statuses[indices[i]] = some[i];
		}
		return;
	default:
		for (int i = 0; i < count; i++) {
			for (flag = 0; !flag;)
				MPI_Request_get_status(requests[i], &flag, &one);
			MPI_Wait(&requests[i], &statuses[i]);
			statuses[i] = one;
		}
	}
}

/* What a status says of elements of this type. */
static void say_status(struct context *c, MPI_Status *status, MPI_Datatype type)
{
	int count, bytes, elements = -1, cancelled;
	MPI_Test_cancelled(status, &cancelled);
	if (cancelled) {
		say(c, " cancelled");
		return;
	}
	MPI_Get_count(status, type, &count);
	MPI_Get_count(status, MPI_BYTE, &bytes);
	/* MPICH 4.0.2 and 5.0.2 end the process if they have to look into a subarray or darray. */
	if (!MPICH_MAJOR)
		MPI_Get_elements(status, type, &elements);
	say(c, " source %d tag %d count %d bytes %d elements %d", status->MPI_SOURCE, status->MPI_TAG, count, bytes, elements);
}

/* Messages. */

enum { MOST_MESSAGES = 12, REQUESTS = 2 * MOST_MESSAGES + 4 };
enum { RECV, PROBE, IPROBE, MPROBE, IMPROBE, IMRECV, IRECV, RECV_INIT, RECVS };
enum { ISEND, ISSEND, IBSEND, SEND_INIT, SSEND_INIT, BSEND_INIT, FREED, IRSEND, RSEND_INIT, SENDS };
static const char *const recv_names[] = { "recv", "probe", "iprobe", "mprobe", "improbe", "imrecv", "irecv", "recv_init" };

struct message {
	int from, to, group, tag, s, send, recv, any_tag, any_source, more, persistent;
	long units;
	/* The receiver's. */
	struct layout in, out;
	struct buffer into, outof;
	MPI_Status status;
	int count;
};

static int same_envelope(const struct message *a, const struct message *b)
{
	return a->from == b->from && a->to == b->to && a->group == b->group && a->tag == b->tag;
}

static void draw_messages(struct context *c, struct rng *r, struct message *all, int n, int blocking, int ready)
{
	memset(all, 0, sizeof(*all) * n);
	for (int i = 0; i < n; i++) {
		struct message *m = &all[i];
		do {
			m->group = below(r, GROUPS);
			m->from = below(r, c->size);
			m->to = below(r, c->size);
		} while (!is_pair(&c->groups[m->group], m->from, m->to));
		m->tag = below(r, 8) ? below(r, 4) : 32000 + below(r, 3);
		m->s = below(r, SIGNATURES);
		m->units = units(c, r, m->s, 1);
		m->send = below(r, ready ? SENDS : IRSEND);
		m->recv = below(r, RECVS);
		m->more = below(r, 4) ? 0 : 1 + below(r, 3);
		if (blocking)
			m->send = below(r, 4), m->recv = below(r, 3) ? below(r, IMRECV) : IRECV;
		/* MPICH 4.0.2 crashes in MPI_Mrecv of a message to oneself. */
		if (m->from == m->to && MPICH_MAJOR == 4 && m->recv >= MPROBE && m->recv <= IMRECV)
			m->recv = PROBE;
		/* Buffered messages have one buffer for all threads. */
		if (blocking ? m->send == 2 : m->send == IBSEND || m->send == BSEND_INIT)
			/* MPICH 4.0.2's buffered messages of MPI_DOUBLE_INT are too long. */
			if (c->threads > 1 || (MPICH_MAJOR == 4 && c->signatures[m->s].atom == PAIR) || m->units * c->signatures[m->s].m * atom_bytes[c->signatures[m->s].atom] > 65536)
				m->send = 0;
		if (m->from == m->to && blocking)
			m->recv = IRECV;
		if (m->from == m->to && !blocking && m->send == FREED && MPICH_MAJOR == 4)
			m->send = ISEND;
	}
	for (int i = 0; i < n; i++) {
		struct message *m = &all[i];
		/* Messages of one envelope keep their order if they are received in one manner. */
		for (int k = 0; k < i; k++)
			if (same_envelope(&all[k], m) && (all[k].recv < IRECV) != (m->recv < IRECV))
				m->recv = all[k].recv;
		/* Wildcards, where one message only matches. */
		int of_source = 0, of_any = 0;
		for (int k = 0; k < n; k++)
			if (all[k].to == m->to && all[k].group == m->group) {
				of_any++;
				of_source += all[k].from == m->from;
			}
		m->any_tag = of_source == 1 && below(r, 2);
		m->any_source = of_any == 1 && below(r, 2);
	}
	for (int i = 0; i < n; i++) {
		struct message *m = &all[i];
		/* What is ready needs a receive. */
		if (blocking ? m->send == 3 && (m->recv < IRECV || !ready) : m->send >= IRSEND && m->recv < IRECV)
			m->send = 0;
		m->persistent = !blocking && m->recv == RECV_INIT &&
				(m->send == SEND_INIT || m->send == SSEND_INIT || m->send == RSEND_INIT ||
				 /* Open MPI 4.1.4's second start sends other bytes, sometimes. */
				 (m->send == BSEND_INIT && !OMPI_MAJOR));
	}
}

static void prepare_send(struct context *c, struct rng *own, struct message *m)
{
	m->out = layout(c, own, m->s, m->units, 0, &m->count);
	m->outof = room_for(own, &m->out, m->count, c->signatures[m->s].atom);
	seal(own, &m->outof);
}

static void prepare_recv(struct context *c, struct rng *own, struct message *m, int exact)
{
	m->in = layout(c, own, m->s, m->units + (exact ? 0 : m->more), 0, &m->count);
	m->into = room_for(own, &m->in, m->count, c->signatures[m->s].atom);
}

/* Some types have the buffer's address in them, relative to nothing. */
static void absolutely(struct rng *r, struct layout *l, struct buffer *b, int *count, void **base)
{
	*base = b->base;
	if (below(r, 12))
		return;
	MPI_Datatype type;
	MPI_Aint place;
	MPI_Get_address(b->base, &place);
	MPI_Type_create_hindexed(1, count, &place, l->type, &type);
	MPI_Type_commit(&type);
	drop(l);
	l->type = type;
	l->keep = 0;
	*count = 1;
	*base = MPI_BOTTOM;
}

static void say_received(struct context *c, struct message *m, int code)
{
	struct signature *s = &c->signatures[m->s];
	say(c, "%s from %d to %d in %s tag %d%s%s atom %d x %ld x %ld + %d send %d: %d", recv_names[m->recv], m->from, m->to,
	    group_names[m->group], m->tag, m->any_tag ? " any tag" : "", m->any_source ? " any source" : "", s->atom, s->m, m->units,
	    m->more, m->send, class_of(code));
	say_status(c, &m->status, m->in.type);
	say(c, " %016llx", (unsigned long long)sum_of(&m->into));
	end_line(c);
}

/* A receive that blocks, with a probe before it or not. */
static void receive(struct context *c, struct rng *own, struct message *m, MPI_Request *request)
{
	struct group *g = &c->groups[m->group];
	int source = m->any_source ? MPI_ANY_SOURCE : g->number[m->from], tag = m->any_tag ? MPI_ANY_TAG : m->tag, flag = 0;
	MPI_Message handle = MPI_MESSAGE_NULL;
	*request = MPI_REQUEST_NULL;
	switch (m->recv) {
	case PROBE:
		MPI_Probe(source, tag, g->comm, &m->status);
		break;
	case IPROBE:
		while (!flag)
			MPI_Iprobe(source, tag, g->comm, &flag, &m->status);
		break;
	case MPROBE:
		MPI_Mprobe(source, tag, g->comm, &handle, &m->status);
		break;
	case IMPROBE:
	case IMRECV:
		while (!flag)
			MPI_Improbe(source, tag, g->comm, &flag, &handle, &m->status);
		break;
	default:;
	}
	prepare_recv(c, own, m, m->recv != RECV);
	if (m->recv != RECV) {
		say(c, "probed");
		say_status(c, &m->status, m->in.type);
		end_line(c);
	}
	void *base;
	absolutely(own, &m->in, &m->into, &m->count, &base);
	if (c->loud) {
		say(c, "receives %s from %d to %d in %s%s atom %d x %ld x %ld", recv_names[m->recv], m->from, m->to,
		    group_names[m->group], base == MPI_BOTTOM ? " absolute" : "", c->signatures[m->s].atom, c->signatures[m->s].m, m->units);
		end_line(c);
	}
	int code;
	if (m->recv == IMRECV) {
		MPI_Imrecv(base, m->count, m->in.type, &handle, request);
		return;
	}
	if (handle != MPI_MESSAGE_NULL)
		code = MPI_Mrecv(base, m->count, m->in.type, &handle, &m->status);
	else
		code = MPI_Recv(base, m->count, m->in.type, source, tag, g->comm, &m->status);
	say_received(c, m, code);
}

static void post_receive(struct context *c, struct rng *own, struct message *m, MPI_Request *request)
{
	struct group *g = &c->groups[m->group];
	int source = m->any_source ? MPI_ANY_SOURCE : g->number[m->from], tag = m->any_tag ? MPI_ANY_TAG : m->tag;
	void *base;
	prepare_recv(c, own, m, 0);
	absolutely(own, &m->in, &m->into, &m->count, &base);
	if (c->loud) {
		say(c, "posts %s from %d to %d in %s tag %d%s%s%s atom %d x %ld x %ld send %d", recv_names[m->recv], m->from, m->to,
		    group_names[m->group], m->tag, m->any_tag ? " any tag" : "", m->any_source ? " any source" : "",
		    base == MPI_BOTTOM ? " absolute" : "", c->signatures[m->s].atom, c->signatures[m->s].m, m->units, m->send);
		end_line(c);
	}
	if (m->recv == RECV_INIT) {
		MPI_Recv_init(base, m->count, m->in.type, source, tag, g->comm, request);
		MPI_Start(request);
	} else {
		MPI_Irecv(base, m->count, m->in.type, source, tag, g->comm, request);
	}
}

static void start_send(struct context *c, struct rng *own, struct message *m, MPI_Request *request)
{
	struct group *g = &c->groups[m->group];
	int to = g->number[m->to];
	void *base;
	prepare_send(c, own, m);
	absolutely(own, &m->out, &m->outof, &m->count, &base);
#define SEND(name, ...) MPI_##name(base, m->count, m->out.type, to, m->tag, g->comm, ##__VA_ARGS__)
	switch (m->send) {
	case ISEND:
		SEND(Isend, request);
		return;
	case ISSEND:
		SEND(Issend, request);
		return;
	case IBSEND:
		SEND(Ibsend, request);
		return;
	case IRSEND:
		SEND(Irsend, request);
		return;
	case SEND_INIT:
		SEND(Send_init, request);
		break;
	case SSEND_INIT:
		SEND(Ssend_init, request);
		break;
	case BSEND_INIT:
		SEND(Bsend_init, request);
		break;
	case RSEND_INIT:
		SEND(Rsend_init, request);
		break;
	default:
		/* MPICH 4.0.2 delivers other bytes from run to run where a rank sends to itself
		 * so. */
		SEND(Isend, request);
		MPI_Request_free(request);
		return;
	}
	MPI_Startall(1, request);
}

/* A receive that nobody sends anything for. */
static void cancelled(struct context *c, struct rng *own)
{
	int number, persistent = below(own, 2), any = below(own, 2);
	MPI_Status status;
	MPI_Request request;
	struct group *g = &c->groups[below(own, 2) ? WORLD : SELF];
	int from = any ? MPI_ANY_SOURCE : below(own, g->n);
	if (persistent)
		MPI_Recv_init(&number, 1, MPI_INT, from, 555, g->comm, &request), MPI_Start(&request);
	else
		MPI_Irecv(&number, 1, MPI_INT, from, 555, g->comm, &request);
	MPI_Cancel(&request);
	complete(1, &request, &status, below(own, 9));
	say(c, "cancel%s%s:", persistent ? " persistent" : "", any ? " any source" : "");
	say_status(c, &status, MPI_INT);
	end_line(c);
	if (persistent)
		MPI_Request_free(&request);
}

/* A buffer for messages until all of them have been received. */
static void *attach(struct context *c)
{
	void *buffer = NULL;
	enum { SPACE = 4 << 20 };
	if (c->threads == 1) {
		buffer = malloc(SPACE);
		MPI_Buffer_attach(buffer, SPACE);
	}
	return buffer;
}

static void detach(struct context *c, void *buffer)
{
	int size;
	void *old;
	if (c->threads == 1)
		MPI_Buffer_detach(&old, &size);
	free(buffer);
}

/* Messages between all. Those that do not block come first, or all block, in the order that they
 * have. */
static void messages(struct context *c, struct rng *r, struct rng *own)
{
	struct message all[MOST_MESSAGES];
	int n = 1 + below(r, MOST_MESSAGES), blocking = below(r, 4) == 0, ready = below(r, 3) == 0, wild = 0, buffered = 0, freed = 0,
	    used = 0, kept = 0;
	draw_messages(c, r, all, n, blocking, ready);
	int repeats = below(r, 3) ? 1 : 2;
	for (int i = 0; i < n; i++) {
		wild |= all[i].any_source;
		buffered |= blocking ? all[i].send == 2 : all[i].send == IBSEND || all[i].send == BSEND_INIT;
		freed |= !blocking && all[i].send == FREED;
	}
	c->calls += n;
	void *space = buffered ? attach(c) : NULL;
	/* A receive from any source gets no other step's message. */
	if (wild)
		MPI_Barrier(c->world);
	if (below(own, 16) == 0)
		cancelled(c, own);
	MPI_Request requests[REQUESTS], active[REQUESTS];
	MPI_Status statuses[REQUESTS];
	struct message *whose[REQUESTS];
	int incoming[REQUESTS] = { 0 };
	for (int i = 0; i < n; i++)
		if (all[i].to == c->rank && all[i].recv >= IRECV) {
			post_receive(c, own, &all[i], &requests[used]);
			incoming[used] = 1;
			whose[used++] = &all[i];
		}
	if (ready)
		MPI_Barrier(c->world);
	for (int i = 0; i < n; i++) {
		struct message *m = &all[i];
		struct group *g = &c->groups[m->group];
		if (blocking && m->from == c->rank) {
			int count, code, to = g->number[m->to];
			void *base;
			prepare_send(c, own, m);
			count = m->count;
			absolutely(own, &m->out, &m->outof, &count, &base);
			m->count = count;
			code = m->send == 0 ? SEND(Send) : m->send == 1 ? SEND(Ssend) : m->send == 2 ? SEND(Bsend) : SEND(Rsend);
			say(c, "blocking send %d to %d in %s: %d", m->send, m->to, group_names[m->group], class_of(code));
			end_line(c);
		} else if (m->from == c->rank) {
			start_send(c, own, m, &requests[used]);
			if (m->send != FREED)
				whose[used++] = m;
		}
		if (blocking && m->to == c->rank && m->recv < IRECV) {
			receive(c, own, m, &requests[used]);
		}
	}
	for (int i = 0; i < n && !blocking; i++)
		if (all[i].to == c->rank && all[i].recv < IRECV) {
			receive(c, own, &all[i], &requests[used]);
			incoming[used] = 1;
			if (all[i].recv == IMRECV)
				whose[used++] = &all[i];
		}
	for (int repeat = 0; repeat < repeats; repeat++) {
		if (repeat) {
			if (ready)
				MPI_Barrier(c->world);
			/* Those that are persistent on both sides go again, receives first. */
			kept = 0;
			for (int i = 0; i < used; i++)
				if (whose[i]->persistent)
					whose[kept] = whose[i], incoming[kept] = incoming[i], requests[kept++] = requests[i];
				else if (requests[i] != MPI_REQUEST_NULL)
					MPI_Request_free(&requests[i]);
			used = kept;
			if (ready) {
				/* Receives were posted before sends. */
				int first = 0;
				while (first < used && incoming[first])
					first++;
				MPI_Startall(first, requests);
				MPI_Barrier(c->world);
				MPI_Startall(used - first, requests + first);
			} else {
				MPI_Startall(used, requests);
			}
		}
		memcpy(active, requests, sizeof(active));
		memset(statuses, 0, sizeof(statuses));
		complete(used, active, statuses, below(own, 9));
		memcpy(requests, active, sizeof(active));
		for (int i = 0; i < used; i++)
			if (incoming[i]) {
				whose[i]->status = statuses[i];
				say_received(c, whose[i], 0);
			}
	}
	for (int i = 0; i < used; i++)
		if (requests[i] != MPI_REQUEST_NULL)
			MPI_Request_free(&requests[i]);
	if (buffered)
		detach(c, space);
	if (wild || freed)
		MPI_Barrier(c->world);
	for (int i = 0; i < n; i++) {
		struct message *m = &all[i];
		if (m->from == c->rank)
			drop(&m->out), release(&m->outof);
		if (m->to == c->rank)
			drop(&m->in), release(&m->into);
	}
}

/* Each rank sends to one and receives from one, or to nobody. */
static void shift(struct context *c, struct rng *r, struct rng *own)
{
	int group = below(r, 3) ? WORLD : REVERSED, order[MOST_RANKS], to[MOST_RANKS], from[MOST_RANKS], way = below(r, 4), s, tag = 40;
	struct group *g = &c->groups[group];
	int ends = below(r, 3) == 0;
	for (int i = 0; i < g->n; i++)
		order[i] = i;
	for (int i = g->n - 1; i > 0; i--) {
		int k = below(r, i + 1), one = order[i];
		order[i] = order[k], order[k] = one;
	}
	for (int i = 0; i < g->n; i++) {
		to[order[i]] = order[(i + 1) % g->n];
		from[order[(i + 1) % g->n]] = order[i];
	}
	if (ends)
		to[order[g->n - 1]] = from[order[0]] = MPI_PROC_NULL;
	s = below(r, SIGNATURES);
	struct message m = { .s = s, .units = units(c, r, s, 1), .more = way % 2 ? 0 : below(r, 2), .group = group };
	c->calls += g->n;
	void *base, *other;
	int count, code;
	MPI_Request request;
	prepare_send(c, own, &m);
	count = m.count;
	int replace = way % 2;
	if (replace) {
		/* It is written, too. */
		release(&m.outof);
		m.outof = room_for(own, &m.out, m.count, c->signatures[s].atom);
	} else {
		prepare_recv(c, own, &m, 0);
		absolutely(own, &m.in, &m.into, &m.count, &other);
	}
	if (replace)
		base = m.outof.base;
	else
		absolutely(own, &m.out, &m.outof, &count, &base);
#if HAS_MPI4
	/* MPICH 4.0.2's gives a reference to its types back that it has not taken. */
	/* MPICH 5.0.2's MPI_Isendrecv_replace receives other bytes from run to run. */
	int later = way >= 2 && MPICH_MAJOR != 4 && !(MPICH_MAJOR && replace);
#else
	int later = 0;
#endif
	(void)request;
	if (!later && replace)
		code = MPI_Sendrecv_replace(base, count, m.out.type, to[g->me], tag, from[g->me], tag, g->comm, &m.status);
	else if (!later)
		code = MPI_Sendrecv(base, count, m.out.type, to[g->me], tag, other, m.count, m.in.type, from[g->me],
				    below(own, 2) ? tag : MPI_ANY_TAG, g->comm, &m.status);
#if HAS_MPI4
	else {
		if (replace)
			code = MPI_Isendrecv_replace(base, count, m.out.type, to[g->me], tag, from[g->me], tag, g->comm, &request);
		else
			code = MPI_Isendrecv(base, count, m.out.type, to[g->me], tag, other, m.count, m.in.type, from[g->me], tag,
					     g->comm, &request);
		complete(1, &request, &m.status, below(own, 9));
	}
#endif
	say(c, "%ssendrecv%s in %s to %d from %d atom %d x %ld x %ld: %d", later ? "i" : "", replace ? "_replace" : "",
	    group_names[group], to[g->me], from[g->me], c->signatures[s].atom, c->signatures[s].m, m.units, class_of(code));
	/* MPICH 4.0.2 and 5.0.2 leave the status of a request for both directions as it is. */
	if (!later || !MPICH_MAJOR)
		say_status(c, &m.status, replace ? m.out.type : m.in.type);
	say(c, " %016llx %016llx", (unsigned long long)sum_of(&m.outof), (unsigned long long)sum_of(&m.into));
	end_line(c);
	drop(&m.out), release(&m.outof);
	if (!replace)
		drop(&m.in), release(&m.into);
}

/* Many messages to one rank, which takes any; each sender's come in order. */
static void flood(struct context *c, struct rng *r, struct rng *own)
{
	int group = below(r, 2) ? WORLD : MERGED;
	if (c->groups[group].comm == MPI_COMM_NULL)
		group = WORLD;
	struct group *g = &c->groups[group];
	int root = below(r, g->n), each = 1 + below(r, 6), s = below(r, SIGNATURES), way = below(r, 5);
	long most = units(c, r, s, 2) + 1;
	c->calls += each * (g->n - 1);
	MPI_Barrier(c->world);
	if (g->me != root) {
		struct message m[6];
		MPI_Request requests[6];
		MPI_Status statuses[6];
		for (int i = 0; i < each; i++) {
			memset(&m[i], 0, sizeof(m[i]));
			m[i].s = s, m[i].units = below(own, most + 1), m[i].group = group;
			m[i].send = below(own, 2), m[i].tag = 60 + i % 3;
			m[i].to = member(c, g, g->part[c->rank], root);
			start_send(c, own, &m[i], &requests[i]);
		}
		complete(each, requests, statuses, below(own, 9));
		for (int i = 0; i < each; i++)
			drop(&m[i].out), release(&m[i].outof);
	} else {
		int total = each * (g->n - 1);
		uint64_t sums[MOST_RANKS] = { 0 };
		struct message *m = calloc(total + 1, sizeof(*m));
		MPI_Request *requests = malloc(sizeof(*requests) * (total + 1));
		int count;
		struct layout in = layout(c, own, s, most, 0, &count);
		for (int i = 0; i < total; i++) {
			/* Equal gaps, since nobody knows which one is whose. */
			struct rng alike = seeded(c->seed, c->step, 5);
			m[i].count = count;
			m[i].in = in;
			m[i].into = room_for(&alike, &in, count, c->signatures[s].atom);
			if (way == 4)
				MPI_Irecv(m[i].into.base, m[i].count, m[i].in.type, MPI_ANY_SOURCE, MPI_ANY_TAG, g->comm, &requests[i]);
		}
		for (int i = 0; i < total; i++) {
			MPI_Message handle;
			int flag = 0;
			if (way == 0) {
				MPI_Recv(m[i].into.base, m[i].count, m[i].in.type, MPI_ANY_SOURCE, MPI_ANY_TAG, g->comm, &m[i].status);
			} else if (way == 1) {
				MPI_Probe(MPI_ANY_SOURCE, MPI_ANY_TAG, g->comm, &m[i].status);
				MPI_Recv(m[i].into.base, m[i].count, m[i].in.type, m[i].status.MPI_SOURCE, m[i].status.MPI_TAG, g->comm,
					 &m[i].status);
			} else if (way == 2) {
				MPI_Mprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, g->comm, &handle, &m[i].status);
				MPI_Mrecv(m[i].into.base, m[i].count, m[i].in.type, &handle, &m[i].status);
			} else if (way == 3) {
				while (!flag)
					MPI_Improbe(MPI_ANY_SOURCE, MPI_ANY_TAG, g->comm, &flag, &handle, &m[i].status);
				MPI_Imrecv(m[i].into.base, m[i].count, m[i].in.type, &handle, &requests[i]);
				MPI_Wait(&requests[i], &m[i].status);
			} else {
				MPI_Wait(&requests[i], &m[i].status);
			}
			int source = m[i].status.MPI_SOURCE, got[2] = { m[i].status.MPI_TAG };
			CHECK(source >= 0 && source < g->n);
			MPI_Get_count(&m[i].status, MPI_BYTE, &got[1]);
			uint64_t sum = sum_of(&m[i].into);
			sums[source] = digest(digest(sums[source], got, sizeof(got)), &sum, sizeof(sum));
		}
		say(c, "flood %d in %s:", way, group_names[group]);
		for (int i = 0; i < g->n; i++)
			say(c, " %016llx", (unsigned long long)sums[i]);
		end_line(c);
		for (int i = 0; i < total; i++)
			release(&m[i].into);
		drop(&in);
		free(m);
		free(requests);
	}
	MPI_Barrier(c->world);
}

/* To nobody and from nobody. */
static void nobody(struct context *c, struct rng *own)
{
	MPI_Status status;
	MPI_Request requests[2];
	MPI_Status statuses[2];
	int number = 7, flag, way = below(own, 5);
	MPI_Comm comm = c->groups[below(own, 2) ? WORLD : SELF].comm;
	memset(statuses, 0, sizeof(statuses));
	switch (way) {
	case 0:
		MPI_Send(&number, 1, MPI_INT, MPI_PROC_NULL, 5, comm);
		MPI_Recv(&number, 1, MPI_INT, MPI_PROC_NULL, 5, comm, &status);
		break;
	case 1:
		MPI_Ssend(NULL, 0, MPI_INT, MPI_PROC_NULL, 5, comm);
		MPI_Probe(MPI_PROC_NULL, MPI_ANY_TAG, comm, &status);
		break;
	case 2:
		MPI_Iprobe(MPI_PROC_NULL, 5, comm, &flag, &status);
		CHECK(flag);
		break;
	case 3: {
		MPI_Message handle;
		MPI_Mprobe(MPI_PROC_NULL, 5, comm, &handle, &status);
		CHECK(handle == MPI_MESSAGE_NO_PROC);
		MPI_Mrecv(&number, 1, MPI_INT, &handle, &status);
		break;
	}
	default:
		MPI_Isend(&number, 1, MPI_INT, MPI_PROC_NULL, 5, comm, &requests[0]);
		MPI_Irecv(&number, 1, MPI_INT, MPI_PROC_NULL, 5, comm, &requests[1]);
		complete(2, requests, statuses, below(own, 9));
		status = statuses[1];
	}
	say(c, "nobody %d: %d", way, number);
	/* MPICH 4.0.2's status of a request from nobody depends on the calls before. */
	if (MPICH_MAJOR != 4 || way != 4)
		say(c, " source %s tag %s", status.MPI_SOURCE == MPI_PROC_NULL ? "none" : "other",
		    status.MPI_TAG == MPI_ANY_TAG ? "any" : "other");
	end_line(c);
}

static void packing(struct context *c, struct rng *own)
{
	int s = below(own, SIGNATURES), count, other, place = 0, end = 0, external = below(own, 3) == 0, size;
	long n = units(c, own, s, 1);
	/* External32 has others of some, and MPICH 4.0.2 and 5.0.2 end the process for those of
	 * several types. */
	if (c->signatures[s].atom >= LONG_DOUBLE)
		external = 0;
	struct layout out, in;
	if (external && MPICH_MAJOR) {
		/* They divide by zero where a type or a structure's member is empty. */
		n += n == 0;
		full_members = 1;
		out = fresh(own, c->signatures[s].atom, n * c->signatures[s].m);
		in = fresh(own, c->signatures[s].atom, n * c->signatures[s].m);
		full_members = 0;
		count = other = 1;
	} else {
		out = layout(c, own, s, n, 0, &count);
		in = layout(c, own, s, n, 0, &other);
	}
	struct buffer from = room_for(own, &out, count, c->signatures[s].atom), to = room_for(own, &in, other, c->signatures[s].atom);
	MPI_Comm comm = c->groups[WORLD].comm;
	int codes[2];
	MPI_Aint far = 0, back = 0, room;
	if (c->loud) {
		say(c, "packs%s atom %d x %ld x %ld as %d, unpacks %d", external ? " external" : "", c->signatures[s].atom,
		    c->signatures[s].m, n, count, other);
		end_line(c);
	}
	MPI_Pack_size(count, out.type, comm, &size);
	room = (MPI_Aint)size + 64;
	struct buffer packed = allocate(own, 0, room, BYTE);
	/* Open MPI 5.0.11 packs ten of sixteen bytes. */
	if (c->signatures[s].atom == LONG_DOUBLE)
		packed.atom = LONG_DOUBLE;
	if (external) {
		codes[0] = MPI_Pack_external("external32", from.base, count, out.type, packed.base, room, &far);
		codes[1] = MPI_Unpack_external("external32", packed.base, far, &back, to.base, other, in.type);
	} else {
		codes[0] = MPI_Pack(from.base, count, out.type, packed.base, (int)room, &place, comm);
		codes[1] = MPI_Unpack(packed.base, place, &end, to.base, other, in.type, comm);
	}
	say(c, "pack%s atom %d x %ld x %ld: %d %d at %d %d %ld %ld size %d %016llx %016llx", external ? " external" : "",
	    c->signatures[s].atom, c->signatures[s].m, n, class_of(codes[0]), class_of(codes[1]), place, end, (long)far, (long)back, size,
	    (unsigned long long)sum_of(&packed), (unsigned long long)sum_of(&to));
	end_line(c);
	release(&packed), release(&from), release(&to);
	drop(&out), drop(&in);
}

#if HAS_MPI4
/* In parts, around a ring, twice. */
static void partitioned(struct context *c, struct rng *r, struct rng *own)
{
	struct group *g = &c->groups[WORLD];
	int s = below(r, SIGNATURES), parts = 1 << below(r, 4), received = 1 << below(r, 4), count, other, step = below(r, g->n);
	long n = (units(c, r, s, 16) + 1) * 8;
	/* Open MPI 5.0.11 hangs where they differ. */
	if (OMPI_MAJOR)
		received = parts;
	int to = (g->me + step) % g->n, from = (g->me + g->n - step) % g->n;
	struct layout out = layout(c, own, s, n / parts, 1, &count), in = layout(c, own, s, n / received, 1, &other);
	if (OMPI_MAJOR) {
		/* It writes past the buffer with derived types. */
		drop(&out), drop(&in);
		out = in = fresh(own, INT, 1);
		in.keep = 1;
		count = other = (int)(n / parts);
	}
	struct buffer source = room_for(own, &out, (long)count * parts, c->signatures[s].atom),
		      into = room_for(own, &in, (long)other * received, c->signatures[s].atom);
	MPI_Request requests[2];
	MPI_Status statuses[2];
	c->calls += 2 * g->n;
	MPI_Psend_init(source.base, parts, count, out.type, to, 70, g->comm, MPI_INFO_NULL, &requests[0]);
	MPI_Precv_init(into.base, received, other, in.type, from, 70, g->comm, MPI_INFO_NULL, &requests[1]);
	for (int repeat = 0; repeat < 2; repeat++) {
		MPI_Startall(2, requests);
		for (int i = 0; i < parts; i++)
			MPI_Pready((i + repeat) % parts, requests[0]);
		for (int i = 0, flag = 0; i < received; i++, flag = 0)
			while (!flag)
				MPI_Parrived(requests[1], i, &flag);
		MPI_Waitall(2, requests, statuses);
		say(c, "partitioned %d %d atom %d x %ld x %ld: %016llx", parts, received, c->signatures[s].atom, c->signatures[s].m, n,
		    (unsigned long long)sum_of(&into));
		end_line(c);
	}
	MPI_Request_free(&requests[0]), MPI_Request_free(&requests[1]);
	release(&source), release(&into);
	drop(&out), drop(&in);
}
#endif

/* Collectives. */

enum op {
	BARRIER, BCAST, GATHER, GATHERV, SCATTER, SCATTERV, ALLGATHER, ALLGATHERV, ALLTOALL, ALLTOALLV, ALLTOALLW, REDUCE, ALLREDUCE,
	REDUCE_SCATTER, REDUCE_SCATTER_BLOCK, SCAN, EXSCAN, NEIGHBOR_ALLGATHER, NEIGHBOR_ALLGATHERV, NEIGHBOR_ALLTOALL,
	NEIGHBOR_ALLTOALLV, NEIGHBOR_ALLTOALLW, OPS
};
static const char *const op_names[OPS] = {
	"barrier", "bcast", "gather", "gatherv", "scatter", "scatterv", "allgather", "allgatherv", "alltoall", "alltoallv",
	"alltoallw", "reduce", "allreduce", "reduce_scatter", "reduce_scatter_block", "scan", "exscan", "neighbor_allgather",
	"neighbor_allgatherv", "neighbor_alltoall", "neighbor_alltoallv", "neighbor_alltoallw"
};
enum form { BLOCKING, NONBLOCKING, PERSISTENT };
static const char *const form_names[] = { "", "i", "init " };

/* Types and operations whose results do not depend on the order. */
enum kind { INTEGERS, FLOATS, LOGICALS, LOCATIONS, COMPLEXES, BITS };
struct number {
	MPI_Datatype type;
	int bytes, padded, extent;
	enum kind kind;
	char form;
};
enum { MATRIX = 18, GREATEST, GAPPED, NUMBERS };
static struct number numbers[NUMBERS];
static MPI_Op multiply, greatest, fold;

/* Square matrices of two rows, whose product depends on the order, and on nothing else. */
static void matrices(void *in, void *inout, int *length, MPI_Datatype *type)
{
	uint32_t *a = in, *b = inout, c[4];
	(void)type;
	for (int i = 0; i < *length; i++, a += 4, b += 4) {
		for (int k = 0; k < 4; k++)
			c[k] = a[k / 2 * 2] * b[k % 2] + a[k / 2 * 2 + 1] * b[2 + k % 2];
		memcpy(b, c, sizeof(c));
	}
}

static void greatest_of(void *in, void *inout, int *length, MPI_Datatype *type)
{
	int64_t *a = in, *b = inout;
	(void)type;
	for (int i = 0; i < *length; i++)
		b[i] = a[i] > b[i] ? a[i] : b[i];
}

/* Of a double and an int with gaps between them and behind. */
static void fold_pairs(void *in, void *inout, int *length, MPI_Datatype *type)
{
	char *a = in, *b = inout;
	(void)type;
	for (int i = 0; i < *length; i++, a += 32, b += 32) {
		double x[2];
		int y[2];
		memcpy(&x[0], a, 8), memcpy(&x[1], b, 8), memcpy(&y[0], a + 16, 4), memcpy(&y[1], b + 16, 4);
		x[0] += x[1];
		y[0] = y[0] > y[1] ? y[0] : y[1];
		memcpy(b, &x[0], 8), memcpy(b + 16, &y[0], 4);
	}
}

static void make_numbers(void)
{
	MPI_Datatype matrix, inner, gapped;
	MPI_Type_contiguous(4, MPI_UINT32_T, &matrix);
	MPI_Type_commit(&matrix);
	MPI_Type_create_struct(2, (int[]){ 1, 1 }, (MPI_Aint[]){ 0, 16 }, (MPI_Datatype[]){ MPI_DOUBLE, MPI_INT }, &inner);
	MPI_Type_create_resized(inner, 0, 32, &gapped);
	MPI_Type_free(&inner);
	MPI_Type_commit(&gapped);
	struct number all[NUMBERS] = {
		{ MPI_INT8_T, 1, 1, 1, INTEGERS, 'b' },	   { MPI_UINT8_T, 1, 1, 1, INTEGERS, 'b' },
		{ MPI_INT16_T, 2, 2, 2, INTEGERS, 'h' },   { MPI_UINT16_T, 2, 2, 2, INTEGERS, 'h' },
		{ MPI_INT, 4, 4, 4, INTEGERS, 'i' },	   { MPI_UINT32_T, 4, 4, 4, INTEGERS, 'i' },
		{ MPI_LONG, 8, 8, 8, INTEGERS, 'q' },	   { MPI_UINT64_T, 8, 8, 8, INTEGERS, 'q' },
		{ MPI_FLOAT, 4, 4, 4, FLOATS, 'f' },	   { MPI_DOUBLE, 8, 8, 8, FLOATS, 'd' },
		{ MPI_LONG_DOUBLE, 10, 10, 16, FLOATS, 'g' }, { MPI_C_BOOL, 1, 1, 1, LOGICALS, 'B' },
		{ MPI_BYTE, 1, 1, 1, BITS, 'b' },	   { MPI_2INT, 8, 8, 8, LOCATIONS, 'i' },
		{ MPI_DOUBLE_INT, 12, 12, 16, LOCATIONS, 'd' }, { MPI_SHORT_INT, 6, 8, 8, LOCATIONS, 'h' },
		{ MPI_FLOAT_INT, 8, 8, 8, LOCATIONS, 'f' }, { MPI_C_DOUBLE_COMPLEX, 16, 16, 16, COMPLEXES, 'c' },
		{ matrix, 16, 16, 16, BITS, 'm' },	   { MPI_INT64_T, 8, 8, 8, INTEGERS, 'q' },
		{ gapped, 12, 20, 32, BITS, 'p' },
	};
	memcpy(numbers, all, sizeof(all));
	MPI_Op_create(matrices, 0, &multiply);
	MPI_Op_create(greatest_of, 1, &greatest);
	MPI_Op_create(fold_pairs, 1, &fold);
}

static MPI_Op draw_op(struct rng *r, int number, int *chosen)
{
	static const int first[] = { 0, 0, 6, 4, 10, 7 }, many[] = { 10, 4, 3, 2, 2, 3 };
	MPI_Op ops[] = { MPI_SUM, MPI_PROD, MPI_MAX, MPI_MIN, MPI_MAXLOC, MPI_MINLOC, MPI_LAND, MPI_BAND, MPI_BOR, MPI_BXOR };
	MPI_Op whole[] = { MPI_SUM, MPI_PROD, MPI_MAX, MPI_MIN, MPI_LAND, MPI_LOR, MPI_LXOR, MPI_BAND, MPI_BOR, MPI_BXOR };
	MPI_Op logical[] = { MPI_LAND, MPI_LOR, MPI_LXOR };
	enum kind kind = numbers[number].kind;
	*chosen = number == MATRIX ? 100 : number == GREATEST ? 101 : number == GAPPED ? 102 : below(r, many[kind]);
	switch (*chosen) {
	case 100:
		return multiply;
	case 101:
		return greatest;
	case 102:
		return fold;
	}
	if (kind == INTEGERS)
		return whole[*chosen];
	if (kind == LOGICALS)
		return logical[*chosen];
	if (kind == COMPLEXES)
		return ops[*chosen];
	return ops[first[kind] + *chosen];
}

/* Numbers from which no order makes another result. */
static void fill_numbers(struct rng *r, unsigned char *at, long count, const struct number *n, int op)
{
	uint64_t word = draw(r);
	int is_product = (n->kind == INTEGERS || n->kind == FLOATS || n->kind == COMPLEXES) && op == 1;
	for (long i = 0; i < count; i++, at += n->extent) {
		word = word * 6364136223846793005u + 1442695040888963407u;
		int value = (int)(word >> 60), other = (int)(word >> 52 & 15);
		if (is_product)
			value = value == 0 ? 2 : 1, other = 0;
		if (n->kind == BITS && n->form == 'b')
			value = (int)(word >> 56);
		switch (n->form) {
		case 'b':
			*at = (unsigned char)value;
			break;
		case 'B':
			*at = value & 1;
			break;
		case 'h':
			memcpy(at, &(int16_t){ (int16_t)value }, 2);
			break;
		case 'i':
			memcpy(at, &value, 4);
			break;
		case 'q':
			memcpy(at, &(int64_t){ value }, 8);
			break;
		case 'f':
			memcpy(at, &(float){ (float)value }, 4);
			break;
		case 'd':
			memcpy(at, &(double){ value }, 8);
			break;
		case 'g':
			memcpy(at, &(long double){ value }, 10);
			break;
		case 'c':
			memcpy(at, &(double){ value }, 8);
			memcpy(at + 8, &(double){ other }, 8);
			break;
		case 'm':
			memcpy(at, &word, 8);
			memcpy(at + 8, &(uint64_t){ mix(word) }, 8);
			break;
		case 'p':
			memcpy(at, &(double){ value }, 8);
			memcpy(at + 16, &other, 4);
		}
		if (n->kind == LOCATIONS) {
			int place = n->form == 'd' ? 8 : 4;
			memcpy(at + place, &other, 4);
		}
	}
}

/* Bytes between and behind the numbers are anybody's. */
static void hide_padding(unsigned char *at, long count, const struct number *n)
{
	for (long i = 0; i < count; i++, at += n->extent) {
		if (n->form == 'g')
			memset(at + 10, 0, 6);
		else if (n->kind == LOCATIONS && n->form == 'd')
			memset(at + 12, 0, 4);
		else if (n->kind == LOCATIONS && n->form == 'h')
			memset(at + 2, 0, 2);
	}
}

struct collective {
	enum op op;
	enum form form;
	struct group *group;
	int which, root, in_place, s, number, chosen, count, code, hidden;
	long units;
	MPI_Op own;
	struct layout out, in;
	struct buffer send, recv;
	/* Elements, and of each part. */
	int sent, received, sends[4 * MOST_RANKS], receives[4 * MOST_RANKS], send_at[4 * MOST_RANKS], recv_at[4 * MOST_RANKS];
	MPI_Aint send_far[4 * MOST_RANKS], recv_far[4 * MOST_RANKS];
	MPI_Datatype send_types[4 * MOST_RANKS], recv_types[4 * MOST_RANKS];
	struct layout outs[4 * MOST_RANKS], ins[4 * MOST_RANKS];
	int parts;
	MPI_Request request;
};

/* Units that one rank has for another. */
static long part(const struct context *c, const struct collective *a, int from, int to)
{
	uint64_t x = mix(c->seed + mix(c->step * 64 + from * 8 + to + 1));
	return x % 4 == 0 ? 0 : (long)(x / 4 % (a->units + 1));
}

/* Where parts are, in no order and with gaps; how many elements that is. */
static long place(struct rng *own, int n, const int *counts, int *places)
{
	long at = below(own, 3);
	int first = n ? below(own, n) : 0, step = n % 2 ? 2 : 1;
	for (int i = 0; i < n; i++) {
		int k = (first + i * step) % n;
		places[k] = (int)at;
		at += counts[k] + below(own, 3);
	}
	return at;
}

/* A type for each part, and where the parts are. */
static void place_types(struct context *c, struct rng *own, struct collective *a, int n, const int *units, int *counts, MPI_Aint *far,
			MPI_Datatype *types, struct layout *layouts, struct buffer *b)
{
	MPI_Aint at = 0;
	for (int i = 0; i < n; i++) {
		struct layout *l = &layouts[i];
		*l = layout(c, own, a->s, units[i], 0, &counts[i]);
		types[i] = l->type;
		far[i] = (at - l->true_lower + 15) / 16 * 16;
		if (far[i] + l->true_lower < at)
			far[i] += 16;
		at = counts[i] ? far[i] + l->true_lower + l->true_extent + (counts[i] - 1) * l->extent : at;
		at += 16 * below(own, 3);
	}
	*b = allocate(own, 0, at, c->signatures[a->s].atom);
}

/* A layout that another one drops. */
static struct layout shared(const struct layout *l)
{
	struct layout same = *l;
	same.keep = 1;
	return same;
}

/* Sides of a collective that moves elements of a signature. */
static void prepare_moves(struct context *c, struct rng *r, struct rng *own, struct collective *a)
{
	struct group *g = a->group;
	int n = g->remote, all[4 * MOST_RANKS], other[4 * MOST_RANKS], count;
	enum atom atom = c->signatures[a->s].atom;
	/* Open MPI 4.1.4 and 5.0.11 put what is behind 128 KiB of a rank's part for itself to
	 * other places where its types differ. */
	long bytes = a->units * c->signatures[a->s].m * atom_bytes[atom];
	int one_type = OMPI_MAJOR && bytes > 131072;
	if (one_type && a->op == ALLTOALLW)
		a->units = a->units * 131072 / bytes;
	/* World ranks of the peers. */
	int peer_part = g->inter ? 1 - g->part[c->rank] : g->part[c->rank], is_v = 0;
	int from[4 * MOST_RANKS], to[4 * MOST_RANKS], n_from = n, n_to = n;
	for (int i = 0; i < n; i++)
		from[i] = to[i] = member(c, g, peer_part, i);
	if (a->op >= NEIGHBOR_ALLGATHER) {
		n_from = g->in_degree, n_to = g->out_degree;
		memcpy(from, g->in, sizeof(from)), memcpy(to, g->out, sizeof(to));
	}
	switch (a->op) {
	case ALLGATHERV:
	case GATHERV:
	case SCATTERV:
		/* Open MPI hangs where ranks count an allgatherv in different types, and MPICH
		 * 4.0.2 and 5.0.2 where that is long; Open MPI's gathers and scatters between two
		 * groups take all counts in the type of a group's first rank. All have one. */
		if (a->op == ALLGATHERV ? OMPI_MAJOR || bytes > 16384 : OMPI_MAJOR && g->inter) {
			struct rng same = *r;
			a->out = fresh(&same, atom, c->signatures[a->s].m);
			same = *r;
			a->in = fresh(&same, atom, c->signatures[a->s].m);
			break;
		}
		/* Falls through. */
	case ALLTOALLV:
	case NEIGHBOR_ALLGATHERV:
	case NEIGHBOR_ALLTOALLV:
		a->out = layout(c, own, a->s, 1, 1, &count);
		a->in = one_type ? shared(&a->out) : layout(c, own, a->s, 1, 1, &count);
		break;
	case ALLTOALLW:
	case NEIGHBOR_ALLTOALLW:
		for (int i = 0; i < n_to; i++)
			all[i] = to[i] < 0 ? 0 : (int)part(c, a, c->rank, to[i]);
		for (int i = 0; i < n_from; i++)
			other[i] = from[i] < 0 ? 0 : (int)part(c, a, a->in_place && from[i] > c->rank ? c->rank : from[i],
						   a->in_place && from[i] > c->rank ? from[i] : c->rank);
		place_types(c, own, a, n_to, all, a->sends, a->send_far, a->send_types, a->outs, &a->send);
		place_types(c, own, a, n_from, other, a->receives, a->recv_far, a->recv_types, a->ins, &a->recv);
		for (int i = 0; i < n_to; i++)
			a->send_at[i] = (int)a->send_far[i];
		for (int i = 0; i < n_from; i++)
			a->recv_at[i] = (int)a->recv_far[i];
		a->sent = n_to, a->received = n_from;
		seal(own, &a->send);
		return;
	default:
		a->out = layout(c, own, a->s, a->units, one_type || a->op == SCATTER || a->op == ALLTOALL || a->op == NEIGHBOR_ALLTOALL,
				&a->sent);
		a->in = shared(&a->out);
		a->received = a->sent;
		if (!one_type)
			a->in = layout(c, own, a->s, a->units,
			       a->op == GATHER || a->op == ALLGATHER || a->op == ALLTOALL || a->op == NEIGHBOR_ALLGATHER ||
				       a->op == NEIGHBOR_ALLTOALL,
			       &a->received);
		/* The libraries leave out a rank whose count is 0, and not one that has an
		 * element of an empty type, so that others wait for it. */
		if (a->units == 0)
			a->sent = a->received = 0;
	}
	long send_room = a->sent, recv_room = a->received;
	switch (a->op) {
	case GATHER:
	case ALLGATHER:
	case NEIGHBOR_ALLGATHER:
		recv_room *= n_from;
		break;
	case SCATTER:
		send_room *= n_to;
		break;
	case ALLTOALL:
	case NEIGHBOR_ALLTOALL:
		recv_room *= n_from, send_room *= n_to;
		break;
	case GATHERV:
	case ALLGATHERV:
	case NEIGHBOR_ALLGATHERV:
		a->sent = (int)part(c, a, c->rank, 0) * a->out.per_unit;
		send_room = a->sent;
		is_v = 1;
		break;
	case SCATTERV:
		a->received = (int)part(c, a, c->rank, 0) * a->in.per_unit;
		recv_room = a->received;
		is_v = 1;
		break;
	case ALLTOALLV:
	case NEIGHBOR_ALLTOALLV:
		is_v = 2;
		break;
	default:;
	}
	if (is_v && a->op != SCATTERV) {
		for (int i = 0; i < n_from; i++) {
			int low = from[i], high = c->rank;
			if (a->in_place && low > high)
				low = c->rank, high = from[i];
			long n_units = low < 0 || high < 0 ? 3 : is_v == 2 ? part(c, a, low, high) : part(c, a, from[i], 0);
			a->receives[i] = (int)n_units * a->in.per_unit;
		}
		recv_room = place(own, n_from, a->receives, a->recv_at);
	}
	if (is_v == 2 || a->op == SCATTERV) {
		for (int i = 0; i < n_to; i++)
			a->sends[i] = (int)(to[i] < 0 ? 2 : is_v == 2 ? part(c, a, c->rank, to[i]) : part(c, a, to[i], 0)) * a->out.per_unit;
		send_room = place(own, n_to, a->sends, a->send_at);
	}
	a->send = room_for(own, &a->out, send_room, atom);
	a->recv = room_for(own, &a->in, recv_room, atom);
	if (a->op != BCAST)
		seal(own, &a->send);
}

/* Sides of a reduction. */
static void prepare_numbers(struct context *c, struct rng *r, struct rng *own, struct collective *a)
{
	struct group *g = a->group;
	a->number = below(r, NUMBERS);
	a->own = draw_op(r, a->number, &a->chosen);
	const struct number *n = &numbers[a->number];
	int kind = below(r, 20);
	long limit = kind == 0 ? 0 : kind < 12 ? 2048 : kind < 18 ? 131072 : c->most;
	a->count = limit ? (int)(spread(r, limit) / n->extent) + 1 : 0;
	long sent = a->count, received = a->count;
	if (a->op == REDUCE_SCATTER_BLOCK) {
		a->count = a->count / g->n;
		received = a->count, sent = (long)a->count * g->n;
	} else if (a->op == REDUCE_SCATTER) {
		a->units = a->count / g->n;
		sent = 0;
		for (int i = 0; i < g->n; i++) {
			int of = member(c, g, g->part[c->rank], i);
			a->receives[i] = (int)part(c, a, of, 9);
			sent += a->receives[i];
		}
		received = a->receives[g->me];
	}
	long reach = a->in_place ? sent : received;
	struct layout l = { .extent = n->extent, .true_extent = n->extent };
	a->send = room_for(own, &l, sent, DOUBLE);
	a->recv = room_for(own, &l, reach, DOUBLE);
	fill_numbers(own, a->send.base, sent, n, a->chosen);
	fill_numbers(own, a->recv.base, reach, n, a->chosen);
	a->sent = (int)sent, a->received = (int)reach;
	a->hidden = (int)received;
	seal(own, &a->send);
}

/* What hangs or is wrong in the MPI library itself, so that a plain run cannot be compared. */
static int is_broken(const struct collective *a)
{
	/* Open MPI 4.1.4 and 5.0.11 hang, in place and sometimes elsewhere. */
	if (OMPI_MAJOR && a->op == ALLTOALLW)
		return 1;
	/* Open MPI 4.1.4 does not number an alltoallv in place of a rank whose parts are all
	 * empty, so that the next collective of this communicator that does not block hangs. */
	if (OMPI_MAJOR && a->op == ALLTOALLV && a->in_place)
		return 1;
	/* MPICH 4.0.2 receives other bytes from run to run in place. */
	if (MPICH_MAJOR && a->op == ALLTOALLW && a->in_place)
		return 1;
	/* MPICH 5.0.2 crashes in MPI_Ireduce between two groups. */
	if (MPICH_MAJOR == 5 && a->form == NONBLOCKING && a->group->inter)
		return 1;
	return 0;
}

static void prepare(struct context *c, struct rng *r, struct rng *own, struct collective *a)
{
	memset(a, 0, sizeof(*a));
	a->request = MPI_REQUEST_NULL;
	a->op = below(r, OPS);
	do {
		a->which = a->op >= NEIGHBOR_ALLGATHER ? GRID + below(r, 2) : below(r, 3) ? below(r, GROUPS) : below(r, 2) ? WORLD : REVERSED;
		a->group = &c->groups[a->which];
		a->in_place = below(r, 3) == 0 && !a->group->inter && a->op < NEIGHBOR_ALLGATHER && a->op != BARRIER && a->op != BCAST;
	} while (a->group->comm == MPI_COMM_NULL ||
		 /* Open MPI 4.1.4 and 5.0.11 hang in some gathers in place of 16 KiB by 4 ranks. */
		 (a->op == GATHER && OMPI_MAJOR && a->in_place) ||
		 /* Open MPI 4.1.4's MPI_Allgather between one and three ranks hangs. */
		 (a->group->inter && OMPI_MAJOR && (a->op == ALLGATHER || a->op == ALLGATHERV)) ||
		 /* So do its MPI_Alltoallv and MPI_Alltoallw, and those of 5.0.11. */
		 (a->group->inter && OMPI_MAJOR && (a->op == ALLTOALLV || a->op == ALLTOALLW)) ||
		 /* MPICH 4.0.2 and 5.0.2 hang in scatters between groups of one and of three
		  * ranks, or deliver other bytes. */
		 (a->group->inter && MPICH_MAJOR && a->op == SCATTER) ||
		 /* MPICH 5.0.2's MPI_Reduce between two groups crashes. */
		 (a->group->inter && MPICH_MAJOR == 5 && a->op == REDUCE) ||
		 (a->group->inter && (a->op == SCAN || a->op == EXSCAN || a->op == REDUCE_SCATTER || a->op == REDUCE_SCATTER_BLOCK)));
	struct group *g = a->group;
	int form = below(r, 8);
	a->form = form < 4 ? BLOCKING : form < 6 || g->inter ? NONBLOCKING : PERSISTENT;
	if (is_broken(a))
		a->form = BLOCKING;
	/* Roots are given by numbers that all parts have. */
	int least = c->size;
	for (int i = 0; i < c->size; i++) {
		int members = 0;
		for (int k = 0; k < c->size; k++)
			members += g->part[k] == g->part[i];
		least = members < least ? members : least;
	}
	a->root = below(r, least);
	a->s = below(r, SIGNATURES);
	a->units = units(c, r, a->s, a->op == BCAST ? 1 : c->size);
	/* Open MPI 4.1.4 and 5.0.11 multiply the displacements of a rank alone by the extent of
	 * the type. */
	if (OMPI_MAJOR && a->op == ALLTOALLW && g->n == 1)
		a->op = ALLTOALLV;
	/* MPICH 4.0.2's MPI_Ineighbor_alltoallw reads behind its own list of the types in a
	 * graph, so that a later MPI_Type_free crashes, and its MPI_Neighbor_alltoallw puts other
	 * bytes where a rank is its own neighbour. */
	if (MPICH_MAJOR == 4 && a->op == NEIGHBOR_ALLTOALLW && a->which == GRAPH)
		a->op = NEIGHBOR_ALLTOALLV;
	/* Long ones of MPI_Reduce_scatter in place, where a part overlaps its place in the
	 * result, end the process in MPICH 4.0.2 and 5.0.2: most do not. */
	/* MPICH 4.0 follows MPI_IN_PLACE as an address where another root than 0 passes it. */
	if (a->op == REDUCE && a->root != 0 && MPICH_MAJOR == 4)
		a->in_place = 0;
	struct rng mine = *r;
	if (a->op >= REDUCE && a->op <= EXSCAN)
		prepare_numbers(c, &mine, own, a);
	else if (a->op != BARRIER)
		prepare_moves(c, &mine, own, a);
}

/* The call, or the making of a request. */
static int call(struct context *c, struct collective *a)
{
	struct group *g = a->group;
	MPI_Comm comm = g->comm;
	MPI_Request *q = &a->request;
	int root = a->root, is_root = g->me == root;
	if (g->inter) {
		/* The first part has the root. */
		int has_root = g->part[c->rank] == 0;
		is_root = has_root && g->me == root;
		root = is_root ? MPI_ROOT : has_root ? MPI_PROC_NULL : root;
	}
	void *s = a->send.base, *t = a->recv.base, *is = a->in_place ? MPI_IN_PLACE : s;
	MPI_Datatype out = a->out.type, in = a->in.type, number = numbers[a->number].type;
#define DO(name, iname, ...)                                                                                        \
	(a->form == BLOCKING	? MPI_##name(__VA_ARGS__) :                                                           \
	 a->form == NONBLOCKING ? MPI_I##iname(__VA_ARGS__, q) :                                                      \
				  INIT(name)(__VA_ARGS__, MPI_INFO_NULL, q))
	switch (a->op) {
	case BARRIER:
		return DO(Barrier, barrier, comm);
	case BCAST:
		return DO(Bcast, bcast, t, a->received, in, root, comm);
	case GATHER:
		return DO(Gather, gather, is_root ? is : s, a->sent, out, t, a->received, in, root, comm);
	case GATHERV:
		return DO(Gatherv, gatherv, is_root ? is : s, a->sent, out, t, a->receives, a->recv_at, in, root, comm);
	case SCATTER:
		return DO(Scatter, scatter, s, a->sent, out, is_root && a->in_place ? MPI_IN_PLACE : t, a->received, in, root, comm);
	case SCATTERV:
		return DO(Scatterv, scatterv, s, a->sends, a->send_at, out, is_root && a->in_place ? MPI_IN_PLACE : t, a->received, in,
			  root, comm);
	case ALLGATHER:
		return DO(Allgather, allgather, is, a->sent, out, t, a->received, in, comm);
	case ALLGATHERV:
		return DO(Allgatherv, allgatherv, is, a->sent, out, t, a->receives, a->recv_at, in, comm);
	case ALLTOALL:
		return DO(Alltoall, alltoall, is, a->sent, out, t, a->received, in, comm);
	case ALLTOALLV:
		return DO(Alltoallv, alltoallv, is, a->sends, a->send_at, out, t, a->receives, a->recv_at, in, comm);
	case ALLTOALLW:
		return DO(Alltoallw, alltoallw, is, a->sends, a->send_at, a->send_types, t, a->receives, a->recv_at, a->recv_types,
			  comm);
	case REDUCE:
		return DO(Reduce, reduce, is_root ? is : s, t, a->count, number, a->own, root, comm);
	case ALLREDUCE:
		return DO(Allreduce, allreduce, is, t, a->count, number, a->own, comm);
	case REDUCE_SCATTER:
		return DO(Reduce_scatter, reduce_scatter, is, t, a->receives, number, a->own, comm);
	case REDUCE_SCATTER_BLOCK:
		return DO(Reduce_scatter_block, reduce_scatter_block, is, t, a->count, number, a->own, comm);
	case SCAN:
		return DO(Scan, scan, is, t, a->count, number, a->own, comm);
	case EXSCAN:
		return DO(Exscan, exscan, is, t, a->count, number, a->own, comm);
	case NEIGHBOR_ALLGATHER:
		return DO(Neighbor_allgather, neighbor_allgather, s, a->sent, out, t, a->received, in, comm);
	case NEIGHBOR_ALLGATHERV:
		return DO(Neighbor_allgatherv, neighbor_allgatherv, s, a->sent, out, t, a->receives, a->recv_at, in, comm);
	case NEIGHBOR_ALLTOALL:
		return DO(Neighbor_alltoall, neighbor_alltoall, s, a->sent, out, t, a->received, in, comm);
	case NEIGHBOR_ALLTOALLV:
		return DO(Neighbor_alltoallv, neighbor_alltoallv, s, a->sends, a->send_at, out, t, a->receives, a->recv_at, in, comm);
	case NEIGHBOR_ALLTOALLW:
		return DO(Neighbor_alltoallw, neighbor_alltoallw, s, a->sends, a->send_far, a->send_types, t, a->receives, a->recv_far,
			  a->recv_types, comm);
	default:
		return MPI_ERR_OTHER;
	}
}

static void drop_types(struct collective *a)
{
	if (a->op == ALLTOALLW || a->op == NEIGHBOR_ALLTOALLW) {
		for (int i = 0; i < a->sent; i++)
			drop(&a->outs[i]);
		for (int i = 0; i < a->received; i++)
			drop(&a->ins[i]);
	} else if (a->op != BARRIER && (a->op < REDUCE || a->op > EXSCAN)) {
		drop(&a->out), drop(&a->in);
	}
}

static void say_collective(struct context *c, struct collective *a, int repeat)
{
	struct group *g = a->group;
	int is_reduction = a->op >= REDUCE && a->op <= EXSCAN;
	const struct number *n = &numbers[a->number];
	if (is_reduction) {
		/* What is behind the result in place, and the first rank's of an exclusive scan,
		 * are undefined. */
		long defined = a->op == EXSCAN && g->me == 0 ? 0 : a->hidden;
		memset(a->recv.base + defined * n->extent, 0, (size_t)(a->received - defined) * n->extent);
		hide_padding(a->recv.base, a->received, n);
	}
	say(c, "%s%s in %s of %d root %d%s%s", form_names[a->form], op_names[a->op], group_names[a->which], g->n, a->root,
	    a->in_place ? " in place" : "", repeat ? " again" : "");
	if (is_reduction)
		say(c, " number %d op %d count %d", a->number, a->chosen, a->count);
	else if (a->op != BARRIER)
		say(c, " atom %d x %ld x %ld", c->signatures[a->s].atom, c->signatures[a->s].m, a->units);
	say(c, ": %d", class_of(a->code));
	/* What a call leaves that the library fails is undefined. */
	if (a->code == MPI_SUCCESS)
		say(c, " %016llx %016llx", (unsigned long long)sum_of(&a->send), (unsigned long long)sum_of(&a->recv));
	end_line(c);
}

/* What is under way, to see what hangs. */
static void say_begun(struct context *c, struct collective *a)
{
	if (!c->loud)
		return;
	say(c, "begins %s%s in %s of %d root %d%s", form_names[a->form], op_names[a->op], group_names[a->which], a->group->n, a->root,
	    a->in_place ? " in place" : "");
 	say(c, " sent %d received %d send %ld+%ld/%ld recv %ld+%ld/%ld", a->sent, a->received, (long)a->out.true_lower, (long)a->out.extent, (long)a->send.size,
	    (long)a->in.true_lower, (long)a->in.extent, (long)a->recv.size);
	say(c, " number %d op %d count %d atom %d units %ld", a->number, a->chosen, a->count, c->signatures[a->s].atom, a->units);
	end_line(c);
}

/* One that blocks, or several that do not. */
static void collectives(struct context *c, struct rng *r, struct rng *own)
{
	enum { MOST = 4 };
	static __thread struct collective all[MOST];
	MPI_Request requests[MOST + 2];
	MPI_Status statuses[MOST + 2];
	int n = 1 + below(r, MOST), used = 0, repeats = 1 + below(r, 2), ring = below(r, 4) == 0, between = below(r, 6), indices[MOST];
	int sent[16], got[16];
	struct group *world = &c->groups[WORLD];
	for (int i = 0; i < n; i++) {
		prepare(c, r, own, &all[i]);
		say_begun(c, &all[i]);
		all[i].code = call(c, &all[i]);
		c->calls++;
		if (all[i].form == BLOCKING) {
			/* What has been begun goes on meanwhile. */
			continue;
		}
		if (all[i].form == NONBLOCKING && below(own, 2) && !OMPI_MAJOR)
			drop_types(&all[i]);
		else if (all[i].form == PERSISTENT && !NEEDS_TYPES && below(own, 2))
			drop_types(&all[i]);
	}
	for (int repeat = 0; repeat < repeats; repeat++) {
		used = 0;
		for (int i = 0; i < n; i++) {
			struct collective *a = &all[i];
			if (a->form == BLOCKING || (repeat && a->form == NONBLOCKING))
				continue;
			/* MPICH 4.0.2 gives references to types back at each start, and leaves
			 * out the root's own part of a gather from the second one on. In place,
			 * sums would grow. */
			if (repeat && (MPICH_MAJOR == 4 || (a->in_place && a->op >= REDUCE && a->op <= EXSCAN)))
				continue;
			if (a->form == PERSISTENT)
				MPI_Start(&a->request);
			indices[used] = i;
			requests[used++] = a->request;
		}
		int active = used;
		if (ring) {
			for (int i = 0; i < 16; i++)
				sent[i] = c->rank * 100 + i + c->step;
			MPI_Irecv(got, 16, MPI_INT, (world->me + 1) % world->n, 90, world->comm, &requests[used++]);
			MPI_Isend(sent, 16, MPI_INT, (world->me + world->n - 1) % world->n, 90, world->comm, &requests[used++]);
		}
		int token = c->step;
		if (between == 0)
			MPI_Barrier(world->comm);
		else if (between == 1)
			MPI_Bcast(&token, 1, MPI_INT, 0, world->comm);
		int way = below(own, 8), persistent = 0;
		for (int i = 0; i < active; i++)
			persistent |= all[indices[i]].form == PERSISTENT;
		/* MPICH 4.0.2 and 5.0.2 fail or hang where persistent collectives of a list are
		 * inactive already. */
		complete(used, requests, statuses, persistent && MPICH_MAJOR ? way % 2 * 2 : way);
		if (ring)
			CHECK(got[5] == (c->rank + 1) % c->size * 100 + 5 + c->step);
		for (int i = 0; i < active; i++)
			all[indices[i]].request = requests[i];
		for (int i = 0; i < n; i++) {
			int is_in = !repeat && all[i].form == BLOCKING;
			for (int k = 0; k < active; k++)
				is_in |= indices[k] == i;
			if (is_in)
				say_collective(c, &all[i], repeat);
		}
	}
	for (int i = 0; i < n; i++) {
		if (all[i].request != MPI_REQUEST_NULL)
			MPI_Request_free(&all[i].request);
		drop_types(&all[i]);
		release(&all[i].send), release(&all[i].recv);
	}
}

static void step(struct context *c, const char *only)
{
	struct rng r = seeded(c->seed, c->thread, c->step), own = seeded(draw(&r), c->rank, 7);
	static const char *const kinds[] = { "messages", "collectives", "shift", "flood", "nobody", "packing", "partitioned" };
	int kind = below(&r, 100);
	kind = kind < 40 ? 0 : kind < 78 ? 1 : kind < 88 ? 2 : kind < 91 ? 3 : kind < 93 ? 4 : kind < 96 ? 5 : 6;
	if (only && strcmp(only, kinds[kind]))
		return;
	if (c->loud) {
		say(c, "begins %s", kinds[kind]);
		end_line(c);
	}
	switch (kind) {
	case 0:
		messages(c, &r, &own);
		break;
	case 1:
		collectives(c, &r, &own);
		break;
	case 2:
		shift(c, &r, &own);
		break;
	case 3:
		flood(c, &r, &own);
		break;
	case 4:
		nobody(c, &own);
		break;
	case 5:
		packing(c, &own);
		break;
	default:
#if HAS_MPI4
		partitioned(c, &r, &own);
#endif
		break;
	}
}

struct range {
	struct context *context;
	long calls;
	int from, until;
	const char *only;
};

static void *run(void *argument)
{
	struct range *range = argument;
	struct context *c = range->context;
	int epoch = range->from / EPOCH;
	for (c->step = range->from; c->step < range->until && c->calls < range->calls; c->step++) {
		if (c->step / EPOCH != epoch)
			begin_epoch(c, epoch = c->step / EPOCH, 0);
		step(c, range->only);
		if (c->step % 32 == 0)
			fflush(c->log);
	}
	return NULL;
}

int main(int argc, char **argv)
{
	enum { MOST_THREADS = 4 };
	int provided, threads = argc > 4 ? atoi(argv[4]) : 1, rank, size;
	MPI_Init_thread(&argc, &argv, threads > 1 ? MPI_THREAD_MULTIPLE : MPI_THREAD_SINGLE, &provided);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &size);
	if (argc < 4 || size > MOST_RANKS || threads > MOST_THREADS || (threads > 1 && provided < MPI_THREAD_MULTIPLE)) {
		fprintf(stderr, "usage: random_calls CALLS SEED OUT [THREADS [MOST [FROM [UNTIL [SILENT [ONLY]]]]]]\n");
		MPI_Abort(MPI_COMM_WORLD, 2);
	}
	shorten_slices();
	signal(SIGALRM, end_silent);
	silent = argc > 8 ? (unsigned)atoi(argv[8]) : 0;
	alarm(silent);
	make_numbers();
	static struct context contexts[MOST_THREADS];
	struct range ranges[MOST_THREADS];
	pthread_t started[MOST_THREADS];
	for (int i = 0; i < threads; i++) {
		struct context *c = &contexts[i];
		c->rank = rank, c->size = size, c->thread = i, c->threads = threads;
		c->seed = strtoull(argv[2], NULL, 10);
		c->most = argc > 5 ? atol(argv[5]) : 4 << 20;
		char name[4096];
		snprintf(name, sizeof(name), "%s.%d.%d", argv[3], rank, i);
		c->loud = argc > 7;
		c->log = fopen(name, "w");
		CHECK(c->log);
		MPI_Comm_dup(MPI_COMM_WORLD, &c->world);
		ranges[i] = (struct range){ c, atol(argv[1]) / threads, argc > 6 ? atoi(argv[6]) : 0,
					    argc > 7 ? atoi(argv[7]) : 1 << 30, argc > 9 ? argv[9] : NULL };
		begin_epoch(c, ranges[i].from / EPOCH, 1);
	}
	for (int i = 1; i < threads; i++)
		pthread_create(&started[i], NULL, run, &ranges[i]);
	run(&ranges[0]);
	for (int i = 1; i < threads; i++)
		pthread_join(started[i], NULL);
	for (int i = 0; i < threads; i++) {
		end_all(&contexts[i]);
		fclose(contexts[i].log);
		MPI_Comm_free(&contexts[i].world);
		if (rank == 0)
			printf("%ld calls in %d steps\n", contexts[i].calls, contexts[i].step);
	}
	MPI_Type_free(&numbers[MATRIX].type);
	MPI_Type_free(&numbers[GAPPED].type);
	MPI_Op_free(&multiply), MPI_Op_free(&greatest), MPI_Op_free(&fold);
	MPI_Finalize();
	alarm(0);
	return 0;
}
