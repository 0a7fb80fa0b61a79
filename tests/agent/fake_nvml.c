/*
 * A small fake of libnvidia-ml.so.1 at its real interface, so that pynvml itself and all above it run without a GPU.
 * It is no recording: the numbers are made up, so that each can be told from every other. Two GPUs; what a test
 * changes, it changes through the fake_* functions. Declarations follow the calls' documentation in nvml.h.
 *
 *     gcc -shared -fPIC -Wl,-soname,libnvidia-ml.so.1 -o libnvidia-ml.so.1 fake_nvml.c
 */

#include <stdio.h>
#include <unistd.h>

#define GPUS 2

enum { SUCCESS = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2 };

/* Calls whose answer can be set, by number. */
enum { UTILIZATION, MEMORY, POWER, ENERGY, TEMPERATURE, CLOCK, REASONS, CALLS };

struct gpu {
    int index;
    int errors[CALLS];
};

static struct gpu gpus[GPUS] = {{.index = 0}, {.index = 1}};
static int initialized, init_error, count = GPUS;
static unsigned delay_ms, asked[GPUS][CALLS];

void fake_reset(void)
{
    for (int gpu = 0; gpu < GPUS; gpu++)
        for (int call = 0; call < CALLS; call++) {
            gpus[gpu].errors[call] = SUCCESS;
            asked[gpu][call] = 0;
        }
    init_error = SUCCESS;
    count = GPUS;
    delay_ms = 0;
}

void fake_set_init_error(int error) { init_error = error; }
void fake_set_count(int gpus_present) { count = gpus_present; }
void fake_set_delay_ms(unsigned milliseconds) { delay_ms = milliseconds; }
int fake_is_initialized(void) { return initialized; }
unsigned fake_asked(int gpu, int call) { return asked[gpu][call]; }

/* The error that `call` gives for `gpu` from now on; call -1 means all of them. */
void fake_set_error(int gpu, int call, int error)
{
    for (int one = 0; one < CALLS; one++)
        if (call == -1 || call == one)
            gpus[gpu].errors[one] = error;
}

static int answer(struct gpu *gpu, int call)
{
    if (!initialized)
        return UNINITIALIZED;
    if (delay_ms)
        usleep(delay_ms * 1000);
    asked[gpu->index][call]++;
    return gpu->errors[call];
}

int nvmlInitWithFlags(unsigned flags)
{
    (void)flags;
    if (init_error == SUCCESS)
        initialized = 1;
    return init_error;
}

int nvmlShutdown(void)
{
    initialized = 0;
    return SUCCESS;
}

const char *nvmlErrorString(int error)
{
    static char text[32];
    snprintf(text, sizeof text, "fake error %d", error);
    return text;
}

int nvmlSystemGetDriverVersion(char *version, unsigned length)
{
    snprintf(version, length, "555.55.55");
    return SUCCESS;
}

int nvmlDeviceGetCount_v2(unsigned *devices)
{
    *devices = count;
    return SUCCESS;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, struct gpu **gpu)
{
    if (index >= GPUS)
        return INVALID_ARGUMENT;
    *gpu = &gpus[index];
    return SUCCESS;
}

int nvmlDeviceGetUUID(struct gpu *gpu, char *uuid, unsigned length)
{
    snprintf(uuid, length, "GPU-00000000-0000-0000-0000-00000000000%d", gpu->index);
    return SUCCESS;
}

int nvmlDeviceGetName(struct gpu *gpu, char *name, unsigned length)
{
    (void)gpu;
    snprintf(name, length, "NVIDIA Fake 80GB");
    return SUCCESS;
}

struct pci_info {
    char bus_id_legacy[16];
    unsigned domain, bus, device, pci_device_id, pci_subsystem_id;
    char bus_id[32];
};

int nvmlDeviceGetPciInfo_v3(struct gpu *gpu, struct pci_info *info)
{
    snprintf(info->bus_id, sizeof info->bus_id, "00000000:%02X:00.0", 0x3b + gpu->index);
    return SUCCESS;
}

struct utilization {
    unsigned gpu, memory;
};

int nvmlDeviceGetUtilizationRates(struct gpu *gpu, struct utilization *rates)
{
    rates->gpu = 57 + gpu->index;
    rates->memory = 29 + gpu->index;
    return answer(gpu, UTILIZATION);
}

struct memory_v2 {
    unsigned version;
    unsigned long long total, reserved, free, used;
};

int nvmlDeviceGetMemoryInfo_v2(struct gpu *gpu, struct memory_v2 *memory)
{
    if (memory->version != (sizeof *memory | 2u << 24))
        return INVALID_ARGUMENT;
    memory->total = 85899345920ull;
    memory->used = 1000000007ull + gpu->index;
    return answer(gpu, MEMORY);
}

int nvmlDeviceGetPowerUsage(struct gpu *gpu, unsigned *milliwatts)
{
    *milliwatts = 345678 + gpu->index;
    return answer(gpu, POWER);
}

int nvmlDeviceGetTotalEnergyConsumption(struct gpu *gpu, unsigned long long *millijoules)
{
    *millijoules = 9007199254740993ull + gpu->index; /* 2^53 + 1: no double holds it */
    return answer(gpu, ENERGY);
}

int nvmlDeviceGetTemperature(struct gpu *gpu, int sensor, unsigned *celsius)
{
    if (sensor != 0)
        return INVALID_ARGUMENT;
    *celsius = 41 + gpu->index;
    return answer(gpu, TEMPERATURE);
}

int nvmlDeviceGetClockInfo(struct gpu *gpu, int clock, unsigned *megahertz)
{
    *megahertz = clock == 1 ? 1980 + gpu->index : clock == 2 ? 2619 + gpu->index : 0;
    return answer(gpu, CLOCK);
}

int nvmlDeviceGetCurrentClocksEventReasons(struct gpu *gpu, unsigned long long *reasons)
{
    *reasons = gpu->index ? 0x1 : 0x4 | 0x40;
    return answer(gpu, REASONS);
}
