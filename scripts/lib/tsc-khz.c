// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * Prints the speed of this processor's time stamp counter in kHz. An emulated guest reads the same
 * counter, but where the emulator is kept waiting while the guest's kernel measures it against an
 * emulated timer, the kernel gets it wrong: its clock then runs up to ten times too fast.
 */
#include <stdio.h>
#include <time.h>
#include <x86intrin.h>

struct moment {
	double ticks, nanoseconds;
};

/* Of several readings the one that was interrupted least. */
static struct moment now(void)
{
	struct moment best = { 0, 0 };
	unsigned long long narrowest = ~0ULL;

	for (int i = 0; i < 50; i++) {
		struct timespec time;
		unsigned long long before = __rdtsc();

		clock_gettime(CLOCK_MONOTONIC_RAW, &time);
		unsigned long long width = __rdtsc() - before;

		if (width < narrowest) {
			narrowest = width;
			best.ticks = (double)(before + width / 2);
			best.nanoseconds = time.tv_sec * 1e9 + time.tv_nsec;
		}
	}
	return best;
}

int main(void)
{
	struct timespec pause = { 0, 100000000 };
	struct moment first = now();

	nanosleep(&pause, NULL);
	struct moment last = now();

	printf("%.0f\n", (last.ticks - first.ticks) / (last.nanoseconds - first.nanoseconds) * 1e6);
	return 0;
}
