// A libcuda.so.1 whose device is the CPU: enough of the driver for the texture store, called through cuda-bindings.
//
// Arrays are ordinary memory, a kernel runs where it is launched. With `on_cpu_late(1)` a stream runs nothing until
// somebody waits for it: work that lacks an event then sees memory that is too new or too old. `on_cpu_fail` makes a
// call fail, `on_cpu_live` counts what was not freed, and `on_cpu_calls` tells which calls were made.
#include "cuda_on_cpu.h"

#include "channels.cu"
#include "difference.cu"
#include "fetch.cu"
#include "gather.cu"
#include "scores.cu"
#include "upload.cu"

#include <cstdio>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <tuple>
#include <utility>

#include <dlfcn.h>

enum { SUCCESS = 0, INVALID_VALUE = 1, INVALID_PTX = 218, UNSUPPORTED_PTX = 222, NOT_FOUND = 500, LAUNCH_FAILED = 719 };

typedef void (*Invoke)(const std::vector<void *> &);

template <auto function>
struct Kernel;

template <class... A, void (*function)(A...)>
struct Kernel<function> {
    template <size_t... I>
    static void with(const std::vector<void *> &values, std::index_sequence<I...>) {
        function(*(A *)values[I]...);
    }
    static void invoke(const std::vector<void *> &values) {
        with(values, std::index_sequence_for<A...>{});
    }
    static std::vector<size_t> sizes() {
        return {sizeof(A)...};
    }
};

struct Entry {
    Invoke invoke;
    std::vector<size_t> sizes;
};

#define ENTRY(name) {#name, {Kernel<name>::invoke, Kernel<name>::sizes()}}

static std::map<std::string, Entry> KERNELS = {
    ENTRY(upload_tiles), ENTRY(upload_frame),  ENTRY(gather_bytes),     ENTRY(gather_halves),      ENTRY(fetch_fine),
    ENTRY(fetch_coarse), ENTRY(compare_frame), ENTRY(tile_channels),    ENTRY(cluster_distance),   ENTRY(information_scores),
    ENTRY(top_k),
};

struct Stream {
    std::deque<std::function<void()>> waiting;
    size_t begun = 0, done = 0;
};
struct Event {
    void *stream = nullptr;
    size_t ticket = 0;
};
struct Module {
    std::set<std::string> entries;
};
struct Resource {
    MipmappedArray *array;
    bool mapped;
};

static std::recursive_mutex guard;
static std::map<void *, Stream> streams;
static std::map<std::string, int> live;
static std::map<std::string, std::pair<int, int>> failing;
static std::string calls;
static std::map<unsigned, MipmappedArray> gl_textures;
static std::string last_failure;
static int driver_version = 13000;
static int failed;
static bool late;

// Notes a call; the status that it shall fail with, or 0. What failed once stays failed, as a context does.
static int entered(const char *name) {
    calls += std::string(name) + "\n";
    const auto wanted = failing.find(name);
    if (wanted != failing.end() && wanted->second.second-- <= 0) {
        const int status = wanted->second.first;
        failing.erase(wanted);
        return status;
    }
    return failed;
}

#define ENTER(name)                                  \
    std::lock_guard<std::recursive_mutex> lock(guard); \
    if (const int status = entered(name)) return status

static void run_until(void *handle, size_t ticket) {
    Stream &stream = streams[handle];
    while (stream.done < ticket) {
        const std::function<void()> work = std::move(stream.waiting.front());
        stream.waiting.pop_front();
        ++stream.done;
        work();
    }
}

static int enqueue(void *handle, std::function<void()> work) {
    Stream &stream = streams[handle];
    stream.waiting.push_back(std::move(work));
    ++stream.begun;
    if (!late) {
        run_until(handle, stream.begun);
    }
    return failed;
}

static MipmappedArray array_of(size_t width, size_t height, unsigned levels) {
    MipmappedArray array;
    for (unsigned level = 0; level < levels; ++level) {
        const int across = std::max(1, (int)(width >> level)), down = std::max(1, (int)(height >> level));
        array.levels.push_back({across, down, std::vector<uchar4>((size_t)across * down, uchar4{7, 7, 7, 7})});
    }
    return array;
}

