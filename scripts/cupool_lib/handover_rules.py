"""What `cupool run` knows of the frameworks' own memory settings: data, no code that runs.

RULES say what a framework's variable means, POOLS how that framework's pool stands aside, ROUTES what then reaches cupool
(the README's table, written by scripts/handover_table). handover.py applies them; a new framework is new rows.
Sources: jaxlib/xla_client.py of JAX 0.8, xla/pjrt/gpu/se_gpu_pjrt_client.cc, tensorflow gpu_process_state.cc and
gpu_cudamallocasync_allocator.cc, c10/core/AllocatorConfig.cpp and c10/cuda/CUDAMallocAsyncAllocator.cpp of PyTorch 2.9.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Rule:
    """One meaning of one variable. Of the rules of a variable the first whose pattern fits the whole value counts.

    effects   policy          what CUPOOL_POLICY becomes
              preallocation   "yes" or "no": whether the framework takes memory at its start
              share           what it then takes
              amount          what is taken at the start in any case
              ceiling         the most that is taken at the start
              limit           what CUPOOL_LIMIT becomes
              keep            the framework keeps its pool; the text says why
    In an effect, {fraction} is the pattern's group `fraction` as a percentage, {bytes} its group `bytes`. A fraction that is 0
    or above 1 does not fit.
    """

    framework: str
    variable: str
    pattern: str
    effects: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Setting:
    """One variable that makes a pool stand aside. `value` None: it is taken out of the environment."""

    variable: str
    value: str | None
    why: str
    unless: str = ""          # a value of this form stays as it is
    only_if: str = ""         # nothing is done unless this variable is set
    named: str = ""           # replacing a value of this form is said on stderr
    merge_from: str = ""      # comma-separated KEY:VALUE pairs: ours first, then the user's, taken from here where `variable` is not set


@dataclass(frozen=True)
class Pool:
    """A framework's own pool. It already stands aside where `aside_variable` has a value of the form `aside_pattern`."""

    framework: str
    settings: tuple[Setting, ...]
    aside_variable: str = ""
    aside_pattern: str = ""


@dataclass(frozen=True)
class Route:
    """One row of the README's table."""

    framework: str
    route: str
    how: str
    arrives: str
    seen: str


_FRACTION = r"\s*(?P<fraction>(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)\s*"
_NO_FRACTION = "it is no fraction of the device between 0 and 1"

RULES = (
    # JAX reads the allocator's name without regard to case, and "false", "False" and "0" only as a no.
    Rule("JAX", "XLA_PYTHON_CLIENT_ALLOCATOR", r"(?i:platform)", {"policy": "platform"}),
    Rule("JAX", "XLA_PYTHON_CLIENT_ALLOCATOR", r"(?i:cuda_async)", {"policy": "async"}),
    Rule("JAX", "XLA_PYTHON_CLIENT_ALLOCATOR", r"(?i:default|bfc)"),
    Rule("JAX", "XLA_PYTHON_CLIENT_ALLOCATOR", r".*", {"keep": "it is not an allocator that cupool knows"}),
    Rule("JAX", "XLA_PYTHON_CLIENT_PREALLOCATE", r"false|False|0", {"preallocation": "no"}),
    Rule("JAX", "XLA_PYTHON_CLIENT_PREALLOCATE", r".*", {"preallocation": "yes"}),
    # The fraction is what BFC takes at the start and the most that it ever takes. Above 1 it means managed memory.
    Rule("JAX", "XLA_CLIENT_MEM_FRACTION", _FRACTION, {"share": "{fraction}", "limit": "{fraction}"}),
    Rule("JAX", "XLA_CLIENT_MEM_FRACTION", r".*", {"keep": _NO_FRACTION}),
    Rule("JAX", "XLA_PYTHON_CLIENT_MEM_FRACTION", _FRACTION, {"share": "{fraction}", "limit": "{fraction}"}),
    Rule("JAX", "XLA_PYTHON_CLIENT_MEM_FRACTION", r".*", {"keep": _NO_FRACTION}),
    # Not JAX's own: modules that wrap JAX read it.
    Rule("JAX", "JAX_PREALLOCATION_SIZE_LIMIT_BYTES", r"\s*(?P<bytes>\d+)\s*", {"ceiling": "{bytes}"}),
    # TensorFlow compares these exactly, and ignores any other word.
    Rule("TensorFlow", "TF_GPU_ALLOCATOR", r"cuda_malloc_async", {"policy": "async"}),
    Rule("TensorFlow", "TF_GPU_ALLOCATOR", r"memory_guard", {"keep": "that debugging aid works on TensorFlow's own pool"}),
    Rule("TensorFlow", "TF_FORCE_GPU_ALLOW_GROWTH", r"true", {"preallocation": "no"}),
    Rule("TensorFlow", "TF_FORCE_GPU_ALLOW_GROWTH", r"false", {"preallocation": "yes"}),
    Rule("TensorFlow", "TF_CUDA_MALLOC_ASYNC_SUPPORTED_PREALLOC", r"\s*-1\s*", {"amount": "-1"}),
    Rule("TensorFlow", "TF_CUDA_MALLOC_ASYNC_SUPPORTED_PREALLOC", r"\s*(?P<bytes>0*[1-9]\d*)\s*", {"amount": "{bytes}"}),
)

