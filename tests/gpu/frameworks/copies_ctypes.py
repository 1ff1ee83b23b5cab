"""No framework: Python on the driver API itself, through ctypes. Takes the frameworks' way through gpu-check where none is installed,
the simulated driver included. Its "losses" are sums of what it copied to the device and back. GPU_CHECK_WAY chooses how it
allocates: plain (cuMemAlloc) or ordered (cuMemAllocAsync)."""

import argparse
import ctypes
import os
import time

from told import DeviceMemory, figures, largest, leave_out, tell

memory = DeviceMemory()
driver = ctypes.CDLL("libcuda.so.1")
TIMED = 20
OUT_OF_MEMORY = 2


def need(code, step):
    if code != 0:
        raise SystemExit(f"{step} answered {code}")


def start():
    device, context = ctypes.c_int(), ctypes.c_void_p()
    need(driver.cuInit(0), "cuInit")
    need(driver.cuDeviceGet(ctypes.byref(device), 0), "cuDeviceGet")
    need(driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device), "cuDevicePrimaryCtxRetain")
    need(driver.cuCtxSetCurrent(context), "cuCtxSetCurrent")


def take(way, size):
    """The address, 0 when memory is out."""
    address = ctypes.c_uint64()
    if way == "ordered":
        code = driver.cuMemAllocAsync(ctypes.byref(address), ctypes.c_size_t(size), ctypes.c_void_p(0))
    else:
        code = driver.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(size))
    if code == OUT_OF_MEMORY:
        return ctypes.c_uint64(0)
    need(code, "the allocation")
    return address


def give(way, address):
    need(driver.cuMemFreeAsync(address, ctypes.c_void_p(0)) if way == "ordered" else driver.cuMemFree_v2(address), "the free")


def step(way, number, count, sample=lambda: None):
    values = (ctypes.c_float * count)(*[(number + i % 7) / 8 for i in range(count)])
    back, address = (ctypes.c_float * count)(), take(way, ctypes.sizeof(values))
    need(driver.cuMemcpyHtoD_v2(address, values, ctypes.c_size_t(ctypes.sizeof(values))), "cuMemcpyHtoD")
    sample()
    need(driver.cuMemcpyDtoH_v2(back, address, ctypes.c_size_t(ctypes.sizeof(values))), "cuMemcpyDtoH")
    give(way, address)
    return sum(back)


def measure(way, kind, counts):
    losses, times_ns = [], []
    for number in range(TIMED):
        begin = time.perf_counter_ns()
        losses.append(step(way, number, counts[number % len(counts)]))
        times_ns.append(time.perf_counter_ns() - begin)
    tell(f"losses, {kind}", losses)
    tell(f"steps, {kind}", figures(times_ns))
    memory.tell_peak(kind, lambda sample: step(way, 0, counts[0], sample))


def find_largest(way, guess, deadline_s):
    """A "batch" is GiB that can be held at once, in one block each."""
    def fits(count):
        blocks = [take(way, 1 << 30) for _ in range(count)]
        for block in blocks:
            if block.value:
                give(way, block)
        need(driver.cuCtxSynchronize(), "cuCtxSynchronize")
        return all(block.value for block in blocks)
    found, sure = largest(fits, guess or 16, bool(guess), deadline_s)
    if sure:
        tell("largest batch that fits, fixed lengths", found)
    else:
        leave_out("largest batch that fits, fixed lengths", f"no time to be sure; {found} fits")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--guess", default="")
    options = parser.parse_args()
    way = os.environ.get("GPU_CHECK_WAY", "plain")
    start()
    tell("allocator", way)
    measure(way, "fixed lengths", [3000])
    measure(way, "varying lengths", [1000 * (number % 5 + 1) for number in range(TIMED)])
    guess = options.guess.split(",")[0]
    find_largest(way, int(guess) if guess.isdigit() else 0, time.monotonic() + options.seconds * 0.8)


if __name__ == "__main__":
    main()
