/* Topology: NVLink, its fabric, PCIe and NUMA. */

#include <stdio.h>
#include <string.h>

#include "fake.h"

struct pci_info {
    char legacy[16];
    u32 domain, bus, device, id, subsystem;
    char bus_id[32];
};

static int no_link(const struct device *device, u32 link)
{
    return device->slot >= 0 || !board()->links ? NOT_SUPPORTED : link >= (u32)board()->links ? INVALID_ARGUMENT : SUCCESS;
}

EXPORT int nvmlDeviceGetNvLinkState(struct device *device, u32 link, u32 *active)
{
    u32 type;
    u64 state = 0;
    ENTER(device);
    int code = no_link(device, link);
    if (code == SUCCESS)
        code = field_value(device, 165, link, &type, &state);
    *active = state != 0;
    return code;
}

EXPORT int nvmlDeviceGetNvLinkVersion(struct device *device, u32 link, u32 *version)
{
    ENTER(device);
    *version = (u32)board()->nvlink_version;
    return no_link(device, link);
}

EXPORT int nvmlDeviceGetNvLinkRemoteDeviceType(struct device *device, u32 link, u32 *type)
{
    ENTER(device);
    *type = board()->switches ? 2 : 0;
    return no_link(device, link);
}

EXPORT int nvmlDeviceGetNvLinkRemotePciInfo_v2(struct device *device, u32 link, struct pci_info *pci)
{
    ENTER(device);
    int code = no_link(device, link);
    if (code != SUCCESS)
        return code;
    memset(pci, 0, sizeof *pci);
    if (board()->switches)
        snprintf(pci->bus_id, sizeof pci->bus_id, "00000000:%02X:00.0", 5 + link % (u32)board()->switches);
    else
        snprintf(pci->bus_id, sizeof pci->bus_id, "%s", board()->pci[1 - device->gpu]);
    return SUCCESS;
}

/* nvmlDeviceGetP2PStatus index 2 is NVLink; 0 is OK, 5 not supported. */
EXPORT int nvmlDeviceGetP2PStatus(struct device *one, struct device *other, u32 index, u32 *status)
{
    ENTER_WHOLE(one);
    (void)other;
    *status = index == 2 && !board()->links ? 5 : 0;
    return SUCCESS;
}

EXPORT int nvmlDeviceGetTopologyCommonAncestor(struct device *one, struct device *other, u32 *level)
{
    ENTER_WHOLE(one);
    int half = board()->gpus > 1 ? board()->gpus / 2 : 1;
    *level = one->gpu == other->gpu ? 0 : one->gpu / half == other->gpu / half ? 40 : 50;
    return SUCCESS;
}

EXPORT int nvmlDeviceGetNumaNodeId(struct device *device, u32 *node)
{
    ENTER_WHOLE(device);
    *node = board()->gpus > 1 ? (u32)(device->gpu / (board()->gpus / 2)) : 0;
    return SUCCESS;
}

struct fabric {
    u32 version;
    u8 cluster[16];
    u32 status, clique;
    u8 state;
    u32 health;
    u8 summary;
};

/* All two-bit flags false, configuration correct: a healthy fabric. */
#define HEALTHY (2u | 2u << 2 | 2u << 4 | 2u << 6 | 1u << 8 | 1u << 12 | 1u << 14)

EXPORT int nvmlDeviceGetGpuFabricInfoV(struct device *device, struct fabric *fabric)
{
    ENTER_WHOLE(device);
    u32 version = fabric->version >> 24, size = fabric->version & 0xffffff;
    if (!board()->fabric_version)
        return NOT_SUPPORTED;
    if (version > (u32)board()->fabric_version || size != (version == 3 ? 40 : 36))
        return VERSION_MISMATCH;
    memset(fabric->cluster, 0, sizeof fabric->cluster);
    fabric->cluster[15] = 1;
    fabric->status = SUCCESS;
    fabric->clique = 7;
    fabric->state = 3;
    fabric->health = (u32)reading(__func__, device, device->gpu == 6 ? (HEALTHY & ~3u) | 1u : HEALTHY);
    if (version == 3)
        fabric->summary = device->gpu == 6 ? 3 : 1;
    return SUCCESS;
}
