/*
 * A fake of libnvidia-ml.so.1 with its real interface, so that all code above the library runs without a GPU.
 *
 * It is not a recording. A board (boards.c) defines the hardware; values change with time as on a machine in training.
 * Tests override values in `struct control`, which may be in a file that another process maps too
 * (GANGWATCH_FAKE_NVML_CONTROL), so that a test can inject faults into a running agent. Layouts and codes follow the
 * documentation in nvml.h 12.9 and 13.5. Callers use the structures of pynvml, so a difference between the two layouts
 * changes the values in tests/agent/golden.
 */

#ifndef FAKE_NVML_H
#define FAKE_NVML_H

#include <stddef.h>
#include <stdint.h>

typedef uint8_t u8;
typedef uint32_t u32;
typedef uint64_t u64;
typedef int64_t i64;

#define EXPORT __attribute__((visibility("default")))

enum {
    SUCCESS = 0,
    UNINITIALIZED = 1,
    INVALID_ARGUMENT = 2,
    NOT_SUPPORTED = 3,
    NO_PERMISSION = 4,
    NOT_FOUND = 6,
    INSUFFICIENT_SIZE = 7,
    DRIVER_NOT_LOADED = 9,
    TIMEOUT = 10,
    FUNCTION_NOT_FOUND = 13,
    IN_USE = 19,
    INSUFFICIENT_RESOURCES = 23,
    GPU_IS_LOST = 15,
    VERSION_MISMATCH = 25,
};

#define GPUS 16
#define MIG_SLOTS 8
#define NO_INSTANCE 0xFFFFFFFFu
#define ALL 0xFFFFFFFFu

/* --- boards ------------------------------------------------------------------------------------------------------ */

struct board {
    const char *name, *model, *driver, *vbios, *part;
    int cuda_version, gpus, first_mig_layout;
    int architecture, compute_major, compute_minor, cores;
    u64 memory_bytes, reserved_bytes, bar1_bytes;
    u32 idle_mw, limit_mw, least_mw, most_mw;
    u32 graphics_mhz, idle_mhz, memory_mhz;
    u32 pcie_generation, pci_device, pci_subsystem;
    int links, link_mbps, nvlink_version, switches;
    int c2c_links, c2c_mbps;  /* to a CPU on the same module; the module reports its power */
    /* What this generation of GPU and driver supports. */
    int ecc, retired_pages, row_remap, memory_temperature, temperature_limits, power_average, throttle_times;
    int pcie_errors, pcie_bytes, gpm, fabric_version, recovery_action, mig;
    const char *pci[GPUS];
};

extern const struct board boards[];

struct mig_profile {
    const char *name;
    int slices, compute_slices, multiprocessors;
    u64 memory_mib;
    u32 id, start; /* profile number, and first memory slice of the instance */
};

/* Instances of layout `layout`; the last has a NULL name. Layout 0: MIG is off. */
const struct mig_profile *mig_layout(u32 layout);

/* A layout whose instances are created and destroyed by calls (instances.c). */
#define MIG_CREATED 3

/* A GPU instance that a call has created. */
struct created {
    u32 active, compute, profile, start, serial;
};

/* Memory slices of a profile by its number. */
u32 mig_size(u32 profile);

/* The instance in this slot of the GPU; NULL if there is none, or no compute instance in it. */
const struct mig_profile *instance_in(int gpu, int slot);

/* --- control ----------------------------------------------------------------------------------------------------- */

#define CONTROL_MAGIC 0x47574e56u
#define FIELD_RULES 256
#define CALL_RULES 32
#define PROCESSES 64
#define EVENTS 256

struct field_rule {
    u32 active, gpu, field, scope; /* gpu and scope: ALL matches any */
    u32 code, type;
    u64 value;
};

struct call_rule {
    u32 active, gpu, code, delay_us; /* code SUCCESS: delay or value only */
    u32 has_value, pad;
    u64 value;
    char symbol[56];
};

