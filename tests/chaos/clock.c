/* Preloaded: the process sees a wall clock that is off by the seconds that stand, as a double, in the file CHAOS_CLOCK. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile double *off;

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("CHAOS_CLOCK");
    int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (fd < 0) return;
    void *at = mmap(NULL, sizeof(double), PROT_READ, MAP_SHARED, fd, 0);
    if (at != MAP_FAILED) off = at;
    close(fd);
}

int clock_gettime(clockid_t which, struct timespec *ts) {
    int done = syscall(SYS_clock_gettime, which, ts);
    if (done == 0 && off && (which == CLOCK_REALTIME || which == CLOCK_REALTIME_COARSE)) ts->tv_sec += (time_t)*off;
    return done;
}

int gettimeofday(struct timeval *restrict tv, void *restrict zone) {
    struct timespec ts;
    (void)zone;
    if (clock_gettime(CLOCK_REALTIME, &ts)) return -1;
    tv->tv_sec = ts.tv_sec;
    tv->tv_usec = ts.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *at) {
    struct timespec ts;
    if (clock_gettime(CLOCK_REALTIME, &ts)) return (time_t)-1;
    if (at) *at = ts.tv_sec;
    return ts.tv_sec;
}
