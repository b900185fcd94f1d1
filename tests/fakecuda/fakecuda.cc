// SPDX-License-Identifier: MIT OR Apache-2.0
//
// A stand-in for libcuda.so.1, so that programs with "device" memory run without a GPU. Device memory is a memfd that is
// mapped without any rights and opened only while a call of the driver moves bytes, so that a processor that touches it
// dies. Kernels are those of libcopy/gpu/kernels/pack.cu, compiled for the processor. Work is done in the call that
// asks for it, or, with FAKECUDA_DELAYED=1, when somebody waits for its stream.
//
// Only what libcopy-gpu calls is here, with the types of cuda.h (CUDA Driver API 12.0).

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <mutex>
#include <vector>

#define LIBCOPY_EMULATE
#include "../../libcopy/gpu/kernels/kernels.h"

#define CALL extern "C" int

enum {
    SUCCESS = 0,
    INVALID_VALUE = 1,
    OUT_OF_MEMORY = 2,
    NOT_INITIALIZED = 3,
    INVALID_IMAGE = 200,
    INVALID_CONTEXT = 201,
    INVALID_HANDLE = 400,
    NOT_FOUND = 500,
    ILLEGAL_ADDRESS = 700,
};

enum Kind { ON_DEVICE, PINNED, MANAGED };

struct Context {
    int device;
};

struct Memory {
    uint64_t bytes;
    uint64_t mapped;
    Kind kind;
    Context *context;
    uint64_t id;
    int file;
};

struct Stream {
    Context *context;
    std::vector<std::function<int()>> work;
};

static std::recursive_mutex one;
static std::map<uint64_t, Memory> memories;
static std::vector<Stream *> streams;
static thread_local std::vector<Context *> contexts;
static bool initialized;
static Context primary[2] = {{0}, {1}};
static uint64_t next_id = 1;
// What was done, for tests.
static uint64_t launches, copies;

static bool is_delayed()
{
    const char *value = getenv("FAKECUDA_DELAYED");
    return value && *value == '1';
}

static Context *current() { return contexts.empty() ? nullptr : contexts.back(); }

// The memory that an address is in.
static std::map<uint64_t, Memory>::iterator memory_of(uint64_t address)
{
    auto found = memories.upper_bound(address);
    if (found == memories.begin())
        return memories.end();
    --found;
    return address - found->first < found->second.bytes ? found : memories.end();
}

// Opens all device memory as long as it lives.
struct Opened {
    Opened() { all(PROT_READ | PROT_WRITE); }
    ~Opened() { all(PROT_NONE); }
    static void all(int rights)
    {
        for (auto &[address, memory] : memories)
            if (memory.kind == ON_DEVICE)
                mprotect((void *)address, memory.mapped, rights);
    }
};

static int run(Stream *stream)
{
    int status = SUCCESS;
    auto work = std::move(stream->work);
    stream->work.clear();
    Opened opened;
    for (auto &step : work)
        if (int failed = step())
            status = failed;
    return status;
}

static int submit(Stream *stream, std::function<int()> step)
{
    if (!stream || !current())
        return INVALID_HANDLE;
    if (stream->context != current())
        return INVALID_CONTEXT;
    stream->work.push_back(std::move(step));
    return is_delayed() ? (int)SUCCESS : run(stream);
}

CALL cuInit(unsigned)
{
    std::lock_guard lock(one);
    initialized = true;
    return SUCCESS;
}

