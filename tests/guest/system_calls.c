/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * One rank of a team whose broadcasts return early, and which hands its buffer to system calls at
 * once: libcopy_async.so makes them wait. Ends with status 0 and says how often there was something
 * to wait for. With an argument, the root leaves in this way (_exit, execv, execvp) after few
 * rounds.
 */
#define _GNU_SOURCE
#include <libcopy.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#define LENGTH ((size_t)16 << 20)
#define AT (LENGTH - 8192)
#define PIECE 1000

#define EXPECT(condition)                                                                       \
	do {                                                                                    \
		if (!(condition)) {                                                             \
			perror("line");                                                         \
			fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);         \
			exit(1);                                                                \
		}                                                                               \
	} while (0)

static unsigned char *buffer;
static int sockets[2], file;

static unsigned char byte(size_t at, int round)
{
	return (unsigned char)(at * 31 + (at >> 12) * 7 + (size_t)round * 13);
}

/* Ways to give PIECE bytes at AT away, so that they can be received from sockets[1]. */
static ssize_t give(int way)
{
	struct iovec piece = { buffer + AT, PIECE };
	struct msghdr message = { .msg_iov = &piece, .msg_iovlen = 1 };
	FILE *stream;
	ssize_t done;

	switch (way) {
	case 0:
		return write(sockets[0], buffer + AT, PIECE);
	case 1:
		return writev(sockets[0], &piece, 1);
	case 2:
		return send(sockets[0], buffer + AT, PIECE, 0);
	case 3:
		return sendmsg(sockets[0], &message, 0);
	case 4:
		stream = fdopen(dup(sockets[0]), "w");
		setvbuf(stream, NULL, _IONBF, 0);
		done = (ssize_t)fwrite(buffer + AT, 1, PIECE, stream);
		fclose(stream);
		return done;
	default: {
		unsigned char copy[PIECE];

		done = pwrite(file, buffer + AT, PIECE, 0);
		EXPECT(done == PIECE && pread(file, copy, PIECE, 0) == PIECE);
		return write(sockets[0], copy, PIECE);
	}
	}
}

/* Ways to overwrite PIECE bytes at AT with what is in sockets[1]. */
static ssize_t take(int way)
{
	struct iovec piece = { buffer + AT, PIECE };
	struct msghdr message = { .msg_iov = &piece, .msg_iovlen = 1 };

	switch (way) {
	case 0:
		return read(sockets[1], buffer + AT, PIECE);
	case 1:
		return readv(sockets[1], &piece, 1);
	case 2:
		return recv(sockets[1], buffer + AT, PIECE, 0);
	case 3:
		return recvmsg(sockets[1], &message, 0);
	case 4:
		return recvfrom(sockets[1], buffer + AT, PIECE, 0, NULL, NULL);
	default:
		EXPECT(pwrite(file, "x", 1, PIECE - 1) == 1);
		EXPECT(read(sockets[1], &(char[PIECE]){ 0 }, PIECE) == PIECE);
		return pread(file, buffer + AT, PIECE, 0);
	}
}

/* Ways to leave without a word, while the others wait for bytes. */
static void vanish(const char *how)
{
	char *arguments[] = { "true", NULL };

	if (!strcmp(how, "_exit"))
		_exit(0);
	if (!strcmp(how, "execv"))
		execv("/bin/true", arguments);
	if (!strcmp(how, "execvp"))
		execvp("true", arguments);
	EXPECT(!"a way to vanish");
}

int main(int argc, char **argv)
{
	libcopy_team_t *team;
	unsigned char *block;
	unsigned char copy[PIECE];
	size_t rank;
	int pending = 0, round;

	EXPECT(!libcopy_team_from_env(&team));
	EXPECT(!libcopy_team_rank(team, &rank));
	buffer = mmap(NULL, LENGTH, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	EXPECT(buffer != MAP_FAILED);
	file = memfd_create("system_calls", 0);
	EXPECT(file >= 0 && !socketpair(AF_UNIX, SOCK_STREAM, 0, sockets));
	EXPECT(!libcopy_team_set_async(team, "engine"));
	for (round = 0; round < (argc > 1 ? 1 : 12); round++) {
		if (rank == 0)
			for (size_t at = 0; at < LENGTH; at++)
				buffer[at] = byte(at, round);
		EXPECT(!libcopy_team_bcast(team, buffer, LENGTH, 0));
		pending += !libcopy_is_settled(buffer + AT, PIECE);
		if (rank == 0) {
			EXPECT(write(sockets[0], memset(copy, 7, PIECE), PIECE) == PIECE);
			EXPECT(take(round % 6) == PIECE);
		} else {
			EXPECT(give(round % 6) == PIECE);
			EXPECT(read(sockets[1], copy, PIECE) == PIECE);
			for (size_t i = 0; i < PIECE; i++)
				EXPECT(copy[i] == byte(AT + i, round));
			for (size_t at = 0; at < LENGTH; at++)
				EXPECT(buffer[at] == byte(at, round));
		}
		EXPECT(!libcopy_team_barrier(team));
	}
	/* Memory that is unmapped while it is pending is settled, too. */
	EXPECT(!libcopy_team_bcast(team, buffer, LENGTH, 0));
	EXPECT(!munmap(buffer, LENGTH));
	EXPECT(libcopy_is_settled(NULL, (size_t)-1));
	/* And so is what the allocator unmaps or moves, at any place in its block. */
	for (int way = 0; way < 3; way++) {
		EXPECT((block = calloc(1, LENGTH)));
		EXPECT(!libcopy_team_bcast(team, block + way * 100000, LENGTH - 300000, 0));
		pending += !libcopy_is_settled(NULL, (size_t)-1);
		if (way == 2)
			EXPECT((block = realloc(block, 2 * LENGTH)));
		else
			free(block);
		EXPECT(libcopy_is_settled(NULL, (size_t)-1));
		if (way == 2)
			free(block);
		EXPECT(!libcopy_team_barrier(team));
	}
	if (argc > 1) {
		EXPECT((buffer = calloc(1, LENGTH)));
		if (rank == 0)
			for (size_t at = 0; at < LENGTH; at++)
				buffer[at] = byte(at, 1);
		EXPECT(!libcopy_team_bcast(team, buffer, LENGTH, 0));
		if (rank == 0)
			vanish(argv[1]);
		for (size_t at = 0; at < LENGTH; at++)
			EXPECT(buffer[at] == byte(at, 1));
		return pending ? 0 : 77;
	}
	EXPECT(!libcopy_team_free(team));
	printf("rank %zu: something was pending in %d of %d rounds\n", rank, pending, round);
	/* Not one: then nothing was tested. */
	return pending ? 0 : 77;
}