# Keys of PyTorch's settings that belong to its own device allocator; the cudaMallocAsync backend ignores or warns about them.
# pinned_* configure host memory and stay.
PYTORCH_NATIVE_KEYS = frozenset({"expandable_segments", "max_split_size_mb", "max_non_split_rounding_mb", "garbage_collection_threshold",
                                 "roundup_power2_divisions", "release_lock_on_cudamalloc", "release_lock_on_hipmalloc",
                                 "graph_capture_record_stream_reuse", "throw_on_cudamalloc_oom"})

_STREAM_ORDERED = "stream-ordered calls instead of PyTorch's own pool"

POOLS = (
    # Both names with the same backend: before 2.9 there is only the older one, since then the newer one goes first, and a
    # PyTorch that reads one when it is loaded and the other later stops when they differ.
    Pool("PyTorch", (
        Setting("PYTORCH_ALLOC_CONF", "backend:cudaMallocAsync", f"{_STREAM_ORDERED} (2.9 and newer)", merge_from="PYTORCH_CUDA_ALLOC_CONF"),
        Setting("PYTORCH_CUDA_ALLOC_CONF", "backend:cudaMallocAsync", f"{_STREAM_ORDERED} (before 2.9)", merge_from="PYTORCH_CUDA_ALLOC_CONF"),
    ), aside_variable="PYTORCH_NO_CUDA_MEMORY_CACHING", aside_pattern=r".*[^0\s].*"),
    Pool("JAX", (
        Setting("XLA_PYTHON_CLIENT_ALLOCATOR", "cuda_async", "stream-ordered calls instead of XLA's own pool", unless=r"(?i:platform|cuda_async)",
                named=r"(?i:bfc)"),
        Setting("XLA_PYTHON_CLIENT_PREALLOCATE", "false", "else XLA reserves memory inside the pool"),
        # JAX refuses both names at once, and takes its share of the limit: which is that share already, or what was asked of cupool instead.
        Setting("XLA_PYTHON_CLIENT_MEM_FRACTION", None, "JAX refuses it beside XLA_CLIENT_MEM_FRACTION", only_if="XLA_CLIENT_MEM_FRACTION"),
        Setting("XLA_CLIENT_MEM_FRACTION", "1.0", "CUPOOL_LIMIT is the cap instead", only_if="XLA_CLIENT_MEM_FRACTION"),
        Setting("XLA_PYTHON_CLIENT_MEM_FRACTION", "1.0", "CUPOOL_LIMIT is the cap instead", only_if="XLA_PYTHON_CLIENT_MEM_FRACTION"),
    )),
    Pool("TensorFlow", (
        Setting("TF_GPU_ALLOCATOR", "cuda_malloc_async", "stream-ordered calls instead of TensorFlow's own pool", unless=r"cuda_malloc(_async)?",
                named=r".*"),
        Setting("TF_CUDA_MALLOC_ASYNC_SUPPORTED_PREALLOC", "0", "cupool takes it at the start instead",
                only_if="TF_CUDA_MALLOC_ASYNC_SUPPORTED_PREALLOC"),
    )),
)

