/* SPDX-License-Identifier: MIT OR Apache-2.0 */

/*
 * What all peers of `libcopy bench` have in common: buffers, and the socket on which they are told
 * what to do.
 */
#ifndef PEER_H
#define PEER_H

#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

struct buffer {
	unsigned char *map, *data;
	size_t map_length, length;
};

/* Prints what failed, with errno, and ends the program. */
static void die(const char *what);

/*
 * Makes the buffer at least that long. It starts an odd number of pages after a 2 MiB boundary,
 * like the buffers of `libcopy bench`, so that nobody is better off by alignment.
 */
static void reserve(struct buffer *b, size_t length, size_t which)
{
	const size_t huge = 2u << 20, page = 4096;
	size_t skew = (2 * which + 1) * page;

	if (b->length >= length)
		return;
	if (b->map)
		munmap(b->map, b->map_length);
	b->map_length = length + skew + huge;
	b->map = mmap(NULL, b->map_length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
		      -1, 0);
	if (b->map == MAP_FAILED)
		die("mmap of a buffer");
	b->data = (unsigned char *)(((uintptr_t)b->map + huge - 1) & ~(uintptr_t)(huge - 1)) + skew;
	b->length = length;
}

/* Connects to the socket, for lines in and out. */
static void connect_to(const char *path, FILE **in, FILE **out)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

	if (strlen(path) >= sizeof(address.sun_path)) {
		errno = ENAMETOOLONG;
		die(path);
	}
	strcpy(address.sun_path, path);
	if (fd < 0 || connect(fd, (struct sockaddr *)&address, sizeof(address)))
		die(path);
	*in = fdopen(fd, "r");
	*out = fdopen(dup(fd), "w");
	if (!*in || !*out)
		die("fdopen");
}

#endif
