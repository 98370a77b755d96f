// What the driver remembers: streams and what they have to do, what is there, what shall fail, which calls were made.
#pragma once

#include "cuda_on_cpu.h"

#include <cstdio>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <utility>

#include <unistd.h>

enum {
    SUCCESS = 0,
    INVALID_VALUE = 1,
    NOT_INITIALIZED = 3,
    INVALID_CONTEXT = 201,
    ALREADY_MAPPED = 208,
    NOT_MAPPED = 211,
    INVALID_PTX = 218,
    INVALID_GRAPHICS_CONTEXT = 219,
    UNSUPPORTED_PTX = 222,
    INVALID_HANDLE = 400,
    NOT_FOUND = 500,
    ILLEGAL_ADDRESS = 700,
    MISALIGNED_ADDRESS = 716,
    LAUNCH_FAILED = 719,
    CAPTURE_UNSUPPORTED = 900,
};

struct Stream {
    std::deque<std::function<void()>> waiting;
    size_t begun = 0, done = 0;
};
struct Event {
    void *stream = nullptr;
    size_t ticket = 0;
};

// Pinned memory, and device memory of the driver's own.
struct Range {
    size_t bytes, id;
};

static std::recursive_mutex guard;
static std::map<void *, Stream> streams;
static std::map<std::string, int> live;
static std::map<std::string, std::pair<int, int>> failing;
static std::string calls;
static std::set<void *> events;
static std::map<unsigned long long, Range> ranges;
static std::set<size_t> alive;
static int failed;
static bool late, capturing, capture_broken;
static pid_t process;
static thread_local int contexts;

// Objects are known by numbers that are never used again: work that finds one gone was overtaken by who freed it.
static size_t born() {
    static size_t count;
    alive.insert(++count);
    return count;
}

static int refused(int status, const char *why) {
    std::fprintf(stderr, "cuda_on_cpu: %s\n", why);
    return status;
}

static void broken(int status, const char *why) {
    failed = refused(status, why);
}

// The memory that an address lies in; nullptr for memory that the driver does not know, such as torch's here.
static const Range *range_of(unsigned long long address) {
    auto after = ranges.upper_bound(address);
    if (after == ranges.begin()) {
        return nullptr;
    }
    const auto &[start, range] = *--after;
    return address < start + range.bytes ? &range : nullptr;
}

// Notes a call; the status that it shall fail with, or 0. What failed once stays failed, as a context does.
static int entered(const char *name) {
    if (getpid() != process) {
        return refused(NOT_INITIALIZED, "a forked process uses the driver of its parent");
    }
    if (contexts == 0) {
        return INVALID_CONTEXT;
    }
    calls += std::string(name) + "\n";
    const auto wanted = failing.find(name);
    if (wanted != failing.end() && wanted->second.second-- <= 0) {
        const int status = wanted->second.first;
        failing.erase(wanted);
        return status;
    }
    return failed;
}

#define ENTER(name)                                    \
    std::lock_guard<std::recursive_mutex> lock(guard); \
    if (const int status = entered(name)) return status

// Stream 0 is the legacy stream, torch's, or the thread's own, by a variable of the environment that the bindings read.
#define ENTER_STREAM(name, stream)                                                              \
    ENTER(name);                                                                                \
    if ((stream) == nullptr) return refused(INVALID_HANDLE, name ": stream 0 names no one stream")

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

// Work that needs objects: all of them must be there when it runs.
static int enqueue(void *handle, const std::vector<size_t> &needs, std::function<void()> work) {
    return enqueue(handle, [needs, work]() {
        for (const size_t id : needs) {
            if (!alive.count(id)) {
                return broken(ILLEGAL_ADDRESS, "memory was freed, or unmapped, before the device had used it");
            }
        }
        work();
    });
}

extern "C" {

int cuEventCreate(void **event, unsigned) {
    ENTER("cuEventCreate");
    *event = new Event;
    events.insert(*event);
    ++live["event"];
    return SUCCESS;
}
int cuEventDestroy(void *event) {
    ENTER("cuEventDestroy");
    if (!events.erase(event)) {
        return INVALID_HANDLE;
    }
    delete (Event *)event;
    --live["event"];
    return SUCCESS;
}
int cuEventRecord(void *event, void *stream) {
    ENTER_STREAM("cuEventRecord", stream);
    if (!events.count(event)) {
        return INVALID_HANDLE;
    }
    *(Event *)event = {stream, streams[stream].begun};
    return SUCCESS;
}
int cuEventSynchronize(void *event) {
    ENTER("cuEventSynchronize");
    if (!events.count(event)) {
        return INVALID_HANDLE;
    }
    run_until(((Event *)event)->stream, ((Event *)event)->ticket);
    return failed;
}
int cuEventElapsedTime(float *milliseconds, void *start, void *end) {
    *milliseconds = (float)(((Event *)end)->ticket - ((Event *)start)->ticket);
    return SUCCESS;
}
int cuStreamWaitEvent(void *stream, void *event, unsigned) {
    ENTER_STREAM("cuStreamWaitEvent", stream);
    if (!events.count(event)) {
        return INVALID_HANDLE;
    }
    const Event then = *(Event *)event;
    return enqueue(stream, [then]() { run_until(then.stream, then.ticket); });
}

int cuStreamSynchronize(void *stream) {
    ENTER_STREAM("cuStreamSynchronize", stream);
    run_until(stream, streams[stream].begun);
    return failed;
}

}  // extern "C"
