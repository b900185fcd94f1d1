// SPDX-License-Identifier: MIT OR Apache-2.0

/* Plans for network cards, images and checkpoints, and what they say to wrong arguments. */
#include "expect.h"

static libcopy_nic_options_t options;

static libcopy_nic_plan_t planned(const char *expression, uint64_t count)
{
	libcopy_type_t *type = parsed(expression);
	libcopy_nic_plan_t plan;

	GOOD(libcopy_nic_plan(type, count, &options, &plan));
	GOOD(libcopy_type_free(type));
	EXPECT(memchr(plan.why, 0, sizeof(plan.why)) && plan.why[0]);
	EXPECT((plan.strategy == LIBCOPY_NIC_HOST) == (plan.refusal != 0));
	return plan;
}

static void offloaded(void)
{
	static const char column[] = "vector(4096,16,32,double)";
	static const char nested[] = "hvector(9,1,100000,vector(100,1,7,double))";
	libcopy_type_t *type = parsed(column);
	libcopy_nic_plan_t plan, same;

	plan = planned(column, 1);
	EXPECT(plan.strategy == LIBCOPY_NIC_SPECIALIZED && plan.is_line_rate == 1);
	EXPECT(plan.bytes == 4096 * 16 * 8 && plan.packets == plan.bytes / 2048);
	EXPECT(plan.pieces == 4096 && planned(column, 2).bytes == 2 * plan.bytes);
	EXPECT(plan.states == 0 && plan.interval == 0 && plan.memory == plan.image_bytes);
	EXPECT(plan.expected_ps >= plan.arrival_ps && plan.hpus_for_line_rate > 0);
	EXPECT(strstr(plan.why, "line rate"));
	/* Without options: those of libcopy_nic_options. */
	GOOD(libcopy_nic_plan(type, 1, NULL, &same));
	EXPECT(same.expected_ps == plan.expected_ps && same.strategy == plan.strategy);
	GOOD(libcopy_type_free(type));

	EXPECT(planned(nested, 1).strategy == LIBCOPY_NIC_SEEK);
	options.strategy = LIBCOPY_NIC_RW_CP;
	options.priority = 7;
	plan = planned(nested, 1);
	EXPECT(plan.strategy == LIBCOPY_NIC_RW_CP && plan.priority == 7 && plan.interval > 0);
	EXPECT(plan.memory == plan.image_bytes + plan.states * 4 * LIBCOPY_NIC_STATE_WORDS);
	/* A larger epsilon: checkpoints are farther apart. */
	options.epsilon = 5;
	options.hpus = 2;
	same = planned("hvector(300,1,100000,vector(1000,1,7,int))", 1);
	options.epsilon = 0.001;
	plan = planned("hvector(300,1,100000,vector(1000,1,7,int))", 1);
	EXPECT(plan.interval < same.interval && plan.states > same.states);
	GOOD(libcopy_nic_options(&options));
}

static void refused(void)
{
	libcopy_nic_plan_t plan;

	EXPECT(planned("vector(8,4,2,double)", 1).refusal == LIBCOPY_NIC_OVERLAP);
	EXPECT(planned("double", 0).refusal == LIBCOPY_NIC_EMPTY);
	EXPECT(planned("hvector(2,1,3000000000,double)", 1).refusal == LIBCOPY_NIC_TOO_LARGE);
	options.strategy = LIBCOPY_NIC_SPECIALIZED;
	plan = planned("hvector(9,1,100000,vector(100,1,7,double))", 1);
	EXPECT(plan.refusal == LIBCOPY_NIC_NO_HANDLER);
	options.strategy = 0;
	options.memory = 60;
	plan = planned("vector(4096,16,32,double)", 1);
	EXPECT(plan.refusal == LIBCOPY_NIC_MEMORY && strstr(plan.why, "60"));
	options.offload = 0;
	plan = planned("vector(4096,16,32,double)", 1);
	EXPECT(plan.refusal == LIBCOPY_NIC_BY_ATTRIBUTE && strstr(plan.why, "offload"));
	GOOD(libcopy_nic_options(&options));
}

static void wrong(void)
{
	libcopy_type_t *type = parsed("double");
	libcopy_nic_plan_t plan;
	size_t length;
	uint32_t words[4];

	EXPECT(libcopy_nic_options(NULL) == LIBCOPY_EINVAL);
	EXPECT(libcopy_nic_plan(NULL, 1, NULL, &plan) == LIBCOPY_EINVAL);
	EXPECT(libcopy_nic_plan(type, 1, NULL, NULL) == LIBCOPY_EINVAL);
	options.strategy = 6;
	EXPECT(libcopy_nic_plan(type, 1, &options, &plan) == LIBCOPY_EINVAL);
	EXPECT(strstr(libcopy_error_detail(), "strategy 6"));
	GOOD(libcopy_nic_options(&options));
	options.hpus = 0;
	EXPECT(libcopy_nic_plan(type, 1, &options, &plan) == LIBCOPY_EINVAL);
	EXPECT(strstr(libcopy_error_detail(), "hpus 0"));
	GOOD(libcopy_nic_options(&options));
	options.epsilon = -1;
	EXPECT(libcopy_nic_plan(type, 1, &options, &plan) == LIBCOPY_EINVAL);
	EXPECT(strstr(libcopy_error_detail(), "epsilon -1"));
	GOOD(libcopy_nic_options(&options));
	EXPECT(libcopy_nic_image(type, 1, words, 4, &length) == LIBCOPY_EINVAL && length == 16);
	EXPECT(strstr(libcopy_error_detail(), "16"));
	EXPECT(libcopy_nic_image(type, 1, NULL, 0, NULL) == LIBCOPY_EINVAL);
	EXPECT(libcopy_nic_checkpoints(type, 1, 0, NULL, 0, &length) == LIBCOPY_EINVAL);
	EXPECT(libcopy_nic_checkpoints(type, 9, 8, words, 0, &length) == LIBCOPY_EINVAL && length == 9);
	GOOD(libcopy_type_free(type));
}

/* What the host puts into the memory of a card. */
static void memory(void)
{
	static uint32_t image[64], states[8 * LIBCOPY_NIC_STATE_WORDS];
	libcopy_type_t *type = parsed("vector(100,3,7,double)");
	size_t words, n, i;

	GOOD(libcopy_nic_image(type, 1, NULL, 0, &words));
	EXPECT(words == 16);
	GOOD(libcopy_nic_image(type, 1, image, 64, &words));
	/* "LCW1", and the number of words. */
	EXPECT(image[0] == 0x3157434c && image[1] == words && image[words] == 0);
	GOOD(libcopy_nic_checkpoints(type, 1, 1000, NULL, 0, &n));
	EXPECT(n == 3);
	GOOD(libcopy_nic_checkpoints(type, 1, 1000, states, 8, &n));
	EXPECT(n == 3);
	/* The position is the first word of a state. */
	for (i = 0; i < n; i++)
		EXPECT(states[i * LIBCOPY_NIC_STATE_WORDS] == 1000 * i);
	GOOD(libcopy_type_free(type));
}

int main(void)
{
	GOOD(libcopy_nic_options(&options));
	EXPECT(options.offload == 1 && options.priority == 0 && options.strategy == 0);
	EXPECT(options.hpus == 32 && options.clock == 800 && options.rate == 200);
	EXPECT(options.epsilon > 0.19 && options.epsilon < 0.21 && options.memory == 6 << 20);
	offloaded();
	refused();
	wrong();
	memory();
	return 0;
}
