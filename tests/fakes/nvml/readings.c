/* Calls that return one reading each. */

#include "fake.h"

struct utilization { u32 gpu, memory; };
struct memory_v1 { u64 total, free, used; };
struct memory_v2 { u32 version; u64 total, reserved, free, used; };
struct bar1 { u64 total, free, used; };
struct temperature_v1 { u32 version, sensor; int celsius; };
struct margin_v1 { u32 version; int celsius; };
struct sample { u64 timestamp, value; };
struct sram_v1 {
    u32 version;
    u64 aggregate_parity, aggregate_secded, aggregate_corrected, volatile_parity, volatile_secded, volatile_corrected;
    u64 bucket_l2, bucket_sm, bucket_pcie, bucket_mcu, bucket_other;
    u32 threshold_exceeded;
};

#define VERSION_OF(type, number) ((u32)sizeof(type) | (u32)(number) << 24)

/* --- utilisation and memory -------------------------------------------------------------------------------------- */

EXPORT int nvmlDeviceGetUtilizationRates(struct device *device, struct utilization *rates)
{
    ENTER(device);
    if (device->slot >= 0 || mig_enabled(device->gpu))
        return NOT_SUPPORTED;
    rates->gpu = (u32)reading(__func__, device, utilization_percent(device->gpu, elapsed_us()));
    rates->memory = rates->gpu / 2;
    return SUCCESS;
}

/* Samples as the driver keeps them: one every 100 ms, 60 in total. Types: 0 power mW, 1 GPU, 2 memory (percent). */
EXPORT int nvmlDeviceGetSamples(struct device *device, u32 type, u64 last_seen, u32 *value_type, u32 *count,
                                struct sample *samples)
{
    ENTER_WHOLE(device);
    if (type > 2 || (type && mig_enabled(device->gpu)))
        return NOT_SUPPORTED;
    if (!samples) {
        *count = 120;
        return SUCCESS;
    }
    u64 now = elapsed_us() / 100000, first = now > 60 ? now - 60 : 0, start = wall_us() - elapsed_us();
    u32 written = 0;
    for (u64 tick = first; tick < now && written < *count; tick++) {
        u64 at = tick * 100000;
        if (start + at <= last_seen)
            continue;
        u32 busy = utilization_percent(device->gpu, at);
        samples[written].timestamp = start + at;
        samples[written].value = type == 0 ? power_mw(device->gpu, at) : type == 1 ? busy : busy / 2;
        written++;
    }
    *value_type = 1;
    *count = written;
    return written ? SUCCESS : NOT_FOUND;
}

static int coding(struct device *device, u32 *percent, u32 *period, u32 value)
{
    if (device->slot >= 0)
        return NOT_SUPPORTED;
    *percent = value;
    *period = 1000000;
    return SUCCESS;
}

EXPORT int nvmlDeviceGetEncoderUtilization(struct device *device, u32 *percent, u32 *period)
{
    ENTER(device);
    return coding(device, percent, period, 3 + (u32)device->gpu);
}

EXPORT int nvmlDeviceGetDecoderUtilization(struct device *device, u32 *percent, u32 *period)
{
    ENTER(device);
    return coding(device, percent, period, 20 + (u32)device->gpu);
}

u64 memory_used(const struct device *device)
{
    u64 used = 0;
    int own = 0;
    for (int index = 0; index < PROCESSES; index++) {
        const struct process *process = &control->processes[index];
        own += process->active;
        if (process->active && process->gpu == (u32)device->gpu &&
            (device->slot < 0 || process->gpu_instance == gpu_instance_id(device)))
            used += process->memory_bytes;
    }
    if (!own && control->default_pid)
        used = (device->slot < 0 ? board()->memory_bytes : instance_of(device)->memory_mib << 20) / 10 * 7;
    return used + ((u64)(device->gpu + 1) << 20);
}

static u64 memory_total(const struct device *device)
{
    return device->slot < 0 ? board()->memory_bytes : instance_of(device)->memory_mib << 20;
}

EXPORT int nvmlDeviceGetMemoryInfo(struct device *device, struct memory_v1 *memory)
{
    ENTER(device);
    u64 reserved = device->slot < 0 ? board()->reserved_bytes : 0;
    memory->total = memory_total(device);
    memory->used = memory_used(device) + reserved;
    memory->free = memory->total - memory->used;
    return SUCCESS;
}

EXPORT int nvmlDeviceGetMemoryInfo_v2(struct device *device, struct memory_v2 *memory)
{
    ENTER(device);
    if (memory->version != VERSION_OF(struct memory_v2, 2))
        return VERSION_MISMATCH;
    memory->total = memory_total(device);
    memory->reserved = device->slot < 0 ? board()->reserved_bytes : 0;
    memory->used = memory_used(device);
    memory->free = memory->total - memory->used - memory->reserved;
    return SUCCESS;
}

