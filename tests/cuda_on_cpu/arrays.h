// Memory of all kinds, shared with other processes by name: plain, pinned, mipmapped arrays with surfaces and texture objects, and textures of OpenGL.
#pragma once

#include "streams.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

struct Shared {
    std::string name;
    size_t bytes;
};
struct IpcHandle {
    char name[56];
    unsigned long long bytes;
};

// What cuMemAlloc gave, and what was opened of other processes, by address.
static std::map<unsigned long long, Shared> shared_memory;

struct Resource {
    MipmappedArray *array;
    bool mapped;
};

static std::map<unsigned, MipmappedArray> gl_textures;

static MipmappedArray array_of(size_t width, size_t height, unsigned levels) {
    MipmappedArray array;
    for (unsigned level = 0; level < levels; ++level) {
        const int across = std::max(1, (int)(width >> level)), down = std::max(1, (int)(height >> level));
        array.levels.push_back({across, down, std::vector<uchar4>((size_t)across * down, uchar4{7, 7, 7, 7})});
    }
    return array;
}

extern "C" {

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
    const bool nearest_bytes = how->filter == 0 && how->mip_filter == 0 && how->flags == 3;
    const bool blended_floats = how->filter == 1 && how->mip_filter == 1 && how->flags == 2;
    if (wanted->type != 1 || !edge_clamped || !(nearest_bytes || blended_floats)) {
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
static unsigned long long mapped_file(int file, size_t bytes) {
    void *memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    return memory == MAP_FAILED ? 0 : (unsigned long long)memory;
}

int cuMemAlloc(unsigned long long *memory, size_t bytes) {
    static int count;
    ENTER("cuMemAlloc");
    const std::string name = "/cuda-on-cpu-" + std::to_string(getpid()) + "-" + std::to_string(count++);
    const int file = shm_open(name.c_str(), O_RDWR | O_CREAT | O_EXCL, 0600);
    if (file < 0 || ftruncate(file, (off_t)bytes) != 0 || (*memory = mapped_file(file, bytes)) == 0) {
        return INVALID_VALUE;
    }
    shared_memory[*memory] = {name, bytes};
    ++live["memory"];
    return SUCCESS;
}
int cuMemFree(unsigned long long memory) {
    ENTER("cuMemFree");
    const auto known = shared_memory.find(memory);
    if (known == shared_memory.end()) {
        return INVALID_VALUE;
    }
    shm_unlink(known->second.name.c_str());
    munmap((void *)memory, known->second.bytes);
    shared_memory.erase(known);
    --live["memory"];
    return SUCCESS;
}
int cuIpcGetMemHandle(IpcHandle *handle, unsigned long long memory) {
    ENTER("cuIpcGetMemHandle");
    const auto known = shared_memory.find(memory);
    if (known == shared_memory.end()) {
        return INVALID_VALUE;
    }
    *handle = {};
    known->second.name.copy(handle->name, sizeof(handle->name) - 1);
    handle->bytes = known->second.bytes;
    return SUCCESS;
}
int cuIpcOpenMemHandle(unsigned long long *memory, IpcHandle handle, unsigned) {
    ENTER("cuIpcOpenMemHandle");
    const int file = shm_open(handle.name, O_RDWR, 0600);
    if (file < 0 || (*memory = mapped_file(file, handle.bytes)) == 0) {
        return INVALID_VALUE;
    }
    shared_memory[*memory] = {"", handle.bytes};
    ++live["opened"];
    return SUCCESS;
}
int cuMemGetAddressRange(unsigned long long *base, size_t *bytes, unsigned long long memory) {
    ENTER("cuMemGetAddressRange");
    const auto known = shared_memory.find(memory);
    if (known == shared_memory.end()) {
        return INVALID_VALUE;
    }
    *base = known->first;
    *bytes = known->second.bytes;
    return SUCCESS;
}
int cuIpcCloseMemHandle(unsigned long long memory) {
    ENTER("cuIpcCloseMemHandle");
    munmap((void *)memory, shared_memory.at(memory).bytes);
    shared_memory.erase(memory);
    --live["opened"];
    return SUCCESS;
}
int cuMemcpyDtoDAsync(unsigned long long to, unsigned long long from, size_t bytes, void *stream) {
    ENTER("cuMemcpyDtoDAsync");
    return enqueue(stream, [=]() { std::memcpy((void *)to, (const void *)from, bytes); });
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

}  // extern "C"
