/* Faults on command in the calls through which a process changes files, or looks at them.

   Loaded with LD_PRELOAD, this library stands between a process and the C library. Calls of the kinds in question
   that concern a path below a given root count two points each, one before and one after: point 2k is before call
   k, point 2k + 1 after it. An armed fault acts at its points: it ends the process, makes the call fail, or cuts a write in half.
   Calls are carried out one at a time, so that a point is the same moment for all threads; what the file system
   holds when the process ends there is then a state that a crash between the calls can leave.

   Everything else passes through untouched, and so does everything before faults_arm. The file is free of
   allocation and of stdio, since it runs inside every thread of the process. */

#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

/* What a call does; a fault names the kinds that it concerns. */
enum { WRITE = 1, MAKE = 2, CHANGE = 4, SYNC = 8, TRUNCATE = 16, OPEN = 32, READ = 64, STAT = 128, LIST = 256 };

/* What a fault does. HALVE concerns writes and reads; TORN writes half and kills. */
enum { EXIT = 1, KILL = 2, TORN = 3, FAIL = 4, HALVE = 5 };

enum { MOST_FAULTS = 8, EXIT_CODE = 86 };

struct fault {
    long first, last, action, error, kinds;
};

static pthread_mutex_t guard = PTHREAD_MUTEX_INITIALIZER;
static char root[PATH_MAX];
static size_t root_size;
static struct fault faults[MOST_FAULTS];
static int fault_count;
static long points;
static long acted;
static int journal = -1;
static int log_all;
static long counted_kinds;

/* Control, called through ctypes. */

/* Begin to count calls of some kinds below `path`, and act as `specification` says: five numbers for each fault.
   Lines go to the open descriptor `log`: one for each call if `all` is set, and one for each fault that acts. */
int faults_arm(const char *path, int log, int all, long kinds, int count, const long *specification) {
    if (count > MOST_FAULTS || strlen(path) >= sizeof root) return -1;
    pthread_mutex_lock(&guard);
    memcpy(faults, specification, (size_t)count * sizeof *faults);
    fault_count = count;
    points = acted = 0;
    journal = log;
    log_all = all;
    counted_kinds = kinds;
    root_size = strlen(path);
    memcpy(root, path, root_size + 1);
    pthread_mutex_unlock(&guard);
    return 0;
}

/* No fault acts any more; points are still counted. */
void faults_disarm(void) {
    pthread_mutex_lock(&guard);
    fault_count = 0;
    pthread_mutex_unlock(&guard);
}

long faults_points(void) { return points; }

long faults_acted(void) { return acted; }

/* Which calls concern the root. */

static int below(const char *path) {
    return root_size && !strncmp(path, root, root_size) && (path[root_size] == '/' || !path[root_size]);
}

static int path_of(int descriptor, char *full) {
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    ssize_t size = readlink(link, full, PATH_MAX - 1);
    full[size > 0 ? size : 0] = 0;
    return size > 0;
}

static int concerns_open(long kind, int descriptor, char *full) {
    return (counted_kinds & kind) && root_size && path_of(descriptor, full) && below(full);
}

static int concerns(long kind, int directory, const char *path, char *full) {
    if (!(counted_kinds & kind) || !root_size || !path) return 0;
    if (!path[0]) return concerns_open(kind, directory, full);
    full[0] = 0;
    if (path[0] != '/') {
        if (directory == AT_FDCWD ? !getcwd(full, PATH_MAX) : !path_of(directory, full)) return 0;
        strncat(full, "/", PATH_MAX - 1 - strlen(full));
    }
    strncat(full, path, PATH_MAX - 1 - strlen(full));
    return below(full);
}

/* Points. */

static void note(const char *mark, long point, const char *name, long kind, const char *path, const char *other,
                 long size) {
    static char line[3 * PATH_MAX];
    if (journal < 0) return;
    int length = snprintf(line, sizeof line, "%s\t%ld\t%s\t%ld\t%s\t%s\t%ld\n", mark, point, name, kind,
                          path + (below(path) ? root_size : 0), other + (below(other) ? root_size : 0), size);
    syscall(SYS_write, journal, line, (size_t)length);
}

