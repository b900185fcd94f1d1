/* SPDX-License-Identifier: MIT OR Apache-2.0 */

/*
 * What the peers of `libcopy bench types` have in common: they connect to a socket, and do
 * what they are told, one line after the other:
 *
 *   pin CPU                        ok
 *   type EXPRESSION                type SIZE LB EXTENT TRUE_LB TRUE_EXTENT
 *   to EXPRESSION                  the same, of the type that `copy` copies to
 *   loop NUMBERS                   ok: the layout as the numbers that a loop needs
 *   map BYTES PATH                 ok: a file whose memory all peers share
 *   at USER PACKED TARGET          ok: where in it the buffers are; without it each has its own
 *   buffers SPAN ORIGIN SIZE COUNT ok: memory for COUNT elements of the type and for SIZE packed
 *                                  bytes; displacements count from byte ORIGIN of SPAN
 *   hash OP ROUND                  hash HEX: of all bytes after packing or unpacking a pattern
 *   external OP ROUND              hash HEX: the same in external32, of a type that has as many
 *                                  bytes there
 *   time OP COUNT BATCH WARM CALLS times NS...: each of BATCH calls, averaged
 *                                  OP may also be memcpy (to the packed bytes) and memcpy-back
 *   quit
 *
 * `bad WHAT` answers what this peer cannot do, `error WHAT` what nobody should ask.
 */
#ifndef TYPE_PEER_H
#define TYPE_PEER_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <fcntl.h>
#include <sched.h>
#include <time.h>

#include "peer.h"

/* The memory that the layout describes, the packed bytes, and where `copy` copies to. */
static struct buffer user, packed, target;
static size_t user_length, packed_length;
static struct buffer shared;
static long long origin;
static int elements;

/* What a peer is asked for; each returns NULL, or what is wrong. */
struct peer {
	const char *(*type)(const char *expression, int to, FILE *answer);
	const char *(*loop)(const char *numbers);
	void (*pack)(void);
	void (*unpack)(void);
	void (*copy)(void);
	const char *(*external)(int unpack);
};

static void die(const char *what)
{
	fprintf(stderr, "%s: %s: %s\n", program_invocation_short_name, what, strerror(errno));
	exit(1);
}

/* Maps the memory that all peers share, all of it at once. */
static const char *map_shared(size_t length, const char *path)
{
	int fd;

	if (shared.map && shared.length == length)
		return NULL;
	if (shared.map)
		munmap(shared.map, shared.length);
	shared.map = NULL;
	fd = open(path, O_RDWR | O_CLOEXEC);
	if (fd < 0)
		return strerror(errno);
	shared.map = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);
	close(fd);
	if (shared.map == MAP_FAILED) {
		shared.map = NULL;
		return strerror(errno);
	}
	shared.length = length;
	return NULL;
}

static uint64_t mix(uint64_t x)
{
	x ^= x >> 29;
	x *= 0xbf58476d1ce4e5b9u;
	return x ^ x >> 32;
}

static void fill(unsigned char *to, size_t bytes, uint64_t round)
{
	for (size_t i = 0; i < bytes; i += 8) {
		uint64_t word = mix((i + 8) * 0x9e3779b97f4a7c15u + round * 0x94d049bb133111ebu);

		memcpy(to + i, &word, bytes - i < 8 ? bytes - i : 8);
	}
}

/* Depends on every byte and on its place. */
static uint64_t hash(const unsigned char *from, size_t bytes)
{
	uint64_t sum = mix(bytes + 1);

	for (size_t i = 0; i < bytes; i += 8) {
		uint64_t word = 0;

		memcpy(&word, from + i, bytes - i < 8 ? bytes - i : 8);
		sum = mix((sum ^ word) * 0x9e3779b97f4a7c15u);
	}
	return sum;
}

static uint64_t now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static uint64_t look(const struct peer *c, const char *op, uint64_t round)
{
	if (!strcmp(op, "pack")) {
		fill(user.data, user_length, round);
		memset(packed.data, 0x5a, packed_length);
		c->pack();
		return hash(packed.data, packed_length);
	}
	memset(user.data, 0x5a, user_length);
	fill(packed.data, packed_length, round);
	if (!strcmp(op, "unpack")) {
		c->unpack();
		return hash(user.data, user_length);
	}
	memset(target.data, 0x5a, user_length);
	fill(user.data, user_length, round);
	c->copy();
	return hash(target.data, user_length);
}

