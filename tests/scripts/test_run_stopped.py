"""`cupool run` and a program that is stopped: the wrapper stops with it, and goes on with it, whoever continues it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import unittest

import support
from support import clean_environment, run_arguments

STOPS = "print(os.getpid(), flush=True)\nos.kill(os.getpid(), signal.SIGSTOP)\n"
# The first thread ends, and another one stops the process: its own state is a zombie's then.
STOPS_WITHOUT_ITS_FIRST_THREAD = """
import ctypes, threading, time
def stop():
    while open(f"/proc/{os.getpid()}/stat").read().rpartition(")")[2].split()[0] != "Z": os.sched_yield()
    os.write(1, b"%d\\n" % os.getpid())
    os.kill(os.getpid(), signal.SIGSTOP)
    os._exit(0)
threading.Thread(target=stop).start()
ctypes.CDLL(None).syscall(60, 0)
"""


@unittest.skipUnless(support.HAS_LIBRARY, "the library is not built")
class Stopped(unittest.TestCase):
    def start(self, program: str) -> tuple[subprocess.Popen, int]:
        """In a group of its own, stopped, and the pid of the program."""
        process = subprocess.Popen(run_arguments(sys.executable, "-c", "import os, signal\n" + program), env=clean_environment(), stdout=subprocess.PIPE, preexec_fn=os.setpgrp)
        self.addCleanup(lambda: (process.poll() is None and process.kill(), process.stdout.close(), process.wait()))
        program_pid = int(process.stdout.readline())
        _, status = os.waitpid(process.pid, os.WUNTRACED)
        self.assertTrue(os.WIFSTOPPED(status), status)
        return process, program_pid

    def test_the_wrapper_goes_on_when_only_the_program_is_continued(self) -> None:
        for program in (STOPS, STOPS_WITHOUT_ITS_FIRST_THREAD):
            for last, end in ((signal.SIGCONT, 0), (signal.SIGKILL, -signal.SIGKILL)):
                with self.subTest(program=program, last=last):
                    process, pid = self.start(program)
                    os.kill(pid, last)
                    self.assertEqual(process.wait(timeout=30), end)

    def test_the_wrapper_stays_stopped_while_the_program_is(self) -> None:
        for program in (STOPS, STOPS_WITHOUT_ITS_FIRST_THREAD):
            with self.subTest(program=program):
                process, pid = self.start(program)
                (watcher,) = [child for child in self.children(process.pid) if child != pid]
                before = self.switches(watcher)
                while self.switches(watcher) < before + 5:  # it has looked as often
                    os.sched_yield()
                self.assertEqual(self.state(process.pid), "T")

    @staticmethod
    def children(pid: int) -> list[int]:
        found = []
        for name in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{name}/stat", encoding="utf-8", errors="replace") as file:
                    if int(file.read().rpartition(")")[2].split()[1]) == pid:
                        found.append(int(name))
            except OSError:  # it has ended
                pass
        return found

    @staticmethod
    def state(pid: int) -> str:
        with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
            return file.read().rpartition(")")[2].split()[0]

    @staticmethod
    def switches(pid: int) -> int:
        with open(f"/proc/{pid}/status", encoding="utf-8") as file:
            return next(int(line.split()[1]) for line in file if line.startswith("voluntary_ctxt_switches"))


if __name__ == "__main__":
    unittest.main()
