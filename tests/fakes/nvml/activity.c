/* Processes, events and GPM. */

#include <errno.h>
#include <linux/futex.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "fake.h"

/* --- processes --------------------------------------------------------------------------------------------------- */

struct process_info { u32 pid; u64 memory; u32 gpu_instance, compute_instance; };
struct process_sample { u32 pid; u64 timestamp; u32 sm, memory, encoder, decoder; };

/* The process at `index` of this device, or the default one; 0 if there is none. */
static int process_at(const struct device *device, int index, struct process *process)
{
    int own = 0;
    for (int each = 0; each < PROCESSES; each++)
        own += control->processes[each].active;
    if (own) {
        *process = control->processes[index];
        return process->active && process->gpu == (u32)device->gpu &&
               (device->slot < 0 || process->gpu_instance == gpu_instance_id(device));
    }
    if (index || !control->default_pid || (device->slot < 0 && mig_enabled(device->gpu)))
        return 0;
    u32 instance = device->slot < 0 ? NO_INSTANCE : gpu_instance_id(device);
    *process = (struct process){1, (u32)device->gpu, control->default_pid, utilization_percent(device->gpu, elapsed_us()),
                                40, 0, 0, instance, device->slot < 0 ? NO_INSTANCE : 0, 0,
                                memory_used(device) - ((u64)(device->gpu + 1) << 20)};
    return 1;
}

static int list_processes(const struct device *device, u32 *count, struct process_info *infos, u32 kind)
{
    struct process process;
    u32 found = 0, room = *count;
    for (int index = 0; index < PROCESSES; index++)
        if (process_at(device, index, &process) && process.kind == kind) {
            if (found < room && infos)
                infos[found] = (struct process_info){process.pid, process.memory_bytes, process.gpu_instance,
                                                     process.compute_instance};
            found++;
        }
    *count = found;
    return found > room ? INSUFFICIENT_SIZE : SUCCESS;
}

EXPORT int nvmlDeviceGetComputeRunningProcesses_v3(struct device *device, u32 *count, struct process_info *infos)
{
    ENTER(device);
    return list_processes(device, count, infos, 0);
}
EXPORT int nvmlDeviceGetComputeRunningProcesses_v2(struct device *device, u32 *count, struct process_info *infos)
{
    return nvmlDeviceGetComputeRunningProcesses_v3(device, count, infos);
}

EXPORT int nvmlDeviceGetGraphicsRunningProcesses_v3(struct device *device, u32 *count, struct process_info *infos)
{
    ENTER(device);
    return list_processes(device, count, infos, 1);
}
EXPORT int nvmlDeviceGetGraphicsRunningProcesses_v2(struct device *device, u32 *count, struct process_info *infos)
{
    return nvmlDeviceGetGraphicsRunningProcesses_v3(device, count, infos);
}

EXPORT int nvmlDeviceGetMPSComputeRunningProcesses_v3(struct device *device, u32 *count, struct process_info *infos)
{
    ENTER(device);
    (void)infos;
    *count = 0;
    return SUCCESS;
}

EXPORT int nvmlDeviceGetProcessUtilization(struct device *device, struct process_sample *samples, u32 *count,
                                           u64 last_seen)
{
    struct process process;
    u32 found = 0, room = *count;
    u64 now = wall_us();
    ENTER(device);
    if (device->slot >= 0 || mig_enabled(device->gpu))
        return NOT_SUPPORTED;
    if (now <= last_seen)
        return NOT_FOUND;
    for (int index = 0; index < PROCESSES; index++)
        if (process_at(device, index, &process) && process.sm) {
            if (samples && found < room)
                samples[found] = (struct process_sample){process.pid, now, process.sm, process.memory_percent,
                                                         process.encoder, process.decoder};
            found++;
        }
    *count = found;
    return !found ? NOT_FOUND : !samples || found > room ? INSUFFICIENT_SIZE : SUCCESS;
}

/* --- events ------------------------------------------------------------------------------------------------------ */

struct event_set { u64 mask[GPUS]; u32 tail; };
struct event_data { struct device *device; u64 type, data; u32 gpu_instance, compute_instance; };

EXPORT int nvmlEventSetCreate(struct event_set **set)
{
    ENTER(NULL);
    *set = calloc(1, sizeof **set);
    (*set)->tail = control->event_head;
    return SUCCESS;
}

EXPORT int nvmlEventSetFree(struct event_set *set)
{
    free(set);
    return SUCCESS;
}

EXPORT int nvmlDeviceGetSupportedEventTypes(struct device *device, u64 *types)
{
    ENTER_WHOLE(device);
    *types = board()->ecc ? 0x1 | 0x2 | 0x8 | 0x10 | 0x100 : 0x8 | 0x10;
    if (board()->nvlink_version >= 7)
        *types |= 0x400 | 0x800 | 0x1000 | 0x2000 | 0x4000 | 0x8000;
    return SUCCESS;
}

EXPORT int nvmlDeviceRegisterEvents(struct device *device, u64 types, struct event_set *set)
{
    u64 supported;
    ENTER_WHOLE(device);
    int code = nvmlDeviceGetSupportedEventTypes(device, &supported);
    if (code != SUCCESS)
        return code;
    if (types & ~supported)
        return NOT_SUPPORTED;
    set->mask[device->gpu] |= types;
    return SUCCESS;
}