EXPORT int nvmlDeviceGetBAR1MemoryInfo(struct device *device, struct bar1 *bar1)
{
    ENTER(device);
    bar1->total = board()->bar1_bytes;
    bar1->used = (u64)(device->gpu + 2) << 20;
    bar1->free = bar1->total - bar1->used;
    return SUCCESS;
}

/* --- power, heat, clocks ----------------------------------------------------------------------------------------- */

EXPORT int nvmlDeviceGetPowerUsage(struct device *device, u32 *milliwatts)
{
    ENTER_WHOLE(device);
    *milliwatts = power_mw(device->gpu, elapsed_us());
    return SUCCESS;
}

EXPORT int nvmlDeviceGetTotalEnergyConsumption(struct device *device, u64 *millijoules)
{
    u32 type;
    ENTER_WHOLE(device);
    return field_value(device, 83, 0, &type, millijoules);
}

EXPORT int nvmlDeviceGetEnforcedPowerLimit(struct device *device, u32 *milliwatts)
{
    ENTER_WHOLE(device);
    *milliwatts = power_limit_mw(device->gpu);
    return SUCCESS;
}

EXPORT int nvmlDeviceGetPowerManagementLimit(struct device *device, u32 *milliwatts)
{
    ENTER_WHOLE(device);
    *milliwatts = power_limit_mw(device->gpu);
    return SUCCESS;
}

EXPORT int nvmlDeviceSetPowerManagementLimit(struct device *device, u32 milliwatts)
{
    ENTER_WHOLE(device);
    if (milliwatts < board()->least_mw || milliwatts > board()->most_mw)
        return INVALID_ARGUMENT;
    control->limit_mw[device->gpu] = milliwatts;
    return SUCCESS;
}

EXPORT int nvmlDeviceGetPowerManagementDefaultLimit(struct device *device, u32 *milliwatts)
{
    ENTER_WHOLE(device);
    *milliwatts = board()->limit_mw;
    return SUCCESS;
}

EXPORT int nvmlDeviceGetPowerManagementLimitConstraints(struct device *device, u32 *least, u32 *most)
{
    ENTER_WHOLE(device);
    *least = board()->least_mw;
    *most = board()->most_mw;
    return SUCCESS;
}

EXPORT int nvmlDeviceGetTemperature(struct device *device, u32 sensor, u32 *celsius)
{
    ENTER_WHOLE(device);
    if (sensor)
        return INVALID_ARGUMENT;
    *celsius = (u32)temperature_celsius(device->gpu, elapsed_us());
    return SUCCESS;
}

EXPORT int nvmlDeviceGetTemperatureV(struct device *device, struct temperature_v1 *temperature)
{
    ENTER_WHOLE(device);
    if (temperature->version != VERSION_OF(struct temperature_v1, 1))
        return VERSION_MISMATCH;
    temperature->celsius = (int)reading(__func__, device, (u64)temperature_celsius(device->gpu, elapsed_us()));
    return SUCCESS;
}

EXPORT int nvmlDeviceGetMarginTemperature(struct device *device, struct margin_v1 *margin)
{
    ENTER_WHOLE(device);
    if (!board()->temperature_limits)
        return NOT_SUPPORTED;
    if (margin->version != VERSION_OF(struct margin_v1, 1))
        return VERSION_MISMATCH;
    margin->celsius = 87 - temperature_celsius(device->gpu, elapsed_us());
    return SUCCESS;
}

/* 0 shutdown, 1 slowdown, 2 memory, 3 GPU maximum; boards with T.Limit margins do not have these. */
EXPORT int nvmlDeviceGetTemperatureThreshold(struct device *device, u32 which, u32 *celsius)
{
    static const u32 thresholds[] = {92, 89, 95, 85};
    ENTER_WHOLE(device);
    if (which >= 4 || board()->temperature_limits || (which == 2 && !board()->memory_temperature))
        return NOT_SUPPORTED;
    *celsius = thresholds[which];
    return SUCCESS;
}

EXPORT int nvmlDeviceGetFanSpeed(struct device *device, u32 *percent)
{
    ENTER_WHOLE(device);
    if (board()->ecc)
        return NOT_SUPPORTED;
    *percent = 47;
    return SUCCESS;
}

static u32 most_mhz(u32 clock) { return clock == 2 ? board()->memory_mhz : board()->graphics_mhz - clock * 15 / 3; }

EXPORT int nvmlDeviceGetClockInfo(struct device *device, u32 clock, u32 *mhz)
{
    ENTER(device);
    if (clock > 3)
        return INVALID_ARGUMENT;
    *mhz = clock == 2 ? board()->memory_mhz : most_mhz(clock) - (u32)(90 * wave(device->gpu, elapsed_us(), 3000000));
    return SUCCESS;
}

EXPORT int nvmlDeviceGetMaxClockInfo(struct device *device, u32 clock, u32 *mhz)
{
    ENTER(device);
    if (clock > 3)
        return INVALID_ARGUMENT;
    *mhz = most_mhz(clock);
    return SUCCESS;
}

