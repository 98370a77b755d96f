// Memory of all kinds, shared with other processes by name: plain, pinned, mipmapped arrays with surfaces and texture objects, and textures of OpenGL.
#pragma once

#include "streams.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <unistd.h>

struct Shared {
    int file;
    size_t bytes;
};
struct IpcHandle {
    char name[52];
    int process;
    unsigned long long bytes;
};

// What cuMemAlloc gave, and what was opened of other processes, by address. Whoever opens memory holds a lock on its file.
static std::map<unsigned long long, Shared> own_memory, opened_memory;
static bool two_processes;

// Texture and surface objects, with what must be there for as long as work uses them.
static std::map<unsigned long long, std::vector<size_t>> handles;

struct Resource {
    MipmappedArray *array;
    bool mapped;
};

static std::map<unsigned, MipmappedArray> gl_textures;
static int gl_device, largest_side = 32768;

static bool gl_is_current() {
    static void *library = dlopen("libEGL.so.1", RTLD_NOLOAD | RTLD_NOW);
    static auto current = library ? (void *(*)())dlsym(library, "eglGetCurrentContext") : nullptr;
    return current != nullptr && current() != nullptr;
}

#define ENTER_GL(name)     \
    ENTER(name);           \
    if (!gl_is_current()) return refused(INVALID_GRAPHICS_CONTEXT, name ": no context of OpenGL is current")

static MipmappedArray array_of(size_t width, size_t height, unsigned levels) {
    MipmappedArray array;
    for (unsigned level = 0; level < levels; ++level) {
        const int across = std::max(1, (int)(width >> level)), down = std::max(1, (int)(height >> level));
        array.levels.push_back({across, down, std::vector<uchar4>((size_t)across * down, uchar4{7, 7, 7, 7}), nullptr});
    }
    return array;
}

