// SPDX-License-Identifier: MIT OR Apache-2.0
//
// The kernels that move the bytes of derived datatypes. One source for the GPU (compiled by NVRTC, see
// scripts/kernels) and for the processor (with emulate.h, for tests and the stand-in driver).
//
// A job copies a range of a packed stream from one side to another. A side is flat (the packed bytes), a nest
// (blocks of equal length under up to MAX_DIMS strides or lists of offsets, as in TEMPI, paper 004, "Generalized pack
// kernels") or pieces (a list of pieces of different lengths, repeated under such dimensions). Packing has a flat
// `to`, unpacking a flat `from`; with two sides that are not flat nothing is staged (paper 000, section 5.2).
//
// The structures are those of src/job.rs, field by field.
//
// With ONLY_COPY_BULK only copy_bulk is compiled, which needs compute_90; with ONLY_BASELINES what benchmarks compare with;
// without both, all other kernels.

#ifdef LIBCOPY_EMULATE
#include "emulate.h"
#else
#define KERNEL extern "C" __global__ void __launch_bounds__(256)
#define DEVICE static __device__ __forceinline__
#define DEVICE_MEMBER __device__ __forceinline__
#define PARAMETER(type, name) const __grid_constant__ type name
#define BLOCK blockIdx.x
#define BLOCKS gridDim.x
#define BLOCK_THREAD threadIdx.x
#define BLOCK_THREADS blockDim.x
#define GRID_X (blockIdx.x * blockDim.x + threadIdx.x)
#define GRID_Y (blockIdx.y * blockDim.y + threadIdx.y)
#define GRID_Z (blockIdx.z * blockDim.z + threadIdx.z)
#define STEP_X (gridDim.x * blockDim.x)
#define STEP_Y (gridDim.y * blockDim.y)
#define STEP_Z (gridDim.z * blockDim.z)
#define SHARED __shared__
// A phase of a block: all threads are through with it before the next one begins. PRIVATE is a thread's own, and lives
// from phase to phase.
#define PHASE
#define PHASE_END __syncthreads();
#define PRIVATE(type, name, count) type name[count]
#define OWN(name) name
#define ONCE_PER_BLOCK
// A copy of *FROM in shared memory, made by all threads of the block.
#define SHARED_COPY(Type, name, from)                                                                                  \
    __shared__ Type name;                                                                                              \
    for (u32 word = threadIdx.x; word < sizeof(Type) / 8; word += blockDim.x)                                          \
        ((u64 *)&name)[word] = ((const u64 *)(from))[word];                                                            \
    __syncthreads();
#define UNROLL _Pragma("unroll")
#define NO_UNROLL _Pragma("unroll 1")
#endif

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;

enum { MAX_DIMS = 6 };

// Division of numbers below 2^31 by a constant: quotient = number * magic >> shift.
struct Divisor {
    u64 by;
    u32 magic;
    u32 shift;
};

// `count` repetitions, at multiples of `stride` or, with a table, at the offsets in it.
struct Dim {
    Divisor count;
    i64 stride;
    u64 table;
};

enum { FLAT = 0, NEST = 1, PIECES = 2 };

// Unit of `inner` and `skip`: words of `width` bytes for the kernels that copy words, bytes for copy_runs.
struct Side {
    // Address of the first byte of a flat side, of the origin of others.
    u64 base;
    // Position on this side where the job begins.
    u64 skip;
    // Length of a block of a nest, of the whole list of pieces.
    Divisor inner;
    // Pieces: their offsets; bytes before each piece, and all; the piece at each multiple of 2^hint_shift bytes.
    u64 offsets;
    u64 starts;
    u64 hints;
    u32 hint_shift;
    u32 kind;
    u32 dims;
    // Bit d: the table of dimension d has 64-bit entries; bit 31: `offsets` and `starts` do.
    u32 wide;
    // The innermost first.
    Dim dim[MAX_DIMS];
};

struct Job {
    Side to;
    Side from;
    // Units, those that are moved in part included.
    u64 units;
    // Bytes of the first word that are not moved; bytes of the last word that are moved, 0: all.
    u32 lead;
    u32 trail;
    u32 width;
    // copy_runs: threads that copy a run together, a power of two.
    u32 lanes;
    // copy_runs, copy_bulk: units that a group of lanes or a block is given at a time. 0 in the jobs of other kernels.
    u32 chunk;
    // Whether positions do not stay below 2^31.
    u32 is_long;
};

