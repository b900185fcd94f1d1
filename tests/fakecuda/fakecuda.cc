// SPDX-License-Identifier: MIT OR Apache-2.0
//
// A stand-in for libcuda.so.1, so that programs with "device" memory run without a GPU. Device memory is a memfd that is
// mapped without any rights and opened only while a call of the driver moves bytes, so that a processor that touches it
// dies. Kernels are those of libcopy/gpu/kernels/pack.cu, compiled for the processor. Work is done in the call that
// asks for it, or, with FAKECUDA_DELAYED=1, when somebody waits for its stream; each query of an event lets one step
// of its stream through then. Other processes open device memory through /proc/PID/fd; FAKECUDA_IPC=0 refuses that.
// Addresses of freed memory are used again as soon as possible. With FAKECUDA_KILL=copy a process dies when it copies out of
// another one's memory.
//
// Only what libcopy-gpu calls is here, with the types of cuda.h (CUDA Driver API 12.0).

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
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
    ALREADY_MAPPED = 208,
    INVALID_HANDLE = 400,
    NOT_FOUND = 500,
    NOT_READY = 600,
    ILLEGAL_ADDRESS = 700,
    NOT_SUPPORTED = 801,
};

enum Kind { ON_DEVICE, PINNED, MANAGED };

struct Context {
    int device;
    // Another one after a reset, though the handle stays the same.
    uint64_t id;
};

struct Memory {
    uint64_t bytes;
    uint64_t mapped;
    Kind kind;
    Context *context;
    uint64_t id;
    int file;
    // Of another process.
    bool is_imported;
};

struct Stream {
    Context *context;
    uint64_t context_id;
    std::deque<std::function<int()>> work;
};

struct Event {
    Context *context;
    uint64_t context_id;
    Stream *stream;
    bool is_done;
    int status;
    // How often it was recorded: it is done when the last one is.
    uint64_t records;
    std::chrono::steady_clock::time_point at;
};

struct Function {
    const Named *named;
    Context *context;
    uint64_t context_id;
    unsigned shared_limit;
};

static std::recursive_mutex one;
static std::map<uint64_t, Memory> memories;
static std::vector<Stream *> streams;
// Whether the thread-local variables of this thread are gone.
static thread_local bool is_over;

struct Contexts {
    std::vector<Context *> list;
    ~Contexts() { is_over = true; }
};

// The contexts of the calling thread. A driver has such variables too: who calls it from a destructor that runs after theirs
// dies.
static std::vector<Context *> &contexts()
{
    static thread_local Contexts own;
    if (is_over) {
        fputs("fakecuda: the driver is called by a thread whose thread-local variables are gone\n", stderr);
        abort();
    }
    return own.list;
}

static bool initialized;
static Context primary[2] = {{0, 1}, {1, 2}};
static uint64_t next_id = 1, next_context = 3;
// Addresses that were freed, by their length.
static std::multimap<uint64_t, uint64_t> freed;
// What was done, for tests.
static uint64_t launches, copies;
// Launches since somebody waited or asked whether something is done, and the most of them.
static uint64_t in_a_row, most_in_a_row;

static bool is_delayed()
{
    const char *value = getenv("FAKECUDA_DELAYED");
    return value && *value == '1';
}

static Context *current() { return contexts().empty() ? nullptr : contexts().back(); }

// The memory that an address is in.
static std::map<uint64_t, Memory>::iterator memory_of(uint64_t address)
{
    auto found = memories.upper_bound(address);
    if (found == memories.begin())
        return memories.end();
    --found;
    return address - found->first < found->second.bytes ? found : memories.end();
}