static u64 monotonic_us(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (u64)now.tv_sec * 1000000 + (u64)now.tv_nsec / 1000;
}

EXPORT int nvmlEventSetWait_v2(struct event_set *set, struct event_data *data, u32 timeout_ms)
{
    u64 deadline = monotonic_us() + (u64)timeout_ms * 1000;
    for (;;) {
        ENTER(NULL);
        if (control->event_code)
            return (int)control->event_code;
        u32 head = __atomic_load_n(&control->event_head, __ATOMIC_ACQUIRE);
        if (head - set->tail > EVENTS)
            set->tail = head - EVENTS;
        while (set->tail != head) {
            const struct event *event = &control->events[set->tail++ % EVENTS];
            if (event->gpu < GPUS && set->mask[event->gpu] & event->type) {
                *data = (struct event_data){gpu_device((int)event->gpu), event->type, event->data,
                                            event->gpu_instance, event->compute_instance};
                return SUCCESS;
            }
        }
        u64 now = monotonic_us();
        if (now >= deadline)
            return TIMEOUT;
        struct timespec left = {(time_t)((deadline - now) / 1000000), (long)((deadline - now) % 1000000 * 1000)};
        syscall(SYS_futex, &control->event_head, FUTEX_WAIT, head, &left, NULL, 0);
    }
}

/* --- GPM --------------------------------------------------------------------------------------------------------- */

struct gpm_sample { u64 elapsed; int gpu; u32 instance; };
struct gpm_metric { u32 id, code; double value; char *names[3]; };
struct gpm_request { u32 version, count; struct gpm_sample *first, *second; struct gpm_metric metrics[]; };
struct gpm_support { u32 version, supported; };

EXPORT int nvmlGpmQueryDeviceSupport(struct device *device, struct gpm_support *support)
{
    ENTER(device);
    support->supported = (u32)board()->gpm;
    return SUCCESS;
}

static int gpm_samples;

/* Number of samples that are allocated and not freed. */
EXPORT int fake_gpm_samples(void) { return __atomic_load_n(&gpm_samples, __ATOMIC_RELAXED); }

EXPORT int nvmlGpmSampleAlloc(struct gpm_sample **sample)
{
    ENTER(NULL);
    *sample = calloc(1, sizeof **sample);
    __atomic_add_fetch(&gpm_samples, 1, __ATOMIC_RELAXED);
    return SUCCESS;
}

EXPORT int nvmlGpmSampleFree(struct gpm_sample *sample)
{
    __atomic_sub_fetch(&gpm_samples, 1, __ATOMIC_RELAXED);
    free(sample);
    return SUCCESS;
}

EXPORT int nvmlGpmSampleGet(struct device *device, struct gpm_sample *sample)
{
    ENTER(device);
    if (!board()->gpm)
        return NOT_SUPPORTED;
    *sample = (struct gpm_sample){elapsed_us(), device->gpu, device->slot < 0 ? NO_INSTANCE : gpu_instance_id(device)};
    return SUCCESS;
}

EXPORT int nvmlGpmMigSampleGet(struct device *device, u32 instance, struct gpm_sample *sample)
{
    ENTER_WHOLE(device);
    if (!board()->gpm || !mig_enabled(device->gpu))
        return NOT_SUPPORTED;
    *sample = (struct gpm_sample){elapsed_us(), device->gpu, instance};
    return SUCCESS;
}

/* Percent for pipes, MiB/s for links. Instances with higher numbers are less busy. */
static int gpm_value(const struct gpm_sample *sample, u32 id, double *value)
{
    static const double percent[] = {0, 97, 91, 38, 12, 55, 1, 54, 0.5, 2, 43, 0.25, 9, 4};
    double part = 0.9 + 0.1 * wave(sample->gpu, sample->elapsed, 5000000);
    int shared = sample->instance != NO_INSTANCE;
    if (shared)
        part /= sample->instance;
    if (id >= 1 && id <= 13)
        *value = percent[id] * part;
    else if (shared)
        return NOT_SUPPORTED;
    else if (id == 20 || id == 21)
        *value = (id == 20 ? 1144 : 858) * part;
    else if ((id == 60 || id == 61) && board()->links)
        *value = board()->links * board()->link_mbps * (id == 60 ? 0.30 : 0.31) * part;
    else if (id >= 100 && id <= 103 && board()->c2c_links) /* sent and received, with and without overhead */
        *value = board()->c2c_links * board()->c2c_mbps * (id % 2 ? 0.20 : 0.05) * (id < 102 ? 1.0 : 0.9) * part;
    else
        return NOT_SUPPORTED;
    return SUCCESS;
}

EXPORT int nvmlGpmMetricsGet(struct gpm_request *request)
{
    ENTER(NULL);
    if (request->version != 1)
        return VERSION_MISMATCH;
    if (!request->first || !request->second || request->second->elapsed < request->first->elapsed)
        return INVALID_ARGUMENT;
    for (u32 index = 0; index < request->count; index++) {
        struct gpm_metric *metric = &request->metrics[index];
        metric->code = (u32)gpm_value(request->second, metric->id, &metric->value);
    }
    return SUCCESS;
}