// Jobs of one launch. Blocks first[i] to first[i + 1] do job i.
struct Batch {
    u64 jobs;
    u64 first;
    u64 count;
};

#ifndef ONLY_BASELINES

DEVICE u64 divided(u64 number, const Divisor &divisor, bool is_long)
{
    if (is_long)
        return number / divisor.by;
    return (u64)(u32)number * divisor.magic >> divisor.shift;
}

DEVICE i64 entry(u64 table, u64 index, bool is_wide)
{
    return is_wide ? ((const i64 *)table)[index] : ((const int *)table)[index];
}

// The address of position `at` (in units of `width` bytes) and, for copy_runs, the bytes up to the end of its run.
DEVICE u64 address(const Side &side, u32 kind, u64 at, u32 width, bool is_long, u64 &left)
{
    at += side.skip;
    if (kind == FLAT) {
        left = ~0ull;
        return side.base + at * width;
    }
    u64 above = divided(at, side.inner, is_long);
    u64 within = (at - above * side.inner.by) * width;
    u64 place = side.base;
    if (kind == NEST) {
        place += within;
        left = side.inner.by * width - within;
    } else {
        bool is_wide = side.wide >> 31;
        const u32 *hint = (const u32 *)side.hints + (within >> side.hint_shift);
        // The piece is the last that does not begin behind `within`.
        u32 low = hint[0], high = hint[1];
        while (low < high) {
            u32 middle = low + (high - low + 1) / 2;
            if ((u64)entry(side.starts, middle, is_wide) <= within)
                low = middle;
            else
                high = middle - 1;
        }
        u64 start = entry(side.starts, low, is_wide);
        place += entry(side.offsets, low, is_wide) + (within - start);
        left = entry(side.starts, low + 1, is_wide) - within;
    }
    // Not unrolled: all threads go the same way, and the parameters are constants that can be indexed.
    NO_UNROLL
    for (u32 d = 0; d < side.dims; d++) {
        const Dim &dim = side.dim[d];
        u64 next = divided(above, dim.count, is_long);
        u64 index = above - next * dim.count.by;
        if (dim.table)
            place += entry(dim.table, index, side.wide >> d & 1);
        else
            place += (i64)index * dim.stride;
        above = next;
    }
    return place;
}

#endif

#if !defined(ONLY_COPY_BULK) && !defined(ONLY_BASELINES)

DEVICE void copy_bytes(u64 to, u64 from, u64 first, u64 end, u64 step)
{
    for (u64 i = first; i < end; i += step)
        ((u8 *)to)[i] = ((const u8 *)from)[i];
}

// A thread per word. Both sides are multiples of the word's size wherever a word begins. TO and FROM are kinds, or
// -1 where the side says which.
template <typename Word, int TO, int FROM> DEVICE void copy_words(const Job &job, u64 thread, u64 threads)
{
    const u32 width = sizeof(Word);
    const u32 to = TO < 0 ? job.to.kind : (u32)TO, from = FROM < 0 ? job.from.kind : (u32)FROM;
    // Where the kinds are known, four words are on their way at a time. The others would become too long.
    const u32 unrolled = TO < 0 ? 2 : 4;
    const u64 first = job.lead ? 1 : 0, end = job.units - (job.trail ? 1 : 0);
    u64 left;
    for (u64 at = first + thread; at < end; at += unrolled * threads) {
        Word word[unrolled];
        u64 place[unrolled];
        // All loads before the first store.
        UNROLL
        for (u32 i = 0; i < unrolled; i++) {
            if (at + i * threads < end) {
                word[i] = *(const Word *)address(job.from, from, at + i * threads, width, false, left);
                place[i] = address(job.to, to, at + i * threads, width, false, left);
            }
        }
        UNROLL
        for (u32 i = 0; i < unrolled; i++)
            if (at + i * threads < end)
                *(Word *)place[i] = word[i];
    }
    // The first and the last word, if only a part of them is moved. They may be the same.
    const u64 last = job.units - 1;
    if (thread == 0 && job.lead) {
        const u32 stop = job.trail && last == 0 ? job.trail : width;
        copy_bytes(address(job.to, to, 0, width, false, left), address(job.from, from, 0, width, false, left), job.lead,
                   stop, 1);
    }
    if (thread == 0 && job.trail && (last > 0 || !job.lead))
        copy_bytes(address(job.to, to, last, width, false, left), address(job.from, from, last, width, false, left), 0,
                   job.trail, 1);
}

