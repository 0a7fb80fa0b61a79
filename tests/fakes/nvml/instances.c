/* MIG instances that calls create and destroy, by the placement rules of an 80-GB A100 or H100 (nvidia-smi mig -lgipp). */

#include <string.h>

#include "fake.h"

#define PROFILE_COUNT 18 /* NVML_GPU_INSTANCE_PROFILE_COUNT */

static const struct kind {
    u32 index; /* NVML_GPU_INSTANCE_PROFILE_... */
    u32 size, starts; /* memory slices, and possible starts as a bit mask */
    u32 most;
    struct mig_profile profile;
} kinds[] = {
    {0, 1, 0x7f, 7, {"1g.10gb", 1, 1, 16, 9984, 19, 0}},   {7, 1, 0x7f, 1, {"1g.10gb+me", 1, 1, 16, 9984, 20, 0}},
    {9, 2, 0x55, 4, {"1g.20gb", 1, 1, 26, 20096, 15, 0}},  {1, 2, 0x15, 3, {"2g.20gb", 2, 2, 32, 20096, 14, 0}},
    {2, 4, 0x11, 2, {"3g.40gb", 3, 3, 60, 40448, 9, 0}},   {3, 4, 0x01, 1, {"4g.40gb", 4, 4, 64, 40448, 5, 0}},
    {4, 8, 0x01, 1, {"7g.80gb", 7, 7, 132, 81152, 0, 0}},
};

#define KINDS (sizeof kinds / sizeof *kinds)

static struct mig_profile made[GPUS][MIG_SLOTS];
static struct device computes[GPUS][MIG_SLOTS];

static const struct kind *kind_of(u32 profile)
{
    for (u32 each = 0; each < KINDS; each++)
        if (kinds[each].profile.id == profile)
            return &kinds[each];
    return NULL;
}

u32 mig_size(u32 profile)
{
    const struct kind *kind = kind_of(profile);
    return kind ? kind->size : 0;
}

const struct mig_profile *instance_in(int gpu, int slot)
{
    u32 layout = control->mig_layout[gpu];
    if (layout != MIG_CREATED) {
        const struct mig_profile *profiles = mig_layout(layout);
        for (int each = 0; each <= slot; each++)
            if (!profiles[each].name)
                return NULL;
        return &profiles[slot];
    }
    const struct created *created = &control->created[gpu][slot];
    if (!created->active || !created->compute)
        return NULL;
    made[gpu][slot] = kind_of(created->profile)->profile;
    made[gpu][slot].start = created->start;
    return &made[gpu][slot];
}

static u32 occupied(int gpu)
{
    u32 busy = 0;
    for (int slot = 0; slot < MIG_SLOTS; slot++) {
        const struct created *created = &control->created[gpu][slot];
        if (created->active)
            busy |= ((1u << mig_size(created->profile)) - 1) << created->start;
    }
    return busy;
}

#define ENTER_CREATED(device)                                                                                          \
    do {                                                                                                               \
        ENTER(device);                                                                                                 \
        if (control->mig_layout[(device)->gpu] != MIG_CREATED)                                                         \
            return NOT_SUPPORTED;                                                                                      \
    } while (0)

struct profile_info {
    u32 version, id, p2p, slices, most, multiprocessors, copy, decoders, encoders, jpeg, flow;
    u64 memory_mib;
    char name[96];
};

EXPORT int nvmlDeviceGetGpuInstanceProfileInfoV(struct device *device, u32 index, struct profile_info *info)
{
    ENTER_CREATED(device);
    if (info->version != (sizeof *info | 2u << 24))
        return VERSION_MISMATCH;
    if (index >= PROFILE_COUNT)
        return INVALID_ARGUMENT;
    for (u32 each = 0; each < KINDS; each++)
        if (kinds[each].index == index) {
            const struct mig_profile *profile = &kinds[each].profile;
            info->id = profile->id, info->slices = (u32)profile->slices, info->most = kinds[each].most;
            info->memory_mib = profile->memory_mib;
            strcpy(info->name, "MIG ");
            strcat(info->name, profile->name);
            return SUCCESS;
        }
    return NOT_SUPPORTED;
}

struct placement {
    u32 start, size;
};

