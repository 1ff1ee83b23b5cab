"""`cupool fill`: takes device memory step by step until the device is as full as asked, and holds it.

For testing (what does the job do on a device that is 90% full?) and for keeping memory from others. Speaks to the driver
alone, through ctypes, so it runs on any libcuda.so.1 and under the preload as without. Signals are blocked and taken at
chosen points: every allocation is known when one arrives, everything is freed, and the end is that signal's.
"""

from __future__ import annotations

import ctypes
import os
import re
import signal
import time
from dataclasses import dataclass
from decimal import Decimal

from cupool_lib.terminal import OutputFailed, fail, put, size

UNTIL_SIGNAL = -1.0
_OUT_OF_MEMORY = 2
_SMALLEST_STEP = 2 << 20
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
_UNITS = {"": 1, "b": 1, **{f"{prefix}{tail}": 1024 ** power for power, prefix in enumerate("kmgtpe", 1) for tail in ("", "i", "ib")},
          **{f"{prefix}b": 1000 ** power for power, prefix in enumerate("kmgtpe", 1)}}


class DriverError(Exception):
    """A driver call failed; the text says which and how."""


class Interrupted(Exception):
    """A signal that asks for the end; `number` is it."""

    def __init__(self, number: int):
        super().__init__(number)
        self.number = number


def parse_bytes(text: str) -> int:
    """512MiB, 8G (binary), 8GB (decimal), plain bytes: as config/units.cpp reads them. Raises ValueError."""
    match = re.fullmatch(r"\s*(\d+\.?\d*|\.\d+)\s*([A-Za-z]*)\s*", text, re.ASCII)
    if not match or match[2].lower() not in _UNITS:
        raise ValueError(f"'{text}' is no size such as 512MiB")
    amount = Decimal(match[1]) * _UNITS[match[2].lower()]
    if ("." in match[1] and _UNITS[match[2].lower()] == 1) or amount > 1 << 63:
        raise ValueError(f"'{text}' is no whole number of bytes, or too large")
    return int(amount)


@dataclass(frozen=True)
class Target:
    """Bytes, or a share of the device."""

    text: str
    bytes: int = 0
    share: Decimal = Decimal(0)

    @staticmethod
    def parse(text: str) -> Target:
        """90%, 0.9 or a size. Raises ValueError."""
        match = re.fullmatch(r"\s*(?:(\d+\.?\d*|\.\d+)\s*%|(\d*\.\d+))\s*", text, re.ASCII)
        if not match:
            return Target(text, bytes=parse_bytes(text))
        share = Decimal(match[1]) / 100 if match[1] else Decimal(match[2])
        if share > 1:
            raise ValueError(f"'{text}' is more than the whole device")
        return Target(text, share=share)

    def of(self, total_bytes: int) -> int:
        return int(self.share * total_bytes) if self.share else self.bytes


class Device:
    """One device's primary context, current on this thread, and the blocks taken in it."""

    def __init__(self, ordinal: int):
        try:
            self._driver = ctypes.CDLL("libcuda.so.1")
        except OSError as error:
            raise DriverError(f"libcuda.so.1 cannot be loaded ({error})") from None
        self.ordinal = ordinal
        self.blocks: list[tuple[int, int]] = []  # address and bytes
        self._call("cuInit", ctypes.c_uint(0))
        number, context = ctypes.c_int(), ctypes.c_void_p()
        self._call("cuDeviceGetCount", ctypes.byref(number))
        if not 0 <= ordinal < number.value:
            raise DriverError(f"there is no device {ordinal}: the driver has {number.value}")
        self._device = ctypes.c_int()
        self._call("cuDeviceGet", ctypes.byref(self._device), ctypes.c_int(ordinal))
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), self._device)
        self._call("cuCtxSetCurrent", context)

    def _call(self, name: str, *arguments) -> None:
        function = getattr(self._driver, name, None)
        if function is None:
            raise DriverError(f"this libcuda.so.1 has no {name}")
        code = function(*arguments)
        if code != 0:
            raise DriverError(f"{name} answers {self._error_name(code)}")

    def _error_name(self, code: int) -> str:
        text = ctypes.c_char_p()
        known = text.value if self._driver.cuGetErrorName(ctypes.c_int(code), ctypes.byref(text)) == 0 else None
        return f"{known.decode()} ({code})" if known else f"error {code}"

    def name(self) -> str:
        text = ctypes.create_string_buffer(256)
        self._call("cuDeviceGetName", text, ctypes.c_int(len(text)), self._device)
        return text.value.decode("utf-8", "replace")

    def memory(self) -> tuple[int, int]:
        """(in use by anybody, total), as cuMemGetInfo sees them: under a limit of cupool's, the limit is the total."""
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self._call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return total.value - free.value, total.value

    def take(self, amount: int) -> bool:
        """False: out of memory."""
        address = ctypes.c_uint64()
        code = self._driver.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(amount))
        if code == _OUT_OF_MEMORY:
            return False
        if code != 0:
            raise DriverError(f"cuMemAlloc_v2 answers {self._error_name(code)}")
        self.blocks.append((address.value, amount))
        return True

    def held(self) -> int:
        return sum(amount for _, amount in self.blocks)

    def release(self) -> None:
        """Frees everything; the first failure is raised after the rest was tried."""
        failures = []
        while self.blocks:
            address, _ = self.blocks.pop()
            code = self._driver.cuMemFree_v2(ctypes.c_uint64(address))
            if code != 0:
                failures.append(f"cuMemFree_v2 answers {self._error_name(code)}")
        self._driver.cuDevicePrimaryCtxRelease_v2(self._device)
        if failures:
            raise DriverError(failures[0])


