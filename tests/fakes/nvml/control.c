/* Controls for tests, and the prologue of every call. */

#include <fcntl.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "fake.h"

static struct control own;
struct control *control = &own;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int initialized;
static u32 initialized_generation;

/* --- time and physics -------------------------------------------------------------------------------------------- */

u64 wall_us(void)
{
    struct timespec now;
    if (control->clock_us)
        return control->epoch_us + control->clock_us;
    clock_gettime(CLOCK_REALTIME, &now);
    return (u64)now.tv_sec * 1000000 + (u64)now.tv_nsec / 1000;
}

u64 elapsed_us(void)
{
    u64 now = wall_us();
    return now > control->epoch_us ? now - control->epoch_us : 0;
}

double wave(int gpu, u64 elapsed, u64 period_us)
{
    u64 at = (elapsed + (u64)gpu * (period_us / GPUS)) % period_us;
    double part = (double)at / (double)period_us;
    return part < 0.5 ? 2 * part : 2 - 2 * part;
}

u32 utilization_percent(int gpu, u64 elapsed) { return (u32)(88 + 11 * wave(gpu, elapsed, 7000000)); }

u32 power_limit_mw(int gpu) { return control->limit_mw[gpu] ? control->limit_mw[gpu] : board()->limit_mw; }

u32 power_mw(int gpu, u64 elapsed)
{
    double range = board()->limit_mw - board()->idle_mw;
    u32 drawn = board()->idle_mw + (u32)(range * (0.75 + 0.2 * wave(gpu, elapsed, 3000000)));
    return drawn < power_limit_mw(gpu) ? drawn : power_limit_mw(gpu);
}

int temperature_celsius(int gpu, u64 elapsed) { return 52 + gpu + (int)(6 * wave(gpu, elapsed, 60000000)); }

u64 total(u64 from, double per_second) { return from + (u64)(per_second * (double)elapsed_us() / 1e6); }

/* --- set-up ------------------------------------------------------------------------------------------------------ */

static u32 board_named(const char *name)
{
    for (u32 index = 0; name && boards[index].name; index++)
        if (!strcmp(boards[index].name, name))
            return index;
    return 0;
}

static void fill(struct control *into, const char *board_name)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    u32 events = into->event_head;
    memset(into, 0, sizeof *into);
    into->size = sizeof *into;
    into->board = board_named(board_name);
    into->gpus = ALL;
    into->driver_loaded = 1;
    const char *processes = getenv("GANGWATCH_FAKE_NVML_PROCESSES");
    into->default_pid = processes && !strcmp(processes, "0") ? 0 : 1;
    into->event_head = events;
    into->epoch_us = (u64)now.tv_sec * 1000000;
    for (int gpu = 0; gpu < GPUS; gpu++)
        into->slot_of[gpu] = (u32)gpu;
    into->mig_layout[0] = (u32)boards[into->board].first_mig_layout;
    __atomic_store_n(&into->magic, CONTROL_MAGIC, __ATOMIC_RELEASE);
}

