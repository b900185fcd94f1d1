/* SPDX-License-Identifier: MIT OR Apache-2.0
 *
 * Calls each wrapper of libcopy_async.so, with what looks pending and a function that notes what it
 * is asked to settle: the very memory that the call names, before the call is made. Where bytes are
 * lost, the call fails instead.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#define EXPECT(condition)                                                                      \
	do {                                                                                   \
		if (!(condition)) {                                                            \
			asked->word = 0;                                                       \
			fprintf(stderr, "line %d: not %s (errno %d)\n", __LINE__, #condition,  \
				errno);                                                        \
			exit(1);                                                               \
		}                                                                              \
	} while (0)

#define MOST 8

/* Shared with children. Volatile, since a compiler knows that functions like free look at no memory
 * but their own. */
static volatile struct {
	size_t word;
	size_t count;
	size_t address[MOST], length[MOST];
	int lost;
} *asked;

int libcopy_async_attach(const volatile size_t *pending, int (*settle)(size_t, size_t));

static int settle(size_t address, size_t length)
{
	if (asked->count < MOST) {
		asked->address[asked->count] = address;
		asked->length[asked->count] = length;
	}
	asked->count++;
	return asked->lost;
}

static int another(size_t address, size_t length)
{
	return address == length;
}

/* What the last call asked for, as its nth. */
static int is_asked(size_t nth, const void *address, size_t length)
{
	return nth < asked->count && asked->address[nth] == (size_t)address &&
	       asked->length[nth] == length;
}

/* Makes a call that gives or takes memory: as long as something is pending that memory is settled,
 * otherwise nothing; and it fails if bytes are lost. `call` has to succeed each time. */
#define SETTLES(call, failed, memory, size)                                                    \
	do {                                                                                   \
		asked->count = 0;                                                              \
		asked->word = 1;                                                               \
		asked->lost = EOWNERDEAD;                                                      \
		errno = 0;                                                                     \
		EXPECT((call) == (failed) && errno == EOWNERDEAD);                             \
		asked->lost = 0;                                                               \
		asked->count = 0;                                                              \
		EXPECT((call) != (failed));                                                    \
		asked->word = 0;                                                               \
		EXPECT(asked->count == 1 && is_asked(0, memory, size));                        \
		EXPECT((call) != (failed));                                                    \
		EXPECT(asked->count == 1);                                                     \
	} while (0)

static char buffer[4096], other[4096];
static int sockets[2], file;

/* Something to receive. */
static int filled(void)
{
	size_t word = asked->word;

	asked->word = 0;
	EXPECT(send(sockets[0], "bytes", 5, 0) == 5);
	asked->word = word;
	return 1;
}

ssize_t __read_chk(int, void *, size_t, size_t);
ssize_t __pread_chk(int, void *, size_t, off_t, size_t);
ssize_t __pread64_chk(int, void *, size_t, off64_t, size_t);
ssize_t __recv_chk(int, void *, size_t, size_t, int);
ssize_t __recvfrom_chk(int, void *, size_t, size_t, int, struct sockaddr *, socklen_t *);
size_t __fread_chk(void *, size_t, size_t, size_t, FILE *);

static void files(void)
{
	struct iovec vector[2] = { { buffer, 10 }, { other, 20 } };

	SETTLES(pwrite(file, buffer, 100, 0), -1, buffer, 100);
	SETTLES(pwrite64(file, buffer, 100, 0), -1, buffer, 100);
	SETTLES(write(file, buffer, 7), -1, buffer, 7);
	SETTLES(pread(file, buffer, 9, 0), -1, buffer, 9);
	SETTLES(pread64(file, buffer, 9, 0), -1, buffer, 9);
	EXPECT(lseek(file, 0, SEEK_SET) == 0);
	SETTLES(read(file, other, 8), -1, other, 8);
	SETTLES(__read_chk(file, other, 8, sizeof(other)), -1, other, 8);
	SETTLES(__pread_chk(file, other, 8, 0, sizeof(other)), -1, other, 8);
	SETTLES(__pread64_chk(file, other, 8, 0, sizeof(other)), -1, other, 8);
	SETTLES(readv(file, vector, 1), -1, buffer, 10);
	SETTLES(writev(file, vector, 1), -1, buffer, 10);
	SETTLES(preadv(file, vector + 1, 1, 0), -1, other, 20);
	SETTLES(preadv64(file, vector + 1, 1, 0), -1, other, 20);
	SETTLES(pwritev(file, vector + 1, 1, 0), -1, other, 20);
	SETTLES(pwritev64(file, vector + 1, 1, 0), -1, other, 20);
	/* Each piece of a vector. */
	asked->count = 0;
	asked->word = 1;
	EXPECT(pwritev(file, vector, 2, 0) == 30);
	asked->word = 0;
	EXPECT(asked->count == 2 && is_asked(0, buffer, 10) && is_asked(1, other, 20));
}

static void processes(void)
{
	struct iovec own = { buffer, 10 }, theirs = { other, 10 };

	SETTLES(process_vm_readv(getpid(), &own, 1, &theirs, 1, 0), -1, buffer, 10);
	SETTLES(process_vm_writev(getpid(), &own, 1, &theirs, 1, 0), -1, buffer, 10);
}

