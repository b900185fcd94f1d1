// SPDX-License-Identifier: GPL-2.0
/*
 * Parameters that can be changed at run time, or are words; see params.h. Rust's are neither.
 */
#include <linux/moduleparam.h>
#include <linux/string.h>
#include <linux/sysfs.h>

#include "params.h"

#ifdef CONFIG_LIBCOPY_ENGINES
#define ENGINE_HELP "auto (DMA engines, the default), kthread (kernel threads, one per NUMA node), off"
#else
#define ENGINE_HELP "auto (a thread of the process that submits, the default), off"
#endif

/* As libcopy_param_engine() numbers them. */
static const char *const engine_names[] = {
	"auto",
	"off",
#ifdef CONFIG_LIBCOPY_ENGINES
	"kthread",
#endif
};

static int engine;

static int engine_set(const char *text, const struct kernel_param *param)
{
	int index = sysfs_match_string(engine_names, text);

	if (index < 0)
		return index;
	WRITE_ONCE(engine, index);
	return 0;
}

static int engine_get(char *text, const struct kernel_param *param)
{
	return sysfs_emit(text, "%s\n", engine_names[READ_ONCE(engine)]);
}

static const struct kernel_param_ops engine_ops = { .set = engine_set, .get = engine_get };
module_param_cb(engine, &engine_ops, NULL, 0644);
MODULE_PARM_DESC(engine, "Who works on requests: " ENGINE_HELP);
__MODULE_PARM_TYPE(engine, "string");

static unsigned int engine_depth = 2;
module_param(engine_depth, uint, 0644);
MODULE_PARM_DESC(engine_depth, "Fragments that a channel has in work at a time, 1 to 16 (default 2)");

static unsigned int engine_deadline_ms = 1000;
module_param(engine_deadline_ms, uint, 0644);
MODULE_PARM_DESC(engine_deadline_ms, "Milliseconds after which a silent engine is given up, at least 10 (default 1000)");

static unsigned int fragment_pages = 1;
module_param(fragment_pages, uint, 0644);
MODULE_PARM_DESC(fragment_pages, "Pages per fragment of a request that does not say, 1 to 4096 (default 1)");

static unsigned int max_user_requests = 32768;
module_param(max_user_requests, uint, 0644);
MODULE_PARM_DESC(max_user_requests, "Requests that the processes of one user may have at a time (default 32768)");

int libcopy_param_engine(void)
{
	return READ_ONCE(engine);
}

unsigned int libcopy_param_depth(void)
{
	return READ_ONCE(engine_depth);
}

unsigned int libcopy_param_deadline_ms(void)
{
	return READ_ONCE(engine_deadline_ms);
}

unsigned int libcopy_param_fragment_pages(void)
{
	return READ_ONCE(fragment_pages);
}

unsigned int libcopy_param_max_user_requests(void)
{
	return READ_ONCE(max_user_requests);
}
