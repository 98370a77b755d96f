// The kernels' sources, and modules and launches that find them.
#pragma once

#include "streams.h"

#include "channels.cu"
#include "difference.cu"
#include "fetch.cu"
#include "gather.cu"
#include "sample.cu"
#include "upload.cu"

#include <cstdio>
#include <set>

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
            std::fprintf(stderr, "cuda_on_cpu: %s\n", what);
            failed = LAUNCH_FAILED;
        }
    });
}


}  // extern "C"
