"""Starts a program, hands signals on to it, and ends as it ended.

The program stays in the caller's process group and session, with the caller's stdin, terminal, signal mask and
ignored signals. A signal that the terminal sends reaches it directly, so it is not sent again; any other signal is
handed on. (A signal that another process sends to the whole group therefore arrives twice: the kernel does not say
to whom a signal was addressed.) When the program stops, the wrapper stops with it, so that job control works, and goes
on with it (a process that watches meanwhile continues it); when the wrapper is killed by SIGKILL, so is the program.
Single-threaded.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import resource
import signal
import time

_SI_KERNEL = 0x80
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE = 1, 4
_LOOK_SECONDS = 0.05
# Blocked and taken by sigwaitinfo; SIGKILL and SIGSTOP cannot be, the two below SIGRTMIN belong to glibc.
_TAKEN = frozenset(range(1, signal.SIGRTMAX + 1)) - {signal.SIGKILL, signal.SIGSTOP, 32, 33}


class LaunchError(Exception):
    """The program could not be started: `code` is what a shell would exit with."""

    def __init__(self, message: str, code: int):
        super().__init__(message)
        self.code = code


def _prctl(option: int, value: int) -> None:
    try:
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)
    except (OSError, AttributeError):  # no prctl in this libc: a nicety is lost, nothing else
        pass


def _candidates(name: str, path: str) -> list[str]:
    if "/" in name:
        return [name]
    return [os.path.join(folder or ".", name) for folder in path.split(":")]


def _exec(command: list[str], environment: dict[str, str]) -> OSError:
    """execvp(3): walks PATH, runs a file without a #! line by /bin/sh. Returns the error that counts."""
    worst = OSError(errno.ENOENT, os.strerror(errno.ENOENT))
    for path in _candidates(command[0], environment.get("PATH", os.defpath)):
        try:
            try:
                os.execve(path, command, environment)
            except OSError as error:
                if error.errno != errno.ENOEXEC:
                    raise
                os.execve("/bin/sh", ["/bin/sh", path] + command[1:], environment)
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENOTDIR):
                worst = error
                if error.errno != errno.EACCES:
                    break
        except ValueError:  # a NUL byte in an argument: Python's own check
            return OSError(errno.EINVAL, os.strerror(errno.EINVAL))
    return worst


def _become(command: list[str], environment: dict[str, str], mask: set, ignored: int, parent: int, pipe: int) -> None:
    """In the forked child: never returns."""
    code = 126
    try:
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(125)
        for number in _TAKEN:
            wanted = signal.SIG_IGN if ignored >> (number - 1) & 1 else signal.SIG_DFL
            signal.signal(number, wanted)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        error = _exec(command, environment)
        os.write(pipe, b"%d" % (error.errno or errno.EINVAL))
        code = 127 if error.errno == errno.ENOENT else 126
    finally:
        os._exit(code)


def start(command: list[str], environment: dict[str, str], ignored: int) -> int:
    """Starts `command` and returns its pid, every signal blocked in this process. Raises LaunchError."""
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, _TAKEN)
    # One that is ignored would be thrown away, not taken. Before the fork: this also throws a pending SIGCHLD away.
    for number in _TAKEN:
        signal.signal(number, signal.SIG_DFL)
    reader, writer = os.pipe()
    parent = os.getpid()
    try:
        pid = os.fork()
    except OSError as error:
        raise LaunchError(f"cannot start {command[0]}: {error.strerror}", 125) from None
    if pid == 0:
        os.close(reader)
        _become(command, environment, mask, ignored, parent, writer)
    os.close(writer)
    failure = os.read(reader, 16)  # end of file once exec has closed the other end
    os.close(reader)
    if failure:
        os.waitpid(pid, 0)
        raise _launch_error(command[0], int(failure))
    return pid


def _launch_error(name: str, number: int) -> LaunchError:
    if number != errno.ENOENT:
        return LaunchError(f"cannot run {name}: {os.strerror(number)}", 126)
    if "/" in name and os.path.exists(name):
        return LaunchError(f"cannot run {name}: its interpreter (the #! line, or the ELF loader) does not exist", 126)
    return LaunchError(f"{name}: command not found", 127)


def wait(pid: int) -> int:
    """Hands signals on until `pid` has ended; returns its wait status. Reaps orphans when this is a container's init."""
    watchers: set[int] = set()
    while True:
        information = signal.sigwaitinfo(_TAKEN)
        if information.si_signo != signal.SIGCHLD:
            is_own = information.si_signo == signal.SIGCONT and information.si_pid in watchers
            if information.si_code != _SI_KERNEL and not is_own:
                with contextlib.suppress(PermissionError):  # a program of other rights (sudo) gets none of ours, as none of the caller's
                    os.kill(pid, information.si_signo)  # not yet reaped, so the pid is still its own
            continue
        status = _reap(pid, watchers)
        if status is not None:
            return status


def _reap(pid: int, watchers: set[int]) -> int | None:
    while True:
        try:
            ended, status = os.waitpid(-1, os.WNOHANG | os.WUNTRACED)
        except ChildProcessError:
            return None
        if ended == 0:
            return None
        if ended != pid:
            continue
        if not os.WIFSTOPPED(status):
            return status
        watcher = _watch(pid)
        watchers.clear()
        if watcher > 0:
            watchers.add(watcher)
        _stop_as(os.WSTOPSIG(status))
        if watcher > 0:
            os.kill(watcher, signal.SIGKILL)
            os.waitpid(watcher, 0)


def _state(path: str) -> str:
    try:
        with open(path + "/stat", encoding="utf-8", errors="replace") as file:
            return "".join(file.read().rpartition(")")[2].split()[:1])
    except OSError:
        return ""


def _is_stopped(pid: int) -> bool:
    """By a signal, or under a tracer; a program whose first thread has ended, if any of the others is."""
    state = _state(f"/proc/{pid}")
    if state != "Z":
        return state in ("T", "t")
    try:
        return any(_state(f"/proc/{pid}/task/{thread}") in ("T", "t") for thread in os.listdir(f"/proc/{pid}/task"))
    except OSError:
        return False


def _watch(pid: int) -> int:
    """A process that continues this one once the program runs or ends: who is stopped cannot see that. Its pid; 0: there is none."""
    parent = os.getpid()
    try:
        watcher = os.fork()
    except OSError:
        return 0
    if watcher == 0:
        try:
            _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            while os.getppid() == parent:  # until it is killed: a SIGCONT that comes before the stop is lost
                if not _is_stopped(pid):
                    os.kill(parent, signal.SIGCONT)
                time.sleep(_LOOK_SECONDS)
        finally:
            os._exit(0)
    return watcher


def _stop_as(number: int) -> None:
    """Stops this process as the program was stopped; returns once somebody continues it. A SIGCONT that is not the watcher's is handed on by wait()."""
    if number != signal.SIGSTOP:
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
        signal.pthread_sigmask(signal.SIG_BLOCK, {number})
    else:
        os.kill(os.getpid(), signal.SIGSTOP)


def end_as(status: int) -> int:
    """Ends this process by the signal that ended the program, leaving no core of its own; or returns the exit code."""
    if not os.WIFSIGNALED(status):
        return os.WEXITSTATUS(status)
    number = os.WTERMSIG(status)
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    _prctl(_PR_SET_DUMPABLE, 0)  # a core_pattern that is a pipe ignores the limit
    if number not in (signal.SIGKILL, signal.SIGSTOP):
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
    return 128 + number  # only as a container's init, whom default actions do not end
