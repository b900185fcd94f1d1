// SPDX-License-Identifier: MIT OR Apache-2.0

/* Random numbers that are the same on every machine, and checksums, for programs whose runs are
 * compared.
 */
#include "checksum.h"

/* To be set to anything but 0 before. */
static uint64_t state;

static uint64_t next(uint64_t below)
{
	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return (state >> 11) % below;
}
