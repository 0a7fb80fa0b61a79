"""Creation and destruction of MIG instances on GPUs whose MIG mode is on. Needs root.

A MIG instance is a GPU instance with one compute instance that has all of its slices. The driver knows no owner of an
instance, so a caller must remember the ones that it created.
"""

from __future__ import annotations

from ctypes import byref, c_uint, c_void_p
from typing import Any, NamedTuple

import pynvml

from agent.schema.errors import SourceError
from agent.sources.nvml.nvml import Device, Library
from agent.sources.nvml.nvml_codes import code_text
from agent.sources.nvml.nvml_enumeration import find_devices

_MOST = 8
"""Size of lists of instances: no GPU has more (a GPU has at most eight memory slices)."""


class Profile(NamedTuple):
    """Profile of MIG instances that a GPU supports."""

    name: str
    """Name, such as '2g.20gb'."""
    number: int
    """The driver's number of the profile."""
    compute: int
    """Compute slices."""
    memory: int
    """Memory slices."""
    starts: tuple[int, ...]
    """Memory slices at which an instance may start."""


class MigGpus:
    """MIG instances of this machine's GPUs. Only one thread may call it."""

    def __init__(self, path: str | None = None) -> None:
        """path: NVML library, None for the system's. It is opened for each call, so that the driver can be reloaded."""
        self._path = path

    def profiles(self, uuid: str) -> tuple[tuple[str, int, int, tuple[int, ...]], ...]:
        """Return (name, compute slices, memory slices, starts) of the profiles of a GPU; empty if its MIG mode is off.

        Profiles with media engines are left out, because a GPU has only one set of them. Raises SourceError.
        """
        library = Library(self._path)
        try:
            device = _device(library, uuid)
            return tuple((one.name, one.compute, one.memory, one.starts) for one in _profiles(device))
        finally:
            library.close()

    def instances(self, uuid: str) -> tuple[int, ...]:
        """Return the first memory slice of each instance of a GPU, in ascending order. Raises SourceError."""
        library = Library(self._path)
        try:
            device = _device(library, uuid)
            return tuple(sorted(start for one in _profiles(device) for start, _ in _created(device, one)))
        finally:
            library.close()

    def create(self, uuid: str, name: str, start: int) -> str:
        """Create an instance of this profile that starts at a memory slice. Return the UUID that CUDA uses.

        If a step fails, the instance is removed again. Raises SourceError.
        """
        library = Library(self._path)
        try:
            device = _device(library, uuid)
            profile = next((one for one in _profiles(device) if one.name == name), None)
            if profile is None:
                raise SourceError(f"NVML: GPU {uuid} has no MIG profile {name}, or its MIG mode is off")
            instance = c_void_p()
            place = pynvml.c_nvmlGpuInstancePlacement_t(start, profile.memory)
            symbol = "nvmlDeviceCreateGpuInstanceWithPlacement"
            _check(library, symbol, uuid, device.handle, c_uint(profile.number), byref(place), byref(instance))
            try:
                return self._complete(device, profile, start, instance)
            except SourceError:
                _destroy(library, uuid, instance)
                raise
        finally:
            library.close()

    def destroy(self, uuid: str, start: int) -> bool:
        """Destroy the instance that starts at this memory slice. Return whether there was one.

        Raises SourceError, for example while a process uses the instance.
        """
        library = Library(self._path)
        try:
            device = _device(library, uuid)
            for one in _profiles(device):
                for at, instance in _created(device, one):
                    if at == start:
                        _destroy(library, uuid, instance)
                        return True
            return False
        finally:
            library.close()

    def _complete(self, device: Device, profile: Profile, start: int, instance: c_void_p) -> str:
        """Create the compute instance of a new GPU instance. Return the UUID of the MIG instance."""
        library, info = device.library, pynvml.c_nvmlComputeInstanceProfileInfo_t()
        for index in range(pynvml.NVML_COMPUTE_INSTANCE_PROFILE_COUNT):
            code = library.call(
                "nvmlGpuInstanceGetComputeInstanceProfileInfo", instance, c_uint(index), c_uint(0), byref(info)
            )
            library.check(code, "nvmlGpuInstanceGetComputeInstanceProfileInfo")
            if code == pynvml.NVML_SUCCESS and info.sliceCount == profile.compute:
                break
        else:
            raise SourceError(f"NVML: GPU {device.uuid}: no compute instance has all slices of {profile.name}")
        symbol = "nvmlGpuInstanceCreateComputeInstance"
        _check(library, symbol, device.uuid, instance, c_uint(info.id), byref(c_void_p()))
        for one in _device(library, device.uuid).instances:
            if one.placement == start:
                return one.uuid
        raise SourceError(f"NVML: GPU {device.uuid}: the new instance at slice {start} is not listed")


