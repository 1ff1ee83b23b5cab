"""Frameworks and the routes by which their memory is allocated: data, no code that runs. training.py runs each route in a process
of its own and compares. Sources for the settings: scripts/cupool_lib/handover_rules.py, and the frameworks' documentation."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Route:
    """`flags` None: natively, else under `cupool run` with them. `own`: one of the framework's own pools, which the goals compare with."""

    name: str
    environment: dict[str, str] = field(default_factory=dict)
    flags: tuple[str, ...] | None = None
    own: bool = False
    words: tuple[str, ...] = ()     # more arguments for the program
    allocator: str = ""             # what the program must answer for "allocator": did the setting take?
    judged: bool = True             # False: shown, but no goal is set for it
    maps_itself: bool = False       # the framework maps its memory itself: the report must show it outside the pool
    unsupported: str = ""           # words of an error by which the framework says that it does not offer this: left out, not failed

    @property
    def is_pooled(self) -> bool:
        return self.flags is not None


@dataclass(frozen=True)
class Comparison:
    """The first route is what the others' losses are compared with. A route after `again` repeats it, which tells the noise."""

    modules: tuple[str, ...]
    program: str
    routes: tuple[Route, ...]
    share_s: float                  # the most that one route may take
    words: tuple[str, ...] = ()
    timed: bool = False             # it takes --seconds and, after the first route, --guess
    tolerance: float = 1e-5         # of losses that are not the same to the last bit
    least_allocations: int = 1      # fewer in the report mean that the route did not reach the pool
    reports: int = 0                # exactly so many processes may leave a report; 0: any number
    goal: bool = False              # step time at most the best own pool's


AGAIN = "natively again"
_TORCH_ASYNC = {"PYTORCH_ALLOC_CONF": "backend:cudaMallocAsync", "PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync"}
_TORCH_EXPANDABLE = {"PYTORCH_ALLOC_CONF": "expandable_segments:True", "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
_NO_CACHING = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
_KEEP_TORCH = ("--keep-framework-pool=pytorch",)
# Checkpoints of a graph's pool, which `reduce-overhead` needs, exist in torch's own allocator only.
_NO_CHECKPOINTS = "cudaMallocAsync does not yet support"

_NATIVE_TORCH = Route("natively", own=True, allocator="native")
_HANDED_OVER_TORCH = Route("cupool, stream-ordered", flags=(), allocator="cudaMallocAsync")

COMPARISONS = {
    "python": Comparison(
        ("ctypes",), "copies_ctypes.py", share_s=20, timed=True, least_allocations=40, reports=1, goal=True, routes=(
            Route("natively", own=True, allocator="plain"),
            Route("natively, stream-ordered", {"GPU_CHECK_WAY": "ordered"}, own=True, allocator="ordered"),
            Route("cupool, plain", flags=(), allocator="plain"),
            Route("cupool, stream-ordered", {"GPU_CHECK_WAY": "ordered"}, flags=(), allocator="ordered"),
            Route(AGAIN, allocator="plain"))),
    "torch": Comparison(
        ("torch",), "gpt_torch.py", share_s=45, timed=True, tolerance=2e-2, least_allocations=10000, reports=1, goal=True, routes=(
            _NATIVE_TORCH,
            _HANDED_OVER_TORCH,
            Route("natively, expandable segments", _TORCH_EXPANDABLE, own=True, allocator="native"),
            Route("cupool, no caching", _NO_CACHING, flags=(), words=("--no-batches",), allocator="native"),
            Route("natively, cudaMallocAsync", _TORCH_ASYNC, own=True, words=("--no-batches",), allocator="cudaMallocAsync"),
            Route(AGAIN, words=("--no-batches",), allocator="native"),
            Route("cupool under torch's own pool", flags=_KEEP_TORCH, words=("--no-batches",), allocator="native", judged=False))),
    "jax": Comparison(
        ("jax",), "gpt_jax.py", share_s=40, least_allocations=100, reports=1, goal=True, routes=(
            Route("natively, BFC with preallocation", {"XLA_PYTHON_CLIENT_PREALLOCATE": "true"}, own=True),
            Route("cupool, stream-ordered", flags=()),
            # JAX 0.11: cuMemCreate and cuMemMap for each buffer, by XLA itself.
            Route("cupool, platform", {"XLA_PYTHON_CLIENT_ALLOCATOR": "platform"}, flags=("--policy", "grow"), judged=False, maps_itself=True),
            Route("natively, platform", {"XLA_PYTHON_CLIENT_ALLOCATOR": "platform"}, own=True),
            Route("natively, cuda_async", {"XLA_PYTHON_CLIENT_ALLOCATOR": "cuda_async"}, own=True),
            Route(AGAIN, {"XLA_PYTHON_CLIENT_PREALLOCATE": "true"}))),
    "cupy": Comparison(
        ("cupy",), "fit_cupy.py", share_s=15, least_allocations=500, reports=1, goal=True, routes=(
            Route("natively, CuPy's pool", own=True),
            Route("cupool, plain", {"GPU_CHECK_CUPY": "direct"}, flags=()),
            Route("cupool, stream-ordered", {"GPU_CHECK_CUPY": "async"}, flags=()),
            Route("natively, MemoryAsyncPool", {"GPU_CHECK_CUPY": "async"}, own=True),
            Route(AGAIN))),
    "both": Comparison(
        ("torch", "jax"), "both.py", share_s=35, least_allocations=200, reports=1, routes=(
            Route("natively", {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}),
            Route("cupool, stream-ordered", flags=()))),
    "loader": Comparison(
        ("torch",), "torch_features.py", share_s=30, words=("loader",), reports=1, routes=(
            _NATIVE_TORCH,
            _HANDED_OVER_TORCH)),
    "graphs": Comparison(
        ("torch",), "torch_features.py", share_s=20, words=("graphs",), routes=(
            _NATIVE_TORCH,
            _HANDED_OVER_TORCH,
            Route("cupool under torch's own pool", flags=_KEEP_TORCH, allocator="native"))),
    "compile": Comparison(
        ("torch",), "torch_features.py", share_s=60, words=("compile",), tolerance=1e-4, routes=(
            _NATIVE_TORCH,
            _HANDED_OVER_TORCH,
            Route("natively, cudaMallocAsync", _TORCH_ASYNC, own=True, allocator="cudaMallocAsync"),
            Route("cupool, reduce-overhead under torch's own pool", flags=_KEEP_TORCH, words=("--mode", "reduce-overhead"), allocator="native"),
            Route("cupool, reduce-overhead, stream-ordered", flags=(), words=("--mode", "reduce-overhead"), allocator="cudaMallocAsync",
                  unsupported=_NO_CHECKPOINTS))),
}
