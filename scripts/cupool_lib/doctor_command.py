"""Doctor's answer to: what would happen to this command?

Follows PATH and #! lines to the ELF file that the loader would start, and says where the preload would stop: static
binaries, set-user-ID, other machines, launchers that do not hand the environment on.
"""

from __future__ import annotations

import os
import shutil
import stat

from cupool_lib import elf
from cupool_lib.doctor import FAILURE, OK, WARNING, Finding

# Programs that start others without this environment, and what to write instead.
_LAUNCHERS = {
    "sudo": "sudo drops LD_PRELOAD: write `sudo cupool run ... -- COMMAND`",
    "su": "su may drop LD_PRELOAD: put `cupool run` inside the command that su runs",
    "doas": "doas drops LD_PRELOAD: put `cupool run` behind it",
    "docker": "the container has its own files and environment: put `cupool run` inside the image",
    "podman": "the container has its own files and environment: put `cupool run` inside the image",
    "nerdctl": "the container has its own files and environment: put `cupool run` inside the image",
    "singularity": "the container has its own files: put `cupool run` inside, or bind the library's folder",
    "apptainer": "the container has its own files: put `cupool run` inside, or bind the library's folder",
    "ssh": "the other machine has its own environment: put `cupool run` behind ssh",
    "mpirun": "remote ranks get only what -x names: put `cupool run` behind it: `mpirun ... cupool run -- COMMAND`",
    "mpiexec": "remote ranks may not get the environment: put `cupool run` behind it: `mpiexec ... cupool run -- COMMAND`",
    "kubectl": "the pod has its own environment: put `cupool run` inside the image",
}
_MAX_INTERPRETERS = 5


def check(command: list[str], machine: list[Finding]) -> list[Finding]:
    path = command[0] if "/" in command[0] else shutil.which(command[0])
    if path is None or not os.path.exists(path):
        return [Finding("command", FAILURE, f"{command[0]}: command not found", "check PATH; `cupool run` would end with 127")]
    chain, problem = _interpreters(path)
    if problem:
        return [problem]
    findings = [finding for file in chain for finding in [_privileged(file)] if finding]
    findings += _binary(chain[-1])
    advice = _LAUNCHERS.get(os.path.basename(chain[0])) or _LAUNCHERS.get(os.path.basename(os.path.realpath(chain[0])))
    if advice:
        findings.append(Finding("command", WARNING, f"{os.path.basename(chain[0])} starts a program of its own", advice))
    if not findings:
        findings.append(Finding("command", OK, f"{' -> '.join(chain)} would get the library"))
    return findings + [_outcome(findings, machine)]


def _interpreters(path: str) -> tuple[list[str], Finding | None]:
    """The file, then what its #! line starts, and so on to the binary."""
    chain = [path]
    while len(chain) <= _MAX_INTERPRETERS:
        file = chain[-1]
        if os.path.isdir(file) or not os.access(file, os.X_OK):
            return chain, Finding("command", FAILURE, f"{file} is not an executable file", "`cupool run` would end with 126")
        try:
            with open(file, "rb") as stream:
                first = stream.readline(4096)
        except OSError as error:
            return chain, Finding("command", WARNING, f"{file} cannot be read: {error.strerror}", "what it is cannot be said; try it")
        if not first.startswith(b"#!"):
            return chain, None
        words = first[2:].decode("utf-8", "replace").split()
        words = [word for word in words if not (len(chain) and os.path.basename(words[0]) == "env" and (word.startswith("-") or "=" in word))]
        by_env = len(words) > 1 and os.path.basename(words[0]) == "env"
        following = shutil.which(words[1]) if by_env else (words[0] if words else None)
        if following is None or not os.path.exists(following):
            return chain, Finding("command", FAILURE, f"{file}: its interpreter {' '.join(words)} does not exist", "`cupool run` would end with 127")
        chain.append(following)
    return chain, Finding("command", FAILURE, f"{path}: its #! lines lead from one script to the next without end", "correct the first line")


def _privileged(path: str) -> Finding | None:
    """The loader ignores a preload with a slash for privileged programs."""
    mode = os.stat(path).st_mode
    try:
        capabilities = bool(os.getxattr(path, "security.capability"))
    except OSError:
        capabilities = False
    if capabilities or mode & (stat.S_ISUID | stat.S_ISGID):
        kind = "has file capabilities" if capabilities else "is set-user-ID or set-group-ID"
        return Finding("command", FAILURE, f"{path} {kind}: the loader ignores LD_PRELOAD for it",
                       "it would run unpooled; start the program behind it with `cupool run`, or use a copy without the privilege")
    return None


def _binary(path: str) -> list[Finding]:
    try:
        facts = elf.read(path)
    except elf.NotElf:
        return []  # a script without a #! line: /bin/sh runs it
    except OSError as error:
        return [Finding("command", WARNING, f"{path} cannot be read: {error.strerror}", "what it is cannot be said; try it")]
    if facts.bits == 32 or facts.machine != "x86-64":
        return [Finding("command", FAILURE, f"{path} is a {facts.bits}-bit {facts.machine} program",
                        "the loader prints an error and starts it unpooled; cupool is for x86-64 only")]
    if facts.is_static:
        return [Finding("command", FAILURE, f"{path} is statically linked: no loader, so nothing can be preloaded",
                        "it would run unpooled; link it dynamically (CUDA's own runtime may stay static)")]
    if facts.interpreter and "ld-musl" in facts.interpreter:
        return [Finding("command", FAILURE, f"{path} uses musl, not glibc", "the library cannot be loaded into it; use a glibc build")]
    return []


def _outcome(command: list[Finding], machine: list[Finding]) -> Finding:
    """One sentence that puts it together."""
    statuses = {finding.check: finding.status for finding in machine}
    if any(finding.status == FAILURE for finding in command):
        return Finding("outcome", WARNING, "the command would run as it does today, without the pool", "see the failure above")
    if FAILURE in (statuses.get("library"), statuses.get("preload")):
        return Finding("outcome", WARNING, "the command would not get the library", "see the failure above")
    if os.environ.get("CUPOOL_POLICY") == "off":
        return Finding("outcome", WARNING, "CUPOOL_POLICY=off: the library would be loaded and do nothing", "unset it, or choose another policy")
    if statuses.get("driver") == FAILURE:
        return Finding("outcome", WARNING, "the command would run, but no CUDA call of it can succeed here", "see the driver above")
    policy = os.environ.get("CUPOOL_POLICY") or "grow"
    return Finding("outcome", OK, f"its CUDA memory would come from the pool (policy {policy}). Not caught: libraries that it opens with RTLD_DEEPBIND")