/* Keep the controls in this file, which another process may have initialised already. Returns 0 on success. */
EXPORT int fake_attach(const char *path)
{
    int descriptor = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    struct stat status;
    if (descriptor < 0)
        return -1;
    if (fstat(descriptor, &status) || (status.st_size < (off_t)sizeof own && ftruncate(descriptor, sizeof own))) {
        close(descriptor);
        return -1;
    }
    void *mapped = mmap(NULL, sizeof own, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
    close(descriptor);
    if (mapped == MAP_FAILED)
        return -1;
    control = mapped;
    if (__atomic_load_n(&control->magic, __ATOMIC_ACQUIRE) != CONTROL_MAGIC || control->size != sizeof own)
        fill(control, getenv("GANGWATCH_FAKE_NVML_BOARD"));
    return 0;
}

__attribute__((constructor)) static void begin(void)
{
    const char *path = getenv("GANGWATCH_FAKE_NVML_CONTROL");
    fill(&own, getenv("GANGWATCH_FAKE_NVML_BOARD"));
    if (path && *path && fake_attach(path))
        abort();
}

/* --- initialisation ---------------------------------------------------------------------------------------------- */

EXPORT int nvmlInitWithFlags(u32 flags)
{
    (void)flags;
    int code = enter(__func__, NULL);
    /* enter() returns UNINITIALIZED, which is expected in this call. */
    if (code != SUCCESS && code != UNINITIALIZED)
        return code;
    if (control->init_code)
        return (int)control->init_code;
    pthread_mutex_lock(&lock);
    if (initialized_generation != control->driver_generation)
        initialized = 0;
    initialized_generation = control->driver_generation;
    initialized++;
    pthread_mutex_unlock(&lock);
    return SUCCESS;
}

EXPORT int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
EXPORT int nvmlInit(void) { return nvmlInitWithFlags(0); }

EXPORT int nvmlShutdown(void)
{
    pthread_mutex_lock(&lock);
    int was = initialized;
    if (initialized)
        initialized--;
    pthread_mutex_unlock(&lock);
    return was ? SUCCESS : UNINITIALIZED;
}

/* --- prologue of every call -------------------------------------------------------------------------------------- */

#define CALLS 256
static struct {
    const char *symbol;
    u64 count[GPUS + 1]; /* the last: calls without a GPU */
} asked[CALLS];

static void count_call(const char *symbol, int gpu)
{
    u32 at = (u32)(((uintptr_t)symbol >> 3) % CALLS);
    /* __func__ is one object per function, so its pointer identifies the function. */
    for (int step = 0; step < CALLS && asked[at].symbol != symbol; step++) {
        const char *free_place = NULL;
        if (__atomic_compare_exchange_n(&asked[at].symbol, &free_place, symbol, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
            break;
        if (asked[at].symbol != symbol)
            at = (at + 1) % CALLS;
    }
    asked[at].count[gpu]++;
}

static void wait_while(u32 *word, u32 value)
{
    struct timespec most = {0, 50000000};
    while (__atomic_load_n(word, __ATOMIC_ACQUIRE) == value)
        syscall(SYS_futex, word, FUTEX_WAIT, value, &most, NULL, 0);
}

int enter(const char *symbol, const struct device *device)
{
    int gpu = device ? device->gpu : GPUS;
    u32 hang, delay = control->delay_us, code = SUCCESS;

    count_call(symbol, gpu);
    for (int index = 0; index < CALL_RULES; index++) {
        const struct call_rule *rule = &control->calls[index];
        if (rule->active && (rule->gpu == ALL || rule->gpu == (u32)gpu) && !strcmp(rule->symbol, symbol)) {
            delay += rule->delay_us;
            code = rule->code;
        }
    }
    if (delay)
        usleep(delay);
    if (device && (hang = __atomic_load_n(&control->gpu_hang[gpu], __ATOMIC_ACQUIRE)))
        wait_while(&control->gpu_hang[gpu], hang);
    if (!control->driver_loaded)
        return DRIVER_NOT_LOADED;
    if (!initialized || initialized_generation != control->driver_generation)
        return UNINITIALIZED;
    if (code != SUCCESS)
        return (int)code;
    if (device) {
        if (device->driver_generation != control->driver_generation)
            return INVALID_ARGUMENT;
        if (control->gpu_code[gpu])
            return (int)control->gpu_code[gpu];
        if (device->slot >= 0 && device->mig_generation != control->mig_generation[gpu])
            return INVALID_ARGUMENT;
    }
    return SUCCESS;
}

u64 reading(const char *symbol, const struct device *device, u64 plausible)
{
    for (int index = 0; index < CALL_RULES; index++) {
        const struct call_rule *rule = &control->calls[index];
        if (rule->active && rule->has_value && (rule->gpu == ALL || rule->gpu == (u32)device->gpu) &&
            !strcmp(rule->symbol, symbol))
            return rule->value;
    }
    return plausible;
}

/* --- interface for tests ------------------------------------------------------------------------------------------ */

EXPORT void fake_reset(const char *board_name)
{
    fill(control, board_name ? board_name : getenv("GANGWATCH_FAKE_NVML_BOARD"));
    memset(asked, 0, sizeof asked);
}

EXPORT int fake_is_initialized(void) { return initialized > 0; }
EXPORT void fake_set_init_code(u32 code) { control->init_code = code; }
EXPORT void fake_set_gpus(u32 present) { control->gpus = present; }
EXPORT void fake_set_pattern(u32 on) { control->pattern = on; }
EXPORT void fake_set_delay_us(u32 delay) { control->delay_us = delay; }
EXPORT void fake_set_default_pid(u32 pid) { control->default_pid = pid; }
EXPORT void fake_set_gpu_code(u32 gpu, u32 code) { control->gpu_code[gpu] = code; }
EXPORT void fake_set_event_code(u32 code)
{
    control->event_code = code;
    syscall(SYS_futex, &control->event_head, FUTEX_WAKE, 1 << 20, NULL, NULL, 0);
}

/* Freeze counters at `elapsed` microseconds after their start, which then is midnight of 2026-01-01 UTC; 0: advance with
 * the clock again. */
EXPORT void fake_set_clock_us(u64 elapsed)
{
    if (elapsed)
        control->epoch_us = 1767225600000000ull;
    control->clock_us = elapsed;
}

EXPORT void fake_set_hang(u32 gpu, u32 hang)
{
    __atomic_store_n(&control->gpu_hang[gpu], hang, __ATOMIC_RELEASE);
    syscall(SYS_futex, &control->gpu_hang[gpu], FUTEX_WAKE, 1 << 20, NULL, NULL, 0);
}

static struct call_rule *place_for_call(const char *symbol, u32 gpu)
{
    struct call_rule *place = NULL;
    for (int index = 0; index < CALL_RULES; index++) {
        struct call_rule *rule = &control->calls[index];
        if (rule->active && rule->gpu == gpu && !strcmp(rule->symbol, symbol)) {
            place = rule;
            break;
        }
        if (!rule->active && !place)
            place = rule;
    }
    if (!place || strlen(symbol) >= sizeof place->symbol)
        return NULL;
    if (!place->active) {
        *place = (struct call_rule){.gpu = gpu};
        strcpy(place->symbol, symbol);
    }
    return place;
}

/* Make `symbol` return `code` for `gpu` (16: calls without a GPU; ALL: any) after `delay` microseconds. -1: no room. */
EXPORT int fake_set_call(const char *symbol, u32 gpu, u32 code, u32 delay)
{
    struct call_rule *rule = place_for_call(symbol, gpu);
    if (!rule)
        return -1;
    rule->code = code;
    rule->delay_us = delay;
    rule->active = code != SUCCESS || delay != 0 || rule->has_value;
    return 0;
}

/* Set the number that a call returns; for a fabric, the health mask. Returns 0, or -1 if there is no room. */
EXPORT int fake_set_reading(const char *symbol, u32 gpu, u64 value)
{
    struct call_rule *rule = place_for_call(symbol, gpu);
    if (!rule)
        return -1;
    rule->value = value;
    rule->has_value = 1;
    rule->active = 1;
    return 0;
}

/* Set a field's `code`, or its `value` of NVML value type `type` if code is SUCCESS. Returns 0, or -1: no room. */
EXPORT int fake_set_field(u32 gpu, u32 field, u32 scope, u32 code, u32 type, u64 value)
{
    struct field_rule *place = NULL;
    for (int index = 0; index < FIELD_RULES; index++) {
        struct field_rule *rule = &control->fields[index];
        if (rule->active && rule->gpu == gpu && rule->field == field && rule->scope == scope) {
            place = rule;
            break;
        }
        if (!rule->active && !place)
            place = rule;
    }
    if (!place)
        return -1;
    *place = (struct field_rule){0, gpu, field, scope, code, type, value};
    place->active = 1;
    return 0;
}

EXPORT void fake_clear_fields(void) { memset(control->fields, 0, sizeof control->fields); }

/* kind: 0 compute, 1 graphics. fake_clear_processes removes processes. */
EXPORT int fake_add_process(u32 gpu, u32 pid, u64 memory_bytes, u32 sm, u32 memory_percent, u32 gpu_instance, u32 kind)
{
    for (int index = 0; index < PROCESSES; index++)
        if (!control->processes[index].active) {
            control->processes[index] = (struct process){
                1, gpu, pid, sm, memory_percent, 0, 0, gpu_instance, gpu_instance == NO_INSTANCE ? NO_INSTANCE : 0, kind,
                memory_bytes};
            return 0;
        }
    return -1;
}

EXPORT void fake_clear_processes(void)
{
    memset(control->processes, 0, sizeof control->processes);
    control->default_pid = 0;
}

EXPORT void fake_push_event(u32 gpu, u64 type, u64 data, u32 gpu_instance)
{
    u32 head = control->event_head;
    control->events[head % EVENTS] = (struct event){gpu, gpu_instance, gpu_instance, 0, type, data};
    __atomic_store_n(&control->event_head, head + 1, __ATOMIC_RELEASE);
    syscall(SYS_futex, &control->event_head, FUTEX_WAKE, 1 << 20, NULL, NULL, 0);
}

EXPORT void fake_push_xid(u32 gpu, u32 xid) { fake_push_event(gpu, 8, xid, NO_INSTANCE); }

EXPORT void fake_set_mig(u32 gpu, u32 layout)
{
    control->mig_layout[gpu] = layout;
    memset(control->created[gpu], 0, sizeof control->created[gpu]);
    control->mig_generation[gpu]++;
    fake_push_event(gpu, 0x100, 0, NO_INSTANCE);
}

/* Unload or load the driver; all older handles and initialisations become invalid. */
EXPORT void fake_set_driver_loaded(u32 loaded)
{
    control->driver_loaded = loaded;
    if (!loaded)
        control->driver_generation++;
}

EXPORT u64 fake_asked(const char *symbol, u32 gpu)
{
    for (int index = 0; index < CALLS; index++)
        if (asked[index].symbol && !strcmp(asked[index].symbol, symbol))
            return gpu <= GPUS ? asked[index].count[gpu] : 0;
    return 0;
}