ROUTES = (
    Route("PyTorch", "stream-ordered", "`cupool run`: `PYTORCH_ALLOC_CONF`, `PYTORCH_CUDA_ALLOC_CONF`", "one `cudaMallocAsync` per tensor, with its stream",
          "every tensor; `torch.cuda.memory_*` count as well, by the driver's pool statistics"),
    Route("PyTorch", "uncached", "you: `PYTORCH_NO_CUDA_MEMORY_CACHING=1`", "one `cudaMalloc` and `cudaFree` per tensor", "every tensor; PyTorch's own statistics stay 0"),
    Route("PyTorch", "its own pool", "`--keep-framework-pool`", "`cudaMalloc` of segments (2 MiB, 20 MiB and more); with `expandable_segments` its own `cuMemCreate`",
          "segments, no tensors; `expandable_segments` only as a sum outside the pool"),
    Route("JAX", "stream-ordered", "`cupool run`: `XLA_PYTHON_CLIENT_ALLOCATOR=cuda_async`, `…_PREALLOCATE=false`", "one `cuMemAllocFromPoolAsync` per buffer", "every buffer"),
    Route("JAX", "platform", "you: `XLA_PYTHON_CLIENT_ALLOCATOR=platform`, and `--policy grow`", "its own `cuMemCreate` and `cuMemMap` per buffer (0.11; older versions: one `cuMemAlloc`)", "only a sum outside the pool; a third slower than XLA's other ways"),
    Route("JAX", "its own pool", "`--keep-framework-pool`", "one `cuMemAlloc` of 75% of the device, or regions that double", "that region, no buffers"),
    Route("TensorFlow", "stream-ordered", "`cupool run`: `TF_GPU_ALLOCATOR=cuda_malloc_async`", "one `cuMemAllocFromPoolAsync` per tensor", "every tensor"),
    Route("TensorFlow", "plain", "you: `TF_GPU_ALLOCATOR=cuda_malloc`", "one `cuMemAlloc` per tensor", "every tensor"),
    Route("TensorFlow", "its own pool", "`--keep-framework-pool`", "one `cuMemAlloc` of nearly all that is free, or regions that double", "those regions, no tensors"),
    Route("CuPy", "plain", "you, in code (no variable exists): `cupy.cuda.set_allocator(None)`", "one `cudaMalloc` per array", "every array"),
    Route("CuPy", "its own pool", "nothing: CuPy's default", "`cudaMalloc` of chunks that CuPy keeps", "chunks, no arrays"),
    Route("RMM", "plain", "nothing: RMM's default resource is `cuda`", "one `cudaMalloc` per buffer", "every buffer"),
    Route("RMM", "its own pool", "nothing; a pool resource is chosen in code", "what that resource takes from `cudaMalloc`", "its regions, no buffers"),
    Route("Numba", "plain", "nothing: Numba has no pool (unless `NUMBA_CUDA_MEMORY_MANAGER` names one)", "one `cuMemAlloc` per array; freed in batches", "every array"),
    Route("NCCL, cuBLAS, cuDNN, cuFFT", "plain", "nothing", "their `cudaMalloc`; NCCL also its own `cuMemCreate`", "every buffer; `cuMemCreate` only as a sum outside the pool"),
)
