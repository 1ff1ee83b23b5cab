"""`cupool trim` and `cupool dump`: a running process answers through its live page, at its next CUDA call."""

from __future__ import annotations

import fcntl
import json
import os
import struct
import subprocess
import sys
import tempfile
import unittest
import unittest.mock
from pathlib import Path

import support
from support import cupool, simulator_environment
from cupool_lib import ask, live_page, locate

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
if sys.argv[1:] == ["graphs"]:
    stream, graph, executable = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
    must(cuda.cuStreamCreate(ctypes.byref(stream), 1))
    must(cuda.cuStreamBeginCapture_v2(stream, 2))
    must(cuda.cuMemAllocAsync(ctypes.byref(block), ctypes.c_size_t(32 << 20), stream))
    must(cuda.cuMemFreeAsync(block, stream))
    must(cuda.cuStreamEndCapture(stream, ctypes.byref(graph)))
    must(cuda.cuGraphInstantiateWithFlags(ctypes.byref(executable), graph, ctypes.c_ulonglong(0)))
    must(cuda.cuGraphLaunch(executable, stream))
    must(cuda.cuCtxSynchronize())
    must(cuda.cuGraphExecDestroy(executable))
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
        with (self.folder / "stderr").open("w") as stderr:
            child = subprocess.Popen([sys.executable, "-c", PROGRAM, *arguments], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr, text=True)
        self.addCleanup(self.end, child)
        self.assertEqual(child.stdout.readline(), "ready\n")
        return child

    def end(self, child: subprocess.Popen) -> None:
        child.stdin.close()
        child.wait()
        child.stdout.close()

    def asking(self, *arguments: object) -> subprocess.Popen:
        return subprocess.Popen([str(support.CUPOOL), *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def answers(self, child: subprocess.Popen, *commands: subprocess.Popen) -> list[subprocess.CompletedProcess]:
        """What the commands say, while the process makes one call after the other."""
        while any(command.poll() is None for command in commands):
            self.call(child)
        told = [(command, *command.communicate()) for command in commands]
        return [subprocess.CompletedProcess(command.args, command.returncode, out, err) for command, out, err in told]

    def call(self, child: subprocess.Popen) -> None:
        child.stdin.write("go\n")
        child.stdin.flush()
        self.assertNotEqual(child.stdout.readline(), "")

    def ask(self, child: subprocess.Popen, *arguments: str) -> subprocess.CompletedProcess:
        return self.answers(child, self.asking(*arguments))[0]

    def page_of(self, child: subprocess.Popen) -> Path:
        return next(path for path in live_page.page_files(locate.live_page_folder()) if path.name.startswith(f"{child.pid}."))

    def asked_for(self, child: subprocess.Popen) -> int:
        return struct.unpack_from("<I", self.page_of(child).read_bytes(), 96)[0]

    def test_trim_gives_back_what_nobody_uses(self):
        child = self.start()
        done = self.ask(child, "trim", str(child.pid))
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertRegex(done.stdout, rf"process {child.pid} gave 64.00? MiB back and keeps 0")
        again = self.ask(child, "trim", str(child.pid))
        self.assertIn("gave 0", again.stdout)

    def test_trim_tells_of_what_the_driver_kept_for_graphs(self):
        child = self.start("graphs")
        done = self.ask(child, "trim", str(child.pid))
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertRegex(done.stdout, r"gave 96.00? MiB back \(32.00? MiB of it the driver's, kept for CUDA graphs\) and keeps 0")
        self.assertRegex(self.ask(child, "trim", str(child.pid)).stdout, "gave 0 B back and keeps 0 B")

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
        self.assertIn("left no report: its CUPOOL_REPORT is none", done.stderr)

    def test_a_process_that_makes_no_call_is_named_and_does_it_later(self):
        child = self.start()
        done = cupool("trim", str(child.pid), "--wait", "0")
        self.assertEqual(done.returncode, 1)
        self.assertIn("made no CUDA call", done.stderr)
        child.stdin.write("go\n")
        child.stdin.flush()
        child.stdout.readline()
        self.assertIn("gave 0", self.ask(child, "trim", str(child.pid)).stdout)

    def test_an_earlier_request_is_done_first_and_never_replaced(self):
        child = self.start()
        self.assertIn("it will do it at its next one", cupool("dump", child.pid, "--wait", "0").stderr)
        refused = cupool("trim", child.pid, "--wait", "0")
        self.assertEqual(refused.returncode, 1)
        self.assertIn("still to do an earlier dump, and this was not asked for", refused.stderr)
        self.assertEqual(self.asked_for(child), ask.WORDS["dump"])
        done = self.ask(child, "trim", str(child.pid))
        self.assertRegex(done.stdout, "gave 64.00? MiB back")
        self.assertTrue((self.folder / f"r.{child.pid}.request1.json").exists())

    def test_two_that_ask_at_once_both_get_their_answer(self):
        child = self.start()
        dump, trim = self.answers(child, self.asking("dump", child.pid), self.asking("trim", child.pid))
        self.assertEqual((dump.returncode, dump.stderr, dump.stdout), (0, "", f"{self.folder / f'r.{child.pid}.request1.json'}\n"))
        self.assertEqual((trim.returncode, trim.stderr), (0, ""))
        self.assertRegex(trim.stdout, "gave 64.00? MiB back")

    def test_whoever_asks_has_the_turn_until_the_answer_is_there(self):
        child = self.start()
        with self.page_of(child).open("r+b") as other:
            fcntl.flock(other, fcntl.LOCK_EX)
            refused = cupool("dump", child.pid, "--wait", "0")
            self.assertEqual(refused.returncode, 1)
            self.assertIn("what another cupool command has asked for", refused.stderr)
            self.assertEqual(self.asked_for(child), 0)

    def test_a_report_on_stderr_is_said(self):
        child = self.start(CUPOOL_REPORT="stderr")
        done = self.ask(child, "dump", str(child.pid))
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertEqual(done.stdout, f"process {child.pid} has written its report to its stderr\n")
        self.assertIn('"event":"request"', (self.folder / "stderr").read_text(encoding="utf-8"))

    def test_a_process_that_ends_meanwhile_is_said(self):
        child = self.start()
        page, name = self.page_of(child).read_bytes(), self.page_of(child).name
        self.end(child)
        folder = self.folder / "pages"
        folder.mkdir(mode=0o700)
        (folder / name).write_bytes(page)
        with unittest.mock.patch.object(live_page, "is_alive", side_effect=(True, False)), unittest.mock.patch.object(ask, "fail", lambda text, code: (text, code)):
            self.assertEqual(ask.run("trim", child.pid, 0, folder), (f"trim: process {child.pid} has ended without an answer", 1))

    def test_a_process_that_is_not_there(self):
        done = cupool("trim", str(os.getpid()))
        self.assertEqual(done.returncode, 1)
        self.assertEqual(len(done.stderr.splitlines()), 1)
        self.assertIn("has no live page", done.stderr)
        self.assertEqual(cupool("dump", "x").returncode, 2)


if __name__ == "__main__":
    unittest.main()
