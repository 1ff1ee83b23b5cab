"""The parts, in the order in which they run: what each asks, its own time limit, and whether the simulated driver can serve it. What is short comes
first, so that a budget that is spent costs the fewest answers."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from typing import Callable

import native
import outcome
import reports
from outcome import Outcome
from pages import preallocation_part, tight_part
from pairs import pairs_part
from place import ROOT, Place, nvcc
from training import comparison_part

NO_GPU = "no GPU"


@dataclass(frozen=True)
class Part:
    name: str
    limit_s: float
    question: str
    simulated: bool
    run: Callable[[Place, float], Outcome]


def _missing(place: Place, *names: str) -> Outcome | None:
    absent = [name for name in names if place.program(name) is None]
    return outcome.skipped(f"{place.build}/gpu/{absent[0]} was not built") if absent else None


def _probe(name: str) -> Callable[[Place, float], Outcome]:
    def run(place: Place, limit_s: float) -> Outcome:
        return _missing(place, "gpu_probe") or outcome.of_ended(place.run([str(place.program("gpu_probe")), name], limit_s))
    return run


def _same_under_pool(name: str, **settings: str) -> Callable[[Place, float], Outcome]:
    def run(place: Place, limit_s: float) -> Outcome:
        lacking = _missing(place, "gpu_probe")
        if lacking:
            return lacking
        command = [str(place.program("gpu_probe")), name]
        plain = outcome.of_ended(place.run(command, limit_s / 2))
        pooled = outcome.of_ended(place.run(command, limit_s / 2, place.shim_environment("none", **settings)))
        for side, word in ((plain, "natively"), (pooled, "under the pool")):
            if side.status != outcome.PASSED:
                return Outcome(side.status, f"{word}: {side.reason}", side.answers)
        differing = native.differences(plain.answers, pooled.answers)
        found = [sentence for sentence in differing if not native.is_open(sentence)]
        answers = [{"question": "open: answered otherwise under the pool", "answer": sentence} for sentence in differing if sentence not in found]
        answers += [{"question": "questions put both ways", "answer": len(plain.answers)}] + [
            {"question": "answered otherwise under the pool", "answer": sentence} for sentence in found]
        return outcome.failed(f"{len(found)} answers are not the driver's own; the first: {found[0]}", answers) if found else Outcome(outcome.PASSED, "", answers)
    return run


def _calls(kind: str) -> Callable[[Place, float], Outcome]:
    """The runtime's calls, counted; with the static runtime its export tables are counted too, in a second run."""
    def run(place: Place, limit_s: float) -> Outcome:
        program = f"runtime_calls_{kind}"
        lacking = _missing(place, program, "libgpu_tracer.so")
        if lacking:
            return lacking
        tracer = str(place.program("libgpu_tracer.so"))
        result = outcome.of_ended(place.run([str(place.program(program))], limit_s / 2, place.environment(LD_PRELOAD=tracer)))
        if result.status != outcome.PASSED:
            return result
        tables = outcome.of_ended(place.run([str(place.program(program))], limit_s / 2, place.environment(LD_PRELOAD=tracer, GPU_TRACE_TABLES="1")))
        if tables.status == outcome.PASSED:
            result.answers += [{**one, "question": one["question"] + ", export tables counted"} for one in tables.answers]
        else:
            result.answers.append({"question": "with export tables counted", "left_out": tables.reason})
        return result
    return run


def _judge_run(place: Place, name: str, command: list[str], limit_s: float, **settings: str) -> Outcome:
    """One program under the pool: it ends well, its data is right, its report is valid."""
    report = str(place.scratch / f"{name}.%p.json")
    result = outcome.of_ended(place.run(command, limit_s, place.shim_environment(report, **settings)))
    if result.status != outcome.PASSED:
        return result
    said = {one["question"]: one["answer"] for one in result.answers if "answer" in one}
    fault, figures = reports.judge(place, report.replace("%p", "*"), int(said["blocks allocated"]))
    result.answers.append({"question": "report", "answer": figures})
    return outcome.failed(fault, result.answers) if fault else result


