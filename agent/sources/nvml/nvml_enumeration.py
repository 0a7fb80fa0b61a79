"""Listing of the GPUs and MIG instances of the driver."""

from __future__ import annotations

from collections.abc import Iterable
from ctypes import byref, c_uint, c_void_p

import pynvml

from agent.schema.clock import Clock, SystemClock
from agent.schema.errors import SourceError
from agent.sources.nvml.nvml import Device, GpuLostError, Instance, Library, kernel_address
from agent.sources.nvml.nvml_codes import code_text


def _number(library: Library, symbol: str, handle: c_void_p) -> int | None:
    value = c_uint()
    code = library.call(symbol, handle, byref(value))
    library.check(code, symbol)
    return value.value if code == pynvml.NVML_SUCCESS else None


def find_devices(library: Library, clock: Clock | None = None, known: Iterable[Device] = ()) -> tuple[Device, ...]:
    """Return the GPUs that respond, in the driver's order. Lost GPUs are omitted.

    known: GPUs of the previous call. If the MIG instances of a GPU cannot be read, its previous instances are kept.
    Raise LibraryDeadError, or SourceError if the GPUs cannot be counted.
    """
    count = c_uint()
    code = library.call("nvmlDeviceGetCount_v2", byref(count))
    library.check(code, "nvmlDeviceGetCount")
    if code != pynvml.NVML_SUCCESS:
        raise SourceError(f"NVML: nvmlDeviceGetCount: {code_text(code)}")
    devices: list[Device] = []
    before = {device.uuid: device for device in known}
    for index in range(count.value):
        handle = c_void_p()
        code = library.call("nvmlDeviceGetHandleByIndex_v2", c_uint(index), byref(handle))
        library.check(code, "nvmlDeviceGetHandleByIndex")
        if code != pynvml.NVML_SUCCESS:
            continue
        pci = pynvml.nvmlPciInfo_t()
        code = library.call("nvmlDeviceGetPciInfo_v3", handle, byref(pci))
        library.check(code, "nvmlDeviceGetPciInfo")
        uuid = library.text("nvmlDeviceGetUUID", handle)
        address = kernel_address(pci) if code == pynvml.NVML_SUCCESS else ""
        if uuid and address:
            device = Device(library, handle, uuid, address, index, clock=clock or SystemClock())
            try:
                _find_instances(device, before.get(uuid))
            except GpuLostError:
                continue
            devices.append(device)
    return tuple(devices)


def describe_device(device: Device) -> None:
    """Set the attributes that do not change while the driver is loaded: model, minor number, serial, VBIOS."""
    library, handle = device.library, device.handle
    device.model = library.text("nvmlDeviceGetName", handle)
    device.serial = library.text("nvmlDeviceGetSerial", handle)
    device.vbios = library.text("nvmlDeviceGetVbiosVersion", handle)
    device.minor = _number(library, "nvmlDeviceGetMinorNumber", handle)


def _find_instances(device: Device, before: Device | None) -> None:
    """Set on the GPU whether MIG is on, and its configured MIG instances. Raise GpuLostError.

    before: the GPU in the previous listing, None if it is new.
    """
    library = device.library
    current, pending, most = c_uint(), c_uint(), c_uint()
    code = library.call("nvmlDeviceGetMigMode", device.handle, byref(current), byref(pending))
    if code == pynvml.NVML_SUCCESS and current.value:
        code = library.call("nvmlDeviceGetMaxMigDeviceCount", device.handle, byref(most))
    if code != pynvml.NVML_SUCCESS:
        if not device.judge(code, "nvmlDeviceGetMigMode") and before is not None:
            device.mig, device.instances = before.mig, before.instances
        return
    device.mig = bool(current.value)
    found: list[Instance] = []
    for index in range(most.value):
        handle = c_void_p()
        code = library.call("nvmlDeviceGetMigDeviceHandleByIndex", device.handle, c_uint(index), byref(handle))
        if code != pynvml.NVML_SUCCESS:
            if code != pynvml.NVML_ERROR_NOT_FOUND:  # it means an empty slot
                device.judge(code, "nvmlDeviceGetMigDeviceHandleByIndex")
            continue
        uuid = library.text("nvmlDeviceGetUUID", handle)
        gpu_instance = _number(library, "nvmlDeviceGetGpuInstanceId", handle)
        compute_instance = _number(library, "nvmlDeviceGetComputeInstanceId", handle)
        if uuid and gpu_instance is not None and compute_instance is not None:
            placed = _placement(device, gpu_instance)
            found.append(Instance(uuid, _profile(library, handle), gpu_instance, compute_instance, handle, *placed))
    device.instances = tuple(found)


def _placement(device: Device, gpu_instance: int) -> tuple[int | None, int | None]:
    """Return the profile number and first memory slice of the GPU instance. Raise GpuLostError."""
    handle, info = c_void_p(), pynvml.c_nvmlGpuInstanceInfo_t()
    library = device.library
    code = library.call("nvmlDeviceGetGpuInstanceById", device.handle, c_uint(gpu_instance), byref(handle))
    if code == pynvml.NVML_SUCCESS:
        code = library.call("nvmlGpuInstanceGetInfo", handle, byref(info))
    if code != pynvml.NVML_SUCCESS:
        device.judge(code, "nvmlGpuInstanceGetInfo")
        return None, None
    return int(info.profileId), int(info.placement.start)


def _profile(library: Library, handle: c_void_p) -> str:
    """Return the MIG profile of the instance, for example '1g.10gb', from its name or else from its attributes."""
    name = library.text("nvmlDeviceGetName", handle)
    _, found, profile = name.partition(" MIG ")
    if found:
        return profile
    attributes = pynvml.c_nvmlDeviceAttributes()
    if library.call("nvmlDeviceGetAttributes_v2", handle, byref(attributes)) != pynvml.NVML_SUCCESS:
        return ""
    gigabytes = round(attributes.memorySizeMB / 1024)
    gpu_slices, compute_slices = attributes.gpuInstanceSliceCount, attributes.computeInstanceSliceCount
    slices = f"{gpu_slices}g.{gigabytes}gb"
    return f"{compute_slices}c.{slices}" if compute_slices != gpu_slices else slices
