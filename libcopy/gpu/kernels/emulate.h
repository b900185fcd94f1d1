// SPDX-License-Identifier: MIT OR Apache-2.0
//
// What pack.cu needs to be compiled for the processor: a thread of the GPU is a call.

#include <cstring>
#include <deque>

#define KERNEL extern "C" void
#define DEVICE static inline
#define PARAMETER(type, name) const type &name
#define BLOCK emulated.block
#define BLOCKS emulated.blocks
#define BLOCK_THREAD emulated.thread
#define BLOCK_THREADS emulated.block_size
#define GRID_X (emulated.block * emulated.block_size + emulated.thread)
#define GRID_Y (emulated.block_y * emulated.block_size_y + emulated.thread_y)
#define GRID_Z (emulated.block_z * emulated.block_size_z + emulated.thread_z)
#define STEP_X (emulated.blocks * emulated.block_size)
#define STEP_Y (emulated.blocks_y * emulated.block_size_y)
#define STEP_Z (emulated.blocks_z * emulated.block_size_z)
// Kernels with phases: the call of the block's first thread runs each phase for all threads.
#define ONCE_PER_BLOCK                                                                                                 \
    if (emulated.thread != 0)                                                                                          \
        return;
#define PHASE for (emulated.thread = 0; emulated.thread < emulated.block_size || (emulated.thread = 0); emulated.thread++)
#define PHASE_END
#define PRIVATE(type, name, count) type name[256][count]
#define OWN(name) name[emulated.thread]
// What one thread of a block uses alone.
#define SHARED
#define SHARED_COPY(Type, name, from) const Type &name = *(const Type *)(from);
#define UNROLL
#define NO_UNROLL

struct Emulated {
    unsigned blocks, block_size, block, thread;
    unsigned blocks_y, block_size_y, block_y, thread_y;
    unsigned blocks_z, block_size_z, block_z, thread_z;
};

// Blocks of a grid or threads of a block.
struct Extent {
    unsigned x, y, z;
};
static thread_local Emulated emulated;

struct alignas(16) uint4 {
    unsigned x, y, z, w;
};

// Bulk copies, each done as late as it may be: a load when its store waits for it, a store when
// somebody waits for it. A stage that is used too early has wrong bytes then.
template <int STAGES, int STAGE_BYTES> struct EmulatedPipeline {
    struct Copy {
        unsigned long long to, from;
        unsigned bytes;
    };
    Copy loads[STAGES];
    std::deque<Copy> stores;
    static inline thread_local unsigned char stages[STAGES][STAGE_BYTES];

    void begin() {}
    void load(unsigned long long step, unsigned long long from, unsigned bytes)
    {
        memset(stages[step % STAGES], 0x5a, STAGE_BYTES);
        loads[step % STAGES] = {0, from, bytes};
    }
    void store(unsigned long long step, unsigned long long to, unsigned bytes)
    {
        const Copy &load = loads[step % STAGES];
        // The unit copies multiples of 16 bytes at multiples of 16 bytes.
        if (load.bytes != bytes || bytes > STAGE_BYTES || ((to | load.from | bytes) & 15))
            __builtin_trap();
        memcpy(stages[step % STAGES], (const void *)load.from, bytes);
        stores.push_back({to, (unsigned long long)stages[step % STAGES], bytes});
    }
    template <int PENDING> void wait_stored()
    {
        for (; stores.size() > PENDING; stores.pop_front())
            memcpy((void *)stores.front().to, (const void *)stores.front().from, stores.front().bytes);
    }
    void finish() { wait_stored<0>(); }
};

// Runs a kernel: every thread of every block, one after the other.
template <typename Argument>
static void emulate(void (*kernel)(const Argument &), Extent blocks, Extent threads, const Argument &argument)
{
    emulated = {blocks.x, threads.x, 0, 0, blocks.y, threads.y, 0, 0, blocks.z, threads.z, 0, 0};
    for (emulated.block_z = 0; emulated.block_z < blocks.z; emulated.block_z++)
        for (emulated.block_y = 0; emulated.block_y < blocks.y; emulated.block_y++)
            for (emulated.block = 0; emulated.block < blocks.x; emulated.block++)
                for (emulated.thread_z = 0; emulated.thread_z < threads.z; emulated.thread_z++)
                    for (emulated.thread_y = 0; emulated.thread_y < threads.y; emulated.thread_y++)
                        for (emulated.thread = 0; emulated.thread < threads.x; emulated.thread++)
                            kernel(argument);
}