def run(target: Target, step: int, ordinal: int, hold_seconds: float | None) -> int:
    """The exit code; a signal ends this process instead."""
    waited: set[int] = {number for number in _ENDING if signal.getsignal(number) is not signal.SIG_IGN}
    signal.pthread_sigmask(signal.SIG_BLOCK, waited)
    device, ending, status = None, None, 1
    try:
        device = Device(ordinal)
        reached = _fill(device, target, step, waited)
        if reached and hold_seconds is not None:
            _hold(hold_seconds, device, waited)
        status = 0 if reached else 1
    except Interrupted as interrupt:
        ending = interrupt.number
    except DriverError as error:
        status = fail(f"fill: {error}", 1)
    if device is not None:
        status = _release(device, status)
    if ending is not None:
        signal.signal(ending, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, waited)
        os.kill(os.getpid(), ending)
    return status


def _fill(device: Device, target: Target, step: int, waited: set[int]) -> bool:
    used, total = device.memory()
    goal = target.of(total)
    _say(f"GPU {device.ordinal} ({device.name()}): {size(used)} of {size(total)} in use, filling to {size(goal)} in steps of {size(step)}")
    while used < goal:
        _take_signal(0, waited)
        amount = min(step, goal - used)
        if not device.take(amount):
            if amount <= _SMALLEST_STEP:
                _say(f"out of memory: {size(device.held())} taken, {_state(used, total)}, {size(goal - used)} short of {target.text}")
                return False
            step = max(_SMALLEST_STEP, amount // 2)
            continue
        used, total = device.memory()
        _say(f"  +{size(amount)}: {size(device.held())} taken, {_state(used, total)}")
    _say(f"reached {target.text}: {size(device.held())} taken, {_state(used, total)}")
    return True


def _state(used: int, total: int) -> str:
    return f"{size(used)} of {size(total)} in use ({100 * used / total if total else 0:.1f}%)"


def _hold(seconds: float, device: Device, waited: set[int]) -> None:
    _say(f"holding {size(device.held())} " + ("until a signal (Ctrl-C)" if seconds == UNTIL_SIGNAL else f"for {seconds:g} s"))
    if seconds == UNTIL_SIGNAL:
        raise Interrupted(signal.sigwait(waited or {signal.SIGTERM}))
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        _take_signal(left, waited)


def _take_signal(seconds: float, waited: set[int]) -> None:
    """Raises Interrupted when an ending signal is there or comes within `seconds`."""
    if not waited:
        time.sleep(seconds)
        return
    taken = signal.sigtimedwait(waited, min(seconds, 3600.0))
    if taken is not None:
        raise Interrupted(taken.si_signo)


def _release(device: Device, status: int) -> int:
    held = device.held()
    try:
        device.release()
    except DriverError as error:
        return fail(f"fill: {error}", 1)
    _say(f"freed {size(held)}")
    return status


def _say(line: str) -> None:
    """A full disk behind stdout must not keep memory from being freed."""
    try:
        put(line + "\n")
    except OutputFailed:
        pass
