// A libcuda.so.1 whose device is the CPU: enough of the driver for the texture store, called through cuda-bindings.
//
// Arrays are ordinary memory, a kernel runs where it is launched. With `on_cpu_late(1)` a stream runs nothing until it is
// waited for: work that lacks an event then sees memory that is too new or too old. `on_cpu_fail` makes a call fail,
// `on_cpu_live` counts what was not freed, and `on_cpu_calls` lists the calls that were made.
//
// It rejects what a real driver rejects, or what has no defined result there: calls in a thread without a context or in a
// forked process, work on objects that were freed or unmapped meanwhile, pointers that are not aligned for the kernel's
// type, stream 0, grids and textures that are too large, a second mapping, GL interoperability without a context of GL,
// IPC handles that are opened in their own process, exported memory that is freed while another process has it open, and
// `cuCtxSynchronize` while a stream is captured.
#include "arrays.h"
#include "modules.h"
#include "streams.h"

#include <dlfcn.h>

static std::set<void *> retained;

extern "C" {

void on_cpu_late(int wanted) {
    late = wanted != 0;
}
void on_cpu_capture(int wanted) {
    capturing = wanted != 0;
    capture_broken = capture_broken && capturing;
}
int on_cpu_capture_broken() {
    return capture_broken;
}
void on_cpu_descending(int wanted) {
    block::descending = wanted != 0;
}
void on_cpu_fail(const char *name, int status, int after) {
    failing[name] = {status, after};
}
void on_cpu_recover() {
    failed = 0;
    failing.clear();
}
int on_cpu_live(const char *kind) {
    return live[kind];
}
void on_cpu_forget_calls() {
    calls.clear();
}
const char *on_cpu_calls() {
    return calls.c_str();
}

int cuInit(unsigned) {
    process = process ? process : getpid();
    return process == getpid() ? SUCCESS : NOT_INITIALIZED;
}
int cuDeviceGetCount(int *count) {
    *count = 1;
    return process == getpid() ? SUCCESS : NOT_INITIALIZED;
}
int cuDeviceGet(int *device, int ordinal) {
    *device = ordinal;
    return SUCCESS;
}
int cuDeviceGetUuid(char *uuid, int device) {
    std::memset(uuid, 0, 16);
    uuid[15] = (char)(device + 1);
    return SUCCESS;
}
int cuDeviceGetName(char *name, int length, int) {
    std::strncpy(name, "CUDA on the CPU", (size_t)length - 1);
    return SUCCESS;
}
int cuDeviceTotalMem_v2(size_t *bytes, int) {
    *bytes = (size_t)1 << 30;
    return SUCCESS;
}
int cuDeviceGetAttribute(int *value, int attribute, int) {
    // Compute capability 7.5, one multiprocessor, and the widths and heights of mipmapped textures and of surfaces.
    const std::map<int, int> values = {{75, 7}, {76, 5}, {16, 1}, {56, largest_side}, {57, largest_side},
                                       {73, largest_side}, {74, largest_side}};
    const auto known = values.find(attribute);
    *value = known == values.end() ? 0 : known->second;
    return known == values.end() ? INVALID_VALUE : SUCCESS;
}
int cuDevicePrimaryCtxRetain(void **context, int device) {
    *context = (void *)(intptr_t)(device + 1);
    retained.insert(*context);
    return process == getpid() ? SUCCESS : NOT_INITIALIZED;
}
int cuCtxPushCurrent(void *context) {
    if (process != getpid()) {
        return NOT_INITIALIZED;
    }
    if (!retained.count(context)) {
        return INVALID_CONTEXT;
    }
    ++contexts;
    return SUCCESS;
}
int cuCtxPopCurrent(void **context) {
    if (contexts == 0) {
        return INVALID_CONTEXT;
    }
    *context = nullptr;
    --contexts;
    return SUCCESS;
}
int cuCtxSynchronize() {
    ENTER("cuCtxSynchronize");
    if (capturing) {
        capture_broken = true;
        return refused(CAPTURE_UNSUPPORTED, "the context is waited for while a stream of it is captured");
    }
    for (auto &[handle, stream] : streams) {
        run_until(handle, stream.begun);
    }
    return failed;
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
