// What the driver remembers: streams and what they have to do, what is there, what shall fail, which calls were made.
#pragma once

#include "cuda_on_cpu.h"

#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <utility>

enum {
    SUCCESS = 0,
    INVALID_VALUE = 1,
    INVALID_CONTEXT = 201,
    INVALID_PTX = 218,
    UNSUPPORTED_PTX = 222,
    NOT_FOUND = 500,
    LAUNCH_FAILED = 719,
};

struct Stream {
    std::deque<std::function<void()>> waiting;
    size_t begun = 0, done = 0;
};
struct Event {
    void *stream = nullptr;
    size_t ticket = 0;
};

static std::recursive_mutex guard;
static std::map<void *, Stream> streams;
static std::map<std::string, int> live;
static std::map<std::string, std::pair<int, int>> failing;
static std::string calls;
static int failed;
static bool late;
static thread_local int contexts;

// Notes a call; the status that it shall fail with, or 0. What failed once stays failed, as a context does.
static int entered(const char *name) {
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

extern "C" {

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

int cuStreamSynchronize(void *stream) {
    ENTER("cuStreamSynchronize");
    run_until(stream, streams[stream].begun);
    return failed;
}

}  // extern "C"
