// SPDX-License-Identifier: MIT OR Apache-2.0

/* Random numbers that are the same on every machine, and checksums, for programs whose runs are
 * compared.
 */
#include <stddef.h>
#include <stdint.h>

/* To be set to anything but 0 before. */
static uint64_t state;

static uint64_t next(uint64_t below)
{
	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return (state >> 11) % below;
}

static uint64_t hash(const unsigned char *bytes, size_t length)
{
	uint64_t sum = 14695981039346656037u;
	for (size_t i = 0; i < length; i++)
		sum = (sum ^ bytes[i]) * 1099511628211u;
	return sum;
}
