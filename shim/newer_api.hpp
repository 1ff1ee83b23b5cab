// Entry points that older versions of <cuda.h>, from 12.8 on, lack, declared as the header that brought them does: so the library stands in for the
// same functions whichever header it was built with. Types that only pass through are left incomplete. Source: cuda.h 13.0, 13.2, 13.3, 13.5.
#pragma once

#include <cuda.h>

extern "C" {

#if CUDA_VERSION < 13000
inline constexpr auto CU_MEM_ALLOCATION_TYPE_MANAGED = static_cast<CUmemAllocationType>(0x2);
CUresult CUDAAPI cuCtxSynchronize_v2(CUcontext context);
CUresult CUDAAPI cuMemGetDefaultMemPool(CUmemoryPool* out, CUmemLocation* location, CUmemAllocationType type);
CUresult CUDAAPI cuMemGetMemPool(CUmemoryPool* out, CUmemLocation* location, CUmemAllocationType type);
CUresult CUDAAPI cuMemSetMemPool(CUmemLocation* location, CUmemAllocationType type, CUmemoryPool pool);
#endif

#if CUDA_VERSION < 13020
typedef struct CUstreamCigCaptureParams_st CUstreamCigCaptureParams;
CUresult CUDAAPI cuStreamBeginCaptureToCig(CUstream stream, CUstreamCigCaptureParams* parameters);
CUresult CUDAAPI cuStreamBeginCaptureToCig_ptsz(CUstream stream, CUstreamCigCaptureParams* parameters);
CUresult CUDAAPI cuStreamEndCaptureToCig(CUstream stream);
CUresult CUDAAPI cuStreamEndCaptureToCig_ptsz(CUstream stream);
#endif

#if CUDA_VERSION < 13030
typedef enum CUgraphRecaptureStatus_enum {
  CU_GRAPH_RECAPTURE_ELIGIBLE_FOR_UPDATE = 0,
  CU_GRAPH_RECAPTURE_INELIGIBLE_FOR_UPDATE = 1,
  CU_GRAPH_RECAPTURE_ERROR = 2,
} CUgraphRecaptureStatus;
typedef CUresult(CUDA_CB* CUgraphRecaptureCallback)(void* data, CUgraphNode node, const CUgraphNodeParams* original,
                                                    const CUgraphNodeParams* recaptured, CUgraphRecaptureStatus status);
CUresult CUDAAPI cuStreamBeginRecaptureToGraph(CUstream stream, CUstreamCaptureMode mode, CUgraph graph, CUgraphRecaptureCallback callback,
                                               void* data);
CUresult CUDAAPI cuStreamBeginRecaptureToGraph_ptsz(CUstream stream, CUstreamCaptureMode mode, CUgraph graph, CUgraphRecaptureCallback callback,
                                                    void* data);
#endif

#if CUDA_VERSION < 13040
CUresult CUDAAPI cuGraphAddNode_v3(CUgraphNode* out, CUgraph graph, const CUgraphNode* dependencies, const CUgraphEdgeData* edges, size_t count,
                                   CUgraphNodeParams* parameters);
#endif

// These are in every toolkit, but in headers (cudaGL.h, cudaVDPAU.h) that include those of other libraries.
CUresult CUDAAPI cuGLCtxCreate(CUcontext* out, unsigned flags, CUdevice device);
CUresult CUDAAPI cuGLCtxCreate_v2(CUcontext* out, unsigned flags, CUdevice device);
CUresult CUDAAPI cuVDPAUCtxCreate(CUcontext* out, unsigned flags, CUdevice device, unsigned vdp_device, void* find_vdp_function);
CUresult CUDAAPI cuVDPAUCtxCreate_v2(CUcontext* out, unsigned flags, CUdevice device, unsigned vdp_device, void* find_vdp_function);

}  // extern "C"