static void die(long action) {
    if (action == EXIT) syscall(SYS_exit_group, EXIT_CODE);
    syscall(SYS_kill, getpid(), SIGKILL);
    for (;;) pause();
}

static const struct fault *armed(long point, long kind) {
    for (int index = 0; index < fault_count; index++) {
        const struct fault *fault = &faults[index];
        if (fault->first <= point && point <= fault->last && (fault->kinds & kind)) return fault;
    }
    return NULL;
}

struct call {
    const char *name, *path, *other;
    long kind, size;
};

/* Take the lock, count the point before a call, and act there. Gives the fault if the call is to be changed. */
static const struct fault *begin(const struct call *call) {
    pthread_mutex_lock(&guard);
    long point = points++;
    if (log_all) note("call", point, call->name, call->kind, call->path, call->other, call->size);
    const struct fault *fault = armed(point, call->kind);
    if (!fault) return NULL;
    if (fault->action == HALVE && (!(call->kind & (WRITE | READ)) || call->size < 2)) return NULL;
    acted++;
    note("fault", point, call->name, call->kind, call->path, call->other, call->size);
    if (fault->action == EXIT || fault->action == KILL) die(fault->action);
    if (fault->action == TORN && (call->kind != WRITE || call->size < 2)) die(KILL);
    return fault;
}

/* Count the point after a call that gave `result`, act there, and let go of the lock. */
static long end(const struct call *call, long result) {
    int kept = errno;
    long point = points++;
    const struct fault *fault = armed(point, call->kind);
    if (fault && (fault->action == EXIT || fault->action == KILL || fault->action == FAIL)) {
        acted++;
        note("fault", point, call->name, call->kind, call->path, call->other, call->size);
        if (fault->action != FAIL) die(fault->action);
        if (result >= 0) {
            kept = (int)fault->error;
            result = -1;
        }
    }
    pthread_mutex_unlock(&guard);
    errno = kept;
    return result;
}

static long refuse(const struct fault *fault) {
    points++;
    pthread_mutex_unlock(&guard);
    errno = (int)fault->error;
    return -1;
}

