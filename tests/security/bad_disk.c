/* A disk with faults for one program: a preloaded library that replaces calls of libc.
 *
 * GANGWATCH_BAD_DISK names a folder, in which files select the fault:
 * - "fsync-fails": the next fsync of a journal fails with EIO and removes the file. As in Linux, a second fsync would
 *   report success.
 * - "fsync-hangs": every fsync of a journal waits until the file is gone.
 * - "read-only": writes and creations below GANGWATCH_BAD_DISK_OF fail (EROFS), as after ext4's errors=remount-ro.
 * Journals are files with "store.sqlite" in their name.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

static int name_of(int descriptor, char *path)
{
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    ssize_t length = readlink(link, path, PATH_MAX - 1);
    if (length < 0)
        return 0;
    path[length] = 0;
    return 1;
}

static int is_journal(int descriptor)
{
    char path[PATH_MAX];
    return name_of(descriptor, path) && strstr(path, "store.sqlite") != NULL;
}

/* Return whether to refuse this path; errno has the reason. */
static int refuses(const char *path)
{
    const char *folder = getenv("GANGWATCH_BAD_DISK"), *of = getenv("GANGWATCH_BAD_DISK_OF");
    char flag[PATH_MAX];
    if (folder == NULL || of == NULL || strncmp(path, of, strlen(of)) != 0)
        return 0;
    snprintf(flag, sizeof flag, "%s/read-only", folder);
    int before = errno;
    if (access(flag, F_OK) != 0) {
        errno = before;
        return 0;
    }
    errno = EROFS;
    return 1;
}

static int refuses_write(int descriptor)
{
    char path[PATH_MAX];
    return name_of(descriptor, path) && refuses(path);
}

static int fault(int descriptor)
{
    const char *folder = getenv("GANGWATCH_BAD_DISK");
    char fails[PATH_MAX], hangs[PATH_MAX];
    if (folder == NULL || !is_journal(descriptor))
        return 0;
    snprintf(fails, sizeof fails, "%s/fsync-fails", folder);
    snprintf(hangs, sizeof hangs, "%s/fsync-hangs", folder);
    while (access(hangs, F_OK) == 0)
        usleep(20000);
    if (unlink(fails) == 0) {
        errno = EIO;
        return -1;
    }
    return 0;
}

int fsync(int descriptor)
{
    int (*real)(int) = (int (*)(int))dlsym(RTLD_NEXT, "fsync");
    return fault(descriptor) ? -1 : real(descriptor);
}

int fdatasync(int descriptor)
{
    int (*real)(int) = (int (*)(int))dlsym(RTLD_NEXT, "fdatasync");
    return fault(descriptor) ? -1 : real(descriptor);
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

ssize_t write(int descriptor, const void *from, size_t size)
{
    return refuses_write(descriptor) ? -1 : REAL(write)(descriptor, from, size);
}

ssize_t pwrite(int descriptor, const void *from, size_t size, off_t at)
{
    return refuses_write(descriptor) ? -1 : REAL(pwrite)(descriptor, from, size, at);
}

ssize_t pwrite64(int descriptor, const void *from, size_t size, off64_t at)
{
    return refuses_write(descriptor) ? -1 : REAL(pwrite64)(descriptor, from, size, at);
}

int ftruncate(int descriptor, off_t size)
{
    return refuses_write(descriptor) ? -1 : REAL(ftruncate)(descriptor, size);
}

int ftruncate64(int descriptor, off64_t size)
{
    return refuses_write(descriptor) ? -1 : REAL(ftruncate64)(descriptor, size);
}

int rename(const char *from, const char *to)
{
    return refuses(from) ? -1 : REAL(rename)(from, to);
}

int mkdir(const char *path, mode_t mode)
{
    int (*real)(const char *, mode_t) = (int (*)(const char *, mode_t))dlsym(RTLD_NEXT, "mkdir");
    return refuses(path) ? -1 : real(path, mode);
}

#define OPEN(name)                                                                         \
    int name(const char *path, int flags, ...)                                             \
    {                                                                                      \
        va_list rest;                                                                      \
        va_start(rest, flags);                                                             \
        mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, mode_t) : 0;            \
        va_end(rest);                                                                      \
        if ((flags & (O_CREAT | O_TRUNC | O_ACCMODE)) && refuses(path))                    \
            return -1;                                                                     \
        return ((int (*)(const char *, int, ...))dlsym(RTLD_NEXT, #name))(path, flags, mode); \
    }

OPEN(open)
OPEN(open64)