// `bytes` bytes by `lanes` threads of which this is number `lane`; any alignment of both sides. Nothing outside is
// read.
DEVICE void copy_run(u64 to, u64 from, u64 bytes, u32 lane, u32 lanes)
{
    const u64 between = to ^ from;
    u64 head = bytes, end = bytes;
    if ((between & 15) == 0) {
        u64 skipped = -to & 15;
        if (skipped < bytes) {
            head = skipped;
            const u64 words = (bytes - head) / 16;
            for (u64 i = lane; i < words; i += lanes)
                ((uint4 *)(to + head))[i] = ((const uint4 *)(from + head))[i];
            end = head + 16 * words;
        }
    } else if ((between & 3) == 0) {
        u64 skipped = -to & 3;
        if (skipped < bytes) {
            head = skipped;
            const u64 words = (bytes - head) / 4;
            for (u64 i = lane; i < words; i += lanes)
                ((u32 *)(to + head))[i] = ((const u32 *)(from + head))[i];
            end = head + 4 * words;
        }
    } else if (bytes >= 16) {
        // Aligned words of `to`, each out of two aligned words of `from` that lie inside the run.
        u64 skipped = -to & 3;
        if (((from + skipped) & 3) > skipped)
            skipped += 4;
        const u64 source = (from + skipped) & ~3ull;
        const u32 shift = ((from + skipped) & 3) * 8;
        const u64 words = (from + bytes - source - 4) / 4;
        head = skipped;
        for (u64 i = lane; i < words; i += lanes) {
            const u64 two = (u64)((const u32 *)source)[i + 1] << 32 | ((const u32 *)source)[i];
            ((u32 *)(to + head))[i] = (u32)(two >> shift);
        }
        end = head + 4 * words;
    }
    copy_bytes(to, from, lane, head, lanes);
    copy_bytes(to, from, end + lane, bytes, lanes);
}

DEVICE void copy_runs_of(const Job &job, u64 thread, u64 threads)
{
    const u32 lane = (u32)thread & (job.lanes - 1);
    const u64 groups = threads / job.lanes;
    for (u64 chunk = thread / job.lanes;; chunk += groups) {
        u64 at = chunk * job.chunk;
        if (at >= job.units)
            return;
        const u64 end = job.units - at < job.chunk ? job.units : at + job.chunk;
        while (at < end) {
            u64 left, run = end - at;
            const u64 to = address(job.to, job.to.kind, at, 1, job.is_long, left);
            run = left < run ? left : run;
            const u64 from = address(job.from, job.from.kind, at, 1, job.is_long, left);
            run = left < run ? left : run;
            copy_run(to, from, run, lane, job.lanes);
            at += run;
        }
    }
}

DEVICE u64 grid_thread() { return (u64)BLOCK * BLOCK_THREADS + BLOCK_THREAD; }
DEVICE u64 grid_threads() { return (u64)BLOCKS * BLOCK_THREADS; }

#define WORDS_KERNEL(name, Word, to, from)                                                                             \
    KERNEL name(PARAMETER(Job, job)) { copy_words<Word, to, from>(job, grid_thread(), grid_threads()); }
