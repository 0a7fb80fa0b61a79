/* Enumeration and identity of devices. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "fake.h"

struct pci_info {
    char legacy[16];
    u32 domain, bus, device, id, subsystem;
    char bus_id[32];
};

static struct device whole[GPUS], instances[GPUS][MIG_SLOTS];

int gpus_present(void) { return control->gpus == ALL ? board()->gpus : (int)control->gpus; }

/* The handle of the GPU at position `gpu`; control->slot_of maps indexes to positions. */
struct device *gpu_device(int gpu)
{
    whole[gpu].gpu = gpu;
    whole[gpu].slot = -1;
    whole[gpu].driver_generation = control->driver_generation;
    return &whole[gpu];
}

int mig_enabled(int gpu) { return control->mig_layout[gpu] != 0; }

const struct mig_profile *instance_of(const struct device *device)
{
    return instance_in(device->gpu, device->slot);
}

struct device *instance_device(int gpu, int slot)
{
    instances[gpu][slot] = (struct device){gpu, slot, control->driver_generation, control->mig_generation[gpu]};
    return &instances[gpu][slot];
}

u32 gpu_instance_id(const struct device *device) { return (u32)device->slot + 1; }

int copy_text(char *to, u32 length, const char *text)
{
    if (strlen(text) >= length)
        return INSUFFICIENT_SIZE;
    strcpy(to, text);
    return SUCCESS;
}

static void write_uuid(const struct device *device, char *to, size_t length)
{
    u32 kind = control->board + 1;
    if (device->slot < 0)
        snprintf(to, length, "GPU-%08x-0000-4000-8000-%012x", kind, device->gpu);
    else if (control->mig_layout[device->gpu] == MIG_CREATED)
        snprintf(to, length, "MIG-%08x-c000-4000-8000-%012x", kind, control->created[device->gpu][device->slot].serial);
    else
        snprintf(to, length, "MIG-%08x-%04x-4000-8000-%08x%04x", kind, control->mig_generation[device->gpu] & 0xffff,
                 device->gpu, device->slot);
}

/* --- enumeration ------------------------------------------------------------------------------------------------- */

EXPORT int nvmlDeviceGetCount_v2(u32 *count)
{
    ENTER(NULL);
    *count = (u32)gpus_present();
    return SUCCESS;
}
EXPORT int nvmlDeviceGetCount(u32 *count) { return nvmlDeviceGetCount_v2(count); }

EXPORT int nvmlDeviceGetHandleByIndex_v2(u32 index, struct device **device)
{
    ENTER(NULL);
    if (index >= (u32)gpus_present())
        return INVALID_ARGUMENT;
    int gpu = (int)control->slot_of[index];
    if (control->gpu_code[gpu] == GPU_IS_LOST)
        return GPU_IS_LOST;
    *device = gpu_device(gpu);
    return SUCCESS;
}
EXPORT int nvmlDeviceGetHandleByIndex(u32 index, struct device **device)
{
    return nvmlDeviceGetHandleByIndex_v2(index, device);
}

EXPORT int nvmlDeviceGetHandleByUUID(const char *wanted, struct device **device)
{
    char uuid[80];
    ENTER(NULL);
    for (int index = 0; index < gpus_present(); index++) {
        struct device *one = gpu_device((int)control->slot_of[index]);
        write_uuid(one, uuid, sizeof uuid);
        if (!strcmp(uuid, wanted)) {
            *device = one;
            return SUCCESS;
        }
    }
    return NOT_FOUND;
}

EXPORT int nvmlDeviceGetHandleByPciBusId_v2(const char *wanted, struct device **device)
{
    ENTER(NULL);
    for (int index = 0; index < gpus_present(); index++) {
        const char *have = board()->pci[control->slot_of[index]];
        size_t shorter = strlen(have) > strlen(wanted) ? strlen(have) - strlen(wanted) : 0;
        if (!strcasecmp(have + shorter, wanted)) {
            *device = gpu_device((int)control->slot_of[index]);
            return SUCCESS;
        }
    }
    return NOT_FOUND;
}

EXPORT int nvmlDeviceGetIndex(struct device *device, u32 *index)
{
    ENTER(device);
    for (*index = 0; *index < GPUS; ++*index)
        if (control->slot_of[*index] == (u32)device->gpu)
            return SUCCESS;
    return NOT_FOUND;
}

EXPORT int nvmlDeviceGetMinorNumber(struct device *device, u32 *minor)
{
    ENTER_WHOLE(device);
    *minor = (u32)device->gpu;
    return SUCCESS;
}