static void messages(void)
{
	struct iovec vector = { buffer, 5 };
	struct mmsghdr many = { .msg_hdr = { .msg_iov = &vector, .msg_iovlen = 1 } };
	struct msghdr *one = &many.msg_hdr;
	int way = MSG_DONTWAIT;

	/* Of a message, what it carries and what goes beside it. */
#define MESSAGE(call)                                                                          \
	do {                                                                                   \
		asked->count = 0;                                                              \
		asked->word = 1;                                                               \
		EXPECT((call) > 0);                                                            \
		asked->word = 0;                                                               \
		EXPECT(asked->count == 2 && is_asked(0, NULL, 0) && is_asked(1, buffer, 5));   \
		asked->word = 1;                                                               \
		asked->lost = EOWNERDEAD;                                                      \
		EXPECT((call) == -1 && errno == EOWNERDEAD);                                   \
		asked->word = asked->lost = 0;                                                 \
	} while (0)

	SETTLES(send(sockets[0], buffer, 5, way), -1, buffer, 5);
	SETTLES(sendto(sockets[0], buffer, 5, way, NULL, 0), -1, buffer, 5);
	SETTLES(filled() ? recv(sockets[1], other, 5, way) : 0, -1, other, 5);
	SETTLES(filled() ? recvfrom(sockets[1], other, 5, way, NULL, NULL) : 0, -1, other, 5);
	SETTLES(filled() ? __recv_chk(sockets[1], other, 5, 4096, way) : 0, -1, other, 5);
	SETTLES(filled() ? __recvfrom_chk(sockets[1], other, 5, 4096, way, NULL, NULL) : 0, -1,
		other, 5);
	MESSAGE(sendmsg(sockets[0], one, way));
	MESSAGE(sendmmsg(sockets[0], &many, 1, way));
	MESSAGE(filled() ? recvmsg(sockets[1], one, way) : 0);
	MESSAGE(filled() ? recvmmsg(sockets[1], &many, 1, way, NULL) : 0);
}

static void streams(void)
{
	FILE *stream = tmpfile();

	EXPECT(stream);
	SETTLES(fwrite(buffer, 2, 50, stream), 0, buffer, 100);
	memset(buffer, '\n', 100);
	EXPECT(fwrite(buffer, 1, 100, stream) == 100);
	rewind(stream);
	SETTLES(fread(other, 2, 3, stream), 0, other, 6);
	SETTLES(__fread_chk(other, sizeof(other), 2, 3, stream), 0, other, 6);
	asked->count = 0;
	asked->word = 1;
	EXPECT(fgets(other, 10, stream) == other);
	asked->word = 0;
	EXPECT(is_asked(0, other, 10));
	fclose(stream);
}

static void memory(void)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE);
	char *place = mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	char *block;
	size_t usable;
	uintptr_t was;

	EXPECT(place != MAP_FAILED);
	SETTLES(mprotect(place, page, PROT_READ | PROT_WRITE), -1, place, page);
	SETTLES(madvise(place, page, MADV_NORMAL), -1, place, page);
	SETTLES(munmap(place, 2 * page), -1, place, 2 * page);

	/* What is lost does not matter to who gives a block back. */
	for (int lost = 0; lost <= EOWNERDEAD; lost += EOWNERDEAD) {
		block = malloc(100000);
		EXPECT(block);
		was = (uintptr_t)block;
		usable = malloc_usable_size(block);
		asked->lost = lost;
		asked->count = 0;
		asked->word = 1;
		block = realloc(block, 200000);
		asked->word = 0;
		EXPECT(block && is_asked(0, (void *)was, usable));
		was = (uintptr_t)block;
		usable = malloc_usable_size(block);
		asked->count = 0;
		asked->word = 1;
		block = reallocarray(block, 3, 100000);
		asked->word = 0;
		EXPECT(block && is_asked(0, (void *)was, usable));
		was = (uintptr_t)block;
		usable = malloc_usable_size(block);
		asked->count = 0;
		asked->word = 1;
		free(block);
		asked->word = 0;
		EXPECT(asked->count == 1 && is_asked(0, (void *)was, usable));
	}
	asked->lost = 0;
}

/* A process that ends, or becomes another program: everything is settled first. */
static void ends(int way)
{
	static char *const words[] = { "true", NULL }, *const none[] = { NULL };
	int status;
	pid_t child;

	asked->count = 0;
	asked->word = 1;
	child = fork();
	EXPECT(child >= 0);
	if (child == 0) {
		asked->count = 0;
		switch (way) {
		case 0:
			_exit(0);
		case 1:
			_Exit(0);
		case 2:
			quick_exit(0);
		case 3:
			execve("/bin/true", words, none);
			break;
		case 4:
			execv("/bin/true", words);
			break;
		case 5:
			execvp("true", words);
			break;
		case 6:
			execvpe("true", words, none);
			break;
		case 7:
			fexecve(open("/bin/true", O_RDONLY | O_CLOEXEC), words, none);
			break;
		}
		_exit(1);
	}
	asked->word = 0;
	EXPECT(waitpid(child, &status, 0) == child && status == 0);
	EXPECT(asked->count == 1 && is_asked(0, NULL, SIZE_MAX));
}

int main(void)
{
	asked = mmap(NULL, sizeof(*asked), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (asked == MAP_FAILED)
		return 1;
	EXPECT(socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) == 0);
	file = memfd_create("wrappers", 0);
	EXPECT(file >= 0);
	/* Without libcopy they are the C library's. */
	EXPECT(pwrite(file, buffer, 100, 0) == 100);
	free(malloc(1000));
	EXPECT(libcopy_async_attach(&asked->word, settle) == 0);
	EXPECT(libcopy_async_attach(&asked->word, settle) == 0);
	EXPECT(libcopy_async_attach(&asked->word, another) == -1);
	files();
	processes();
	messages();
	streams();
	memory();
	for (int way = 0; way < 8; way++)
		ends(way);
	puts("all settled");
	return 0;
}