extern "C" {

void on_cpu_late(int wanted) { late = wanted != 0; }
void on_cpu_descending(int wanted) { block::descending = wanted != 0; }
void on_cpu_driver_version(int version) { driver_version = version; }
void on_cpu_fail(const char *name, int status, int after) { failing[name] = {status, after}; }
void on_cpu_recover() {
    failed = 0;
    failing.clear();
}
int on_cpu_live(const char *kind) { return live[kind]; }
void on_cpu_forget_calls() { calls.clear(); }
const char *on_cpu_calls() { return calls.c_str(); }
const char *on_cpu_failure() { return last_failure.c_str(); }
void on_cpu_gl_texture(unsigned name, int width, int height, int levels) { gl_textures[name] = array_of(width, height, levels); }
const uchar4 *on_cpu_gl_texels(unsigned name, int level) { return gl_textures.at(name).levels.at(level).texels.data(); }
int on_cpu_parameters(const char *name, size_t *sizes) {
    const std::vector<size_t> &known = KERNELS.at(name).sizes;
    std::copy(known.begin(), known.end(), sizes);
    return (int)known.size();
}

int cuInit(unsigned) { return SUCCESS; }
int cuDriverGetVersion(int *version) {
    *version = driver_version;
    return SUCCESS;
}
int cuGetErrorName(int status, const char **name) {
    static const std::map<int, const char *> names = {{1, "CUDA_ERROR_INVALID_VALUE"}, {2, "CUDA_ERROR_OUT_OF_MEMORY"},
        {100, "CUDA_ERROR_NO_DEVICE"}, {222, "CUDA_ERROR_UNSUPPORTED_PTX_VERSION"}, {500, "CUDA_ERROR_NOT_FOUND"},
        {719, "CUDA_ERROR_LAUNCH_FAILED"}};
    const auto known = names.find(status);
    *name = known == names.end() ? "CUDA_ERROR_UNKNOWN" : known->second;
    return SUCCESS;
}
int cuDevicePrimaryCtxRetain(void **context, int device) {
    ENTER("cuDevicePrimaryCtxRetain");
    *context = (void *)(intptr_t)(device + 1);
    ++live["context"];
    return SUCCESS;
}
int cuDevicePrimaryCtxRelease(int) {
    ENTER("cuDevicePrimaryCtxRelease");
    --live["context"];
    return SUCCESS;
}
int cuCtxPushCurrent(void *) {
    ++live["pushed"];
    return SUCCESS;
}
int cuCtxPopCurrent(void **context) {
    *context = nullptr;
    --live["pushed"];
    return SUCCESS;
}
int cuCtxSynchronize() {
    ENTER("cuCtxSynchronize");
    for (auto &[handle, stream] : streams) {
        run_until(handle, stream.begun);
    }
    return failed;
}

int cuStreamSynchronize(void *stream) {
    ENTER("cuStreamSynchronize");
    run_until(stream, streams[stream].begun);
    return failed;
}

int cuModuleLoadData(void **module, const void *image) {
    ENTER("cuModuleLoadData");
    const std::string text = (const char *)image;
    const size_t at = text.find("\n.version ");
    if (at == std::string::npos) {
        return INVALID_PTX;
    }
    if (std::atoi(text.c_str() + at + 10) + 4 > driver_version / 1000) {
        return UNSUPPORTED_PTX;
    }
    Module *loaded = new Module;
    for (size_t from = 0; (from = text.find(".entry ", from)) != std::string::npos;) {
        from += 7;
        loaded->entries.insert(text.substr(from, text.find('(', from) - from));
    }
    *module = loaded;
    return SUCCESS;
}
int cuModuleUnload(void *module) {
    delete (Module *)module;
    return SUCCESS;
}
int cuModuleGetFunction(void **function, void *module, const char *name) {
    const auto known = KERNELS.find(name);
    if (known == KERNELS.end() || !((Module *)module)->entries.count(name)) {
        return NOT_FOUND;
    }
    *function = &*known;
    return SUCCESS;
}
int cuLaunchKernel(void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y,
                   unsigned block_z, unsigned, void *stream, void **parameters, void **) {
    const auto &[name, entry] = *(const std::pair<const std::string, Entry> *)function;
    ENTER(("cuLaunchKernel " + name).c_str());
    if (grid_x * grid_y * grid_z == 0 || block_x == 0 || block_x > block::MOST || block_y * block_z * grid_z != 1) {
        return INVALID_VALUE;
    }
    std::vector<std::string> copies;
    for (size_t i = 0; i < entry.sizes.size(); ++i) {
        copies.emplace_back((const char *)parameters[i], entry.sizes[i]);
    }
    const Invoke invoke = entry.invoke;
    return enqueue(stream, [copies, invoke, grid_x, grid_y, block_x]() {
        std::vector<void *> values;
        for (const std::string &copy : copies) {
            values.push_back((void *)copy.data());
        }
        if (const char *what = block::launch(invoke, values, {grid_x, grid_y, 1}, block_x)) {
            last_failure = what;
            failed = LAUNCH_FAILED;
        }
    });
}

struct ArrayDescriptor {
    size_t width, height, depth;
    int format;
    unsigned channels, flags;
};
struct ResourceDescriptor {
    int type;
    union {
        void *handle;
        int reserved[32];
    } res;
    unsigned flags;
};
struct TextureDescriptor {
    int address[3], filter;
    unsigned flags, anisotropy;
    int mip_filter;
    float bias, least, most, border[4];
    int reserved[12];
};

int cuMipmappedArrayCreate(void **array, const ArrayDescriptor *wanted, unsigned levels) {
    ENTER("cuMipmappedArrayCreate");
    const bool rgba8 = wanted->format == 1 && wanted->channels == 4 && wanted->depth == 0;
    if (!rgba8 || wanted->flags != 2 || wanted->width == 0 || wanted->height == 0) {
        return INVALID_VALUE;
    }
    *array = new MipmappedArray(array_of(wanted->width, wanted->height, levels));
    ++live["array"];
    return SUCCESS;
}
int cuMipmappedArrayDestroy(void *array) {
    ENTER("cuMipmappedArrayDestroy");
    delete (MipmappedArray *)array;
    --live["array"];
    return SUCCESS;
}
int cuMipmappedArrayGetLevel(void **level, void *array, unsigned index) {
    ENTER("cuMipmappedArrayGetLevel");
    std::vector<Level> &levels = ((MipmappedArray *)array)->levels;
    if (index >= levels.size()) {
        return INVALID_VALUE;
    }
    *level = &levels[index];
    return SUCCESS;
}
int cuSurfObjectCreate(unsigned long long *surface, const ResourceDescriptor *wanted) {
    ENTER("cuSurfObjectCreate");
    if (wanted->type != 0 || wanted->flags != 0) {
        return INVALID_VALUE;
    }
    *surface = (unsigned long long)new SurfaceObject{(Level *)wanted->res.handle};
    ++live["surface"];
    return SUCCESS;
}
int cuSurfObjectDestroy(unsigned long long surface) {
    ENTER("cuSurfObjectDestroy");
    delete (SurfaceObject *)surface;
    --live["surface"];
    return SUCCESS;
}
int cuTexObjectCreate(unsigned long long *texture, const ResourceDescriptor *wanted, const TextureDescriptor *how,
                      const void *) {
    ENTER("cuTexObjectCreate");
    const bool edge_clamped = how->address[0] == 1 && how->address[1] == 1;
    if (wanted->type != 1 || !edge_clamped || how->filter != 0 || how->mip_filter != 0 || how->flags != 3) {
        return INVALID_VALUE;
    }
    *texture = (unsigned long long)new TextureObject{(MipmappedArray *)wanted->res.handle, how->least, how->most};
    ++live["texture"];
    return SUCCESS;
}
int cuTexObjectDestroy(unsigned long long texture) {
    ENTER("cuTexObjectDestroy");
    delete (TextureObject *)texture;
    --live["texture"];
    return SUCCESS;
}

int cuMemHostAlloc(void **memory, size_t bytes, unsigned) {
    ENTER("cuMemHostAlloc");
    *memory = std::malloc(bytes);
    ++live["pinned"];
    return SUCCESS;
}
int cuMemFreeHost(void *memory) {
    ENTER("cuMemFreeHost");
    std::free(memory);
    --live["pinned"];
    return SUCCESS;
}
int cuMemAlloc(unsigned long long *memory, size_t bytes) {
    ENTER("cuMemAlloc");
    *memory = (unsigned long long)std::malloc(bytes);
    ++live["memory"];
    return SUCCESS;
}
int cuMemFree(unsigned long long memory) {
    ENTER("cuMemFree");
    std::free((void *)memory);
    --live["memory"];
    return SUCCESS;
}
int cuMemcpyHtoDAsync(unsigned long long to, const void *from, size_t bytes, void *stream) {
    ENTER("cuMemcpyHtoDAsync");
    return enqueue(stream, [=]() { std::memcpy((void *)to, from, bytes); });
}
int cuMemcpyDtoHAsync(void *to, unsigned long long from, size_t bytes, void *stream) {
    ENTER("cuMemcpyDtoHAsync");
    return enqueue(stream, [=]() { std::memcpy(to, (const void *)from, bytes); });
}

struct Side {
    size_t x, y, z, lod;
    int type;
    const void *host;
    unsigned long long device;
    void *array, *reserved;
    size_t pitch, height;
};
struct Copy3D {
    Side from, to;
    size_t width_bytes, height, depth;
};

int cuMemcpy3DAsync(const Copy3D *wanted, void *stream) {
    ENTER("cuMemcpy3DAsync");
    const Copy3D copy = *wanted;
    if (copy.from.type != 3 || copy.to.type != 3 || copy.depth != 1) {
        return INVALID_VALUE;
    }
    return enqueue(stream, [copy]() {
        const Level &from = *(const Level *)copy.from.array;
        Level &to = *(Level *)copy.to.array;
        for (size_t y = 0; y < copy.height; ++y) {
            std::memcpy(&to.texels.at(y * to.width), &from.texels.at(y * from.width), copy.width_bytes);
        }
    });
}

int cuEventCreate(void **event, unsigned) {
    ENTER("cuEventCreate");
    *event = new Event;
    ++live["event"];
    return SUCCESS;
}
int cuEventDestroy(void *event) {
    ENTER("cuEventDestroy");
    delete (Event *)event;
    --live["event"];
    return SUCCESS;
}
int cuEventRecord(void *event, void *stream) {
    ENTER("cuEventRecord");
    *(Event *)event = {stream, streams[stream].begun};
    return SUCCESS;
}
int cuEventSynchronize(void *event) {
    ENTER("cuEventSynchronize");
    run_until(((Event *)event)->stream, ((Event *)event)->ticket);
    return failed;
}
int cuEventElapsedTime(float *milliseconds, void *start, void *end) {
    *milliseconds = (float)(((Event *)end)->ticket - ((Event *)start)->ticket);
    return SUCCESS;
}
int cuStreamWaitEvent(void *stream, void *event, unsigned) {
    ENTER("cuStreamWaitEvent");
    const Event then = *(Event *)event;
    return enqueue(stream, [then]() { run_until(then.stream, then.ticket); });
}

int cuGraphicsGLRegisterImage(void **resource, unsigned image, unsigned target, unsigned) {
    ENTER("cuGraphicsGLRegisterImage");
    const auto known = gl_textures.find(image);
    if (known == gl_textures.end() || target != 0x0DE1) {
        return INVALID_VALUE;
    }
    *resource = new Resource{&known->second, false};
    ++live["registered"];
    return SUCCESS;
}
int cuGraphicsUnregisterResource(void *resource) {
    ENTER("cuGraphicsUnregisterResource");
    if (((Resource *)resource)->mapped) {
        return INVALID_VALUE;
    }
    delete (Resource *)resource;
    --live["registered"];
    return SUCCESS;
}
int cuGraphicsMapResources(unsigned, void **resources, void *) {
    ENTER("cuGraphicsMapResources");
    ((Resource *)*resources)->mapped = true;
    ++live["mapped"];
    return SUCCESS;
}
int cuGraphicsUnmapResources(unsigned, void **resources, void *) {
    ENTER("cuGraphicsUnmapResources");
    ((Resource *)*resources)->mapped = false;
    --live["mapped"];
    return SUCCESS;
}
int cuGraphicsResourceGetMappedMipmappedArray(void **array, void *resource) {
    ENTER("cuGraphicsResourceGetMappedMipmappedArray");
    *array = ((Resource *)resource)->array;
    return ((Resource *)resource)->mapped ? SUCCESS : INVALID_VALUE;
}
int cuGraphicsSubResourceGetMappedArray(void **level, void *resource, unsigned, unsigned index) {
    ENTER("cuGraphicsSubResourceGetMappedArray");
    *level = &((Resource *)resource)->array->levels.at(index);
    return ((Resource *)resource)->mapped ? SUCCESS : INVALID_VALUE;
}

int cuGetProcAddress_v2(const char *name, void **function, int, unsigned long long, int *status) {
    static void *self = dlopen("libcuda.so.1", RTLD_NOLOAD | RTLD_NOW);
    *function = dlsym(self, name);
    if (status) {
        *status = *function ? 0 : 1;
    }
    return *function ? SUCCESS : NOT_FOUND;
}

}  // extern "C"