/* --- identity ---------------------------------------------------------------------------------------------------- */

EXPORT int nvmlDeviceGetUUID(struct device *device, char *uuid, u32 length)
{
    char text[80];
    ENTER(device);
    write_uuid(device, text, sizeof text);
    return copy_text(uuid, length, text);
}

EXPORT int nvmlDeviceGetName(struct device *device, char *name, u32 length)
{
    char text[128];
    ENTER(device);
    if (device->slot < 0)
        return copy_text(name, length, board()->model);
    snprintf(text, sizeof text, "%s MIG %s", board()->model, instance_of(device)->name);
    return copy_text(name, length, text);
}

EXPORT int nvmlDeviceGetSerial(struct device *device, char *serial, u32 length)
{
    char text[32];
    ENTER_WHOLE(device);
    if (!board()->ecc)
        return NOT_SUPPORTED;
    snprintf(text, sizeof text, "1562821083%03d", 900 + device->gpu);
    return copy_text(serial, length, text);
}

EXPORT int nvmlDeviceGetVbiosVersion(struct device *device, char *version, u32 length)
{
    ENTER_WHOLE(device);
    return copy_text(version, length, board()->vbios);
}

EXPORT int nvmlDeviceGetBoardPartNumber(struct device *device, char *number, u32 length)
{
    ENTER_WHOLE(device);
    return copy_text(number, length, board()->part);
}

static void write_pci(struct pci_info *pci, const char *bus_id, u32 id, u32 subsystem)
{
    memset(pci, 0, sizeof *pci);
    sscanf(bus_id, "%x:%x:%x", &pci->domain, &pci->bus, &pci->device);
    snprintf(pci->legacy, sizeof pci->legacy, "%04X:%02X:%02X.0", pci->domain & 0xffff, pci->bus & 0xff,
             pci->device & 0xff);
    snprintf(pci->bus_id, sizeof pci->bus_id, "%s", bus_id);
    pci->id = id;
    pci->subsystem = subsystem;
}

EXPORT int nvmlDeviceGetPciInfo_v3(struct device *device, struct pci_info *pci)
{
    ENTER_WHOLE(device);
    write_pci(pci, board()->pci[device->gpu], board()->pci_device, board()->pci_subsystem);
    return SUCCESS;
}
EXPORT int nvmlDeviceGetPciInfo_v2(struct device *device, struct pci_info *pci)
{
    return nvmlDeviceGetPciInfo_v3(device, pci);
}

EXPORT int nvmlDeviceGetArchitecture(struct device *device, u32 *architecture)
{
    ENTER(device);
    *architecture = (u32)board()->architecture;
    return SUCCESS;
}

EXPORT int nvmlDeviceGetBrand(struct device *device, u32 *brand)
{
    ENTER(device);
    *brand = board()->ecc ? 14 : 5; /* NVIDIA, GeForce */
    return SUCCESS;
}

EXPORT int nvmlDeviceGetNumGpuCores(struct device *device, u32 *cores)
{
    ENTER(device);
    *cores = (u32)board()->cores;
    return SUCCESS;
}

EXPORT int nvmlDeviceGetCudaComputeCapability(struct device *device, int *major, int *minor)
{
    ENTER(device);
    *major = board()->compute_major;
    *minor = board()->compute_minor;
    return SUCCESS;
}

/* --- the system -------------------------------------------------------------------------------------------------- */

EXPORT int nvmlSystemGetDriverVersion(char *version, u32 length)
{
    ENTER(NULL);
    return copy_text(version, length, board()->driver);
}

EXPORT int nvmlSystemGetNVMLVersion(char *version, u32 length)
{
    char text[80];
    ENTER(NULL);
    snprintf(text, sizeof text, "%d.%s", board()->cuda_version / 1000, board()->driver);
    return copy_text(version, length, text);
}

EXPORT int nvmlSystemGetCudaDriverVersion(int *version)
{
    ENTER(NULL);
    *version = board()->cuda_version;
    return SUCCESS;
}
EXPORT int nvmlSystemGetCudaDriverVersion_v2(int *version) { return nvmlSystemGetCudaDriverVersion(version); }

EXPORT const char *nvmlErrorString(int code)
{
    switch (code) {
    case SUCCESS: return "Success";
    case UNINITIALIZED: return "Uninitialized";
    case INVALID_ARGUMENT: return "Invalid Argument";
    case NOT_SUPPORTED: return "Not Supported";
    case NO_PERMISSION: return "Insufficient Permissions";
    case NOT_FOUND: return "Not Found";
    case INSUFFICIENT_SIZE: return "Insufficient Size";
    case DRIVER_NOT_LOADED: return "Driver Not Loaded";
    case TIMEOUT: return "Timeout";
    case FUNCTION_NOT_FOUND: return "Function Not Found";
    case GPU_IS_LOST: return "GPU is lost";
    case VERSION_MISMATCH: return "Argument Version Mismatch";
    default: return "Unknown Error";
    }
}

