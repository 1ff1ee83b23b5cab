"""What every program here shares: answers as lines of JSON, figures of step times, the device memory of this process by NVML,
and the search for the largest batch. Imports no framework and knows nothing of cupool. Python 3.9."""

from __future__ import annotations

import ctypes
import json
import os
import statistics
import threading
import time


def tell(question, answer):
    print(json.dumps({"question": question, "answer": answer}), flush=True)


def leave_out(question, why):
    print(json.dumps({"question": question, "left_out": why}), flush=True)


def figures(times_ns):
    """Median and spread; the mean too, which is what steps of different lengths add up to."""
    ordered = sorted(times_ns)
    at = lambda percent: ordered[(len(ordered) - 1) * percent // 100]  # noqa: E731
    return {"median_ns": at(50), "p10_ns": at(10), "p90_ns": at(90), "mean_ns": int(statistics.fmean(ordered)), "count": len(ordered)}


class _ProcessInfo(ctypes.Structure):  # nvmlProcessInfo_v2_t, what nvmlDeviceGetComputeRunningProcesses_v3 fills
    _fields_ = [("pid", ctypes.c_uint), ("used_bytes", ctypes.c_ulonglong), ("gpu_instance", ctypes.c_uint), ("compute_instance", ctypes.c_uint)]


class _Memory(ctypes.Structure):  # nvmlMemory_t
    _fields_ = [("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong)]


_NOT_AVAILABLE = (1 << 64) - 1
_INSUFFICIENT_SIZE = 7


class DeviceMemory:
    """What this process holds of the device. Make it before the framework makes its context.

    NVML's figure for this process; where NVML does not name it (another PID namespace), what the device holds more than at the start,
    which is this process's only while nobody else uses the device.
    """

    def __init__(self, library=None):
        self.why_not, self._base_bytes, self.peak_bytes, self.source = "", 0, 0, ""
        try:
            self._nvml = library or ctypes.CDLL("libnvidia-ml.so.1")
            self._need(self._nvml.nvmlInit_v2(), "nvmlInit")
            self._device = ctypes.c_void_p()
            self._need(self._find_device(), "nvmlDeviceGetHandle")
            self._base_bytes = self._on_device()
        except (OSError, AttributeError, RuntimeError) as error:
            self.why_not = f"no NVML: {error}"

    @staticmethod
    def _need(code, step):
        if code != 0:
            raise RuntimeError(f"{step} answered {code}")

    def _find_device(self):
        """The first visible device; by UUID where CUDA_VISIBLE_DEVICES names one, since NVML has an order of its own."""
        named = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")[0].strip()
        if named.startswith("GPU-"):
            return self._nvml.nvmlDeviceGetHandleByUUID(named.encode(), ctypes.byref(self._device))
        return self._nvml.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(int(named) if named.isdigit() else 0), ctypes.byref(self._device))

    def _on_device(self):
        memory = _Memory()
        self._need(self._nvml.nvmlDeviceGetMemoryInfo(self._device, ctypes.byref(memory)), "nvmlDeviceGetMemoryInfo")
        return memory.used

    def _of_this_process(self):
        for room in (64, 1024):
            count, found = ctypes.c_uint(room), (_ProcessInfo * room)()
            code = self._nvml.nvmlDeviceGetComputeRunningProcesses_v3(self._device, ctypes.byref(count), found)
            if code == _INSUFFICIENT_SIZE:
                continue
            mine = [one.used_bytes for one in found[:count.value] if one.pid == os.getpid()] if code == 0 else []
            return mine[0] if mine and mine[0] != _NOT_AVAILABLE else None
        return None

    def sample(self):
        if self.why_not:
            return
        try:
            held = self._of_this_process()
            self.source = "NVML, this process" if held is not None else "NVML, the device's growth since the start"
            held = max(self._on_device() - self._base_bytes, 0) if held is None else held
            self.peak_bytes = max(self.peak_bytes, held)
        except (AttributeError, RuntimeError) as error:
            self.why_not = str(error)

    def tell_peak(self, kind, work):
        """Runs `work(sample)` with a thread that samples every 2 ms beside its own calls of sample(); tells the peak. Not to be timed."""
        self.peak_bytes, done = 0, threading.Event()
        def watch():
            while not done.wait(0.002):
                self.sample()
        watcher = threading.Thread(target=watch, daemon=True)
        watcher.start()
        try:
            work(self.sample)
        finally:
            done.set()
            watcher.join()
        self.sample()
        if self.why_not:
            leave_out(f"peak memory, {kind}", self.why_not)
        else:
            tell(f"peak memory, {kind}", {"bytes": self.peak_bytes, "source": self.source})


def largest(fits, guess, known, deadline_s):
    """The largest n >= 0 with fits(n), and whether there was time to be sure. Steps of 1 from a `known` neighbour's answer, else of guess/2."""
    best, over, step = 0, None, 1 if known else max(guess // 2, 1)
    trial = max(guess, 1)
    while over is None or over - best > 1:
        if time.monotonic() >= deadline_s:
            return best, False
        if fits(trial):
            best = trial
            trial = (best + over) // 2 if over is not None else best + step
        else:
            over = trial
            trial = (best + over) // 2 if best else max(over - step, 1)
            if over == 1:
                return 0, True
        step *= 2
    return best, True
