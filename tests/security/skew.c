/* A wrong clock for one node on a machine with a correct clock: a library that is preloaded into its processes.
 *
 * In processes whose command line or environment names GANGWATCH_SKEWED_NODE, the time of day is
 * GANGWATCH_SKEW_SECONDS later. Monotonic clocks are unchanged.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static int names(const char *file, const char *needle)
{
    char text[65536];
    int descriptor = open(file, O_RDONLY | O_CLOEXEC);
    if (descriptor < 0)
        return 0;
    ssize_t length = read(descriptor, text, sizeof text);
    close(descriptor);
    return length > 0 && memmem(text, (size_t)length, needle, strlen(needle)) != NULL;
}

static long skew(void)
{
    static long known = -1;
    static int asked;
    if (!asked) {
        const char *node = getenv("GANGWATCH_SKEWED_NODE"), *seconds = getenv("GANGWATCH_SKEW_SECONDS");
        char agent[256], rank[256];
        known = 0;
        if (node != NULL && seconds != NULL) {
            snprintf(agent, sizeof agent, "--node%c%s", 0, node);
            snprintf(rank, sizeof rank, "GANGWATCH_NODE=%s", node);
            char line[300];
            memcpy(line, "--node", 7);
            strcpy(line + 7, node);
            char text[65536];
            int descriptor = open("/proc/self/cmdline", O_RDONLY | O_CLOEXEC);
            ssize_t length = descriptor < 0 ? -1 : read(descriptor, text, sizeof text);
            if (descriptor >= 0)
                close(descriptor);
            if ((length > 0 && memmem(text, (size_t)length, line, 7 + strlen(node) + 1)) ||
                names("/proc/self/environ", rank))
                known = atol(seconds);
        }
        asked = 1;
    }
    return known;
}

int clock_gettime(clockid_t clock, struct timespec *now)
{
    static int (*real)(clockid_t, struct timespec *);
    if (real == NULL)
        real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    int done = real(clock, now);
    if (done == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
        now->tv_sec += skew();
    return done;
}

time_t time(time_t *into)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (into != NULL)
        *into = now.tv_sec;
    return now.tv_sec;
}
