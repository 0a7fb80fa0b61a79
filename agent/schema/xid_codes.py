"""Table of XIDs (the driver's numbered GPU errors) with their meaning and NVIDIA's immediate action.

Codes, names and actions are those of NVIDIA's catalogue for Ampere and newer
(https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html, columns Code, Mnemonic and Resolution Bucket
(Immediate Action)). The meanings are gangwatch's own. Codes that the catalogue calls unused are not in the table. If
the catalogue has no bucket for a code, its action is '': an action may be needed, but it is unknown.
"""

from __future__ import annotations

from typing import NamedTuple


class Xid(NamedTuple):
    """One XID (a numbered GPU error).

    action: NVIDIA's resolution bucket, '' if unknown. meaning: one line for the operator.
    """

    code: int
    name: str
    meaning: str
    action: str


def _copy_engine(code: int, engine: int) -> Xid:
    return Xid(code, f"ROBUST_CHANNEL_CE{engine}_ERROR", f"Copy engine {engine} raised an exception", "RESTART_APP")


def _video_decoder(code: int, engine: int) -> Xid:
    return Xid(
        code, f"ROBUST_CHANNEL_NVDEC{engine}_ERROR", f"Video decoder {engine} raised an exception", "RESTART_APP"
    )


def _jpeg_decoder(code: int, engine: int) -> Xid:
    return Xid(code, f"ROBUST_CHANNEL_NVJPG{engine}_ERROR", f"JPEG decoder {engine} raised an exception", "RESTART_APP")


def _nvlink5(code: int, unit: str, meaning: str) -> Xid:
    return Xid(code, f"NVLINK_{unit}_ERROR", f"NVLink 5: {meaning}", "WORKFLOW_NVLINK5_ERR")