def _under_policies(place: Place, name: str, program: str, limit_s: float) -> Outcome:
    everything: list[dict] = []
    for policy, more in (("grow", {}), ("preallocate", {"CUPOOL_PREALLOCATE": "1GiB"}), ("platform", {}), ("grow", {"CUPOOL_BACKING": "pages"})):
        label = " ".join([policy, *(value for key, value in more.items() if key == "CUPOOL_BACKING")])
        one = _judge_run(place, f"{name}-{label.replace(' ', '-')}", [program], limit_s / 4, CUPOOL_POLICY=policy, **more)
        everything += [{**answer, "question": f"{label}: {answer['question']}"} for answer in one.answers]
        if one.status != outcome.PASSED:
            return Outcome(one.status, f"{label}: {one.reason}", everything)
    return Outcome(outcome.PASSED, "", everything)


def _verify(kind: str) -> Callable[[Place, float], Outcome]:
    def run(place: Place, limit_s: float) -> Outcome:
        program = f"verify_{kind}"
        return _missing(place, program) or _under_policies(place, program, str(place.program(program)), limit_s)
    return run


def _kernels(kind: str) -> Callable[[Place, float], Outcome]:
    """Built here and now by nvcc, for the device at hand."""
    def run(place: Place, limit_s: float) -> Outcome:
        compiler = nvcc()
        if compiler is None:
            return outcome.skipped("no nvcc")
        target, sources = str(place.scratch / f"kernels_{kind}"), ROOT / "tests" / "gpu" / "programs"
        built = place.run([compiler, "-std=c++17", "-O1", "-I", str(ROOT), "-gencode", "arch=compute_75,code=compute_75", "-cudart", kind,
                           str(sources / "verify.cpp"), str(sources / "verify_kernels.cu"), "-o", target], limit_s * 2 / 3)
        if built.code != 0:
            return Outcome(outcome.TIMEOUT if built.timed_out else outcome.FAILED, f"nvcc: {built.reason()}")
        return _under_policies(place, f"kernels-{kind}", target, limit_s - built.wall_s)
    return run


