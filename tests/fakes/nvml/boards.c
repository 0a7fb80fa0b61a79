/* The machines that the fake can simulate. Figures come from data sheets and from `nvidia-smi -q`. */

#include "fake.h"

#define GIB (1024ull * 1024 * 1024)

static const struct mig_profile
    layout_off[] = {{.name = NULL}},
    /* Profile numbers and placements as in nvidia-smi: the large one at the end of memory, the others before it. */
    layout_mixed[] = {{"3g.40gb", 3, 3, 60, 40448, 9, 4}, {"2g.20gb", 2, 2, 32, 20096, 14, 0},
                      {"1g.10gb", 1, 1, 16, 9984, 19, 2}, {"1g.10gb", 1, 1, 16, 9984, 19, 3}, {.name = NULL}},
    layout_seven[] = {{"1g.10gb", 1, 1, 16, 9984, 19, 0}, {"1g.10gb", 1, 1, 16, 9984, 19, 1},
                      {"1g.10gb", 1, 1, 16, 9984, 19, 2}, {"1g.10gb", 1, 1, 16, 9984, 19, 3},
                      {"1g.10gb", 1, 1, 16, 9984, 19, 4}, {"1g.10gb", 1, 1, 16, 9984, 19, 5},
                      {"1g.10gb", 1, 1, 16, 9984, 19, 6}, {.name = NULL}};

const struct mig_profile *mig_layout(u32 layout)
{
    return layout == 1 ? layout_mixed : layout == 2 ? layout_seven : layout_off;
}

#define HOPPER(name, pci_id)                                                                                           \
    .model = name, .driver = "570.158.01", .vbios = "96.00.74.00.09",                                                  \
    .part = "699-21010-0200-000", .cuda_version = 12080, .architecture = 9, .compute_major = 9, .compute_minor = 0,    \
    .cores = 16896, .memory_bytes = 80 * GIB, .reserved_bytes = 1 * GIB, .bar1_bytes = 256 * GIB, .idle_mw = 95000,    \
    .limit_mw = 700000, .least_mw = 200000, .most_mw = 700000, .graphics_mhz = 1980, .idle_mhz = 345,                  \
    .memory_mhz = 2619, .pcie_generation = 5, .pci_device = pci_id, .pci_subsystem = 0x165810DE, .ecc = 1,             \
    .row_remap = 1, .memory_temperature = 1, .temperature_limits = 1, .power_average = 1, .throttle_times = 1,         \
    .pcie_errors = 1, .pcie_bytes = 1, .gpm = 1, .recovery_action = 1, .mig = 1