_ROWS = (
    Xid(8, "ROBUST_CHANNEL_FIFO_ERROR_IDLE_TIMEOUT", "A channel did not become idle in time", "RESTART_APP"),
    Xid(11, "ROBUST_CHANNEL_GR_ERROR_MISSING_HW", "The command stream asks for hardware that is absent", "RESTART_APP"),
    Xid(13, "ROBUST_CHANNEL_GR_EXCEPTION", "A kernel faulted: out of bounds or an illegal instruction", "RESTART_APP"),
    Xid(14, "ROBUST_CHANNEL_FAKE_ERROR", "An error injected from user space", "IGNORE"),
    Xid(25, "ROBUST_CHANNEL_GR_ILLEGAL_NOTIFY", "The command stream is invalid", "RESTART_APP"),
    Xid(31, "ROBUST_CHANNEL_FIFO_ERROR_MMU_ERR_FLT", "The application touched unmapped memory", "RESTART_APP"),
    Xid(32, "ROBUST_CHANNEL_PBDMA_ERROR", "The command stream arrived broken, often over PCIe", "RESTART_APP"),
    Xid(37, "ROBUST_CHANNEL_FECS_ERR_UNIMP_FIRMWARE_METHOD", "Firmware was asked for what it cannot do", "IGNORE"),
    Xid(38, "ROBUST_CHANNEL_FECS_ERR_WATCHDOG_TIMEOUT", "Firmware ran into its watchdog", "IGNORE"),
    _copy_engine(39, 0),
    _copy_engine(40, 1),
    _copy_engine(41, 2),
    Xid(43, "ROBUST_CHANNEL_RESETCHANNEL_VERIF_ERROR", "An application's own fault ended it", "IGNORE"),
    Xid(44, "ROBUST_CHANNEL_GR_FAULT_DURING_CTXSW", "A fault during a context switch", "IGNORE"),
    Xid(45, "ROBUST_CHANNEL_PREEMPTIVE_REMOVAL", "An application was removed: killed, or after another XID",
        "WORKFLOW_XID_45"),
    Xid(46, "ROBUST_CHANNEL_GPU_TIMEOUT_ERROR", "The GPU stopped processing", "RESET_GPU"),
    Xid(48, "ROBUST_CHANNEL_GPU_ECC_DBE", "An ECC error in memory that could not be corrected", "WORKFLOW_XID_48"),
    Xid(54, "SILENT_RUNNING_PWR_REDUCED_CLOCKING", "Auxiliary power is not connected", "CHECK_MECHANICALS"),
    Xid(60, "ROBUST_CHANNEL_SEC2_ERROR", "The security processor's channel raised an exception", "RESTART_APP"),
    Xid(62, "PMU_HALT_ERROR", "The power-management controller halted", "RESET_GPU"),
    Xid(63, "INFOROM_DRAM_RETIREMENT_EVENT", "Faulty memory was remapped or retired", "IGNORE"),
    Xid(64, "INFOROM_DRAM_RETIREMENT_FAILURE", "Faulty memory could not be remapped or retired", "RESET_GPU"),
    Xid(66, "ROBUST_CHANNEL_FECS_ERR_REG_ACCESS_VIOLATION", "The driver touched a register it may not", "IGNORE"),
    Xid(67, "ROBUST_CHANNEL_FECS_ERR_VERIF_VIOLATION", "The driver failed a firmware check", "IGNORE"),
    _video_decoder(68, 0),
    Xid(69, "ROBUST_CHANNEL_GR_CLASS_ERROR", "The application used an engine class wrongly", "RESTART_APP"),
    _copy_engine(70, 3),
    _copy_engine(71, 4),
    _copy_engine(72, 5),
    Xid(74, "NVLINK_ERROR", "An NVLink failed, here or at its other end", "WORKFLOW_NVLINK_ERR"),
    _copy_engine(75, 6),
    _copy_engine(76, 7),
    _copy_engine(77, 8),
    Xid(78, "VGPU_START_ERROR", "A virtual GPU could not be started", "UPDATE_SWFW"),
    Xid(79, "ROBUST_CHANNEL_GPU_HAS_FALLEN_OFF_THE_BUS", "The GPU does not answer on PCIe any more", "RESTART_BM"),
    Xid(80, "PBDMA_PUSHBUFFER_CRC_MISMATCH", "Commands arrived at the GPU corrupted", "RESTART_APP"),
    _jpeg_decoder(82, 0),
    _video_decoder(83, 1),
    _video_decoder(84, 2),
    _copy_engine(85, 9),
    Xid(86, "ROBUST_CHANNEL_OFA0_ERROR", "The optical-flow engine raised an exception", "RESTART_APP"),
    _video_decoder(88, 3),
    _video_decoder(89, 4),
    Xid(92, "EXCESSIVE_SBE_INTERRUPTS", "Corrected memory errors come too often", "IGNORE"),
    Xid(93, "INFOROM_ERASE_LIMIT_EXCEEDED", "The board's own memory has used up its allowed writes", "IGNORE"),
    Xid(94, "ROBUST_CHANNEL_CONTAINED_ERROR", "A memory error that hit one application only", "RESTART_APP"),
    Xid(95, "ROBUST_CHANNEL_UNCONTAINED_ERROR", "A memory error that hit every application on the GPU", "RESET_GPU"),
    _video_decoder(96, 5),
    _video_decoder(97, 6),
    _video_decoder(98, 7),
    _jpeg_decoder(99, 1),
    _jpeg_decoder(100, 2),
    _jpeg_decoder(101, 3),
    _jpeg_decoder(102, 4),
    _jpeg_decoder(103, 5),
    _jpeg_decoder(104, 6),
    _jpeg_decoder(105, 7),
    Xid(106, "SMBPBI_TEST_MESSAGE", "A test message from the board's controller", "IGNORE"),
    Xid(107, "SMBPBI_TEST_MESSAGE_SILENT", "A silent test message from the board's controller", "IGNORE"),
    Xid(108, "NVLINK_REMOTE_TRANSLATION_ERROR", "An address could not be translated at the other end", "IGNORE"),
    Xid(109, "ROBUST_CHANNEL_CTXSW_TIMEOUT_ERROR", "A context switch did not end in time", "RESET_GPU"),
    Xid(110, "SEC_FAULT_ERROR", "A security fault, as a rule a hardware failure", "RESET_GPU"),
    Xid(119, "GSP_RPC_TIMEOUT", "The GPU's system processor did not answer the driver", "RESET_GPU"),
    Xid(120, "GSP_ERROR", "The GPU's system processor failed", "RESET_GPU"),
    Xid(121, "C2C_ERROR", "Corrected errors on the chip-to-chip link to the CPU", "IGNORE"),
    *(_copy_engine(116 + engine, engine) for engine in range(10, 20)),
    Xid(136, "ALI_TRAINING_FAIL", "An NVLink could not be trained", "RESET_GPU"),
    Xid(137, "NVLINK_PRIV_ERR", "An illegal access to a peer over NVLink", "IGNORE"),
    Xid(139, "ROBUST_CHANNEL_OFA1_ERROR", "The second optical-flow engine raised an exception", "RESTART_APP"),
    Xid(140, "UNRECOVERABLE_ECC_ERROR_ESCAPE", "An uncorrectable memory error, not set aside", "RESET_GPU"),
    Xid(141, "ROBUST_CHANNEL_FAST_PATH_ERROR", "An error on CUDA's fast path", "IGNORE"),
    Xid(142, "ROBUST_CHANNEL_NVENC3_ERROR", "Video encoder 3 raised an exception", "CONTACT_SUPPORT"),
    Xid(143, "GPU_INIT_ERROR", "The GPU could not be initialised", "RESET_GPU"),
    _nvlink5(144, "SAW", "an error in the link's clocking and reset unit"),
    _nvlink5(145, "RLW", "an error in the receiving or remapping layer"),
    _nvlink5(146, "TLW", "an error in the transaction layer"),
    _nvlink5(147, "TREX", "an error in the test and reduction unit"),
    _nvlink5(148, "NVLPW_CTRL", "an error in the partition's control"),
    _nvlink5(149, "NETIR", "the link went down or its network layer failed"),
    _nvlink5(150, "MSE", "an error in the link's management engine"),
    Xid(151, "ROBUST_CHANNEL_KEY_ROTATION_ERROR", "An encryption key could not be rotated", "RESTART_VM"),
    Xid(152, "ROBUST_CHANNEL_DLA_SMMU_ERROR", "An address fault of the deep-learning accelerator", "IGNORE"),
    Xid(153, "ROBUST_CHANNEL_DLA_TIMEOUT", "The deep-learning accelerator timed out", "IGNORE"),
    Xid(154, "GPU_RECOVERY_ACTION_CHANGED", "What the GPU needs in order to recover changed", "XID_154"),
    Xid(155, "NVLINK_SW_DEFINED_ERROR", "An NVLink was taken down by software", "RESET_GPU"),
    Xid(156, "RESOURCE_RETIREMENT_EVENT", "A faulty unit of the GPU was retired; a reset completes it", "RESET_GPU"),
    Xid(157, "RESOURCE_RETIREMENT_FAILURE", "A faulty unit could not be retired: no spare is left", "IGNORE"),
    Xid(158, "GPU_FATAL_TIMEOUT", "The GPU ran into a timeout that it cannot recover from", "RESET_GPU"),
    Xid(159, "ROBUST_CHANNEL_CHI_NON_DATA_ERROR", "An error on the coherent link to the CPU", "CHECK_UVM"),
    Xid(160, "CHANNEL_RETIREMENT_EVENT", "A faulty memory channel was retired", "IGNORE"),
    Xid(161, "CHANNEL_RETIREMENT_FAILURE", "A faulty memory channel could not be retired", "IGNORE"),
    Xid(162, "PSHC_REENGAGED", "Power smoothing works again", ""),
    Xid(163, "PSHC_DISENGAGED", "Power smoothing was switched off", ""),
    Xid(164, "PSHC_LOW_LIFETIME", "Power smoothing is near the end of its life", ""),
    Xid(165, "PSHC_ZERO_LIFETIME", "Power smoothing is worn out", ""),
    Xid(166, "NVLINK_SECURE_CRYPTO_ERR", "NVLink traffic before encryption was set up", ""),
    Xid(167, "PCIE_FATAL_TIMEOUT", "PCIe ran into a fatal timeout", ""),
    Xid(168, "REDUCED_GPU_MEMORY_CAPACITY", "Protected memory has errors; capacity is reduced", ""),
    Xid(169, "SEC2_HALT_ERROR", "The security processor halted", ""),
    Xid(170, "NVLINK_SECURE_OTHER", "An NVLink interrupt in confidential-computing mode", ""),
    Xid(171, "UNCORRECTABLE_DRAM_ERROR", "The uncorrectable error of an XID 48 was in DRAM", ""),
    Xid(172, "UNCORRECTABLE_SRAM_ERROR", "The uncorrectable error of an XID 48 was in SRAM", ""),
)  # fmt: skip

XIDS: dict[int, Xid] = {row.code: row for row in _ROWS}
"""All XIDs of the table, by code."""


def describe(code: int) -> Xid:
    """Return the XID with this code. A code that is not in the table gives an XID with an empty action."""
    return XIDS.get(code) or Xid(code, f"XID_{code}", "Not in NVIDIA's public catalogue", "")
