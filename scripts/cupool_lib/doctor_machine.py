"""Doctor's checks of the machine: library, driver, devices, folders, preloads, environment."""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from cupool_lib import doctor_variables, elf, live_page, locate
from cupool_lib.doctor import FAILURE, OK, WARNING, Finding
from cupool_lib.output_file import is_replaceable, is_too_long
from cupool_lib.terminal import size

OLDEST_DRIVER = 11040
_ALLOWED_NEEDED = {"libc.so.6", "libm.so.6", "ld-linux-x86-64.so.2"}
_PROBE_SECONDS = 60
_SYSTEM_PRELOADS = Path("/etc/ld.so.preload")
_ROOM_BYTES = 64 << 20
_RIVALS = {"libvgpu": "HAMi-core", "libnvshare": "nvshare", "libgemhook": "Gemini", "libmemray": "memray", "torch_memory_saver": "torch_memory_saver"}


def check(library: str | None) -> list[Finding]:
    findings, path = [], None
    try:
        path = locate.library(library)
    except locate.NotFound as error:
        findings.append(Finding("library", FAILURE, str(error), "build it with scripts/build, or install the package whole"))
    if path is not None:
        findings += [_library_file(path), _library_loads(path)]
    facts = _probe({})
    findings += [_driver(facts), *_devices(facts)]
    if path is not None and facts.get("usable") and facts.get("version", 0) >= OLDEST_DRIVER:
        findings += _pools(path, facts)
    return findings + [_report_folder(), _shared_memory(), _preloads(path), *doctor_variables.check(facts)]


def _library_file(path: Path) -> Finding:
    """NEEDED, machine and the glibc that it asks for, against the C library here."""
    if platform.machine() != "x86_64":
        return Finding("library", FAILURE, f"this machine is {platform.machine()}", "cupool runs on x86-64 only")
    try:
        facts = elf.read(str(path))
    except (elf.NotElf, OSError) as error:
        return Finding("library", FAILURE, f"{path}: {error}", "build it again: scripts/build")
    strangers = sorted(set(facts.needed) - _ALLOWED_NEEDED)
    if strangers:
        return Finding("library", WARNING, f"{path} needs {', '.join(strangers)}", "a program that brings its own version of these may break")
    floor = elf.highest_glibc(facts)
    here = tuple(int(part) for part in platform.libc_ver()[1].split(".")[:2] if part.isdigit())
    text = ".".join(map(str, floor))
    if here and floor > here:
        return Finding("library", FAILURE, f"{path} needs glibc {text}, this system has {'.'.join(map(str, here))}",
                       "build it on this system, or on an older one")
    return Finding("library", OK, f"{path} (glibc {text} or newer)")


def _spawn_microseconds(environment: dict[str, str]) -> float:
    start = time.perf_counter_ns()
    os.waitpid(os.posix_spawn("/bin/true", ["true"], environment), 0)
    return (time.perf_counter_ns() - start) / 1e3


def _library_loads(path: Path) -> Finding:
    """Into a program that has nothing to do with CUDA, where it must do nothing."""
    if problem := locate.preload_problem(str(path)):
        return Finding("preload", FAILURE, f"{path}: {problem}", "use a copy elsewhere: --library FILE")
    environment = {"LD_PRELOAD": str(path), "PATH": os.defpath}
    result = subprocess.run(["/bin/true"], env=environment, capture_output=True, check=False)
    output = (result.stdout + result.stderr).decode("utf-8", "replace").strip()
    if result.returncode != 0 or output:
        return Finding("preload", FAILURE, f"/bin/true under the library: exit code {result.returncode}{', ' + output.splitlines()[0] if output else ''}",
                       "the library cannot be used here; report this with the output of `cupool doctor --json`")
    plain, preloaded = ([], [])
    for _ in range(15):
        plain.append(_spawn_microseconds({"PATH": os.defpath}))
        preloaded.append(_spawn_microseconds(environment))
    added = statistics.median(preloaded) - statistics.median(plain)
    return Finding("preload", OK, f"loads silently; a process without CUDA starts {_later(added)}")


def _later(microseconds: float) -> str:
    """What a machine's noise makes less than nothing is nothing."""
    return f"{microseconds / 1000:.2f} ms later" if microseconds >= 5 else "no later"


