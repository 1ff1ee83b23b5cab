/* A stand-in for libnvidia-ml.so.1: as much of it as PyTorch's expandable segments look up, for one device without links or fabric.
 * scripts/compare-peers puts it beside the simulated driver. */
enum { kSuccess = 0, kNotSupported = 3 };

#define NOT_SUPPORTED(name) \
  int name(void) { return kNotSupported; }
NOT_SUPPORTED(nvmlDeviceGetComputeRunningProcesses)
NOT_SUPPORTED(nvmlDeviceGetGpuFabricInfoV)
NOT_SUPPORTED(nvmlDeviceGetNvLinkRemoteDeviceType)
NOT_SUPPORTED(nvmlDeviceGetNvLinkRemotePciInfo_v2)
NOT_SUPPORTED(nvmlSystemGetCudaDriverVersion_v2)

int nvmlInit_v2(void) { return kSuccess; }
int nvmlDeviceGetHandleByPciBusId_v2(const char* bus_id, void** device) {
  (void)bus_id;
  *device = device;
  return kSuccess;
}
