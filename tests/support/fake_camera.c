/* A V4L2 camera for tests, preloaded into a process: /dev/video42 gives 640x480 YUYV at 30 frames a second.
 *
 * Files in the folder $FAKE_CAMERA make it faulty: `gone`, `busy`, `denied` and `hang` (no picture comes).
 * Build: cc -shared -fPIC -o fake_camera.so fake_camera.c -ldl
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/videodev2.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { WIDTH = 640, HEIGHT = 480, SIZE = WIDTH * HEIGHT * 2, BUFFERS = 8, FPS = 30 };

static int device = -1, nonblocking, buffers, queued[BUFFERS];
static double begun;
static long pictures;

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec / 1e9;
}

static int told(const char *fault) {
    char path[512];
    const char *folder = getenv("FAKE_CAMERA");
    snprintf(path, sizeof path, "%s/%s", folder ? folder : "", fault);
    return access(path, F_OK) == 0;
}

static int fail(int number) {
    errno = number;
    return -1;
}

static int open_camera(int flags) {
    if (told("gone")) return fail(ENOENT);
    if (told("busy")) return fail(EBUSY);
    if (told("denied")) return fail(EACCES);
    device = memfd_create("camera", 0);
    if (ftruncate(device, SIZE * BUFFERS)) return -1;
    nonblocking = flags & O_NONBLOCK;
    memset(queued, 0, sizeof queued);
    return device;
}

#define OPEN(name)                                                   \
    int name(const char *path, int flags, ...) {                     \
        va_list rest;                                                \
        va_start(rest, flags);                                       \
        int mode = va_arg(rest, int);                                \
        va_end(rest);                                                \
        if (path && !strcmp(path, "/dev/video42")) return open_camera(flags); \
        int (*real)(const char *, int, ...) = dlsym(RTLD_NEXT, #name); \
        return real(path, flags, mode);                              \
    }
OPEN(open)
OPEN(open64)

#define STAT(name, kind)                                             \
    int name(const char *path, struct kind *about) {                 \
        if (path && !strcmp(path, "/dev/video42")) {                 \
            if (told("gone")) return fail(ENOENT);                   \
            memset(about, 0, sizeof *about);                         \
            about->st_mode = S_IFCHR | 0660;                         \
            return 0;                                                \
        }                                                            \
        int (*real)(const char *, struct kind *) = dlsym(RTLD_NEXT, #name); \
        return real(path, about);                                    \
    }
STAT(stat, stat)
STAT(stat64, stat64)

int close(int fd) {
    int (*real)(int) = dlsym(RTLD_NEXT, "close");
    if (fd >= 0 && fd == device) device = -1;
    return real(fd);
}

static int dequeue(struct v4l2_buffer *buffer) {
    for (;; usleep(1000)) {
        if (told("gone")) return fail(ENODEV);
        int index = pictures % buffers;
        if (!told("hang") && queued[index] && now() >= begun + (double)(pictures + 1) / FPS) {
            queued[index] = 0;
            unsigned char *data = mmap(0, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, device, (long)index * SIZE);
            memset(data, pictures % 256, SIZE);
            munmap(data, SIZE);
            struct timespec time;
            clock_gettime(CLOCK_MONOTONIC, &time);
            buffer->index = index;
            buffer->bytesused = buffer->length = SIZE;
            buffer->flags = 0;
            buffer->sequence = pictures++;
            buffer->timestamp.tv_sec = time.tv_sec;
            buffer->timestamp.tv_usec = time.tv_nsec / 1000;
            buffer->m.offset = index * SIZE;
            return 0;
        }
        if (nonblocking) return fail(EAGAIN);
    }
}

static int answer(unsigned request, void *argument) {
    switch (request) {
    case VIDIOC_QUERYCAP: {
        struct v4l2_capability *capability = argument;
        memset(capability, 0, sizeof *capability);
        strcpy((char *)capability->driver, "fake");
        strcpy((char *)capability->card, "Fake camera");
        capability->device_caps = V4L2_CAP_VIDEO_CAPTURE | V4L2_CAP_STREAMING;
        capability->capabilities = capability->device_caps | V4L2_CAP_DEVICE_CAPS;
        return 0;
    }
    case VIDIOC_G_INPUT: *(int *)argument = 0; return 0;
    case VIDIOC_S_INPUT: return 0;
    case VIDIOC_ENUMINPUT: {
        struct v4l2_input *input = argument;
        if (input->index) return fail(EINVAL);
        memset(input, 0, sizeof *input);
        input->type = V4L2_INPUT_TYPE_CAMERA;
        return 0;
    }
    case VIDIOC_ENUM_FMT: {
        struct v4l2_fmtdesc *format = argument;
        if (format->index) return fail(EINVAL);
        format->pixelformat = V4L2_PIX_FMT_YUYV;
        format->flags = 0;
        return 0;
    }
    case VIDIOC_G_FMT:
    case VIDIOC_S_FMT: {
        struct v4l2_pix_format *pixels = &((struct v4l2_format *)argument)->fmt.pix;
        if (request == VIDIOC_S_FMT && pixels->pixelformat != V4L2_PIX_FMT_YUYV) return fail(EINVAL);
        pixels->width = WIDTH;
        pixels->height = HEIGHT;
        pixels->pixelformat = V4L2_PIX_FMT_YUYV;
        pixels->field = V4L2_FIELD_NONE;
        pixels->bytesperline = WIDTH * 2;
        pixels->sizeimage = SIZE;
        return 0;
    }
    case VIDIOC_G_PARM:
    case VIDIOC_S_PARM: {
        struct v4l2_captureparm *capture = &((struct v4l2_streamparm *)argument)->parm.capture;
        capture->capability = V4L2_CAP_TIMEPERFRAME;
        capture->timeperframe.numerator = 1;
        capture->timeperframe.denominator = FPS;
        return 0;
    }
    case VIDIOC_REQBUFS: {
        struct v4l2_requestbuffers *wanted = argument;
        buffers = wanted->count = wanted->count > BUFFERS ? BUFFERS : wanted->count;
        return 0;
    }
    case VIDIOC_QUERYBUF: {
        struct v4l2_buffer *buffer = argument;
        buffer->length = SIZE;
        buffer->m.offset = buffer->index * SIZE;
        buffer->flags = 0;
        return 0;
    }
    case VIDIOC_QBUF: queued[((struct v4l2_buffer *)argument)->index] = 1; return 0;
    case VIDIOC_STREAMON: begun = now(); pictures = 0; return 0;
    case VIDIOC_STREAMOFF: return 0;
    case VIDIOC_DQBUF: return dequeue(argument);
    }
    return fail(ENOTTY);
}

int ioctl(int fd, unsigned long request, ...) {
    va_list rest;
    va_start(rest, request);
    void *argument = va_arg(rest, void *);
    va_end(rest);
    if (fd < 0 || fd != device) {
        int (*real)(int, unsigned long, ...) = dlsym(RTLD_NEXT, "ioctl");
        return real(fd, request, argument);
    }
    return told("gone") ? fail(ENODEV) : answer((unsigned)request, argument);
}
