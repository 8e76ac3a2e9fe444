/* Lets the n-th call of the system fail that is about files below a folder: a library to be preloaded.

   It stands between all that runs in the process and libc: Python, SQLite, safetensors, NumPy, DuckDB. The
   process arms it by failing_calls_arm, through ctypes, and asks afterwards how many calls there were.
   Which of them count is told by kinds, a sum of those below. Calls that remove files never fail: they clean
   up after others. Of memory, blocks of LARGE bytes and more count, in the thread that has armed it:
   without smaller ones, as its buffers of 64 KB, NumPy 2.4 crashes. Those of safetensors do not count: Rust
   ends the process if one fails, which for the disk is a kill. */

#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

enum { OPEN = 1, READ = 2, WRITE = 4, SYNC = 8, NAME = 16, MAP = 32, SIZE = 64, MEMORY = 128 };
#define LARGE 70000

static char folder[PATH_MAX];
static size_t length;
static int kinds, error;
static long at, calls;
static __thread int armed_here;

void failing_calls_arm(const char *below, int which, long number, int errno_of_it) {
    length = strlen(below);
    memcpy(folder, below, length + 1);
    at = number, error = errno_of_it, calls = 0, armed_here = 1;
    __atomic_store_n(&kinds, which, __ATOMIC_SEQ_CST);
}

long failing_calls_disarm(void) {
    __atomic_store_n(&kinds, 0, __ATOMIC_SEQ_CST);
    armed_here = 0;
    return calls;
}

static int fails(void) {
    if (__atomic_fetch_add(&calls, 1, __ATOMIC_SEQ_CST) != at) return 0;
    errno = error;
    return 1;
}

static int named(int kind, const char *path) {
    return (kinds & kind) && path && !strncmp(path, folder, length) && fails();
}

static int below(int descriptor) { /* the descriptor may have come from anywhere, as from dup */
    char link[64], target[PATH_MAX];
    int before = errno;
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    ssize_t n = readlink(link, target, sizeof target);
    errno = before;
    return n >= (ssize_t)length && !strncmp(target, folder, length);
}

static int opened(int kind, int descriptor) {
    return (kinds & kind) && descriptor >= 0 && below(descriptor) && fails();
}

static int placed(int kind, int at_folder, const char *path) {
    return *path == '/' || at_folder == AT_FDCWD ? named(kind, path) : opened(kind, at_folder);
}

