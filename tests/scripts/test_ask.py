"""`cupool trim` and `cupool dump`: a running process answers through its live page, at its next CUDA call."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import support
from support import MIB, cupool, simulator_environment

# Allocates and frees 64 MiB, then makes one CUDA call for each line that it is sent: with an argument one that has nothing to do with memory.
PROGRAM = """
import ctypes, sys
cuda = ctypes.CDLL("libcuda.so.1")
context, block, free, total = ctypes.c_void_p(), ctypes.c_uint64(), ctypes.c_size_t(), ctypes.c_size_t()
def must(code):
    if code: sys.exit(f"code {code}")
must(cuda.cuInit(0))
must(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0))
must(cuda.cuCtxSetCurrent(context))
must(cuda.cuMemAlloc_v2(ctypes.byref(block), ctypes.c_size_t(64 << 20)))
must(cuda.cuMemFree_v2(block))
must(cuda.cuCtxSynchronize())
print("ready", flush=True)
for line in sys.stdin:
    must(cuda.cuCtxSynchronize() if sys.argv[1:] else cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)))
    print("done", flush=True)
"""


@unittest.skipUnless(support.HAS_LIBRARY, "the library or the simulated driver is not built")
class Asking(unittest.TestCase):
    def setUp(self):
        holder = tempfile.TemporaryDirectory()
        self.addCleanup(holder.cleanup)
        self.folder = Path(holder.name)

    def start(self, *arguments: str, **variables: str) -> subprocess.Popen:
        environment = {**simulator_environment(), "LD_PRELOAD": str(support.PRELOAD), "CUPOOL_REPORT": str(self.folder / "r.%p.json"), **variables}
        child = subprocess.Popen([sys.executable, "-c", PROGRAM, *arguments], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.addCleanup(self.end, child)
        self.assertEqual(child.stdout.readline(), "ready\n")
        return child

    def end(self, child: subprocess.Popen) -> None:
        child.stdin.close()
        child.wait()
        child.stdout.close()

    def ask(self, child: subprocess.Popen, *arguments: str) -> subprocess.CompletedProcess:
        """The command, while the process makes one call after the other."""
        command = subprocess.Popen([str(support.CUPOOL), *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        while command.poll() is None:
            child.stdin.write("go\n")
            child.stdin.flush()
            self.assertNotEqual(child.stdout.readline(), "")
        out, err = command.communicate()
        return subprocess.CompletedProcess(arguments, command.returncode, out, err)

    def test_trim_gives_back_what_nobody_uses(self):
        child = self.start()
        done = self.ask(child, "trim", str(child.pid))
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertRegex(done.stdout, rf"process {child.pid} gave 64.00? MiB back and keeps 0")
        again = self.ask(child, "trim", str(child.pid))
        self.assertIn("gave 0", again.stdout)

    def test_dump_leaves_a_valid_report_and_says_where(self):
        child = self.start()
        for k in (1, 2):
            done = self.ask(child, "dump", str(child.pid))
            self.assertEqual((done.returncode, done.stderr), (0, ""))
            path = Path(done.stdout.strip())
            self.assertEqual(path, self.folder / f"r.{child.pid}.request{k}.json")
            report = json.loads(path.read_text(encoding="utf-8"))
            self.assertEqual((report["event"], report["process"]["pid"]), ("request", child.pid))
            self.assertEqual(cupool("validate", str(path)).returncode, 0)

    def test_a_process_that_only_waits_for_the_gpu_answers(self):
        child = self.start("waits")
        done = self.ask(child, "trim", str(child.pid))
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertRegex(done.stdout, rf"process {child.pid} gave 64.00? MiB back and keeps 0")

    def test_dump_without_a_report_says_so(self):
        child = self.start(CUPOOL_REPORT="none")
        done = self.ask(child, "dump", str(child.pid))
        self.assertEqual(done.returncode, 1)
        self.assertIn("left no report", done.stderr)

    def test_a_process_that_makes_no_call_is_named_and_does_it_later(self):
        child = self.start()
        done = cupool("trim", str(child.pid), "--wait", "0")
        self.assertEqual(done.returncode, 1)
        self.assertIn("made no CUDA call", done.stderr)
        child.stdin.write("go\n")
        child.stdin.flush()
        child.stdout.readline()
        self.assertIn("gave 0", self.ask(child, "trim", str(child.pid)).stdout)

    def test_a_process_that_is_not_there(self):
        done = cupool("trim", str(os.getpid()))
        self.assertEqual(done.returncode, 1)
        self.assertEqual(len(done.stderr.splitlines()), 1)
        self.assertIn("has no live page", done.stderr)
        self.assertEqual(cupool("dump", "x").returncode, 2)


if __name__ == "__main__":
    unittest.main()