extern "C" {

void on_cpu_two_processes(int wanted) {
    two_processes = wanted != 0;
}
void on_cpu_gl_device(int device) {
    gl_device = device;
}
void on_cpu_largest_side(int side) {
    largest_side = side;
}
void on_cpu_gl_texture(unsigned name, int width, int height, int levels) {
    gl_textures[name] = array_of(width, height, levels);
}
const uchar4 *on_cpu_gl_texels(unsigned name, int level) {
    return gl_textures.at(name).levels.at(level).texels.data();
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
    const size_t width = wanted->width, height = wanted->height, most = (size_t)largest_side;
    if (!rgba8 || wanted->flags != 2 || width == 0 || height == 0 || width > most || height > most) {
        return INVALID_VALUE;
    }
    MipmappedArray *made = new MipmappedArray(array_of(width, height, levels));
    made->id = born();
    *array = made;
    ++live["array"];
    return SUCCESS;
}
int cuMipmappedArrayDestroy(void *array) {
    ENTER("cuMipmappedArrayDestroy");
    alive.erase(((MipmappedArray *)array)->id);
    delete (MipmappedArray *)array;
    --live["array"];
    return SUCCESS;
}
int cuMipmappedArrayGetLevel(void **level, void *array, unsigned index) {
    ENTER("cuMipmappedArrayGetLevel");
    std::vector<Level> &levels = ((MipmappedArray *)array)->levels;
    if (index >= levels.size() || !alive.count(((MipmappedArray *)array)->id)) {
        return INVALID_VALUE;
    }
    levels[index].array = (MipmappedArray *)array;
    *level = &levels[index];
    return SUCCESS;
}
// Whether a texture or surface object was there, which is so no more.
static bool forgotten(unsigned long long handle) {
    const auto known = handles.find(handle);
    if (known == handles.end()) {
        return false;
    }
    alive.erase(known->second.front());
    handles.erase(known);
    return true;
}

int cuSurfObjectCreate(unsigned long long *surface, const ResourceDescriptor *wanted) {
    ENTER("cuSurfObjectCreate");
    Level *level = (Level *)wanted->res.handle;
    if (wanted->type != 0 || wanted->flags != 0 || !alive.count(level->array->id)) {
        return INVALID_VALUE;
    }
    *surface = (unsigned long long)new SurfaceObject{level};
    handles[*surface] = {born(), level->array->id};
    ++live["surface"];
    return SUCCESS;
}
int cuSurfObjectDestroy(unsigned long long surface) {
    ENTER("cuSurfObjectDestroy");
    if (!forgotten(surface)) {
        return INVALID_HANDLE;
    }
    delete (SurfaceObject *)surface;
    --live["surface"];
    return SUCCESS;
}
int cuTexObjectCreate(unsigned long long *texture, const ResourceDescriptor *wanted, const TextureDescriptor *how,
                      const void *) {
    ENTER("cuTexObjectCreate");
    const bool edge_clamped = how->address[0] == 1 && how->address[1] == 1;
    const bool nearest_bytes = how->filter == 0 && how->mip_filter == 0 && how->flags == 3;
    const bool blended_floats = how->filter == 1 && how->mip_filter == 1 && how->flags == 2;
    MipmappedArray *array = (MipmappedArray *)wanted->res.handle;
    if (wanted->type != 1 || !edge_clamped || !(nearest_bytes || blended_floats) || !alive.count(array->id)) {
        return INVALID_VALUE;
    }
    *texture = (unsigned long long)new TextureObject{array, how->least, how->most};
    handles[*texture] = {born(), array->id};
    ++live["texture"];
    return SUCCESS;
}
int cuTexObjectDestroy(unsigned long long texture) {
    ENTER("cuTexObjectDestroy");
    if (!forgotten(texture)) {
        return INVALID_HANDLE;
    }
    delete (TextureObject *)texture;
    --live["texture"];
    return SUCCESS;
}

// Whether a range was there, which is so no more.
static bool released(unsigned long long address) {
    const auto known = ranges.find(address);
    if (known == ranges.end()) {
        return false;
    }
    alive.erase(known->second.id);
    ranges.erase(known);
    return true;
}

int cuMemHostAlloc(void **memory, size_t bytes, unsigned) {
    ENTER("cuMemHostAlloc");
    if (bytes == 0) {
        return INVALID_VALUE;
    }
    *memory = std::malloc(bytes);
    ranges[(unsigned long long)*memory] = {bytes, born()};
    ++live["pinned"];
    return SUCCESS;
}
int cuMemFreeHost(void *memory) {
    ENTER("cuMemFreeHost");
    if (!released((unsigned long long)memory)) {
        return INVALID_VALUE;
    }
    std::free(memory);
    --live["pinned"];
    return SUCCESS;
}
static bool mapped_file(unsigned long long *memory, int file, size_t bytes) {
    void *made = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    *memory = (unsigned long long)made;
    return made != MAP_FAILED;
}

int cuMemAlloc(unsigned long long *memory, size_t bytes) {
    ENTER("cuMemAlloc");
    const int file = memfd_create("cuda-on-cpu", MFD_CLOEXEC);
    if (bytes == 0 || file < 0 || ftruncate(file, (off_t)bytes) != 0 || !mapped_file(memory, file, bytes)) {
        return INVALID_VALUE;
    }
    own_memory[*memory] = {file, bytes};
    ranges[*memory] = {bytes, born()};
    ++live["memory"];
    return SUCCESS;
}
int cuMemFree(unsigned long long memory) {
    ENTER("cuMemFree");
    const auto known = own_memory.find(memory);
    if (known == own_memory.end()) {
        return INVALID_VALUE;
    }
    if (flock(known->second.file, LOCK_EX | LOCK_NB) != 0) {
        return refused(INVALID_VALUE, "exported memory is freed while another process has it open");
    }
    released(memory);
    munmap((void *)memory, known->second.bytes);
    close(known->second.file);
    own_memory.erase(known);
    --live["memory"];
    return SUCCESS;
}
int cuIpcGetMemHandle(IpcHandle *handle, unsigned long long memory) {
    ENTER("cuIpcGetMemHandle");
    const auto known = own_memory.find(memory);
    if (known == own_memory.end()) {
        return INVALID_VALUE;
    }
    *handle = {};
    handle->process = getpid();
    std::snprintf(handle->name, sizeof handle->name, "/proc/%d/fd/%d", handle->process, known->second.file);
    handle->bytes = known->second.bytes;
    return SUCCESS;
}
int cuIpcOpenMemHandle(unsigned long long *memory, IpcHandle handle, unsigned) {
    ENTER("cuIpcOpenMemHandle");
    handle.name[sizeof handle.name - 1] = 0;
    const int file = open(handle.name, O_RDWR | O_CLOEXEC);
    if (file < 0) {
        return INVALID_VALUE;
    }
    if (handle.process == getpid() && !two_processes) {
        close(file);
        return refused(INVALID_CONTEXT, "an IPC handle is opened in the process that made it");
    }
    if (flock(file, LOCK_SH | LOCK_NB) != 0 || !mapped_file(memory, file, handle.bytes)) {
        close(file);
        return INVALID_VALUE;
    }
    opened_memory[*memory] = {file, handle.bytes};
    ranges[*memory] = {handle.bytes, born()};
    ++live["opened"];
    return SUCCESS;
}
int cuMemGetAddressRange(unsigned long long *base, size_t *bytes, unsigned long long memory) {
    ENTER("cuMemGetAddressRange");
    const auto known = ranges.find(memory);
    if (known == ranges.end()) {
        return INVALID_VALUE;
    }
    *base = known->first;
    *bytes = known->second.bytes;
    return SUCCESS;
}
int cuIpcCloseMemHandle(unsigned long long memory) {
    ENTER("cuIpcCloseMemHandle");
    const auto known = opened_memory.find(memory);
    if (known == opened_memory.end()) {
        return INVALID_VALUE;
    }
    released(memory);
    munmap((void *)memory, known->second.bytes);
    close(known->second.file);
    opened_memory.erase(known);
    --live["opened"];
    return SUCCESS;
}

static int copied(void *to, const void *from, size_t bytes, void *stream) {
    std::vector<size_t> needs;
    for (const void *side : {(const void *)to, from}) {
        const unsigned long long address = (unsigned long long)side;
        if (const Range *range = range_of(address)) {
            if (bytes != 0 && range_of(address + bytes - 1) != range) {
                return refused(INVALID_VALUE, "a copy leaves the memory that it begins in");
            }
            needs.push_back(range->id);
        }
    }
    return enqueue(stream, needs, [=]() { std::memcpy(to, from, bytes); });
}

int cuMemcpyDtoDAsync(unsigned long long to, unsigned long long from, size_t bytes, void *stream) {
    ENTER_STREAM("cuMemcpyDtoDAsync", stream);
    return copied((void *)to, (const void *)from, bytes, stream);
}
int cuMemcpyHtoDAsync(unsigned long long to, const void *from, size_t bytes, void *stream) {
    ENTER_STREAM("cuMemcpyHtoDAsync", stream);
    return copied((void *)to, from, bytes, stream);
}
int cuMemcpyDtoHAsync(void *to, unsigned long long from, size_t bytes, void *stream) {
    ENTER_STREAM("cuMemcpyDtoHAsync", stream);
    return copied(to, (const void *)from, bytes, stream);
}

int cuGLGetDevices(unsigned *count, int *devices, unsigned most, int) {
    ENTER_GL("cuGLGetDevices");
    *count = most > 0 ? 1 : 0;
    if (most > 0) {
        devices[0] = gl_device;
    }
    return SUCCESS;
}

int cuGraphicsGLRegisterImage(void **resource, unsigned image, unsigned target, unsigned) {
    ENTER_GL("cuGraphicsGLRegisterImage");
    const auto known = gl_textures.find(image);
    if (known == gl_textures.end() || target != 0x0DE1) {
        return INVALID_VALUE;
    }
    *resource = new Resource{&known->second, false};
    ++live["registered"];
    return SUCCESS;
}
int cuGraphicsUnregisterResource(void *resource) {
    ENTER_GL("cuGraphicsUnregisterResource");
    if (((Resource *)resource)->mapped) {
        return refused(INVALID_VALUE, "a resource is unregistered while it is mapped");
    }
    delete (Resource *)resource;
    --live["registered"];
    return SUCCESS;
}
int cuGraphicsMapResources(unsigned, void **resources, void *stream) {
    ENTER_STREAM("cuGraphicsMapResources", stream);
    Resource &resource = *(Resource *)*resources;
    if (!gl_is_current()) {
        return refused(INVALID_GRAPHICS_CONTEXT, "cuGraphicsMapResources: no context of OpenGL is current");
    }
    if (resource.mapped) {
        return refused(ALREADY_MAPPED, "a resource is mapped twice");
    }
    resource.mapped = true;
    resource.array->id = born();  // the array of this mapping, and of no other
    ++live["mapped"];
    return SUCCESS;
}
int cuGraphicsUnmapResources(unsigned, void **resources, void *stream) {
    ENTER_STREAM("cuGraphicsUnmapResources", stream);
    Resource &resource = *(Resource *)*resources;
    if (!resource.mapped) {
        return refused(NOT_MAPPED, "a resource is unmapped that is not mapped");
    }
    run_until(stream, streams[stream].begun);  // only work of this stream comes before
    resource.mapped = false;
    alive.erase(resource.array->id);
    --live["mapped"];
    return SUCCESS;
}
int cuGraphicsResourceGetMappedMipmappedArray(void **array, void *resource) {
    ENTER("cuGraphicsResourceGetMappedMipmappedArray");
    *array = ((Resource *)resource)->array;
    return ((Resource *)resource)->mapped ? SUCCESS : NOT_MAPPED;
}

}  // extern "C"
