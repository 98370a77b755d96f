// The kernels' sources, and modules and launches that find them.
#pragma once

#include "arrays.h"

#include "channels.cu"
#include "difference.cu"
#include "fetch.cu"
#include "gather.cu"
#include "sample.cu"
#include "upload.cu"

#include <type_traits>

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
    // What each argument points to; 0 for arguments that are no pointers.
    template <class B>
    static size_t alignment() {
        if constexpr (std::is_pointer_v<B>) {
            return alignof(std::remove_pointer_t<B>);
        }
        return 0;
    }
    static std::vector<size_t> alignments() {
        return {alignment<A>()...};
    }
    static std::vector<bool> handles() {
        return {std::is_same_v<A, cudaTextureObject_t>...};
    }
};

struct Entry {
    Invoke invoke;
    std::vector<size_t> sizes, alignments;
    std::vector<bool> handles;
};

#define ENTRY(name) \
    {#name, {Kernel<name>::invoke, Kernel<name>::sizes(), Kernel<name>::alignments(), Kernel<name>::handles()}}

static std::map<std::string, Entry> KERNELS = {
    ENTRY(upload_tiles), ENTRY(upload_frame),  ENTRY(gather_bytes),     ENTRY(gather_halves),      ENTRY(fetch_fine),
    ENTRY(fetch_coarse), ENTRY(compare_frame), ENTRY(tile_channels),    ENTRY(cluster_distance),   ENTRY(sample_points),
    ENTRY(sample_footprints),
};

struct Module {
    std::set<std::string> entries;
};

static int driver_version = 13000;

extern "C" {

void on_cpu_driver_version(int version) {
    driver_version = version;
}
int on_cpu_parameters(const char *name, size_t *sizes) {
    const std::vector<size_t> &known = KERNELS.at(name).sizes;
    std::copy(known.begin(), known.end(), sizes);
    return (int)known.size();
}

int cuDriverGetVersion(int *version) {
    *version = driver_version;
    return SUCCESS;
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
    if (stream == nullptr) {
        return refused(INVALID_HANDLE, "cuLaunchKernel: stream 0 names no one stream");
    }
    const bool fits = grid_x > 0 && grid_x < 1u << 31 && grid_y > 0 && grid_y < 1u << 16 && grid_z == 1;
    if (!fits || block_x == 0 || block_x > block::MOST || block_y * block_z != 1) {
        return refused(INVALID_VALUE, "a grid or block of no or too large a size");
    }
    std::vector<std::string> copies;
    std::vector<size_t> needs;
    bool aligned = true;
    for (size_t i = 0; i < entry.sizes.size(); ++i) {
        copies.emplace_back((const char *)parameters[i], entry.sizes[i]);
        if (entry.handles[i]) {
            const auto known = handles.find(*(const unsigned long long *)parameters[i]);
            if (known == handles.end()) {
                return refused(INVALID_HANDLE, "a kernel is given a texture or surface that is not there");
            }
            needs.insert(needs.end(), known->second.begin(), known->second.end());
        } else if (entry.alignments[i]) {
            const unsigned long long address = *(const unsigned long long *)parameters[i];
            aligned = aligned && address % entry.alignments[i] == 0;
            if (const Range *range = range_of(address)) {
                needs.push_back(range->id);
            }
        }
    }
    const Invoke invoke = entry.invoke;
    return enqueue(stream, needs, [copies, invoke, grid_x, grid_y, block_x, aligned]() {
        if (!aligned) {
            return broken(MISALIGNED_ADDRESS, "a pointer is not aligned for what the kernel reads or writes");
        }
        std::vector<void *> values;
        for (const std::string &copy : copies) {
            values.push_back((void *)copy.data());
        }
        if (const char *what = block::launch(invoke, values, {grid_x, grid_y, 1}, block_x)) {
            broken(LAUNCH_FAILED, what);
        }
    });
}


}  // extern "C"