static void copy_to_packed(void)
{
	memcpy(packed.data, target.data, packed_length);
}

static void copy_from_packed(void)
{
	memcpy(target.data, packed.data, packed_length);
}

static void (*what_to_call(const struct peer *c, const char *op))(void)
{
	if (!strcmp(op, "memcpy"))
		return copy_to_packed;
	if (!strcmp(op, "memcpy-back"))
		return copy_from_packed;
	if (!strcmp(op, "pack"))
		return c->pack;
	if (!strcmp(op, "unpack"))
		return c->unpack;
	return strcmp(op, "copy") ? NULL : c->copy;
}

static void obey(const char *path, const char *description, const struct peer *c)
{
	char *line = NULL, op[32];
	size_t room = 0;
	FILE *in, *out;

	connect_to(path, &in, &out);
	fprintf(out, "hello 0 1 %s\n", description);
	fflush(out);

	while (getline(&line, &room, in) > 0 && strncmp(line, "quit", 4)) {
		unsigned long long round;
		size_t at[3], length;
		int cpu, batch, warm, calls, path;

		line[strcspn(line, "\n")] = 0;
		if (sscanf(line, "pin %d", &cpu) == 1) {
			cpu_set_t set;

			CPU_ZERO(&set);
			CPU_SET(cpu, &set);
			sched_setaffinity(0, sizeof(set), &set);
			fprintf(out, "ok\n");
		} else if (!strncmp(line, "type ", 5) || !strncmp(line, "to ", 3)) {
			int to = line[1] == 'o';
			const char *bad =
				c->type ? c->type(line + (to ? 3 : 5), to, out) : "no types here";

			if (bad)
				fprintf(out, "bad %s\n", bad);
		} else if (!strncmp(line, "loop ", 5)) {
			const char *bad = c->loop ? c->loop(line + 5) : "no loops here";

			if (bad)
				fprintf(out, "bad %s\n", bad);
			else
				fprintf(out, "ok\n");
		} else if (sscanf(line, "map %zu %n", &length, &path) == 1) {
			const char *bad = map_shared(length, line + path);

			if (bad)
				fprintf(out, "bad %s\n", bad);
			else
				fprintf(out, "ok\n");
		} else if (sscanf(line, "at %zu %zu %zu", at, at + 1, at + 2) == 3) {
			user.data = shared.map + at[0];
			packed.data = shared.map + at[1];
			target.data = shared.map + at[2];
			fprintf(out, "ok\n");
		} else if (sscanf(line, "buffers %zu %lld %zu %d", &user_length, &origin,
				  &packed_length, &elements) == 4) {
			if (!shared.map) {
				reserve(&user, user_length + 1, 0);
				reserve(&packed, packed_length + 1, 1);
				reserve(&target, user_length + 1, 2);
			}
			memset(user.data, 1, user_length);
			memset(packed.data, 2, packed_length);
			fprintf(out, "ok\n");
		} else if (sscanf(line, "hash %31s %llu", op, &round) == 2 &&
			   what_to_call(c, op)) {
			fprintf(out, "hash %016llx\n", (unsigned long long)look(c, op, round));
		} else if (sscanf(line, "external %31s %llu", op, &round) == 2 && c->external) {
			int unpack = !strcmp(op, "unpack");
			struct buffer *from = unpack ? &packed : &user, *to = unpack ? &user : &packed;
			size_t length = unpack ? user_length : packed_length;
			const char *bad;

			fill(from->data, unpack ? packed_length : user_length, round);
			memset(to->data, 0x5a, length);
			bad = c->external(unpack);
			if (bad)
				fprintf(out, "bad %s\n", bad);
			else
				fprintf(out, "hash %016llx\n",
					(unsigned long long)hash(to->data, length));
		} else if (sscanf(line, "time %31s %*s %d %d %d", op, &batch, &warm, &calls) == 4 &&
			   what_to_call(c, op)) {
			void (*call)(void) = what_to_call(c, op);

			for (int i = 0; i < warm * batch; i++)
				call();
			fprintf(out, "times");
			for (int i = 0; i < calls; i++) {
				uint64_t start = now();

				for (int j = 0; j < batch; j++)
					call();
				fprintf(out, " %.1f", (double)(now() - start) / batch);
			}
			fprintf(out, "\n");
		} else {
			fprintf(out, "error unknown command\n");
		}
		fflush(out);
	}
	free(line);
}

#endif