#define WORDS(width, Word)                                                                                             \
    WORDS_KERNEL(pack_strided_##width, Word, FLAT, NEST)                                                               \
    WORDS_KERNEL(unpack_strided_##width, Word, NEST, FLAT)                                                             \
    WORDS_KERNEL(direct_##width, Word, NEST, NEST)                                                                     \
    WORDS_KERNEL(copy_words_##width, Word, -1, -1)

WORDS(1, u8)
WORDS(2, u16)
WORDS(4, u32)
WORDS(8, u64)
WORDS(16, uint4)

// Runs of any alignment: a group of lanes for each.
KERNEL copy_runs(PARAMETER(Job, job)) { copy_runs_of(job, grid_thread(), grid_threads()); }

// Many jobs in one launch: all messages of an exchange with neighbours, all members of a structure.
KERNEL batch(PARAMETER(Batch, table))
{
    const u32 *first = (const u32 *)table.first;
    // The job is the last that does not begin behind this block.
    u64 low = 0, high = table.count - 1;
    while (low < high) {
        const u64 middle = low + (high - low + 1) / 2;
        if (first[middle] <= BLOCK)
            low = middle;
        else
            high = middle - 1;
    }
    const u64 thread = (u64)(BLOCK - first[low]) * BLOCK_THREADS + BLOCK_THREAD;
    const u64 threads = (u64)(first[low + 1] - first[low]) * BLOCK_THREADS;
    SHARED_COPY(Job, job, table.jobs + low * sizeof(Job))
    if (job.chunk)
        copy_runs_of(job, thread, threads);
    else if (job.width == 16)
        copy_words<uint4, -1, -1>(job, thread, threads);
    else if (job.width == 8)
        copy_words<u64, -1, -1>(job, thread, threads);
    else if (job.width == 4)
        copy_words<u32, -1, -1>(job, thread, threads);
    else if (job.width == 2)
        copy_words<u16, -1, -1>(job, thread, threads);
    else
        copy_words<u8, -1, -1>(job, thread, threads);
}

#endif

#if defined(ONLY_COPY_BULK) || defined(LIBCOPY_EMULATE)

// The copies of copy_bulk: STAGES pieces of shared memory, each loaded and then stored without registers. A store is
// issued LAG loads behind its own load, so that LAG loads are on their way, and up to STAGES - LAG stores.
enum { STAGES = 8, STAGE_BYTES = 16384, LAG = 4 };

#ifdef LIBCOPY_EMULATE
typedef EmulatedPipeline<STAGES, STAGE_BYTES> Pipeline;
#else
// PTX ISA 8.0: "cp.async.bulk", "mbarrier". Only one thread of the block calls any of this. Source and target are
// multiples of 16 bytes, and so is the length.
struct Pipeline {
    u32 stages;
    u32 barriers;

    DEVICE_MEMBER void begin()
    {
        extern __shared__ __align__(128) u8 stage_memory[];
        __shared__ u64 barrier_memory[STAGES];
        stages = (u32)__cvta_generic_to_shared(stage_memory);
        barriers = (u32)__cvta_generic_to_shared(barrier_memory);
        for (u32 i = 0; i < STAGES; i++)
            asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(barriers + 8 * i) : "memory");
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
        asm volatile("fence.proxy.async;" ::: "memory");
    }
    DEVICE_MEMBER void load(u64 step, u64 from, u32 bytes)
    {
        const u32 stage = (u32)(step % STAGES), barrier = barriers + 8 * stage;
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
        asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                         stages + STAGE_BYTES * stage),
                     "l"(from), "r"(bytes), "r"(barrier)
                     : "memory");
    }
    // Waits until the load of that step has arrived, and stores it.
    DEVICE_MEMBER void store(u64 step, u64 to, u32 bytes)
    {
        const u32 stage = (u32)(step % STAGES), parity = (u32)(step / STAGES) & 1;
        u32 has_arrived = 0;
        while (!has_arrived)
            asm volatile("{ .reg .pred p;\n"
                         "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
                         "selp.u32 %0, 1, 0, p; }"
                         : "=r"(has_arrived)
                         : "r"(barriers + 8 * stage), "r"(parity)
                         : "memory");
        asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to),
                     "r"(stages + STAGE_BYTES * stage), "r"(bytes)
                     : "memory");
        asm volatile("cp.async.bulk.commit_group;" ::: "memory");
    }
    // Waits until at most PENDING stores still read their stage.
    template <int PENDING> DEVICE_MEMBER void wait_stored()
    {
        asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(PENDING) : "memory");
    }
    DEVICE_MEMBER void finish() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }
};
#endif