// Dies, if that is wanted, since it reads memory of another process.
static void die_at(uint64_t address)
{
    const char *value = getenv("FAKECUDA_KILL");
    auto found = memory_of(address);
    if (value && !strcmp(value, "copy") && found != memories.end() && found->second.is_imported)
        raise(SIGKILL);
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

// Whether a handle was made in a context as it is now.
template <typename Handle> static bool is_alive(const Handle *handle)
{
    return handle && handle->context_id == handle->context->id;
}

// Does the oldest `steps` of a stream.
static int run(Stream *stream, size_t steps)
{
    int status = SUCCESS;
    // Programs that poll ask all the time; rights of much memory take long to change.
    if (steps == 0 || stream->work.empty())
        return status;
    Opened opened;
    for (; steps > 0 && !stream->work.empty(); steps--) {
        auto step = std::move(stream->work.front());
        stream->work.pop_front();
        if (int failed = step())
            status = failed;
    }
    return status;
}

static int run(Stream *stream) { return run(stream, stream->work.size()); }

// Whether it is the legacy default stream: CU_STREAM_LEGACY, or null.
static bool is_legacy(const Stream *stream) { return (uintptr_t)stream <= 1; }

// What the legacy default stream waits for: all work of the other streams of the current context.
static int run_all()
{
    int status = SUCCESS;
    for (Stream *stream : streams)
        if (stream->context == current() && is_alive(stream))
            if (int failed = run(stream))
                status = failed;
    return status;
}

static int submit(Stream *stream, std::function<int()> step)
{
    // Work of the legacy default stream is done in the call: other streams wait for it.
    if (is_legacy(stream)) {
        if (!current())
            return INVALID_CONTEXT;
        if (int failed = run_all())
            return failed;
        Opened opened;
        return step();
    }
    if (!is_alive(stream) || !current())
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
        {ALREADY_MAPPED, "CUDA_ERROR_ALREADY_MAPPED"},   {NOT_SUPPORTED, "CUDA_ERROR_NOT_SUPPORTED"},
        {INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT"}, {INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE"},
        {NOT_READY, "CUDA_ERROR_NOT_READY"},             {NOT_FOUND, "CUDA_ERROR_NOT_FOUND"},             {ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS"},
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

CALL cuDevicePrimaryCtxRelease_v2(int device) { return device < 0 || device > 1 ? INVALID_VALUE : SUCCESS; }

static int release(std::map<uint64_t, Memory>::iterator found);

// All that belongs to the context is gone; the next one has the same handle.
CALL cuDevicePrimaryCtxReset_v2(int device)
{
    std::lock_guard lock(one);
    if (device < 0 || device > 1)
        return INVALID_VALUE;
    for (auto memory = memories.begin(); memory != memories.end();) {
        auto next = std::next(memory);
        if (memory->second.context == &primary[device])
            release(memory);
        memory = next;
    }
    primary[device].id = next_context++;
    return SUCCESS;
}

CALL cuDriverGetVersion(int *version)
{
    *version = 12000;
    return SUCCESS;
}

CALL cuDeviceGetCount(int *count)
{
    *count = 2;
    return initialized ? SUCCESS : NOT_INITIALIZED;
}

CALL cuDeviceGet(int *device, int ordinal)
{
    *device = ordinal;
    return ordinal < 0 || ordinal > 1 ? INVALID_VALUE : SUCCESS;
}

CALL cuDeviceGetName(char *name, int length, int device)
{
    snprintf(name, length, "libcopy stand-in %d (no GPU)", device);
    return SUCCESS;
}

CALL cuDeviceGetUuid_v2(unsigned char *uuid, int device)
{
    memcpy(uuid, "libcopy-standin", 15);
    uuid[15] = device;
    return SUCCESS;
}

CALL cuDeviceGetAttribute(int *value, int attribute, int)
{
    switch (attribute) {
    case 16: // MULTIPROCESSOR_COUNT
        *value = 4;
        return SUCCESS;
    case 75: // COMPUTE_CAPABILITY_MAJOR
        *value = 9;
        return SUCCESS;
    case 76: // COMPUTE_CAPABILITY_MINOR
        *value = 0;
        return SUCCESS;
    }
    return INVALID_VALUE;
}

CALL cuDeviceCanAccessPeer(int *can, int, int)
{
    *can = 1;
    return SUCCESS;
}

CALL cuCtxGetId(Context *context, unsigned long long *id)
{
    std::lock_guard lock(one);
    context = context ? context : current();
    if (context != &primary[0] && context != &primary[1])
        return INVALID_CONTEXT;
    *id = context->id;
    return SUCCESS;
}

CALL cuCtxGetDevice(int *device)
{
    if (!current())
        return INVALID_CONTEXT;
    *device = current()->device;
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
    contexts().push_back(context);
    return SUCCESS;
}

CALL cuCtxPopCurrent_v2(Context **context)
{
    if (contexts().empty())
        return INVALID_CONTEXT;
    *context = contexts().back();
    contexts().pop_back();
    return SUCCESS;
}

// Maps a file of device memory, without rights where a processor must not touch it.
static void *map(int file, uint64_t mapped, Kind kind)
{
    const int rights = kind == ON_DEVICE ? PROT_NONE : PROT_READ | PROT_WRITE;
    auto old = freed.find(mapped);
    if (old != freed.end()) {
        void *place = mmap((void *)old->second, mapped, rights, MAP_SHARED | MAP_FIXED_NOREPLACE, file, 0);
        freed.erase(old);
        if (place != MAP_FAILED)
            return place;
    }
    return mmap(nullptr, mapped, rights, MAP_SHARED, file, 0);
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
    void *place = map(file, mapped, kind);
    if (place == MAP_FAILED)
        return OUT_OF_MEMORY;
    *address = (uint64_t)place;
    memories[*address] = {bytes, mapped, kind, current(), next_id++, file, false};
    return SUCCESS;
}

static int release(std::map<uint64_t, Memory>::iterator found)
{
    // Work that was submitted before uses it.
    for (Stream *stream : streams)
        run(stream);
    munmap((void *)found->first, found->second.mapped);
    freed.insert({found->second.mapped, found->first});
    close(found->second.file);
    memories.erase(found);
    return SUCCESS;
}

static int release(uint64_t address, bool is_host)
{
    std::lock_guard lock(one);
    auto found = memories.find(address);
    if (found == memories.end() || found->second.is_imported || (found->second.kind == PINNED) != is_host)
        return INVALID_VALUE;
    return release(found);
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
        case 7: // BUFFER_ID
            *(unsigned long long *)values[i] = is_known ? found->second.id : 0;
            break;
        case 9: // DEVICE_ORDINAL
            *(int *)values[i] = is_known ? found->second.context->device : -2;
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

CALL cuPointerSetAttribute(const void *, int attribute, uint64_t address)
{
    std::lock_guard lock(one);
    const int SYNC_MEMOPS = 6;
    auto found = memory_of(address);
    return attribute == SYNC_MEMOPS && found != memories.end() && found->second.kind == ON_DEVICE ? SUCCESS
                                                                                                    : INVALID_VALUE;
}

CALL cuMemGetAddressRange_v2(uint64_t *base, size_t *bytes, uint64_t address)
{
    std::lock_guard lock(one);
    auto found = memory_of(address);
    if (found == memories.end())
        return NOT_FOUND;
    *base = found->first;
    *bytes = found->second.bytes;
    return SUCCESS;
}

// What a handle of 64 bytes has in it.
struct IpcHandle {
    int process, file;
    uint64_t inode, bytes, mapped;
    char rest[32];
};
static_assert(sizeof(IpcHandle) == 64);

static bool is_ipc_refused()
{
    const char *value = getenv("FAKECUDA_IPC");
    return value && *value == '0';
}

CALL cuIpcGetMemHandle(IpcHandle *handle, uint64_t address)
{
    std::lock_guard lock(one);
    auto found = memory_of(address);
    if (is_ipc_refused())
        return NOT_SUPPORTED;
    if (found == memories.end() || found->second.kind != ON_DEVICE || found->second.is_imported)
        return INVALID_VALUE;
    struct stat stat;
    fstat(found->second.file, &stat);
    *handle = {getpid(), found->second.file, stat.st_ino, found->second.bytes, found->second.mapped, {}};
    return SUCCESS;
}

CALL cuIpcOpenMemHandle_v2(uint64_t *address, IpcHandle handle, unsigned)
{
    std::lock_guard lock(one);
    if (!current())
        return INVALID_CONTEXT;
    if (is_ipc_refused())
        return NOT_SUPPORTED;
    if (handle.process == getpid())
        return INVALID_CONTEXT;
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/fd/%d", handle.process, handle.file);
    const int file = open(path, O_RDWR | O_CLOEXEC);
    struct stat stat;
    if (file < 0 || fstat(file, &stat) || stat.st_ino != handle.inode) {
        if (file >= 0)
            close(file);
        return INVALID_VALUE;
    }
    for (auto &[place, memory] : memories) {
        struct stat other;
        if (memory.is_imported && !fstat(memory.file, &other) && other.st_ino == stat.st_ino) {
            close(file);
            return ALREADY_MAPPED;
        }
    }
    void *place = map(file, handle.mapped, ON_DEVICE);
    if (place == MAP_FAILED)
        return OUT_OF_MEMORY;
    *address = (uint64_t)place;
    memories[*address] = {handle.bytes, handle.mapped, ON_DEVICE, current(), next_id++, file, true};
    return SUCCESS;
}

CALL cuIpcCloseMemHandle(uint64_t address)
{
    std::lock_guard lock(one);
    auto found = memories.find(address);
    if (found == memories.end() || !found->second.is_imported)
        return INVALID_VALUE;
    return release(found);
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

CALL cuModuleGetFunction(Function **function, void *module, const char *name)
{
    if (module != current())
        return INVALID_CONTEXT;
    const Named *named = kernel_named(name);
    if (!named)
        return NOT_FOUND;
    *function = new Function{named, current(), current()->id, 48 << 10};
    return SUCCESS;
}

CALL cuFuncSetAttribute(Function *function, int attribute, int value)
{
    const int MAX_DYNAMIC_SHARED_SIZE_BYTES = 8;
    if (!is_alive(function) || attribute != MAX_DYNAMIC_SHARED_SIZE_BYTES || value > 227 << 10)
        return INVALID_VALUE;
    function->shared_limit = value;
    return SUCCESS;
}

CALL cuStreamCreate(Stream **stream, unsigned)
{
    std::lock_guard lock(one);
    if (!current())
        return INVALID_CONTEXT;
    streams.push_back(*stream = new Stream{current(), current()->id, {}});
    return SUCCESS;
}

CALL cuStreamDestroy_v2(Stream *stream)
{
    std::lock_guard lock(one);
    if (!is_alive(stream))
        return INVALID_HANDLE;
    run(stream);
    streams.erase(std::find(streams.begin(), streams.end(), stream));
    delete stream;
    return SUCCESS;
}

CALL cuStreamSynchronize(Stream *stream)
{
    std::lock_guard lock(one);
    in_a_row = 0;
    if (is_legacy(stream))
        return run_all();
    return is_alive(stream) ? run(stream) : INVALID_HANDLE;
}

CALL cuEventCreate(Event **event, unsigned)
{
    if (!current())
        return INVALID_CONTEXT;
    *event = new Event{current(), current()->id, nullptr, true, SUCCESS, 0, {}};
    return SUCCESS;
}

CALL cuEventDestroy_v2(Event *event)
{
    std::lock_guard lock(one);
    if (!is_alive(event))
        return INVALID_HANDLE;
    if (!event->is_done)
        run(event->stream);
    delete event;
    return SUCCESS;
}

CALL cuEventRecord(Event *event, Stream *stream)
{
    std::lock_guard lock(one);
    if (!is_alive(event))
        return INVALID_HANDLE;
    event->stream = stream;
    event->is_done = false;
    const uint64_t record = ++event->records;
    return submit(stream, [=] {
        event->is_done = record == event->records;
        event->at = std::chrono::steady_clock::now();
        return SUCCESS;
    });
}

CALL cuEventQuery(Event *event)
{
    std::lock_guard lock(one);
    in_a_row = 0;
    if (!is_alive(event))
        return INVALID_HANDLE;
    if (!event->is_done)
        if (int failed = run(event->stream, 1))
            return failed;
    return event->is_done ? SUCCESS : NOT_READY;
}

CALL cuEventSynchronize(Event *event)
{
    std::lock_guard lock(one);
    in_a_row = 0;
    if (!is_alive(event))
        return INVALID_HANDLE;
    int status = SUCCESS;
    while (!event->is_done && !status)
        status = run(event->stream, 1);
    return status;
}

CALL cuEventElapsedTime(float *milliseconds, Event *from, Event *to)
{
    std::lock_guard lock(one);
    if (!is_alive(from) || !is_alive(to))
        return INVALID_HANDLE;
    if (!from->is_done || !to->is_done)
        return NOT_READY;
    *milliseconds = std::chrono::duration<float, std::milli>(to->at - from->at).count();
    return SUCCESS;
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
    die_at(from);
    return submit(stream, [=] {
        memcpy((void *)to, (const void *)from, bytes);
        return SUCCESS;
    });
}

// CUmemcpyAttributes
struct BatchAttributes {
    unsigned access_order;
    int locations[2][2];
    unsigned flags;
};
static_assert(sizeof(BatchAttributes) == 24);

// That of CUDA 12.8. Copies of a batch are done in any order: here from the last one to the first.
CALL cuMemcpyBatchAsync(uint64_t *to, uint64_t *from, size_t *bytes, size_t count, BatchAttributes *attributes,
                        size_t *first, size_t attribute_count, size_t *wrong, Stream *stream)
{
    std::lock_guard lock(one);
    const unsigned ORDER_MAX = 3;
    if (is_legacy(stream) || !count || attribute_count != 1 || *first || !attributes->access_order ||
        attributes->access_order > ORDER_MAX || attributes->flags > 1)
        return INVALID_VALUE;
    for (*wrong = 0; *wrong < count; ++*wrong)
        for (uint64_t address : {to[*wrong], from[*wrong]}) {
            auto found = memory_of(address);
            if (!bytes[*wrong] ||
                (found != memories.end() && address - found->first + bytes[*wrong] > found->second.bytes))
                return INVALID_VALUE;
        }
    *wrong = SIZE_MAX;
    copies++;
    std::vector<uint64_t> targets(to, to + count), sources(from, from + count);
    std::vector<size_t> lengths(bytes, bytes + count);
    return submit(stream, [=] {
        for (size_t i = count; i-- > 0;)
            memcpy((void *)targets[i], (const void *)sources[i], lengths[i]);
        return SUCCESS;
    });
}

// CUDA_MEMCPY2D
struct Rectangle {
    struct Place {
        size_t x, y;
        unsigned type;
        void *host;
        uint64_t device;
        void *array;
        size_t pitch;
        uint64_t at() const { return device + y * pitch + x; }
    } from, to;
    size_t width, height;
};

CALL cuMemcpy2DAsync_v2(const Rectangle *rectangle, Stream *stream)
{
    std::lock_guard lock(one);
    const unsigned UNIFIED = 4;
    const Rectangle copy = *rectangle;
    for (const Rectangle::Place *place : {&copy.from, &copy.to}) {
        if (place->type != UNIFIED || (copy.height > 1 && place->pitch < copy.width))
            return INVALID_VALUE;
        auto found = memory_of(place->at());
        const uint64_t end = place->at() + (copy.height - 1) * place->pitch + copy.width;
        if (found != memories.end() && end > found->first + found->second.bytes)
            return INVALID_VALUE;
    }
    copies++;
    return submit(stream, [=] {
        for (size_t row = 0; row < copy.height; row++)
            memcpy((void *)(copy.to.at() + row * copy.to.pitch), (const void *)(copy.from.at() + row * copy.from.pitch),
                   copy.width);
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

static bool is_reached(const Job &job) { return is_reached(job.to) && is_reached(job.from); }

CALL cuLaunchKernel(const Function *function, unsigned blocks, unsigned y, unsigned z, unsigned threads,
                    unsigned thread_y, unsigned thread_z, unsigned shared, Stream *stream, void **parameters,
                    void **extra)
{
    std::lock_guard lock(one);
    if (!is_alive(function) || function->context != current())
        return INVALID_HANDLE;
    const Named *named = function->named;
    const Extent grid{blocks, y, z}, block{threads, thread_y, thread_z};
    if (!named->takes(grid, block) || y > 65535 || z > 65535 || thread_z > 64 || extra ||
        shared != named->shared || shared > function->shared_limit)
        return INVALID_VALUE;
    launches++;
    most_in_a_row = std::max(most_in_a_row, ++in_a_row);
    if (named->stencil) {
        const Stencil task = *(const Stencil *)parameters[0];
        return submit(stream, [=] {
            const uint64_t bytes = (task.rows + 2) * (task.columns + 2) * 8;
            for (uint64_t address : {task.from, task.to}) {
                auto found = memory_of(address);
                if (found == memories.end() || address - found->first + bytes > found->second.bytes)
                    return ILLEGAL_ADDRESS;
            }
            emulate(named->stencil, grid, block, task);
            return SUCCESS;
        });
    }
    if (!named->kernel) {
        const Batch table = *(const Batch *)parameters[0];
        return submit(stream, [=] {
            if (memory_of(table.jobs) == memories.end() || memory_of(table.first) == memories.end())
                return ILLEGAL_ADDRESS;
            for (uint64_t i = 0; i < table.count; i++)
                if (!is_reached(((const Job *)table.jobs)[i]))
                    return ILLEGAL_ADDRESS;
            emulate(batch, grid, block, table);
            return SUCCESS;
        });
    }
    const Job job = *(const Job *)parameters[0];
    die_at(job.from.base);
    return submit(stream, [=] {
        if (!is_reached(job))
            return ILLEGAL_ADDRESS;
        emulate(named->kernel, grid, block, job);
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

// The most launches without a wait in between, since the last call of this.
extern "C" uint64_t fakecuda_launches_in_a_row()
{
    std::lock_guard lock(one);
    const uint64_t most = most_in_a_row;
    most_in_a_row = in_a_row = 0;
    return most;
}