#define REAL(result, name, ...)                                     \
    static result (*real)(__VA_ARGS__);                             \
    if (!real) real = (result (*)(__VA_ARGS__))dlsym(RTLD_NEXT, #name)

/* A call that is carried out, or refused; the value of the expression is its result. */
#define CARRY_OUT(what, kind_of, path_, other_, size_, act)                                  \
    ({                                                                                       \
        struct call call = {what, path_, other_, kind_of, size_};                            \
        const struct fault *fault = begin(&call);                                            \
        fault && fault->action == FAIL ? refuse(fault) : end(&call, (long)(act));            \
    })

/* Open: to look, or in a way that may change something. */

static int changes(int flags) { return (flags & O_ACCMODE) != O_RDONLY || (flags & (O_CREAT | O_TRUNC)); }

static long opening(int directory, const char *path, int flags) {
    if (!changes(flags)) return OPEN;
    int missing = syscall(SYS_faccessat, directory, path, F_OK) != 0;
    return (flags & O_CREAT) && missing ? MAKE : CHANGE;
}

#define OPEN_AT(directory)                                                                                 \
    mode_t mode = 0;                                                                                       \
    if (flags & (O_CREAT | O_TMPFILE)) {                                                                   \
        va_list rest;                                                                                      \
        va_start(rest, flags);                                                                             \
        mode = va_arg(rest, mode_t);                                                                       \
        va_end(rest);                                                                                      \
    }                                                                                                      \
    char full[PATH_MAX];                                                                                   \
    int counted = root_size && concerns(changes(flags) ? MAKE | CHANGE : OPEN, directory, path, full)

#define OPEN_PATH(name)                                                                       \
    int name(const char *path, int flags, ...) {                                         \
        REAL(int, name, const char *, int, ...);                                         \
        OPEN_AT(AT_FDCWD);                                                               \
        if (!counted) return real(path, flags, mode);                                    \
        long kind = opening(AT_FDCWD, path, flags);                                      \
        return (int)CARRY_OUT("open", kind, full, "", flags, real(path, flags, mode));   \
    }
OPEN_PATH(open)
OPEN_PATH(open64)

#define OPENAT(name)                                                                              \
    int name(int directory, const char *path, int flags, ...) {                                   \
        REAL(int, name, int, const char *, int, ...);                                             \
        OPEN_AT(directory);                                                                       \
        if (!counted) return real(directory, path, flags, mode);                                  \
        long kind = opening(directory, path, flags);                                              \
        return (int)CARRY_OUT("open", kind, full, "", flags, real(directory, path, flags, mode)); \
    }
OPENAT(openat)
OPENAT(openat64)

int creat(const char *path, mode_t mode) { return open(path, O_CREAT | O_WRONLY | O_TRUNC, mode); }

int creat64(const char *path, mode_t mode) { return open64(path, O_CREAT | O_WRONLY | O_TRUNC, mode); }

/* fopen is counted, but its writes would escape: a test looks that no library uses it here. */

#define FOPEN(name)                                                                                        \
    FILE *name(const char *path, const char *how) {                                                        \
        REAL(FILE *, name, const char *, const char *);                                                    \
        char full[PATH_MAX];                                                                               \
        if (!strpbrk(how, "wa+") || !concerns(MAKE, AT_FDCWD, path, full)) return real(path, how);               \
        FILE *file = NULL;                                                                                 \
        CARRY_OUT("fopen", MAKE, full, "", 0, (file = real(path, how)) ? 0 : -1);                          \
        return file;                                                                                       \
    }
FOPEN(fopen)
FOPEN(fopen64)

/* Write and read. A halved one is carried out with half of its bytes. */

#define WRITING(what, size, whole, half) MOVING(what, WRITE, size, whole, half)
#define READING(what, size, whole, half) MOVING(what, READ, size, whole, half)
#define MOVING(what, kind_of, size, whole, half)                                       \
    ({                                                                                 \
        struct call call = {what, full, "", kind_of, (long)(size)};                    \
        const struct fault *fault = begin(&call);                                      \
        long done;                                                                     \
        if (fault && fault->action == FAIL) {                                          \
            done = refuse(fault);                                                      \
        } else {                                                                       \
            done = fault ? (long)(half) : (long)(whole);                               \
            if (fault && fault->action == TORN) die(KILL);                             \
            done = end(&call, done);                                                   \
        }                                                                              \
        (ssize_t) done;                                                                \
    })

ssize_t write(int descriptor, const void *data, size_t size) {
    REAL(ssize_t, write, int, const void *, size_t);
    char full[PATH_MAX];
    if (!concerns_open(WRITE, descriptor, full)) return real(descriptor, data, size);
    return WRITING("write", size, real(descriptor, data, size), real(descriptor, data, size / 2));
}

#define PWRITE(name, offset_type)                                                                              \
    ssize_t name(int descriptor, const void *data, size_t size, offset_type at) {                              \
        REAL(ssize_t, name, int, const void *, size_t, offset_type);                                           \
        char full[PATH_MAX];                                                                                   \
        if (!concerns_open(WRITE, descriptor, full)) return real(descriptor, data, size, at);                         \
        return WRITING("pwrite", size, real(descriptor, data, size, at), real(descriptor, data, size / 2, at)); \
    }
PWRITE(pwrite, off_t)
PWRITE(pwrite64, off64_t)

static size_t total(const struct iovec *parts, int count) {
    size_t size = 0;
    for (int index = 0; index < count; index++) size += parts[index].iov_len;
    return size;
}

/* Half of a gathered write: the first part alone, or half of the only part. */
static struct iovec half_of(const struct iovec *parts, int count) {
    struct iovec first = parts[0];
    if (count == 1) first.iov_len /= 2;
    return first;
}

ssize_t writev(int descriptor, const struct iovec *parts, int count) {
    REAL(ssize_t, writev, int, const struct iovec *, int);
    char full[PATH_MAX];
    if (count < 1 || !concerns_open(WRITE, descriptor, full)) return real(descriptor, parts, count);
    struct iovec half = half_of(parts, count);
    return WRITING("writev", total(parts, count), real(descriptor, parts, count), real(descriptor, &half, 1));
}

#define PWRITEV(name, offset_type)                                                                      \
    ssize_t name(int descriptor, const struct iovec *parts, int count, offset_type at) {                \
        REAL(ssize_t, name, int, const struct iovec *, int, offset_type);                               \
        char full[PATH_MAX];                                                                            \
        if (count < 1 || !concerns_open(WRITE, descriptor, full)) return real(descriptor, parts, count, at);   \
        struct iovec half = half_of(parts, count);                                                      \
        return WRITING("pwritev", total(parts, count), real(descriptor, parts, count, at),              \
                       real(descriptor, &half, 1, at));                                                 \
    }
PWRITEV(pwritev, off_t)
PWRITEV(pwritev64, off64_t)

#define SENDFILE(name, offset_type)                                                            \
    ssize_t name(int target, int source, offset_type *at, size_t size) {                       \
        REAL(ssize_t, name, int, int, offset_type *, size_t);                                  \
        char full[PATH_MAX];                                                                   \
        if (!concerns_open(WRITE, target, full)) return real(target, source, at, size);               \
        return WRITING("sendfile", size, real(target, source, at, size), real(target, source, at, size / 2)); \
    }
SENDFILE(sendfile, off_t)
SENDFILE(sendfile64, off64_t)

ssize_t copy_file_range(int source, off64_t *from, int target, off64_t *to, size_t size, unsigned flags) {
    REAL(ssize_t, copy_file_range, int, off64_t *, int, off64_t *, size_t, unsigned);
    char full[PATH_MAX];
    if (!concerns_open(WRITE, target, full)) return real(source, from, target, to, size, flags);
    return WRITING("copy_file_range", size, real(source, from, target, to, size, flags),
                   real(source, from, target, to, size / 2, flags));
}

ssize_t read(int descriptor, void *data, size_t size) {
    REAL(ssize_t, read, int, void *, size_t);
    char full[PATH_MAX];
    if (!concerns_open(READ, descriptor, full)) return real(descriptor, data, size);
    return READING("read", size, real(descriptor, data, size), real(descriptor, data, size / 2));
}

#define PREAD(name, offset_type)                                                                              \
    ssize_t name(int descriptor, void *data, size_t size, offset_type at) {                                   \
        REAL(ssize_t, name, int, void *, size_t, offset_type);                                                \
        char full[PATH_MAX];                                                                                  \
        if (!concerns_open(READ, descriptor, full)) return real(descriptor, data, size, at);                  \
        return READING("pread", size, real(descriptor, data, size, at), real(descriptor, data, size / 2, at)); \
    }
PREAD(pread, off_t)
PREAD(pread64, off64_t)

ssize_t readv(int descriptor, const struct iovec *parts, int count) {
    REAL(ssize_t, readv, int, const struct iovec *, int);
    char full[PATH_MAX];
    if (count < 1 || !concerns_open(READ, descriptor, full)) return real(descriptor, parts, count);
    struct iovec half = half_of(parts, count);
    return READING("readv", total(parts, count), real(descriptor, parts, count), real(descriptor, &half, 1));
}

/* A mapping of a file; the system call itself, since allocators map memory before this library is ready. */

#define MMAP(name)                                                                                             \
    void *name(void *address, size_t size, int protection, int flags, int descriptor, off64_t at) {            \
        char full[PATH_MAX];                                                                                   \
        if (descriptor < 0 || !concerns_open(READ, descriptor, full))                                          \
            return (void *)syscall(SYS_mmap, address, size, protection, flags, descriptor, at);                \
        return (void *)CARRY_OUT("mmap", READ, full, "", 0,                                                    \
                                 syscall(SYS_mmap, address, size, protection, flags, descriptor, at));         \
    }
MMAP(mmap)
MMAP(mmap64)

/* Length and durability. */

#define ON_OPEN_FILE(name, kind, parameters, arguments, ...)                            \
    int name parameters {                                                               \
        REAL(int, name, __VA_ARGS__);                                                   \
        char full[PATH_MAX];                                                            \
        if (!concerns_open(kind, descriptor, full)) return real arguments;                  \
        return (int)CARRY_OUT(#name, kind, full, "", 0, real arguments);                \
    }
ON_OPEN_FILE(fsync, SYNC, (int descriptor), (descriptor), int)
ON_OPEN_FILE(fdatasync, SYNC, (int descriptor), (descriptor), int)
ON_OPEN_FILE(ftruncate, TRUNCATE, (int descriptor, off_t size), (descriptor, size), int, off_t)
ON_OPEN_FILE(ftruncate64, TRUNCATE, (int descriptor, off64_t size), (descriptor, size), int, off64_t)

#define ON_PATH(name, kind, directory, parameters, arguments, ...)                      \
    int name parameters {                                                               \
        REAL(int, name, __VA_ARGS__);                                                   \
        char full[PATH_MAX];                                                            \
        if (!concerns(kind, directory, path, full)) return real arguments;                  \
        return (int)CARRY_OUT(#name, kind, full, "", 0, real arguments);                \
    }
ON_PATH(truncate, TRUNCATE, AT_FDCWD, (const char *path, off_t size), (path, size), const char *, off_t)
ON_PATH(truncate64, TRUNCATE, AT_FDCWD, (const char *path, off64_t size), (path, size), const char *, off64_t)

/* Names. */

ON_PATH(unlink, CHANGE, AT_FDCWD, (const char *path), (path), const char *)
ON_PATH(remove, CHANGE, AT_FDCWD, (const char *path), (path), const char *)
ON_PATH(rmdir, CHANGE, AT_FDCWD, (const char *path), (path), const char *)
ON_PATH(unlinkat, CHANGE, directory, (int directory, const char *path, int flags), (directory, path, flags), int,
        const char *, int)
ON_PATH(mkdir, MAKE, AT_FDCWD, (const char *path, mode_t mode), (path, mode), const char *, mode_t)
ON_PATH(mkdirat, MAKE, directory, (int directory, const char *path, mode_t mode), (directory, path, mode), int,
        const char *, mode_t)

/* Two names: the call counts if either of them is below the root. */
#define ON_TWO_PATHS(name, kind, from, to, parameters, arguments, ...)                                     \
    int name parameters {                                                                                  \
        REAL(int, name, __VA_ARGS__);                                                                      \
        char full[PATH_MAX], target[PATH_MAX];                                                             \
        int counted = concerns(kind, from, path, full);                                                      \
        counted |= concerns(kind, to, other, target);                                                           \
        if (!counted) return real arguments;                                                               \
        return (int)CARRY_OUT(#name, kind, full, target, 0, real arguments);                               \
    }
ON_TWO_PATHS(rename, CHANGE, AT_FDCWD, AT_FDCWD, (const char *path, const char *other), (path, other),
             const char *, const char *)
ON_TWO_PATHS(renameat, CHANGE, from, to, (int from, const char *path, int to, const char *other),
             (from, path, to, other), int, const char *, int, const char *)
ON_TWO_PATHS(renameat2, CHANGE, from, to, (int from, const char *path, int to, const char *other, unsigned flags),
             (from, path, to, other, flags), int, const char *, int, const char *, unsigned)
ON_TWO_PATHS(link, MAKE, AT_FDCWD, AT_FDCWD, (const char *path, const char *other), (path, other), const char *,
             const char *)
ON_TWO_PATHS(linkat, MAKE, from, to, (int from, const char *path, int to, const char *other, int flags),
             (from, path, to, other, flags), int, const char *, int, const char *, int)

int symlink(const char *target, const char *path) {
    REAL(int, symlink, const char *, const char *);
    char full[PATH_MAX];
    if (!concerns(MAKE, AT_FDCWD, path, full)) return real(target, path);
    return (int)CARRY_OUT("symlink", MAKE, full, "", 0, real(target, path));
}

/* State. Libraries that were built with an older C library call the names with two underscores. */

#define STAT_PATH(name, buffer)                                                                              \
    ON_PATH(name, STAT, AT_FDCWD, (const char *path, buffer *state), (path, state), const char *, buffer *)  \
    ON_PATH(l##name, STAT, AT_FDCWD, (const char *path, buffer *state), (path, state), const char *, buffer *) \
    ON_OPEN_FILE(f##name, STAT, (int descriptor, buffer *state), (descriptor, state), int, buffer *)
STAT_PATH(stat, struct stat)
STAT_PATH(stat64, struct stat64)

#define STAT_AT(name, buffer)                                                                                   \
    ON_PATH(name, STAT, directory, (int directory, const char *path, buffer *state, int flags),                \
            (directory, path, state, flags), int, const char *, buffer *, int)
STAT_AT(fstatat, struct stat)
STAT_AT(fstatat64, struct stat64)

#define OLD_STAT(ending, buffer)                                                                                 \
    ON_PATH(__x##ending, STAT, AT_FDCWD, (int version, const char *path, buffer *state), (version, path, state), \
            int, const char *, buffer *)                                                                         \
    ON_PATH(__lx##ending, STAT, AT_FDCWD, (int version, const char *path, buffer *state), (version, path, state), \
            int, const char *, buffer *)                                                                         \
    ON_OPEN_FILE(__fx##ending, STAT, (int version, int descriptor, buffer *state), (version, descriptor, state), \
                 int, int, buffer *)
OLD_STAT(stat, struct stat)
OLD_STAT(stat64, struct stat64)

#define OLD_STAT_AT(name, buffer)                                                                                 \
    ON_PATH(name, STAT, directory, (int version, int directory, const char *path, buffer *state, int flags),     \
            (version, directory, path, state, flags), int, int, const char *, buffer *, int)
OLD_STAT_AT(__fxstatat, struct stat)
OLD_STAT_AT(__fxstatat64, struct stat64)

ON_PATH(statx, STAT, directory,
        (int directory, const char *path, int flags, unsigned mask, struct statx *state),
        (directory, path, flags, mask, state), int, const char *, int, unsigned, struct statx *)
ON_PATH(access, STAT, AT_FDCWD, (const char *path, int mode), (path, mode), const char *, int)
ON_PATH(faccessat, STAT, directory, (int directory, const char *path, int mode, int flags),
        (directory, path, mode, flags), int, const char *, int, int)

/* Lists. */

DIR *opendir(const char *path) {
    REAL(DIR *, opendir, const char *);
    char full[PATH_MAX];
    if (!concerns(OPEN, AT_FDCWD, path, full)) return real(path);
    DIR *folder = NULL;
    CARRY_OUT("opendir", OPEN, full, "", 0, (folder = real(path)) ? 0 : -1);
    return folder;
}

DIR *fdopendir(int descriptor) {
    REAL(DIR *, fdopendir, int);
    char full[PATH_MAX];
    if (!concerns_open(OPEN, descriptor, full)) return real(descriptor);
    DIR *folder = NULL;
    CARRY_OUT("fdopendir", OPEN, full, "", 0, (folder = real(descriptor)) ? 0 : -1);
    return folder;
}

/* The end of a list is no result either, with errno as it was. */
#define READDIR(name, entry_type)                                                                 \
    entry_type *name(DIR *folder) {                                                               \
        REAL(entry_type *, name, DIR *);                                                          \
        int before = errno;                                                                       \
        char full[PATH_MAX];                                                                      \
        if (!concerns_open(LIST, dirfd(folder), full)) {                                          \
            errno = before;                                                                       \
            return real(folder);                                                                  \
        }                                                                                         \
        entry_type *entry = NULL;                                                                 \
        CARRY_OUT("readdir", LIST, full, "", 0, (errno = before, entry = real(folder), 0));       \
        return entry;                                                                             \
    }
READDIR(readdir, struct dirent)
READDIR(readdir64, struct dirent64)