EXPORT int nvmlDeviceGetCurrentClocksEventReasons(struct device *device, u64 *reasons)
{
    ENTER(device);
    *reasons = reading(__func__, device, device->gpu % 4 == 3 ? 0x4 | 0x20 : 0x4);
    return SUCCESS;
}
EXPORT int nvmlDeviceGetCurrentClocksThrottleReasons(struct device *device, u64 *reasons)
{
    return nvmlDeviceGetCurrentClocksEventReasons(device, reasons);
}

EXPORT int nvmlDeviceGetPerformanceState(struct device *device, u32 *state)
{
    ENTER(device);
    *state = (u32)reading(__func__, device, 0);
    return SUCCESS;
}

/* --- modes ------------------------------------------------------------------------------------------------------- */

EXPORT int nvmlDeviceGetPersistenceMode(struct device *device, u32 *mode)
{
    ENTER(device);
    *mode = 1;
    return SUCCESS;
}

EXPORT int nvmlDeviceGetComputeMode(struct device *device, u32 *mode)
{
    ENTER(device);
    *mode = 0;
    return SUCCESS;
}

EXPORT int nvmlDeviceGetDisplayMode(struct device *device, u32 *mode)
{
    ENTER(device);
    *mode = 0;
    return SUCCESS;
}

EXPORT int nvmlDeviceGetDisplayActive(struct device *device, u32 *active)
{
    ENTER(device);
    *active = 0;
    return SUCCESS;
}

EXPORT int nvmlDeviceGetEccMode(struct device *device, u32 *current, u32 *pending)
{
    ENTER_WHOLE(device);
    if (!board()->ecc)
        return NOT_SUPPORTED;
    *current = *pending = 1;
    return SUCCESS;
}

/* --- errors ------------------------------------------------------------------------------------------------------ */

/* kind 0 corrected, 1 uncorrected; counter 0 volatile, 1 aggregate. */
EXPORT int nvmlDeviceGetTotalEccErrors(struct device *device, u32 kind, u32 counter, u64 *errors)
{
    u32 type;
    ENTER_WHOLE(device);
    return field_value(device, 3 + kind + 2 * counter, 0, &type, errors);
}

EXPORT int nvmlDeviceGetSramEccErrorStatus(struct device *device, struct sram_v1 *status)
{
    ENTER_WHOLE(device);
    if (!board()->row_remap)
        return NOT_SUPPORTED;
    if (status->version != VERSION_OF(struct sram_v1, 1))
        return VERSION_MISMATCH;
    u64 base = (u64)device->gpu * 1000;
    *status = (struct sram_v1){status->version, base + 1, base + 2, base + 3, base + 4, base + 5, base + 6, base + 7,
                               base + 8, base + 9, base + 10, base + 11, 0};
    return SUCCESS;
}

EXPORT int nvmlDeviceGetRemappedRows(struct device *device, u32 *corrected, u32 *uncorrected, u32 *pending, u32 *failed)
{
    ENTER_WHOLE(device);
    if (!board()->row_remap)
        return NOT_SUPPORTED;
    *corrected = device->gpu == 5;
    *uncorrected = *pending = *failed = 0;
    return SUCCESS;
}

struct remap_histogram { u32 max, high, partial, low, none; };

EXPORT int nvmlDeviceGetRowRemapperHistogram(struct device *device, struct remap_histogram *banks)
{
    ENTER_WHOLE(device);
    if (!board()->row_remap)
        return NOT_SUPPORTED;
    *banks = (struct remap_histogram){640 - (device->gpu == 5), device->gpu == 5, 0, 0, 0};
    return SUCCESS;
}

/* --- PCIe -------------------------------------------------------------------------------------------------------- */

#define PCIE(call, value)                                                                                              \
    EXPORT int call(struct device *device, u32 *answer)                                                                \
    {                                                                                                                  \
        ENTER_WHOLE(device);                                                                                           \
        *answer = (u32)reading(__func__, device, value);                                                               \
        return SUCCESS;                                                                                                \
    }

PCIE(nvmlDeviceGetCurrPcieLinkGeneration, board()->pcie_generation)
PCIE(nvmlDeviceGetMaxPcieLinkGeneration, board()->pcie_generation)
PCIE(nvmlDeviceGetGpuMaxPcieLinkGeneration, board()->pcie_generation)
PCIE(nvmlDeviceGetCurrPcieLinkWidth, 16)
PCIE(nvmlDeviceGetMaxPcieLinkWidth, 16)
PCIE(nvmlDeviceGetPcieReplayCounter, device->gpu == 3)

/* Kilobytes a second. Like the real call, this one takes 20 ms. */
int usleep(unsigned int microseconds);
EXPORT int nvmlDeviceGetPcieThroughput(struct device *device, u32 direction, u32 *kilobytes)
{
    ENTER_WHOLE(device);
    usleep(20000);
    *kilobytes = direction ? 900000 : 1200000;
    return SUCCESS;
}