struct process {
    u32 active, gpu, pid, sm, memory_percent, encoder, decoder, gpu_instance, compute_instance, kind;
    u64 memory_bytes;
};

struct event {
    u32 gpu, gpu_instance, compute_instance, pad;
    u64 type, data;
};

/* All controls. Each word is written atomically; a reader may see a mix of old and new words. */
struct control {
    u32 magic, size;
    u32 board;
    u32 gpus;                 /* present GPUs; ALL: as on the board */
    u32 init_code;
    u32 driver_loaded;
    u32 driver_generation;    /* a new value invalidates handles and initialisations */
    u32 pattern;              /* 1: each field is field * 1000 + gpu * 100 + scope, so swapped values are detected */
    u32 delay_us;
    u32 default_pid;          /* each GPU has a process with this pid until another is set; 0: none */
    u32 event_code;           /* returned by waits for events, which then do not block */
    u32 event_head;           /* events ever pushed; a futex */
    u64 epoch_us, clock_us;   /* start of the counters; elapsed time if frozen, or 0 */
    u32 gpu_code[GPUS], gpu_hang[GPUS], mig_layout[GPUS], mig_generation[GPUS], slot_of[GPUS];
    struct created created[GPUS][MIG_SLOTS];
    u32 created_count;
    u32 limit_mw[GPUS];       /* power limit that was set; 0: the board's. The driver keeps it when a process ends */
    struct field_rule fields[FIELD_RULES];
    struct call_rule calls[CALL_RULES];
    struct process processes[PROCESSES];
    struct event events[EVENTS];
};

extern struct control *control;

static inline const struct board *board(void) { return &boards[control->board]; }

/* --- devices ----------------------------------------------------------------------------------------------------- */

/* What an nvmlDevice_t points to. slot -1: the whole GPU. */
struct device {
    int gpu, slot;
    u32 driver_generation, mig_generation;
};

/* Begin a call; `device` may be NULL for system calls. Counts, delays or hangs the call, and returns its code. */
int enter(const char *symbol, const struct device *device);
#define ENTER(device)                                                                                                  \
    do {                                                                                                               \
        int entered = enter(__func__, device);                                                                         \
        if (entered != SUCCESS)                                                                                        \
            return entered;                                                                                            \
    } while (0)

/* The value that a test has set for the reading, or `plausible`. */
u64 reading(const char *symbol, const struct device *device, u64 plausible);

/* The same for calls that are invalid on a MIG instance. */
#define ENTER_WHOLE(device)                                                                                            \
    do {                                                                                                               \
        ENTER(device);                                                                                                 \
        if ((device)->slot >= 0)                                                                                       \
            return NOT_SUPPORTED;                                                                                      \
    } while (0)

int gpus_present(void);
struct device *gpu_device(int gpu);
const struct mig_profile *instance_of(const struct device *device);
/* The handle of the instance in this slot. */
struct device *instance_device(int gpu, int slot);
u32 gpu_instance_id(const struct device *device);
int mig_enabled(int gpu);
int copy_text(char *to, u32 length, const char *text);

/* --- physics ----------------------------------------------------------------------------------------------------- */

u64 wall_us(void);
u64 elapsed_us(void);
/* A triangle between 0 and 1 with its own phase for each GPU, at the instant `elapsed`. */
double wave(int gpu, u64 elapsed, u64 period_us);
u32 utilization_percent(int gpu, u64 elapsed);
u32 power_mw(int gpu, u64 elapsed);
/* The power limit in force. */
u32 power_limit_mw(int gpu);
int temperature_celsius(int gpu, u64 elapsed);
/* The total at a rate of `per_second` since the start of the counters. */
u64 total(u64 from, double per_second);
u64 memory_used(const struct device *device);

/* Return the value of one field; see fields.c. */
int field_value(const struct device *device, u32 field, u32 scope, u32 *type, u64 *value);

#endif
