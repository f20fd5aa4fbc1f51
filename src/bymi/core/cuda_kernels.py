"""CUDA C++ kernels that are compiled when first used, by the compiler that comes with torch's CUDA builds (NVRTC)."""

from __future__ import annotations

import ctypes
import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bymi.core.cuda_graphs import on_device
from bymi.core.errors import first_line

_SHARED_MEMORY = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
Launch = Callable[..., None]
"""Starts a kernel on the current stream: number of blocks, then its arguments: tensors by their addresses, int32 numbers, and
others as values of ctypes."""


@cache
def compiled(source: Path, name: str, device: torch.device, threads: int, shared: int, **macros: int) -> Launch | None:
    """The kernel `name` of a file for blocks of `threads` threads with `shared` bytes of memory each; None if it cannot be
    read or compiled."""
    try:
        text = source.read_text(encoding="utf-8")
        with on_device(device):
            torch.cuda.current_stream()  # creates the context
            return _loaded(_binary(text, device, macros), name, threads, shared)
    except (OSError, RuntimeError, AttributeError) as problem:
        warnings.warn(f"kernel {name} not compiled, so slower ({first_line(problem)})", stacklevel=3)
        return None


def _binary(source: str, device: torch.device, macros: dict[str, int]) -> bytes:
    nvrtc, program = _compiler(), ctypes.c_void_p()
    major, minor = torch.cuda.get_device_capability(device)
    options = [f"--gpu-architecture=sm_{major}{minor}", *(f"-D{key}={value}" for key, value in macros.items())]
    words = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
    _check(nvrtc.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"kernel.cu", 0, None, None))
    try:
        failed, size = nvrtc.nvrtcCompileProgram(program, len(words), words), ctypes.c_size_t()
        if failed:
            _check(nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size)))
            log = ctypes.create_string_buffer(size.value)
            _check(nvrtc.nvrtcGetProgramLog(program, log))
            raise RuntimeError(log.value.decode())
        _check(nvrtc.nvrtcGetCUBINSize(program, ctypes.byref(size)))
        binary = ctypes.create_string_buffer(size.value)
        _check(nvrtc.nvrtcGetCUBIN(program, binary))
        return binary.raw
    finally:
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))


def _compiler() -> ctypes.CDLL:
    """NVRTC of torch's CUDA version: where the loader finds it, or in the package that torch's wheels depend on."""
    major = str(torch.version.cuda).partition(".")[0]
    packages = Path(torch.__file__).parents[1] / "nvidia"
    found = [str(path) for path in sorted(packages.glob(f"*/lib/libnvrtc.so.{major}"))]
    for path in (f"libnvrtc.so.{major}", *found):
        try:
            return ctypes.CDLL(path)
        except OSError:
            continue
    raise OSError(f"no libnvrtc.so.{major}")


def _loaded(binary: bytes, name: str, threads: int, shared: int) -> Launch:
    driver, module, function = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p(), ctypes.c_void_p()
    _check(driver.cuModuleLoadData(ctypes.byref(module), binary))
    _check(driver.cuModuleGetFunction(ctypes.byref(function), module, name.encode()))
    _check(driver.cuFuncSetAttribute(function, _SHARED_MEMORY, shared))

    def launch(blocks: int, *arguments: Any) -> None:
        values = [_as_c(one) for one in arguments]
        places = (ctypes.c_void_p * len(values))(*(ctypes.addressof(value) for value in values))
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        _check(driver.cuLaunchKernel(function, blocks, 1, 1, threads, 1, 1, shared, stream, places, None))

    return launch


def _as_c(argument: Any) -> Any:
    if isinstance(argument, Tensor):
        return ctypes.c_void_p(argument.data_ptr())
    return ctypes.c_int(argument) if isinstance(argument, int) else argument


def _check(status: int) -> None:
    if status:
        raise RuntimeError(f"CUDA error {status}")
