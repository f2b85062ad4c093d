/* Preloaded into a saving process: kills it with SIGKILL at the n-th file operation below a folder.
 *
 * Operations are counted in the order in which they happen: mkdir, open for writing, write, fsync, rename.
 * `kill_when` says when, seen from the operation: 0 before it, 1 after it, 2 (a write only) when half of it was written.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

int kill_at = -1;
int kill_when = 0;
int operations = 0;
char kill_below[PATH_MAX] = "";

static int is_below(const char *path) { return kill_below[0] && strncmp(path, kill_below, strlen(kill_below)) == 0; }

static int is_file_below(int descriptor) {
    char link[64], path[PATH_MAX];
    if (!kill_below[0]) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0) return 0;
    path[length] = 0;
    return is_below(path);
}

static int is_time(int when) { return operations == kill_at && kill_when == when; }
static void end(void) { kill(getpid(), SIGKILL); }

#define REAL(name, function) __typeof__(&function) real = (__typeof__(&function))dlsym(RTLD_NEXT, name)

ssize_t write(int descriptor, const void *data, size_t size) {
    REAL("write", write);
    if (!is_file_below(descriptor)) return real(descriptor, data, size);
    if (is_time(0)) end();
    if (is_time(2)) { real(descriptor, data, size / 2); end(); }
    ssize_t result = real(descriptor, data, size);
    if (is_time(1)) end();
    operations++;
    return result;
}

int fsync(int descriptor) {
    REAL("fsync", fsync);
    if (!is_file_below(descriptor)) return real(descriptor);
    if (is_time(0)) end();
    int result = real(descriptor);
    if (is_time(1) || is_time(2)) end();
    operations++;
    return result;
}

int rename(const char *from, const char *to) {
    REAL("rename", rename);
    if (!is_below(to)) return real(from, to);
    if (is_time(0)) end();
    int result = real(from, to);
    if (is_time(1) || is_time(2)) end();
    operations++;
    return result;
}

int mkdir(const char *path, mode_t mode) {
    REAL("mkdir", mkdir);
    if (!is_below(path)) return real(path, mode);
    if (is_time(0)) end();
    int result = real(path, mode);
    if (is_time(1) || is_time(2)) end();
    operations++;
    return result;
}

static int open_counted(const char *name, const char *path, int flags, mode_t mode) {
    REAL(name, open);
    if (!(flags & O_CREAT) || !is_below(path)) return real(path, flags, mode);
    if (is_time(0)) end();
    int result = real(path, flags, mode);
    if (is_time(1) || is_time(2)) end();
    operations++;
    return result;
}

int open(const char *path, int flags, ...) {
    va_list rest;
    va_start(rest, flags);
    mode_t mode = va_arg(rest, mode_t);
    va_end(rest);
    return open_counted("open", path, flags, mode);
}

int open64(const char *path, int flags, ...) {
    va_list rest;
    va_start(rest, flags);
    mode_t mode = va_arg(rest, mode_t);
    va_end(rest);
    return open_counted("open64", path, flags, mode);
}