/* --- MIG --------------------------------------------------------------------------------------------------------- */

EXPORT int nvmlDeviceGetMigMode(struct device *device, u32 *current, u32 *pending)
{
    ENTER_WHOLE(device);
    if (!board()->mig)
        return NOT_SUPPORTED;
    *current = *pending = (u32)mig_enabled(device->gpu);
    return SUCCESS;
}

EXPORT int nvmlDeviceGetMaxMigDeviceCount(struct device *device, u32 *count)
{
    ENTER_WHOLE(device);
    *count = board()->mig ? 7 : 0;
    return SUCCESS;
}

EXPORT int nvmlDeviceGetMigDeviceHandleByIndex(struct device *device, u32 index, struct device **instance)
{
    ENTER_WHOLE(device);
    if (!board()->mig)
        return NOT_SUPPORTED;
    if (index >= MIG_SLOTS || !instance_in(device->gpu, (int)index))
        return NOT_FOUND;
    *instance = instance_device(device->gpu, (int)index);
    return SUCCESS;
}

EXPORT int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(struct device *instance, struct device **device)
{
    ENTER(instance);
    if (instance->slot < 0)
        return INVALID_ARGUMENT;
    *device = gpu_device(instance->gpu);
    return SUCCESS;
}

EXPORT int nvmlDeviceIsMigDeviceHandle(struct device *device, u32 *is_instance)
{
    ENTER(device);
    *is_instance = device->slot >= 0;
    return SUCCESS;
}

EXPORT int nvmlDeviceGetGpuInstanceId(struct device *device, u32 *id)
{
    ENTER(device);
    if (device->slot < 0)
        return NOT_SUPPORTED;
    *id = gpu_instance_id(device);
    return SUCCESS;
}

EXPORT int nvmlDeviceGetComputeInstanceId(struct device *device, u32 *id)
{
    ENTER(device);
    if (device->slot < 0)
        return NOT_SUPPORTED;
    *id = 0;
    return SUCCESS;
}

struct instance_info {
    struct device *device;
    u32 id, profile, start, size;
};

/* The driver distinguishes GPU and compute instances; here they are one. Only root may read this. */
EXPORT int nvmlDeviceGetGpuInstanceById(struct device *device, u32 id, struct device **instance)
{
    ENTER_WHOLE(device);
    if (control->mig_layout[device->gpu] == MIG_CREATED) {
        if (id < 1 || id > MIG_SLOTS || !control->created[device->gpu][id - 1].active)
            return NOT_FOUND;
        *instance = instance_device(device->gpu, (int)id - 1);
        return SUCCESS;
    }
    struct device *found;
    int code = nvmlDeviceGetMigDeviceHandleByIndex(device, id - 1, &found);
    if (code == SUCCESS)
        *instance = found;
    return code;
}

EXPORT int nvmlGpuInstanceGetInfo(struct device *instance, struct instance_info *info)
{
    ENTER(instance);
    const struct created *made = &control->created[instance->gpu][instance->slot];
    if (control->mig_layout[instance->gpu] == MIG_CREATED) { /* also without a compute instance */
        *info = (struct instance_info){gpu_device(instance->gpu), gpu_instance_id(instance), made->profile, made->start,
                                       mig_size(made->profile)};
        return SUCCESS;
    }
    const struct mig_profile *profile = instance_of(instance);
    *info = (struct instance_info){gpu_device(instance->gpu), gpu_instance_id(instance), profile->id, profile->start,
                                   profile->slices == 3 ? 4 : (u32)profile->slices};
    return SUCCESS;
}

struct attributes {
    u32 multiprocessors, copy_engines, decoders, encoders, jpeg, flow, gpu_slices, compute_slices;
    u64 memory_mib;
};

EXPORT int nvmlDeviceGetAttributes_v2(struct device *device, struct attributes *attributes)
{
    ENTER(device);
    if (device->slot < 0)
        return NOT_SUPPORTED;
    const struct mig_profile *profile = instance_of(device);
    *attributes = (struct attributes){(u32)profile->multiprocessors, 1, 1, 0, 1, 0, (u32)profile->slices,
                                      (u32)profile->compute_slices, profile->memory_mib};
    return SUCCESS;
}