// Long blocks whose addresses and lengths are multiples of 16 bytes, by the copy unit of a few multiprocessors. One
// thread of each block issues the copies.
KERNEL copy_bulk(PARAMETER(Job, job))
{
    // What is to be stored: where a step's bytes belong.
    SHARED u64 targets[STAGES];
    SHARED u32 lengths[STAGES];
    if (BLOCK_THREAD != 0)
        return;
    Pipeline pipeline;
    pipeline.begin();
    u64 step = 0;
    for (u64 chunk = BLOCK; chunk * job.chunk < job.units; chunk += BLOCKS) {
        u64 at = chunk * job.chunk;
        const u64 end = job.units - at < job.chunk ? job.units : at + job.chunk;
        while (at < end) {
            u64 left, bytes = (end - at) * 16;
            const u64 to = address(job.to, job.to.kind, at, 16, false, left);
            bytes = left < bytes ? left : bytes;
            const u64 from = address(job.from, job.from.kind, at, 16, false, left);
            bytes = left < bytes ? left : bytes;
            bytes = bytes < STAGE_BYTES ? bytes : (u64)STAGE_BYTES;
            // The store out of this stage, STAGES steps ago; after it STAGES - 1 - LAG others have been issued.
            pipeline.wait_stored<STAGES - 1 - LAG>();
            pipeline.load(step, from, (u32)bytes);
            targets[step % STAGES] = to;
            lengths[step % STAGES] = (u32)bytes;
            if (step >= LAG)
                pipeline.store(step - LAG, targets[(step - LAG) % STAGES], lengths[(step - LAG) % STAGES]);
            step++;
            at += bytes / 16;
        }
    }
    for (u64 late = step < LAG ? 0 : step - LAG; late < step; late++)
        pipeline.store(late, targets[late % STAGES], lengths[late % STAGES]);
    pipeline.finish();
}

#endif

#if defined(ONLY_BASELINES) || defined(LIBCOPY_EMULATE)

// What libcopy's mapping of bytes to threads is compared with. Both sides are flat or nests with strides, all bytes of
// the nest are moved, and words of the given size fit everywhere.

DEVICE const Side &nest_of(const Job &job) { return job.to.kind == NEST ? job.to : job.from; }

// Paper 004 (TEMPI), "Generalized pack kernels": x runs over the words of a block, y over the next dimension, z over the
// one after it, loops over the rest. No division but in those loops.
template <typename Word, bool IS_PACK> DEVICE void tempi_words(const Job &job)
{
    const Side &nest = nest_of(job);
    const u64 words = nest.inner.by;
    const u64 rows = nest.dims > 0 ? nest.dim[0].count.by : 1, planes = nest.dims > 1 ? nest.dim[1].count.by : 1;
    u64 outer = 1;
    for (u32 d = 2; d < nest.dims; d++)
        outer *= nest.dim[d].count.by;
    const u64 flat = IS_PACK ? job.to.base : job.from.base;
    for (u64 o = 0; o < outer; o++) {
        u64 above = nest.base, rest = o;
        NO_UNROLL
        for (u32 d = 2; d < nest.dims; d++) {
            above += (i64)(rest % nest.dim[d].count.by) * nest.dim[d].stride;
            rest /= nest.dim[d].count.by;
        }
        for (u64 z = GRID_Z; z < planes; z += STEP_Z)
            for (u64 y = GRID_Y; y < rows; y += STEP_Y)
                for (u64 x = GRID_X; x < words; x += STEP_X) {
                    u64 place = above + x * sizeof(Word);
                    if (nest.dims > 0)
                        place += (i64)y * nest.dim[0].stride;
                    if (nest.dims > 1)
                        place += (i64)z * nest.dim[1].stride;
                    const u64 packed = flat + (((o * planes + z) * rows + y) * words + x) * sizeof(Word);
                    if (IS_PACK)
                        *(Word *)packed = *(const Word *)place;
                    else
                        *(Word *)place = *(const Word *)packed;
                }
    }
}

// yaksa's generated kernels: a thread per element of the type, whose index is decoded by divisions, from the outermost
// dimension inwards; nothing is loaded ahead.
template <typename Word, bool IS_PACK> DEVICE void yaksa_elements(const Job &job)
{
    const Side &nest = nest_of(job);
    const u64 at = (u64)BLOCK * BLOCK_THREADS + BLOCK_THREAD;
    if (at >= job.units)
        return;
    u64 inside = nest.inner.by, rest = at, place = nest.base;
    for (u32 d = 0; d < nest.dims; d++)
        inside *= nest.dim[d].count.by;
    for (u32 d = nest.dims; d-- > 0;) {
        inside /= nest.dim[d].count.by;
        place += (i64)(rest / inside) * nest.dim[d].stride;
        rest %= inside;
    }
    place += rest * sizeof(Word);
    const u64 packed = (IS_PACK ? job.to.base : job.from.base) + at * sizeof(Word);
    if (IS_PACK)
        *(Word *)packed = *(const Word *)place;
    else
        *(Word *)place = *(const Word *)packed;
}