def _device(library: Library, uuid: str) -> Device:
    found = next((one for one in find_devices(library) if one.uuid == uuid), None)
    if found is None:
        raise SourceError(f"NVML: GPU {uuid} is not there any more")
    return found


def _profiles(device: Device) -> list[Profile]:
    if not device.mig:
        return []
    library, found = device.library, []
    for index in range(pynvml.NVML_GPU_INSTANCE_PROFILE_COUNT):
        info = pynvml.c_nvmlGpuInstanceProfileInfo_v2_t()
        info.version = pynvml.nvmlGpuInstanceProfileInfo_v2
        code = library.call("nvmlDeviceGetGpuInstanceProfileInfoV", device.handle, c_uint(index), byref(info))
        if code != pynvml.NVML_SUCCESS:
            device.judge(code, "nvmlDeviceGetGpuInstanceProfileInfoV")
            continue
        name = info.name if isinstance(info.name, str) else bytes(info.name).split(b"\0")[0].decode()
        name = name.removeprefix("MIG ")
        count, places = c_uint(), (pynvml.c_nvmlGpuInstancePlacement_t * 32)()
        symbol = "nvmlDeviceGetGpuInstancePossiblePlacements_v2"
        code = library.call(symbol, device.handle, c_uint(info.id), places, byref(count))
        if code != pynvml.NVML_SUCCESS or not count.value or "+" in name or "-" in name:
            device.judge(code, symbol)
            continue
        starts = tuple(sorted(int(places[each].start) for each in range(count.value)))
        found.append(Profile(name, int(info.id), int(info.sliceCount), int(places[0].size), starts))
    return sorted(found, key=lambda one: (one.compute, one.memory))


def _created(device: Device, profile: Profile) -> list[tuple[int, c_void_p]]:
    """Return (first memory slice, handle) of the GPU instances with this profile."""
    library, count, handles = device.library, c_uint(), (c_void_p * _MOST)()
    symbol = "nvmlDeviceGetGpuInstances"
    _check(library, symbol, device.uuid, device.handle, c_uint(profile.number), handles, byref(count))
    found = []
    for each in range(count.value):
        instance, info = c_void_p(handles[each]), pynvml.c_nvmlGpuInstanceInfo_t()
        _check(library, "nvmlGpuInstanceGetInfo", device.uuid, instance, byref(info))
        found.append((int(info.placement.start), instance))
    return found


def _destroy(library: Library, uuid: str, instance: c_void_p) -> None:
    """Destroy the compute instances of a GPU instance, and then the GPU instance."""
    info = pynvml.c_nvmlComputeInstanceProfileInfo_t()
    for index in range(pynvml.NVML_COMPUTE_INSTANCE_PROFILE_COUNT):
        symbol = "nvmlGpuInstanceGetComputeInstanceProfileInfo"
        if library.call(symbol, instance, c_uint(index), c_uint(0), byref(info)) != pynvml.NVML_SUCCESS:
            continue
        count, handles = c_uint(), (c_void_p * _MOST)()
        symbol = "nvmlGpuInstanceGetComputeInstances"
        _check(library, symbol, uuid, instance, c_uint(info.id), handles, byref(count))
        for each in range(count.value):
            _check(library, "nvmlComputeInstanceDestroy", uuid, c_void_p(handles[each]))
    _check(library, "nvmlGpuInstanceDestroy", uuid, instance)


def _check(library: Library, symbol: str, uuid: str, *arguments: Any) -> None:
    """Call a function. Raises SourceError if it fails."""
    code = library.call(symbol, *arguments)
    library.check(code, symbol)
    if code == pynvml.NVML_ERROR_NO_PERMISSION:
        raise SourceError(f"NVML: GPU {uuid}: {symbol}: {code_text(code)}; gangwatch must run as root for that")
    if code != pynvml.NVML_SUCCESS:
        raise SourceError(f"NVML: GPU {uuid}: {symbol}: {code_text(code)}")