PARTS = [
    Part("lookups", 15, "does cuGetProcAddress return what dlsym does, for every hooked entry", True, _probe("lookups")),
    Part("calls_shared", 20, "which driver calls the shared runtime makes per allocation call", True, _calls("shared")),
    Part("calls_static", 20, "the same of the static runtime, its export tables included", False, _calls("static")),
    Part("codes", 20, "codes for sizes and frees that cannot be; sizes, pitch, layout of blocks", True, _probe("codes")),
    Part("contexts", 20, "memory without a current context, with another, after reset and destroy", True, _probe("contexts")),
    Part("green", 15, "to whom the memory of a green context belongs, and its streams", True, _probe("green")),
    Part("pointers", 20, "reach of SYNC_MEMOPS; what mapped memory answers differently", True, _probe("pointers")),
    Part("capture", 30, "allocation, free and events during capture, by mode and thread", True, _probe("capture")),
    Part("ipc", 40, "handles of interior addresses, of neighbours, of freed blocks", True, _probe("ipc")),
    Part("fork", 30, "what a forked child is answered", True, _probe("fork")),
    Part("exit", 20, "which call first hears that the process ends, and when", True, _probe("exit")),
    Part("overlap", 20, "which calls wait for the GPU; unmapping while other work runs", True, _probe("overlap")),
    Part("waits", 20, "for which contexts' work a free waits; work of destroyed streams and contexts", True, _probe("waits")),
    Part("stream_ordered", 20, "what stream-ordered memory answers, who may free it, whether it outlives a context", True, _probe("stream_ordered")),
    Part("mempools", 20, "figures of memory pools and when they change, trimming under pending work, codes", True, _probe("mempools")),
    Part("graph_memory", 20, "bytes, addresses and codes of memory that belongs to graphs", True, _probe("graph_memory")),
    Part("startup", 15, "limits, modules, names, streams of other contexts, parts of mappings", True, _probe("startup")),
    Part("lives", 20, "contexts that break or end while others begin, threads that end while their stream captures", True, _probe("lives")),
    Part("vmm_copies", 15, "copies of mapped memory between contexts and devices", True, _probe("vmm_copies")),
    Part("costs", 40, "cost of cuMemAlloc, cuMemAllocAsync and of events", True, _probe("costs")),
    Part("costs_vmm", 40, "cost of create, map, set-access and unmap by handle size", True, _probe("costs_vmm")),
    Part("same_codes", 30, "codes, again under the pool: the driver's own answers", True, _same_under_pool("codes")),
    Part("same_contexts", 30, "contexts, again under the pool", True, _same_under_pool("contexts")),
    Part("same_pointers", 30, "pointers, again under the pool", True, _same_under_pool("pointers")),
    Part("same_capture", 40, "capture, again under the pool", True, _same_under_pool("capture")),
    Part("same_ipc", 60, "IPC, again under the pool in both processes", True, _same_under_pool("ipc", CUPOOL_BACKING="segments")),
    Part("same_fork", 60, "a forked child, again under the pool", True, _same_under_pool("fork")),
    Part("same_stream_ordered", 30, "stream-ordered memory, again under the pool", True, _same_under_pool("stream_ordered")),
    Part("same_mempools", 30, "memory pools, again under the pool", True, _same_under_pool("mempools")),
    Part("same_graph_memory", 30, "graph memory, again under the pool", True, _same_under_pool("graph_memory")),
    Part("same_exit", 30, "the end of the process, again under the pool", True, _same_under_pool("exit")),
    Part("same_copies", 30, "copies between contexts, again under the pool", True, _same_under_pool("vmm_copies")),
    Part("pages_preallocated", 30, "what preallocating 75% as pages costs", True, preallocation_part()),
    Part("pages_tight", 90, "three recorded jobs in little more than their peak: pages move, data verified", True, tight_part()),
    Part("verify_shared", 60, "a program on the shared runtime under the pool, its data verified", True, _verify("shared")),
    Part("verify_static", 60, "the same on the static runtime", False, _verify("static")),
    Part("kernels_shared", 75, "an nvcc program with kernels, shared runtime, its data verified", False, _kernels("shared")),
    Part("kernels_static", 75, "the same with the static runtime", False, _kernels("static")),
    Part("python", 60, "Python on the driver itself, by the way that the frameworks take", True, comparison_part("python")),
    Part("pairs", 75, "cost of an allocation and its free, 1 and 16 threads, against every peer that is there", True, pairs_part()),
    Part("cupy", 40, "a network in CuPy, by every route", False, comparison_part("cupy")),
    Part("torch", 180, "a GPT in PyTorch: step time, losses, peak memory, largest batch, by every route", False, comparison_part("torch")),
    Part("jax", 120, "a GPT in JAX: step time, losses, peak memory, by every route", False, comparison_part("jax")),
    Part("both", 45, "PyTorch and JAX in one process", False, comparison_part("both")),
    Part("graphs", 45, "a training step as a CUDA graph", False, comparison_part("graphs")),
    Part("loader", 45, "DataLoader workers, forked and spawned", False, comparison_part("loader")),
    Part("compile", 150, "torch.compile, its graph mode too", False, comparison_part("compile")),
]

SELF_TEST = "GPU_CHECK_SELF_TEST"  # set by the tests: adds parts that hang, crash, ramble and differ


def _script(text: str) -> Callable[[Place, float], Outcome]:
    return lambda place, limit_s: outcome.of_ended(place.run([sys.executable, "-c", text], limit_s))


_HANG = ("import os, signal, subprocess, sys\n"
         "child = subprocess.Popen([sys.executable, '-c', 'import signal; signal.pause()'])\n"
         "print('{\"question\": \"grandchild\", \"answer\": %d}' % child.pid, flush=True)\n"
         "signal.signal(signal.SIGTERM, signal.SIG_IGN)\nsignal.pause()\n")
_SELF_PARTS = [
    Part("self_hang", 1, "a part that hangs, with a child of its own", True, _script(_HANG)),
    Part("self_crash", 10, "a part that dies", True, _script("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)")),
    Part("self_ramble", 10, "a part that prints half a line of JSON", True, _script("print('{\"question\": ')")),
    Part("self_differs", 10, "an answer that is not the assumed one", True, _script("print('{\"question\": \"q\", \"answer\": 1, \"assumed\": 2}')")),
    Part("self_real", 10, "a part that needs a GPU", False, _script("print('{\"question\": \"q\", \"answer\": 1}')")),
]


def all_parts() -> list[Part]:
    return _SELF_PARTS + PARTS if os.environ.get(SELF_TEST) else PARTS