CALL cuGetErrorName(int code, const char **name)
{
    static const std::map<int, const char *> names = {
        {INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE"},     {OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY"},
        {NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED"}, {INVALID_IMAGE, "CUDA_ERROR_INVALID_IMAGE"},
        {INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT"}, {INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE"},
        {NOT_FOUND, "CUDA_ERROR_NOT_FOUND"},             {ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS"},
    };
    auto found = names.find(code);
    *name = found == names.end() ? nullptr : found->second;
    return found == names.end() ? INVALID_VALUE : SUCCESS;
}

CALL cuDevicePrimaryCtxRetain(Context **context, int device)
{
    if (!initialized)
        return NOT_INITIALIZED;
    if (device < 0 || device > 1)
        return INVALID_VALUE;
    *context = &primary[device];
    return SUCCESS;
}

CALL cuCtxGetCurrent(Context **context)
{
    *context = current();
    return initialized ? SUCCESS : NOT_INITIALIZED;
}

CALL cuCtxPushCurrent_v2(Context *context)
{
    if (context != &primary[0] && context != &primary[1])
        return INVALID_CONTEXT;
    contexts.push_back(context);
    return SUCCESS;
}

CALL cuCtxPopCurrent_v2(Context **context)
{
    if (contexts.empty())
        return INVALID_CONTEXT;
    *context = contexts.back();
    contexts.pop_back();
    return SUCCESS;
}

static int allocate(uint64_t *address, uint64_t bytes, Kind kind)
{
    std::lock_guard lock(one);
    if (!initialized)
        return NOT_INITIALIZED;
    if (!current())
        return INVALID_CONTEXT;
    if (!bytes)
        return INVALID_VALUE;
    const uint64_t mapped = (bytes + 4095) & ~4095ull;
    const int file = memfd_create("fakecuda", MFD_CLOEXEC);
    if (file < 0 || ftruncate(file, mapped))
        return OUT_OF_MEMORY;
    void *place = mmap(nullptr, mapped, kind == ON_DEVICE ? PROT_NONE : PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (place == MAP_FAILED)
        return OUT_OF_MEMORY;
    *address = (uint64_t)place;
    memories[*address] = {bytes, mapped, kind, current(), next_id++, file};
    return SUCCESS;
}

static int release(uint64_t address, bool is_host)
{
    std::lock_guard lock(one);
    auto found = memories.find(address);
    if (found == memories.end() || (found->second.kind == PINNED) != is_host)
        return INVALID_VALUE;
    // Work that was submitted before uses it.
    for (Stream *stream : streams)
        run(stream);
    munmap((void *)address, found->second.mapped);
    close(found->second.file);
    memories.erase(found);
    return SUCCESS;
}

CALL cuMemAlloc_v2(uint64_t *address, size_t bytes) { return allocate(address, bytes, ON_DEVICE); }
CALL cuMemAllocManaged(uint64_t *address, size_t bytes, unsigned) { return allocate(address, bytes, MANAGED); }
CALL cuMemFree_v2(uint64_t address) { return release(address, false); }
CALL cuMemHostAlloc(void **address, size_t bytes, unsigned) { return allocate((uint64_t *)address, bytes, PINNED); }
CALL cuMemFreeHost(void *address) { return release((uint64_t)address, true); }

CALL cuPointerGetAttributes(unsigned count, const unsigned *attributes, void **values, uint64_t address)
{
    std::lock_guard lock(one);
    if (!initialized)
        return NOT_INITIALIZED;
    auto found = memory_of(address);
    const bool is_known = found != memories.end();
    for (unsigned i = 0; i < count; i++) {
        switch (attributes[i]) {
        case 1: // CONTEXT
            *(Context **)values[i] = is_known ? found->second.context : nullptr;
            break;
        case 2: // MEMORY_TYPE: 1 host, 2 device
            *(unsigned *)values[i] = !is_known ? 0 : found->second.kind == PINNED ? 1 : 2;
            break;
        case 8: // IS_MANAGED
            *(int *)values[i] = is_known && found->second.kind == MANAGED;
            break;
        default:
            return INVALID_VALUE;
        }
    }
    return SUCCESS;
}

CALL cuModuleLoadData(void **module, const void *image)
{
    if (!current())
        return INVALID_CONTEXT;
    if (!strstr((const char *)image, ".version 8.0"))
        return INVALID_IMAGE;
    *module = current();
    return SUCCESS;
}

CALL cuModuleGetFunction(const Named **function, void *module, const char *name)
{
    if (module != current())
        return INVALID_CONTEXT;
    *function = kernel_named(name);
    return *function ? SUCCESS : NOT_FOUND;
}

CALL cuStreamCreate(Stream **stream, unsigned)
{
    std::lock_guard lock(one);
    if (!current())
        return INVALID_CONTEXT;
    streams.push_back(*stream = new Stream{current(), {}});
    return SUCCESS;
}

CALL cuStreamSynchronize(Stream *stream)
{
    std::lock_guard lock(one);
    return stream ? run(stream) : INVALID_HANDLE;
}

CALL cuMemcpyAsync(uint64_t to, uint64_t from, size_t bytes, Stream *stream)
{
    std::lock_guard lock(one);
    for (uint64_t address : {to, from}) {
        auto found = memory_of(address);
        if (found != memories.end() && address - found->first + bytes > found->second.bytes)
            return INVALID_VALUE;
    }
    copies++;
    return submit(stream, [=] {
        memcpy((void *)to, (const void *)from, bytes);
        return SUCCESS;
    });
}

// A kernel reaches no pageable memory.
static bool is_reached(const Side &side)
{
    if (side.kind == FLAT)
        return memory_of(side.base) != memories.end();
    for (uint32_t d = 0; d < side.dims; d++)
        if (side.dim[d].table && memory_of(side.dim[d].table) == memories.end())
            return false;
    return side.kind != PIECES || (memory_of(side.offsets) != memories.end() && memory_of(side.starts) != memories.end());
}

CALL cuLaunchKernel(const Named *function, unsigned blocks, unsigned y, unsigned z, unsigned threads, unsigned thread_y,
                    unsigned thread_z, unsigned, Stream *stream, void **parameters, void **extra)
{
    std::lock_guard lock(one);
    if (!function || y != 1 || z != 1 || thread_y != 1 || thread_z != 1 || !blocks || threads > 1024 || extra)
        return INVALID_VALUE;
    const Job job = *(const Job *)parameters[0];
    launches++;
    return submit(stream, [=] {
        if (!is_reached(job.to) || !is_reached(job.from))
            return ILLEGAL_ADDRESS;
        emulate(function->kernel, blocks, threads, job);
        return SUCCESS;
    });
}

// For tests: what was done so far, and how much memory there is.
extern "C" void fakecuda_counts(uint64_t *counts)
{
    std::lock_guard lock(one);
    counts[0] = launches;
    counts[1] = copies;
    counts[2] = memories.size();
}
