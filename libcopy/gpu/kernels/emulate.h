// SPDX-License-Identifier: MIT OR Apache-2.0
//
// What pack.cu needs to be compiled for the processor: a thread of the GPU is a call.

#define KERNEL extern "C" void
#define DEVICE static inline
#define PARAMETER(type, name) const type &name
#define THREAD ((u64)emulated.block * emulated.block_size + emulated.thread)
#define THREADS ((u64)emulated.blocks * emulated.block_size)
#define UNROLL
#define NO_UNROLL

struct Emulated {
    unsigned blocks, block_size, block, thread;
};
static thread_local Emulated emulated;

struct alignas(16) uint4 {
    unsigned x, y, z, w;
};

// Runs a kernel: every thread of every block, one after the other.
template <typename Argument>
static void emulate(void (*kernel)(const Argument &), unsigned blocks, unsigned block_size, const Argument &argument)
{
    emulated.blocks = blocks;
    emulated.block_size = block_size;
    for (emulated.block = 0; emulated.block < blocks; emulated.block++)
        for (emulated.thread = 0; emulated.thread < block_size; emulated.thread++)
            kernel(argument);
}
