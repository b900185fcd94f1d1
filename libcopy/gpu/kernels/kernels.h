// SPDX-License-Identifier: MIT OR Apache-2.0
//
// The kernels of pack.cu, compiled for the processor, by name.

#include "pack.cu"

typedef void (*Kernel)(const Job &);

struct Named {
    const char *name;
    // Kernels with a job as parameter; null for `batch`, which has a table of jobs, and `stencil`,
    // which has a field.
    Kernel kernel;
    // Threads of a block that it is made for, and bytes of dynamic shared memory that it needs.
    unsigned threads;
    unsigned shared;
    // Whether grid and blocks may have three dimensions: `threads` is the product.
    bool has_shape;
    void (*stencil)(const Stencil &) = nullptr;

    bool takes(Extent blocks, Extent block) const
    {
        const bool is_flat = blocks.y == 1 && blocks.z == 1 && block.y == 1 && block.z == 1;
        return blocks.x && blocks.y && blocks.z && block.x * block.y * block.z == threads && (is_flat || has_shape);
    }
};

static const Named kernels[] = {
#define NAMED(name) {#name, name, 256, 0, false}
#define NAMED_SHAPE(name) {#name, name, 256, 0, true}
#define NAMED_WORDS(width)                                                                                             \
    NAMED(pack_strided_##width), NAMED(unpack_strided_##width), NAMED(direct_##width), NAMED(copy_words_##width)
    NAMED_WORDS(1),
    NAMED_WORDS(2),
    NAMED_WORDS(4),
    NAMED_WORDS(8),
    NAMED_WORDS(16),
    NAMED(copy_runs),
    {"copy_bulk", copy_bulk, 32, STAGES * STAGE_BYTES, false},
    {"batch", nullptr, 256, 0, false},
#define NAMED_BASELINES(width)                                                                                         \
    NAMED_SHAPE(tempi_pack_##width), NAMED_SHAPE(tempi_unpack_##width), NAMED(yaksa_pack_##width),                     \
        NAMED(yaksa_unpack_##width)
    NAMED_BASELINES(1),
    NAMED_BASELINES(2),
    NAMED_BASELINES(4),
    NAMED_BASELINES(8),
    NAMED_BASELINES(16),
    NAMED(gemm),
    {"stencil", nullptr, 256, 0, false, stencil},
#undef NAMED_BASELINES
#undef NAMED_WORDS
#undef NAMED_SHAPE
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