const struct board boards[] = {
    {.name = "h100", HOPPER("NVIDIA H100 80GB HBM3", 0x233010DE), .gpus = 8, .links = 18, .link_mbps = 26562,
     .nvlink_version = 6, .switches = 4, .fabric_version = 2,
     .pci = {"00000000:1B:00.0", "00000000:43:00.0", "00000000:52:00.0", "00000000:61:00.0", "00000000:9D:00.0",
             "00000000:C3:00.0", "00000000:D1:00.0", "00000000:DF:00.0"}},
    {.name = "a100", .model = "NVIDIA A100-SXM4-40GB", .driver = "535.183.06", .vbios = "92.00.45.00.03",
     .part = "692-2G506-0200-002", .cuda_version = 12020, .gpus = 8, .architecture = 7, .compute_major = 8,
     .compute_minor = 0, .cores = 6912, .memory_bytes = 40 * GIB, .reserved_bytes = 583 * 1024 * 1024ull,
     .bar1_bytes = 64 * GIB, .idle_mw = 72000, .limit_mw = 400000, .least_mw = 100000, .most_mw = 400000,
     .graphics_mhz = 1410, .idle_mhz = 210, .memory_mhz = 1215, .pcie_generation = 4, .pci_device = 0x20B010DE,
     .pci_subsystem = 0x134F10DE, .links = 12, .link_mbps = 25781, .nvlink_version = 4, .switches = 6, .ecc = 1,
     .row_remap = 1, .memory_temperature = 1, .throttle_times = 1, .mig = 1,
     .pci = {"00000000:07:00.0", "00000000:0F:00.0", "00000000:47:00.0", "00000000:4E:00.0", "00000000:87:00.0",
             "00000000:90:00.0", "00000000:B7:00.0", "00000000:BD:00.0"}},
    {.name = "b200", .model = "NVIDIA B200", .driver = "580.95.05", .vbios = "97.00.88.00.0E",
     .part = "699-2G548-0200-800", .cuda_version = 13000, .gpus = 8, .architecture = 10, .compute_major = 10,
     .compute_minor = 0, .cores = 18944, .memory_bytes = 183359 * 1024 * 1024ull, .reserved_bytes = 1 * GIB,
     .bar1_bytes = 256 * GIB, .idle_mw = 140000, .limit_mw = 1000000, .least_mw = 200000, .most_mw = 1000000,
     .graphics_mhz = 1965, .idle_mhz = 120, .memory_mhz = 3996, .pcie_generation = 5, .pci_device = 0x290110DE,
     .pci_subsystem = 0x199910DE, .links = 18, .link_mbps = 53125, .nvlink_version = 7, .switches = 2, .ecc = 1,
     .row_remap = 1, .memory_temperature = 1, .temperature_limits = 1, .power_average = 1, .throttle_times = 1,
     .pcie_errors = 1, .pcie_bytes = 1, .gpm = 1, .fabric_version = 3, .recovery_action = 1,
     .mig = 1,
     .pci = {"00000000:1B:00.0", "00000000:43:00.0", "00000000:52:00.0", "00000000:61:00.0", "00000000:9D:00.0",
             "00000000:C3:00.0", "00000000:D1:00.0", "00000000:DF:00.0"}},
    {.name = "h100-mig", HOPPER("NVIDIA H100 80GB HBM3", 0x233010DE), .gpus = 2, .first_mig_layout = 1, .links = 18,
     .link_mbps = 26562, .nvlink_version = 6, .switches = 4, .fabric_version = 2, .pci = {"00000000:1B:00.0", "00000000:43:00.0"}},
    {.name = "geforce", .model = "NVIDIA GeForce RTX 3080", .driver = "550.163.01", .vbios = "94.02.42.00.A9",
     .part = "N/A", .cuda_version = 12040, .gpus = 1, .architecture = 7, .compute_major = 8, .compute_minor = 6,
     .cores = 8704, .memory_bytes = 10 * GIB, .reserved_bytes = 240 * 1024 * 1024ull,
     .bar1_bytes = 256 * 1024 * 1024ull, .idle_mw = 25000, .limit_mw = 320000, .least_mw = 100000, .most_mw = 370000,
     .graphics_mhz = 1905, .idle_mhz = 210, .memory_mhz = 9501, .pcie_generation = 4, .pci_device = 0x220610DE,
     .pci_subsystem = 0x146710DE, .power_average = 1, .pci = {"00000000:01:00.0"}},
    {.name = "a100-bridge", .model = "NVIDIA A100 80GB PCIe", .driver = "535.183.06", .vbios = "92.00.90.00.04",
     .part = "900-21001-0020-100", .cuda_version = 12020, .gpus = 2, .architecture = 7, .compute_major = 8,
     .compute_minor = 0, .cores = 6912, .memory_bytes = 80 * GIB, .reserved_bytes = 590 * 1024 * 1024ull,
     .bar1_bytes = 128 * GIB, .idle_mw = 45000, .limit_mw = 300000, .least_mw = 150000, .most_mw = 300000,
     .graphics_mhz = 1410, .idle_mhz = 210, .memory_mhz = 1512, .pcie_generation = 4, .pci_device = 0x20B510DE,
     .pci_subsystem = 0x153310DE, .links = 12, .link_mbps = 25781, .nvlink_version = 4, .ecc = 1, .row_remap = 1,
     .memory_temperature = 1, .throttle_times = 1, .mig = 1, .pci = {"00000000:17:00.0", "00000000:65:00.0"}},
    {.name = "gh200", HOPPER("NVIDIA GH200 480GB", 0x234210DE), .gpus = 1, .c2c_links = 10, .c2c_mbps = 44712,
     .pci = {"00000009:01:00.0"}},
    {.name = NULL},
};