#define REAL(type, name, ...) \
    static type (*real)(__VA_ARGS__); \
    if (!real) real = (type (*)(__VA_ARGS__))dlsym(RTLD_NEXT, #name)

/* ---- opening */

#define OPENS(name) \
    int name(const char *path, int flags, ...) { \
        REAL(int, name, const char *, int, ...); \
        va_list more; \
        va_start(more, flags); \
        mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(more, mode_t) : 0; \
        va_end(more); \
        return named(OPEN, path) ? -1 : real(path, flags, mode); \
    }
OPENS(open)
OPENS(open64)

#define OPENS_AT(name) \
    int name(int at_folder, const char *path, int flags, ...) { \
        REAL(int, name, int, const char *, int, ...); \
        va_list more; \
        va_start(more, flags); \
        mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(more, mode_t) : 0; \
        va_end(more); \
        return placed(OPEN, at_folder, path) ? -1 : real(at_folder, path, flags, mode); \
    }
OPENS_AT(openat)
OPENS_AT(openat64)

DIR *opendir(const char *path) {
    REAL(DIR *, opendir, const char *);
    return named(OPEN, path) ? NULL : real(path);
}

/* ---- reading and writing */

#define MOVED(kind, name, types, ...) \
    REAL(ssize_t, name, int, types); \
    return opened(kind, descriptor) ? -1 : real(descriptor, __VA_ARGS__)
#define AND ,

ssize_t read(int descriptor, void *to, size_t n) { MOVED(READ, read, void * AND size_t, to, n); }
ssize_t pread(int descriptor, void *to, size_t n, off_t from) {
    MOVED(READ, pread, void * AND size_t AND off_t, to, n, from);
}
ssize_t pread64(int descriptor, void *to, size_t n, off64_t from) {
    MOVED(READ, pread64, void * AND size_t AND off64_t, to, n, from);
}
ssize_t readv(int descriptor, const struct iovec *to, int n) {
    MOVED(READ, readv, const struct iovec * AND int, to, n);
}
ssize_t pwrite(int descriptor, const void *from, size_t n, off_t to) {
    MOVED(WRITE, pwrite, const void * AND size_t AND off_t, from, n, to);
}
ssize_t pwrite64(int descriptor, const void *from, size_t n, off64_t to) {
    MOVED(WRITE, pwrite64, const void * AND size_t AND off64_t, from, n, to);
}
ssize_t writev(int descriptor, const struct iovec *from, int n) {
    MOVED(WRITE, writev, const struct iovec * AND int, from, n);
}
ssize_t write(int descriptor, const void *from, size_t n) {
    REAL(ssize_t, write, int, const void *, size_t);
    if (!opened(WRITE, descriptor)) return real(descriptor, from, n);
    if (error == ENOSPC && n > 1) { /* what a full disk still takes; the call after it fails */
        at = calls;
        return real(descriptor, from, n / 2);
    }
    errno = error;
    return -1;
}
size_t fwrite(const void *from, size_t size, size_t n, FILE *file) { /* libc's own calls are not seen */
    REAL(size_t, fwrite, const void *, size_t, size_t, FILE *);
    return opened(WRITE, fileno(file)) ? 0 : real(from, size, n, file);
}
size_t fread(void *to, size_t size, size_t n, FILE *file) {
    REAL(size_t, fread, void *, size_t, size_t, FILE *);
    return opened(READ, fileno(file)) ? 0 : real(to, size, n, file);
}

/* ---- syncing, sizes */

#define OF_DESCRIPTOR(kind, name) \
    int name(int descriptor) { \
        REAL(int, name, int); \
        return opened(kind, descriptor) ? -1 : real(descriptor); \
    }
OF_DESCRIPTOR(SYNC, fsync)
OF_DESCRIPTOR(SYNC, fdatasync)

int msync(void *memory, size_t n, int flags) {
    REAL(int, msync, void *, size_t, int);
    return (kinds & SYNC) && armed_here && fails() ? -1 : real(memory, n, flags);
}

#define CUTS(name, offset) \
    int name(int descriptor, offset size) { \
        REAL(int, name, int, offset); \
        return opened(SIZE, descriptor) ? -1 : real(descriptor, size); \
    }
CUTS(ftruncate, off_t)
CUTS(ftruncate64, off64_t)

#define RESERVES(name, offset) \
    int name(int descriptor, offset from, offset size) { /* which returns the error */ \
        REAL(int, name, int, offset, offset); \
        return opened(SIZE, descriptor) ? error : real(descriptor, from, size); \
    }
RESERVES(posix_fallocate, off_t)
RESERVES(posix_fallocate64, off64_t)

/* ---- names */

int rename(const char *from, const char *to) {
    REAL(int, rename, const char *, const char *);
    return named(NAME, to) ? -1 : real(from, to);
}
int link(const char *from, const char *to) {
    REAL(int, link, const char *, const char *);
    return named(NAME, to) ? -1 : real(from, to);
}
int linkat(int from_folder, const char *from, int to_folder, const char *to, int flags) {
    REAL(int, linkat, int, const char *, int, const char *, int);
    return placed(NAME, to_folder, to) ? -1 : real(from_folder, from, to_folder, to, flags);
}
int mkdir(const char *path, mode_t mode) {
    REAL(int, mkdir, const char *, mode_t);
    return named(NAME, path) ? -1 : real(path, mode);
}

/* ---- memory */

#define MAPS(name, offset) \
    void *name(void *where, size_t n, int protection, int flags, int descriptor, offset from) { \
        REAL(void *, name, void *, size_t, int, int, int, offset); \
        if (!(flags & MAP_ANONYMOUS) && opened(MAP, descriptor)) return MAP_FAILED; \
        return real(where, n, protection, flags, descriptor, from); \
    }
MAPS(mmap, off_t)
MAPS(mmap64, off64_t)

extern void *__libc_malloc(size_t), *__libc_calloc(size_t, size_t), *__libc_realloc(void *, size_t);

static int lacks(size_t n, void *caller) {
    Dl_info from;
    if (!(kinds & MEMORY) || !armed_here || n < LARGE) return 0;
    if (dladdr(caller, &from) && from.dli_fname && strstr(from.dli_fname, "safetensors")) return 0;
    return fails();
}

#define CALLER __builtin_return_address(0)
void *malloc(size_t n) { return lacks(n, CALLER) ? NULL : __libc_malloc(n); }
void *calloc(size_t n, size_t size) { return lacks(n * size, CALLER) ? NULL : __libc_calloc(n, size); }
void *realloc(void *old, size_t n) { return lacks(n, CALLER) ? NULL : __libc_realloc(old, n); }
