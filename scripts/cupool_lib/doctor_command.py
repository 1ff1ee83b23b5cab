"""Doctor's answer to: what would happen to this command?

Follows PATH and #! lines to the ELF file that the loader would start, and says where the preload would stop: static
binaries, set-user-ID, other machines, launchers that do not hand the environment on.
"""

from __future__ import annotations

import os
import re
import shutil
import stat

from cupool_lib import doctor_frameworks, elf
from cupool_lib.doctor import FAILURE, OK, WARNING, Finding
from cupool_lib.doctor_frameworks import Program
from cupool_lib.handover import Plan

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
# Programs that start the command among their arguments, with this environment.
_PASSING = frozenset({"env", "nice", "ionice", "nohup", "time", "timeout", "stdbuf", "numactl", "taskset", "setsid", "chrt", "prlimit", "xvfb-run", "srun", "strace"})
_SHELLS = frozenset({"sh", "bash", "dash", "zsh", "ksh", "busybox"})
_PYTHON = re.compile(r"(python|pypy)[\d.]*$")
_STARTS_OTHERS = " starts a program of its own"
_MAX_INTERPRETERS = 5
_MAX_PASSING = 8


def check(command: list[str], machine: list[Finding]) -> list[Finding]:
    findings: list[Finding] = []
    for _ in range(_MAX_PASSING):
        inner = _inner(command)
        if inner is None:
            break
        findings += [finding for finding in _one(command)[0] if finding.status != OK]
        command = inner
    found, program = _one(command)
    findings += found
    plan = doctor_frameworks.plan_of_environment()
    return [*findings, _outcome(findings, machine, plan), *doctor_frameworks.check(program, plan)]


def _inner(command: list[str]) -> list[str] | None:
    """The command that a passing program starts: from the first argument on that names a program."""
    if os.path.basename(command[0]) not in _PASSING:
        return None
    for index, word in enumerate(command[1:], 1):
        if not word.startswith("-") and "=" not in word and not word.isdigit() and (shutil.which(word) or "/" in word):
            return command[index:]
    return None


def _one(command: list[str]) -> tuple[list[Finding], Program | None]:
    """What the loader would do with this program, and what it then runs."""
    path = command[0] if "/" in command[0] else shutil.which(command[0])
    if path is None or not os.path.exists(path):
        return [Finding("command", FAILURE, f"{command[0]}: command not found", "check PATH; `cupool run` would end with 127")], None
    chain, problem = _interpreters(path)
    if problem:
        return [problem], None
    findings = [finding for file in chain for finding in [_privileged(file)] if finding]
    findings += _binary(chain[-1])
    advice = _LAUNCHERS.get(os.path.basename(chain[0])) or _LAUNCHERS.get(os.path.basename(os.path.realpath(chain[0])))
    if advice:
        findings.append(Finding("command", WARNING, f"{os.path.basename(chain[0])}{_STARTS_OTHERS}", advice))
    if not findings:
        findings.append(Finding("command", OK, f"{' -> '.join(chain)} would get the library"))
    return findings, _program(chain, command[1:])


def _program(chain: list[str], arguments: list[str]) -> Program:
    """The interpreter, and what it reads: the script of the #! line, the first argument that is no option, or the text of -c."""
    if _PYTHON.match(os.path.basename(chain[0])):  # also where that is a shell script that finds the right one
        return _of_interpreter(chain[0], arguments, True)
    interpreter = chain[-1]
    name = os.path.basename(os.path.realpath(interpreter))
    is_python = bool(_PYTHON.match(name))
    if len(chain) == 1:
        return _of_interpreter(interpreter, arguments, is_python) if is_python or name in _SHELLS else Program(interpreter)
    script = (_python_file(arguments) if is_python else None) or chain[0]  # torchrun train.py: the second is what matters
    return Program(interpreter, script=script, folder=_folder(script))


def _of_interpreter(interpreter: str, arguments: list[str], is_python: bool) -> Program:
    flags, rest = [], list(arguments)
    while rest and rest[0].startswith("-") and rest[0] not in ("-m", "-") and not re.fullmatch(r"-[a-zA-Z]*c", rest[0]):
        word = rest.pop(0)
        if word in ("-W", "-X", "-o") and rest:
            rest.pop(0)
        elif is_python and re.fullmatch(r"-[BEIPsS]+", word):
            flags.append(word)
    if rest and re.fullmatch(r"-[a-zA-Z]*c", rest[0]):
        return Program(interpreter, tuple(flags), text="\n".join(rest[1:2]))
    script = _python_file(rest) if rest[:1] == ["-m"] else (rest[0] if rest and rest[0] != "-" else None)
    if script:
        return Program(interpreter, tuple(flags), script=script, folder=_folder(script))
    return Program(interpreter, tuple(flags), folder=os.getcwd() if rest[:1] == ["-m"] else "")


def _python_file(arguments: list[str]) -> str | None:
    return next((word for word in arguments if word.endswith(".py") and os.path.isfile(word)), None)


def _folder(script: str) -> str:
    return os.path.dirname(os.path.realpath(script))


def _interpreters(path: str) -> tuple[list[str], Finding | None]:
    """The file, then what its #! line starts, and so on to the binary."""
    chain = [path]
    while len(chain) <= _MAX_INTERPRETERS:
        file = chain[-1]
        if not os.path.isfile(file) or not os.access(file, os.X_OK):
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


def _outcome(command: list[Finding], machine: list[Finding], plan: Plan) -> Finding:
    """One sentence that puts it together."""
    statuses = {finding.check: finding.status for finding in machine}
    if any(finding.status == FAILURE for finding in command):
        return Finding("outcome", WARNING, "the command would run as it does today, without the pool", "see the failure above")
    if FAILURE in (statuses.get("library"), statuses.get("preload")):
        return Finding("outcome", WARNING, "the command would not get the library", "see the failure above")
    if os.environ.get("CUPOOL_POLICY", "").strip().lower() == "off":
        return Finding("outcome", WARNING, "CUPOOL_POLICY=off: the library would be loaded and do nothing", "unset it, or choose another policy")
    if statuses.get("driver") == FAILURE:
        return Finding("outcome", WARNING, "the command would run, but no CUDA call of it can succeed here", "see the driver above")
    if any(finding.detail.endswith(_STARTS_OTHERS) for finding in command):
        return Finding("outcome", WARNING, "what the command starts would not get the library, or not everywhere", "see the warning above")
    planned = [change.value for change in plan.changes if change.variable == "CUPOOL_POLICY"]
    policy = (planned[0] if planned else os.environ.get("CUPOOL_POLICY")) or "grow"
    if policy.strip().lower() == "platform":
        return Finding("outcome", OK, "under `cupool run` its CUDA calls stay native, and are counted and reported (policy platform). Not caught: libraries that it opens with RTLD_DEEPBIND")
    return Finding("outcome", OK, f"under `cupool run` its CUDA memory comes from the pool (policy {policy}). Not caught: libraries that it opens with RTLD_DEEPBIND")