#define BASELINES(width, Word)                                                                                         \
    KERNEL tempi_pack_##width(PARAMETER(Job, job)) { tempi_words<Word, true>(job); }                                   \
    KERNEL tempi_unpack_##width(PARAMETER(Job, job)) { tempi_words<Word, false>(job); }                                \
    KERNEL yaksa_pack_##width(PARAMETER(Job, job)) { yaksa_elements<Word, true>(job); }                                \
    KERNEL yaksa_unpack_##width(PARAMETER(Job, job)) { yaksa_elements<Word, false>(job); }

BASELINES(1, u8)
BASELINES(2, u16)
BASELINES(4, u32)
BASELINES(8, u64)
BASELINES(16, uint4)

// C = A * B, square matrices of floats in row order: the program's own work that packing gets in the way of. The base
// of `to` is C, that of `from` A with B behind it; `units` is the edge, a multiple of GEMM_TILE. Each block of 256
// threads computes tiles of GEMM_TILE^2, a thread 4 x 4 of them.
enum { GEMM_TILE = 64, GEMM_DEPTH = 16 };

KERNEL gemm(PARAMETER(Job, job))
{
    ONCE_PER_BLOCK
    SHARED float a[GEMM_DEPTH][GEMM_TILE], b[GEMM_DEPTH][GEMM_TILE];
    PRIVATE(float, sum, 16);
    const u64 n = job.units, tiles = n / GEMM_TILE;
    for (u64 tile = BLOCK; tile < tiles * tiles; tile += BLOCKS) {
        const u64 row = tile / tiles * GEMM_TILE, column = tile % tiles * GEMM_TILE;
        const float *first = (const float *)job.from.base;
        const float *left = first + row * n, *right = first + n * n + column;
        PHASE
        {
            for (u32 i = 0; i < 16; i++)
                OWN(sum)[i] = 0;
        }
        for (u64 k = 0; k < n; k += GEMM_DEPTH) {
            PHASE
            {
                for (u32 i = BLOCK_THREAD; i < GEMM_TILE * GEMM_DEPTH; i += 256) {
                    a[i % GEMM_DEPTH][i / GEMM_DEPTH] = left[i / GEMM_DEPTH * n + k + i % GEMM_DEPTH];
                    b[i / GEMM_TILE][i % GEMM_TILE] = right[(k + i / GEMM_TILE) * n + i % GEMM_TILE];
                }
            }
            PHASE_END
            PHASE
            {
                const u32 y = BLOCK_THREAD / 16 * 4, x = BLOCK_THREAD % 16 * 4;
                for (u32 d = 0; d < GEMM_DEPTH; d++)
                    for (u32 i = 0; i < 16; i++)
                        OWN(sum)[i] += a[d][y + i / 4] * b[d][x + i % 4];
            }
            PHASE_END
        }
        PHASE
        {
            float *to = (float *)job.to.base + (row + BLOCK_THREAD / 16 * 4) * n + column + BLOCK_THREAD % 16 * 4;
            for (u32 i = 0; i < 16; i++)
                to[i / 4 * n + i % 4] = OWN(sum)[i];
        }
    }
}

// A field of `rows` x `columns` doubles with a halo of one cell around it, and where its next values go.
struct Stencil {
    u64 to;
    u64 from;
    u64 rows;
    u64 columns;
};

// The mean of each cell and its eight neighbours (paper 000, figure 15), summed in the order in which they lie in memory.
KERNEL stencil(PARAMETER(Stencil, task))
{
    const u64 width = task.columns + 2;
    for (u64 cell = GRID_X; cell < task.rows * task.columns; cell += STEP_X) {
        // The first one of the nine.
        const u64 first = cell / task.columns * width + cell % task.columns;
        const double *from = (const double *)task.from + first;
        double sum = 0;
        for (u32 i = 0; i < 9; i++)
            sum += from[i / 3 * width + i % 3];
        ((double *)task.to)[first + width + 1] = sum * (1.0 / 9);
    }
}

#endif
