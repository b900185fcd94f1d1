// SPDX-License-Identifier: MIT OR Apache-2.0
//
// Runs the kernels of pack.cu on the processor for tests/emulated.rs: reads launches and memory from standard input,
// writes the memory back. Addresses in a job are region << 40 plus 2^39 plus the region's skew plus an offset; each region
// has memory of its own, without a byte more, so that AddressSanitizer sees what reaches outside.

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#define LIBCOPY_EMULATE
#include "kernels.h"

static void fail(const char *why)
{
    fprintf(stderr, "emulated: %s\n", why);
    exit(2);
}

static void get(void *to, size_t bytes)
{
    if (bytes && fread(to, 1, bytes, stdin) != bytes)
        fail("the request ends early");
}

static uint32_t get32()
{
    uint32_t value;
    get(&value, sizeof value);
    return value;
}

struct Region {
    std::unique_ptr<uint8_t, void (*)(void *)> memory{nullptr, free};
    uint8_t *first = nullptr;
    uint64_t bytes = 0;
    // Where the region begins in a word of 16 bytes.
    uint32_t skew = 0;
};

static std::vector<Region> regions;

static void relocate(u64 &address)
{
    const u64 region = address >> 40;
    if (address == 0)
        return;
    if (region >= regions.size())
        fail("an address of no region");
    address = (u64)regions[region].first - regions[region].skew + (address & ((1ull << 40) - 1)) - (1ull << 39);
}

static void relocate(Side &side)
{
    relocate(side.base);
    relocate(side.offsets);
    relocate(side.starts);
    relocate(side.hints);
    for (Dim &dim : side.dim)
        relocate(dim.table);
}

static void relocate(Job &job)
{
    relocate(job.to);
    relocate(job.from);
}

int main()
{
    for (;;) {
        uint32_t count;
        if (fread(&count, sizeof count, 1, stdin) != 1)
            return 0;
        regions = std::vector<Region>(count);
        for (Region &region : regions) {
            region.skew = get32();
            get(&region.bytes, sizeof region.bytes);
            void *memory;
            if (posix_memalign(&memory, 16, region.skew + region.bytes + !region.bytes))
                fail("no memory");
            region.memory.reset((uint8_t *)memory);
            region.first = (uint8_t *)memory + region.skew;
            get(region.first, region.bytes);
        }
        for (uint32_t launches = get32(); launches > 0; launches--) {
            char name[64] = "";
            const uint32_t length = get32();
            Extent blocks, threads;
            get(&blocks, sizeof blocks);
            get(&threads, sizeof threads);
            const uint32_t size = get32();
            if (length >= sizeof name)
                fail("not a name of a kernel");
            get(name, length);
            const Named *found = kernel_named(name);
            if (!found || !found->takes(blocks, threads))
                fail("no such kernel");
            Job job;
            Batch table;
            if (size != (found->kernel ? sizeof job : sizeof table))
                fail("not the structures of pack.cu");
            if (found->kernel) {
                get(&job, sizeof job);
                relocate(job);
                emulate(found->kernel, blocks, threads, job);
            } else {
                get(&table, sizeof table);
                relocate(table.jobs);
                relocate(table.first);
                for (u64 i = 0; i < table.count; i++)
                    relocate(((Job *)table.jobs)[i]);
                emulate(batch, blocks, threads, table);
            }
        }
        for (const Region &region : regions)
            if (region.bytes && fwrite(region.first, 1, region.bytes, stdout) != region.bytes)
                fail("the answer is not read");
        fflush(stdout);
    }
}
