/* The wall clock of one process, moved by what a shared file says; the monotonic clock stays as it is.

   libfaketime does the same and more, and its clock_nanosleep() fails for times that have just passed: time.sleep() of
   Python 3.11 then raises EINVAL. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile long long nothing;
static volatile long long *step_ns = &nothing;
static int (*real_clock_gettime)(clockid_t, struct timespec *);

__attribute__((constructor)) static void open_step(void) {
    real_clock_gettime = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    const char *path = getenv("CLOCK_STEP_FILE");
    int fd = path ? open(path, O_RDONLY) : -1;
    if (fd < 0) return;
    void *found = mmap(NULL, sizeof *step_ns, PROT_READ, MAP_SHARED, fd, 0);
    if (found != MAP_FAILED) step_ns = found;
    close(fd);
}

int clock_gettime(clockid_t id, struct timespec *now) {
    if (!real_clock_gettime) open_step();
    int failed = real_clock_gettime(id, now);
    if (!failed && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE)) {
        long long ns = now->tv_sec * 1000000000LL + now->tv_nsec + *step_ns;
        now->tv_sec = ns / 1000000000LL;
        now->tv_nsec = ns % 1000000000LL;
    }
    return failed;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    (void)zone;
    struct timespec found;
    clock_gettime(CLOCK_REALTIME, &found);
    now->tv_sec = found.tv_sec;
    now->tv_usec = found.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *now) {
    struct timespec found;
    clock_gettime(CLOCK_REALTIME, &found);
    if (now) *now = found.tv_sec;
    return found.tv_sec;
}
