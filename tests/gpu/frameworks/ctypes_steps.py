"""No framework: Python on the driver API itself, through ctypes. Takes the frameworks' way through gpu-check where none is
installed, the simulated driver included. Its "losses" are sums of what it copied to the device and back."""

import ctypes
import json


def tell(question, answer):
    print(json.dumps({"question": question, "answer": answer}), flush=True)


def need(code, step):
    if code != 0:
        raise SystemExit(f"{step} answered {code}")


driver = ctypes.CDLL("libcuda.so.1")
device, context = ctypes.c_int(), ctypes.c_void_p()
need(driver.cuInit(0), "cuInit")
need(driver.cuDeviceGet(ctypes.byref(device), 0), "cuDeviceGet")
need(driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device), "cuDevicePrimaryCtxRetain")
need(driver.cuCtxSetCurrent(context), "cuCtxSetCurrent")
losses = []
for step in range(20):
    count = 1000 * (step % 5 + 1)
    values = (ctypes.c_float * count)(*[(step + i % 7) / 8 for i in range(count)])
    back, address = (ctypes.c_float * count)(), ctypes.c_uint64()
    need(driver.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(ctypes.sizeof(values))), "cuMemAlloc")
    need(driver.cuMemcpyHtoD_v2(address, values, ctypes.c_size_t(ctypes.sizeof(values))), "cuMemcpyHtoD")
    need(driver.cuMemcpyDtoH_v2(back, address, ctypes.c_size_t(ctypes.sizeof(values))), "cuMemcpyDtoH")
    need(driver.cuMemFree_v2(address), "cuMemFree")
    losses.append(sum(back))
tell("losses", losses)