EXPORT int nvmlDeviceGetGpuInstancePossiblePlacements_v2(struct device *device, u32 profile,
                                                         struct placement *placements, u32 *count)
{
    ENTER_CREATED(device);
    const struct kind *kind = kind_of(profile);
    if (!kind)
        return NOT_SUPPORTED;
    *count = 0;
    for (u32 start = 0; start < 8; start++)
        if (kind->starts >> start & 1) {
            if (placements)
                placements[*count] = (struct placement){start, kind->size};
            ++*count;
        }
    return SUCCESS;
}

EXPORT int nvmlDeviceCreateGpuInstanceWithPlacement(struct device *device, u32 profile,
                                                    const struct placement *placement, struct device **instance)
{
    ENTER_CREATED(device);
    const struct kind *kind = kind_of(profile);
    if (!kind || placement->size != kind->size || placement->start > 7 || !(kind->starts >> placement->start & 1))
        return INVALID_ARGUMENT;
    if (occupied(device->gpu) & ((1u << kind->size) - 1) << placement->start)
        return INSUFFICIENT_RESOURCES;
    for (int slot = 0; slot < MIG_SLOTS; slot++)
        if (!control->created[device->gpu][slot].active) {
            control->created[device->gpu][slot] =
                (struct created){1, 0, profile, placement->start, ++control->created_count};
            *instance = instance_device(device->gpu, slot);
            return SUCCESS;
        }
    return INSUFFICIENT_RESOURCES;
}

EXPORT int nvmlDeviceGetGpuInstances(struct device *device, u32 profile, struct device **instances, u32 *count)
{
    ENTER_CREATED(device);
    *count = 0;
    for (int slot = 0; slot < MIG_SLOTS; slot++) {
        const struct created *created = &control->created[device->gpu][slot];
        if (created->active && created->profile == profile)
            instances[(*count)++] = instance_device(device->gpu, slot);
    }
    return SUCCESS;
}

EXPORT int nvmlGpuInstanceDestroy(struct device *instance)
{
    ENTER_CREATED(instance);
    struct created *created = &control->created[instance->gpu][instance->slot];
    if (!created->active)
        return INVALID_ARGUMENT;
    if (created->compute)
        return IN_USE;
    created->active = 0;
    return SUCCESS;
}

struct compute_info {
    u32 id, slices, most, multiprocessors, copy, decoders, encoders, jpeg, flow;
};

EXPORT int nvmlGpuInstanceGetComputeInstanceProfileInfo(struct device *instance, u32 index, u32 engine,
                                                        struct compute_info *info)
{
    ENTER_CREATED(instance);
    if (index > 4 || engine)
        return INVALID_ARGUMENT;
    u32 slices = index == 4 ? 7 : index + 1;
    if (slices > (u32)kind_of(control->created[instance->gpu][instance->slot].profile)->profile.slices)
        return NOT_SUPPORTED;
    *info = (struct compute_info){.id = index, .slices = slices, .most = 1};
    return SUCCESS;
}

EXPORT int nvmlGpuInstanceCreateComputeInstance(struct device *instance, u32 profile, struct device **compute)
{
    ENTER_CREATED(instance);
    struct created *created = &control->created[instance->gpu][instance->slot];
    if (!created->active || profile > 4)
        return INVALID_ARGUMENT;
    if (created->compute)
        return INSUFFICIENT_RESOURCES;
    created->compute = profile + 1;
    *compute = &computes[instance->gpu][instance->slot];
    **compute = *instance;
    return SUCCESS;
}

EXPORT int nvmlGpuInstanceGetComputeInstances(struct device *instance, u32 profile, struct device **list, u32 *count)
{
    ENTER_CREATED(instance);
    *count = 0;
    if (control->created[instance->gpu][instance->slot].compute == profile + 1) {
        computes[instance->gpu][instance->slot] = *instance;
        list[(*count)++] = &computes[instance->gpu][instance->slot];
    }
    return SUCCESS;
}

EXPORT int nvmlComputeInstanceDestroy(struct device *compute)
{
    ENTER_CREATED(compute);
    struct created *created = &control->created[compute->gpu][compute->slot];
    if (!created->compute)
        return INVALID_ARGUMENT;
    for (int each = 0; each < PROCESSES; each++) {
        const struct process *process = &control->processes[each];
        if (process->active && process->gpu == (u32)compute->gpu && process->gpu_instance == (u32)compute->slot + 1)
            return IN_USE;
    }
    created->compute = 0;
    return SUCCESS;
}
