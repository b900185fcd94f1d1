// SPDX-License-Identifier: MIT OR Apache-2.0
//
// The kernels of pack.cu, compiled for the processor, by name.

#include "pack.cu"

typedef void (*Kernel)(const Job &);

struct Named {
    const char *name;
    // Kernels with a job as parameter; null for `batch`, which has a table of jobs.
    Kernel kernel;
    // Threads of a block that it is made for, and bytes of dynamic shared memory that it needs.
    unsigned threads;
    unsigned shared;
};

static const Named kernels[] = {
#define NAMED(name) {#name, name, 256, 0}
#define NAMED_WORDS(width)                                                                                             \
    NAMED(pack_strided_##width), NAMED(unpack_strided_##width), NAMED(direct_##width), NAMED(copy_words_##width)
    NAMED_WORDS(1),
    NAMED_WORDS(2),
    NAMED_WORDS(4),
    NAMED_WORDS(8),
    NAMED_WORDS(16),
    NAMED(copy_runs),
    {"copy_bulk", copy_bulk, 32, STAGES * STAGE_BYTES},
    {"batch", nullptr, 256, 0},
#undef NAMED_WORDS
#undef NAMED
};

// The kernel of that name, or nothing.
static const Named *kernel_named(const char *name)
{
    for (const Named &known : kernels)
        if (!__builtin_strcmp(known.name, name))
            return &known;
    return nullptr;
}