def _probe(extra: dict[str, str], *arguments: str) -> dict:
    """What driver_probe.py says; it runs apart, so that a driver that hangs or crashes does not take doctor with it."""
    command = [sys.executable, "-I", "-S", str(locate.PACKAGE / "driver_probe.py"), *arguments]
    try:
        result = subprocess.run(command, env={**os.environ, **extra}, capture_output=True, timeout=_PROBE_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return {"found": True, "reason": f"the driver did not answer within {_PROBE_SECONDS} s"}
    try:
        return json.loads(result.stdout)
    except ValueError:
        ending = f"signal {-result.returncode}" if result.returncode < 0 else f"exit code {result.returncode}"
        return {"found": True, "reason": f"the process that asked the driver ended with {ending}"}


def _driver(facts: dict) -> Finding:
    if not facts.get("found"):
        return Finding("driver", FAILURE, facts.get("reason", "not found"),
                       "no CUDA program can use a GPU here (cupool steps aside); install the driver, or start the container with --gpus all")
    version = facts.get("version", 0)
    name = f"{facts.get('path', 'libcuda.so.1')}, CUDA {version // 1000}.{version % 1000 // 10}"
    if facts.get("simulated"):
        name += ", cupool's simulated driver"
    if not facts.get("usable"):
        return Finding("driver", FAILURE, f"{name}: {facts.get('reason', 'no answer')}",
                       "no CUDA program can use a GPU here (cupool steps aside); check nvidia-smi, and the container's device access")
    if version < OLDEST_DRIVER:
        return Finding("driver", FAILURE, f"{name} is older than 11.4", "cupool steps aside on it: programs run, unpooled; update the driver")
    return Finding("driver", OK, name)


def _devices(facts: dict) -> list[Finding]:
    findings = []
    for device in facts.get("devices", []):
        name = f"GPU {device['ordinal']}"
        if "error" in device:
            findings.append(Finding(name, FAILURE, device["error"], "check nvidia-smi"))
            continue
        detail = f"{device['name']}, {size(device['total_bytes'])}, compute capability {device['compute_capability']}, virtual memory management "
        if device["vmm"]:
            findings.append(Finding(name, OK, detail + "supported"))
        else:
            findings.append(Finding(name, WARNING, detail + "not supported",
                                    "the pool works, from segments; it cannot remap pages, so fragmentation can cost memory (vGPU, WSL, old devices)"))
    return findings


def _pools(path: Path, facts: dict) -> list[Finding]:
    """One real allocation under the library must be served by the pool and leave a report; and where its memory came from."""
    finding, backing = _allocate(path)
    return [finding, _backing(facts, backing)] if backing else [finding]


def _allocate(path: Path) -> tuple[Finding, str]:
    try:
        made = tempfile.TemporaryDirectory()
    except OSError as error:  # a container whose root is read-only, without a /tmp
        return Finding("pool", WARNING, f"not tried: no temporary folder can be made ({error.strerror})", "set TMPDIR to a folder that this user may write to"), ""
    with made as folder:
        report = Path(folder) / "report.json"
        # The job's own files and memory are not this one's to take.
        variables = {"LD_PRELOAD": str(path), "CUPOOL_POLICY": "grow", "CUPOOL_REPORT": str(report), "CUPOOL_LOG": "off", "CUPOOL_LOG_FILE": "stderr",
                     "CUPOOL_TRACE": "none", "CUPOOL_PREALLOCATE": "none"}
        facts = _probe(variables, "--allocate")
        if facts.get("reason"):
            return Finding("pool", FAILURE, f"an allocation under the library failed: {facts['reason']}", "try CUPOOL_POLICY=off; report this"), ""
        try:
            data = json.loads(report.read_text(encoding="utf-8"))
            device = data["devices"][0]
            served = device["counters"]["allocations"]
        except (OSError, ValueError, LookupError, TypeError):
            return Finding("pool", FAILURE, "an allocation under the library left no report", "report this with the output of `cupool doctor --json`"), ""
    if served < 1:
        return Finding("pool", FAILURE, "an allocation under the library was not seen by it", "report this with the output of `cupool doctor --json`"), ""
    return Finding("pool", OK, f"a test allocation (with policy {device['policy']}) was served, backing {device['backing']}, and reported"), device["backing"]


# Ranks of a launcher on this machine, as shim/export_hints.cpp reads them: sizes above 1, ranks above 0.
_LOCAL_SIZES = ("LOCAL_WORLD_SIZE", "LOCAL_SIZE", "HOROVOD_LOCAL_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS", "MV2_COMM_WORLD_LOCAL_SIZE", "MVP_COMM_WORLD_LOCAL_SIZE",
                "PALS_LOCAL_SIZE", "PMI_LOCAL_SIZE", "JSM_NAMESPACE_LOCAL_SIZE", "SLURM_NTASKS_PER_NODE", "SLURM_STEP_TASKS_PER_NODE",
                "SLURM_TASKS_PER_NODE")
_LOCAL_RANKS = ("LOCAL_RANK", "HOROVOD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "MV2_COMM_WORLD_LOCAL_RANK", "MVP_COMM_WORLD_LOCAL_RANK",
                "PALS_LOCAL_RANKID", "PMI_LOCAL_RANK", "PMIX_LOCAL_RANK", "JSM_NAMESPACE_LOCAL_RANK", "SLURM_LOCALID", "FLUX_TASK_LOCAL_ID")


def local_ranks() -> str:
    """The variable that tells of other ranks on this machine; empty: none does."""
    is_first_of_some = "LOCAL_RANK" in os.environ and "LOCAL_WORLD_SIZE" not in os.environ
    for bound, names in ((1, _LOCAL_SIZES), (0, _LOCAL_RANKS), (1, ("WORLD_SIZE",) if is_first_of_some else ())):
        for name in names:
            numbers = [int(match[:9]) for match in re.findall(r"(?:^|,)\s*(\d+)", os.environ.get(name, ""))]
            if numbers and max(numbers) > bound:
                return f"{name}={os.environ[name]}"
    return ""


def _backing(facts: dict, served: str) -> Finding:
    """Which backing a program will get, and why: `served` is what the test allocation got."""
    chosen = os.environ.get("CUPOOL_BACKING", "").strip().lower()
    if chosen == served:
        return Finding("backing", OK, f"{served}, as CUPOOL_BACKING says")
    if served == "pages":
        return Finding("backing", OK, "pages on the device that is used first; segments on others, and for programs that import cuIpcGetMemHandle or cudaIpcGetMemHandle")
    if not any(device.get("vmm") for device in facts.get("devices", [])):
        return Finding("backing", OK, f"{served}: no device has virtual memory management")
    if ranks := local_ranks():
        return Finding("backing", OK, f"{served}: several ranks run on this machine ({ranks}) and may share memory; CUPOOL_BACKING=pages overrides it")
    return Finding("backing", OK, served)


def _existing_parent(path: Path) -> Path:
    while not os.path.exists(path) and path != path.parent:  # False, and no exception, where it may not be looked at
        path = path.parent
    return path


def _report_folder() -> Finding:
    pattern = os.environ.get("CUPOOL_REPORT") or "cupool-report.%h.%p.json"
    if pattern.lower() in ("none", "stderr"):
        return Finding("report", OK, f"CUPOOL_REPORT={pattern}")
    fixed = pattern.split("%", 1)[0]
    advice = "set CUPOOL_REPORT (or --report) to a folder that this user may write to"
    if fixed == pattern and not is_replaceable(Path(pattern)):
        return Finding("report", FAILURE, f"CUPOOL_REPORT={pattern} is there and no regular file: no report would be written", "`none` and `stderr` are names of their own")
    if os.path.isdir(pattern):
        return Finding("report", FAILURE, f"CUPOOL_REPORT={pattern} is a folder: no report would be written", "name a file in it")
    try:
        folder = Path(fixed if fixed.endswith("/") else os.path.dirname(fixed) or ".").absolute()
    except FileNotFoundError:
        return Finding("report", FAILURE, "the working folder does not exist any more", advice)
    if is_too_long(folder):
        return Finding("report", FAILURE, f"reports cannot be written into {folder}: a name in it is too long", advice)
    parent = _existing_parent(folder)
    try:
        with tempfile.TemporaryFile(dir=parent):  # tried, not asked: permissions alone do not tell of read-only mounts
            pass
    except OSError as error:
        return Finding("report", FAILURE, f"reports cannot be written into {folder}: {parent}: {error.strerror}", advice)
    free = shutil.disk_usage(parent).free
    if free < _ROOM_BYTES:
        return Finding("report", WARNING, f"{folder} has only {size(free)} left", "free some space; a report that does not fit is not written")
    return Finding("report", OK, f"reports go into {folder}")


def _shared_memory() -> Finding:
    folder = locate.live_page_folder()
    advice = "without it a process that is killed leaves no report; in a container: --shm-size=64m or --ipc=host"
    if not os.access("/dev/shm", os.W_OK | os.X_OK):
        return Finding("live page", WARNING, "/dev/shm is missing or not writable", advice)
    if shutil.disk_usage("/dev/shm").free < _ROOM_BYTES // 16:
        return Finding("live page", WARNING, "/dev/shm is full", advice)
    stale = [path for path in live_page.page_files(folder) if not live_page.is_alive(*map(int, path.name.split(".")))]
    is_taken = os.path.lexists(folder) and folder not in live_page.own_folders(folder)
    detail = f"{folder} is not a private folder of this user's: {folder}.XXXXXX stands in for it" if is_taken else f"{folder} can be used"
    return Finding("live page", OK, detail + (f"; {len(stale)} of processes that died outside `cupool run` lie there" if stale else ""))


def _system_preloads() -> list[str]:
    """What the system puts into every program, behind LD_PRELOAD; device plugins that share GPUs among containers do it this way."""
    try:
        lines = _SYSTEM_PRELOADS.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    return [entry for line in lines for entry in line.split("#", 1)[0].replace(":", " ").split()]


def _preloads(own: Path | None) -> Finding:
    entries = os.environ.get("LD_PRELOAD", "").replace(":", " ").split() + _system_preloads()
    others = [entry for entry in entries if own is None or os.path.realpath(entry) != os.path.realpath(own)]
    missing = [entry for entry in others if "/" in entry and "$" not in entry and not os.path.exists(entry)]
    rivals = [f"{entry} ({name})" for entry in others for key, name in _RIVALS.items() if key in os.path.basename(entry)]
    if rivals:
        return Finding("preloads", WARNING, f"{', '.join(rivals)} is preloaded too, and stands between programs and CUDA as well",
                       "cupool calls the driver itself, so the other's limits and figures do not hold for pooled memory: set CUPOOL_LIMIT, or leave one out")
    if missing:
        return Finding("preloads", WARNING, f"{', '.join(missing)} is to be preloaded, but does not exist", "every program prints an error for it; take it out")
    return Finding("preloads", OK, f"{', '.join(others)} is preloaded too, and kept" if others else "no other library is preloaded")
