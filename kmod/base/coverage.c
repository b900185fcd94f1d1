// SPDX-License-Identifier: GPL-2.0
/*
 * Which basic blocks of the module's Rust have run: only in a module that is made with COVERAGE=1
 * (see Kbuild), whose compiler has each block call __sanitizer_cov_trace_pc() first. Unlike kcov,
 * which records the system calls of one thread, this sees callbacks, workqueues and threads as
 * well, and needs nothing of the kernel.
 *
 * The parameter "coverage" lists the blocks, one a line: the address where the call returns to, and
 * 1 if it has. A page of text is what one reading gives; the next goes on behind it, and an empty
 * one is the end. What is written to it is the offset in the module's text where the next reading
 * begins.
 */
#include <linux/bitmap.h>
#include <linux/bitops.h>
#include <linux/kernel.h>
#include <linux/module.h>
#include <linux/moduleparam.h>
#include <linux/string.h>
#include <linux/sysfs.h>

#include "coverage.h"

#ifndef CONFIG_X86_64
#error "libcopy finds the calls in x86-64 code only"
#endif

/* An instruction that calls: the opcode, and the distance of what is called from its end. */
#define CALL 0xe8
#define CALL_BYTES 5

/* Bytes of text, more than the module has. */
#define MOST (1UL << 22)
static DECLARE_BITMAP(reached, MOST);

static unsigned long next;

void notrace __sanitizer_cov_trace_pc(void)
{
	unsigned long at = _RET_IP_ - (unsigned long)THIS_MODULE->mem[MOD_TEXT].base;

	/* Looked at first, so that CPUs do not fight for the line. */
	if (at < MOST && !test_bit(at, reached))
		set_bit(at, reached);
}

static int coverage_get(char *text, const struct kernel_param *param)
{
	const u8 *base = THIS_MODULE->mem[MOD_TEXT].base;
	unsigned long size = min_t(unsigned long, THIS_MODULE->mem[MOD_TEXT].size, MOST);
	int len = 0;

	/* Bounded by the module's text. */
	while (next + CALL_BYTES <= size && len < PAGE_SIZE - 32) {
		const u8 *call = base + next++;
		const u8 *behind = call + CALL_BYTES;
		s32 distance;

		memcpy(&distance, call + 1, sizeof(distance));
		if (*call != CALL || behind + distance != (const u8 *)__sanitizer_cov_trace_pc)
			continue;
		next += CALL_BYTES - 1;
		len += sysfs_emit_at(text, len, "%lx %d\n", (unsigned long)behind,
				     test_bit(behind - base, reached));
	}
	return len;
}

static int coverage_set(const char *text, const struct kernel_param *param)
{
	return kstrtoul(text, 0, &next);
}

/* The kernel calls these one at a time. */
static const struct kernel_param_ops coverage_ops = { .set = coverage_set, .get = coverage_get };
module_param_cb(coverage, &coverage_ops, NULL, 0600);
MODULE_PARM_DESC(coverage, "Basic blocks, and whether they have run");
__MODULE_PARM_TYPE(coverage, "string");
