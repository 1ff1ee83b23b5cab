"""Processes of a run that were killed, with the real library on the simulated driver: each gets its report, and nothing stays behind."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import support
from support import MIB
from cupool_lib import VERSION, live_page, report_file

VICTIM = """
import ctypes, os, signal, sys
driver = ctypes.CDLL("libcuda.so.1")
device, context, address = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64()
assert driver.cuInit(0) == 0 and driver.cuDeviceGet(ctypes.byref(device), 0) == 0
assert driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device) == 0 and driver.cuCtxSetCurrent(context) == 0
assert driver.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(3 << 20)) == 0
"""


@unittest.skipUnless(support.HAS_LIBRARY, "the library or the simulated driver is not built")
class RealLibrary(unittest.TestCase):
    def run_victim(self, ending: str, *flags: str, **variables: str) -> tuple[subprocess.CompletedProcess, dict | None]:
        with tempfile.TemporaryDirectory() as folder:
            report = Path(folder) / "sub" / "report.%p.json"
            result = support.cupool("run", "--library", support.LIBRARY, "--report", report, *flags, "--", sys.executable, "-c", VICTIM + ending,
                                    env=support.simulator_environment(**variables))
            files = list(Path(folder).rglob("report.*.json"))
            self.assertLessEqual(len(files), 1)
            if files:
                checked = support.cupool("validate", files[0])
                self.assertEqual(checked.returncode, 0, checked.stderr)
            return result, report_file.load(str(files[0])) if files else None

    def test_deaths_by_signal_leave_a_completed_report(self):
        for number in (signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV):
            result, report = self.run_victim(f"os.kill(os.getpid(), {int(number)})")
            self.assertEqual(result.returncode, -number, result.stderr)
            self.assertEqual(report["process"]["exit"], {"code": None, "signal": int(number)})
            self.assertEqual((report["process"]["cupool_version"], report["process"]["driver_version"]), (VERSION, 13000))
            self.assertEqual(report["data_quality"]["source"], "live_page")
            self.assertEqual(report["devices"][0]["counters"]["live_bytes"]["current"], 3 << 20)

    def test_where_no_report_can_be_written_the_live_page_stays(self):
        with tempfile.TemporaryDirectory() as folder:
            report = Path(folder) / "report.json"
            ending = f"os.mkdir({str(report)!r}); print(os.getpid(), flush=True); os.kill(os.getpid(), 9)"  # the folder stands where the report would
            result = support.cupool("run", "--library", support.LIBRARY, "--report", report, "--", sys.executable, "-c", VICTIM + ending, env=support.simulator_environment())
        pages = [page for page in live_page.page_files(Path(f"/dev/shm/cupool-{os.geteuid()}")) if page.name.startswith(f"{result.stdout.strip()}.")]
        self.assertIn("no report for process", result.stderr)
        self.assertEqual(len(pages), 1, result)
        pages[0].unlink()

    def test_what_was_freed_and_waited_for_is_free(self):
        for mib, is_current in ((10, True), (100, False)):  # frees of large blocks are over before the wait, which finds nothing to publish
            program = ("blocks = [ctypes.c_uint64() for _ in range(9)]\n"
                       f"for block in blocks: assert driver.cuMemAlloc_v2(ctypes.byref(block), ctypes.c_size_t({mib} << 20)) == 0\n"
                       "for block in blocks[:4]: assert driver.cuMemFree_v2(block) == 0\n"
                       "driver.cuCtxSynchronize()\n"
                       "os.kill(os.getpid(), 9)")
            _, report = self.run_victim(program)
            device = report["devices"][0]
            figures, ledger, reserved = device["fragmentation"], device["ledger"], device["counters"]["reserved_bytes"]["current"]
            self.assertEqual(figures["free_bytes"], reserved - (5 * mib + 3) * MIB)
            self.assertGreaterEqual(figures["free_bytes"], 4 * mib * MIB)
            self.assertEqual((ledger["free_releasable"] + ledger["free_pinned"], ledger["metadata"]), (figures["free_bytes"], 0))
            self.assertEqual("largest_free_bytes and" in " ".join(report["data_quality"]["warnings"]), not is_current)
            if is_current:
                self.assertGreaterEqual(figures["largest_free_bytes"], 4 * mib * MIB)

    def test_a_normal_end_is_the_processs_own_report(self):
        result, report = self.run_victim("sys.exit(9)")
        self.assertEqual((result.returncode, result.stderr), (9, ""))
        self.assertEqual(report["data_quality"]["source"], "process")
        self.assertEqual(report["process"]["exit"]["signal"], None)

    def test_a_killed_descendant_gets_its_report_too(self):
        with tempfile.TemporaryDirectory() as folder:
            program = (f"import subprocess, sys\nr = subprocess.run([sys.executable, '-c', {VICTIM + 'os.kill(os.getpid(), 9)'!r}])\n"
                       "sys.exit(0 if r.returncode == -9 else 1)\n")
            result = support.cupool("run", "--library", support.LIBRARY, "--report", f"{folder}/r.%p.json", "--", sys.executable, "-c", program,
                                    env=support.simulator_environment())
            self.assertEqual(result.returncode, 0, result.stderr)
            report = report_file.load(str(next(Path(folder).glob("r.*.json"))))
            self.assertEqual(report["process"]["exit"], {"code": None, "signal": None})

    def test_where_shared_memory_has_no_room_a_death_by_signal_is_one_line(self):
        def run(ending: str, *flags: str) -> subprocess.CompletedProcess:
            """No file may grow, so no page can be made."""
            arguments = [support.CUPOOL, "run", "--library", support.LIBRARY, *flags, "--", sys.executable, "-c", VICTIM + ending]
            with tempfile.TemporaryDirectory() as folder:
                return subprocess.run(["/bin/sh", "-c", 'ulimit -f 0; exec "$@"', "sh", *map(str, arguments)], env=support.simulator_environment(), cwd=folder,
                                      capture_output=True, text=True, check=False, timeout=60)

        killed = run("os.kill(os.getpid(), 9)")
        self.assertEqual((killed.returncode, len(killed.stderr.splitlines())), (-9, 1), killed.stderr)
        self.assertRegex(killed.stderr, r"process \d+ was killed by SIGKILL; if it used device memory, its report is lost: no room for its counters in /dev/shm")
        for flags in (("--report", "none"), ("--log", "off")):
            self.assertEqual(run("os.kill(os.getpid(), 9)", *flags).stderr, "")
        self.assertNotIn("lost", run("sys.exit(3)").stderr)

    def test_no_page_stays_behind(self):
        folder = Path(f"/dev/shm/cupool-{os.geteuid()}")
        run_id = f"outer{random.getrandbits(64):x}"
        self.run_victim("os.kill(os.getpid(), 9)", CUPOOL_RUN_ID=run_id)
        self.run_victim("", CUPOOL_RUN_ID=run_id)
        mine = []
        for path in live_page.page_files(folder):
            with contextlib.suppress(OSError, live_page.BadPage):  # another process's, that goes meanwhile or is only begun
                mine += [path] if live_page.parse(path.read_bytes()).run_id().startswith(run_id) else []
        self.assertEqual(mine, [])

    @unittest.skipUnless(os.geteuid() == 0, "only root's run can become another user's")
    def test_a_process_that_becomes_another_user_and_is_killed_gets_its_report_as_that_user(self):
        user = 65534
        with tempfile.TemporaryDirectory() as folder:
            os.chmod(folder, 0o777)
            report, private = Path(folder, "report.json"), Path(folder, "private")
            private.mkdir(mode=0o700)  # root's: that user's page may name it, and gets nothing there
            for target, number in ((report, 1), (private / "report.json", 0)):
                ending = "os.kill(os.getpid(), 9)"
                program = VICTIM.replace("device, context", f"os.setgid({user}); os.setuid({user})\ndevice, context", 1) + ending
                result = support.cupool("run", "--library", support.LIBRARY, "--report", target, "--", sys.executable, "-c", program, env=support.simulator_environment())
                self.assertEqual(result.returncode, -signal.SIGKILL, result.stderr)
                self.assertIn("completed from shared memory" if number else "no report for process", result.stderr)
                self.assertEqual(target.exists(), bool(number))
            self.assertEqual((report.stat().st_uid, report.stat().st_mode & 0o777), (user, 0o600))
            self.assertEqual(report_file.load(str(report))["process"]["exit"]["signal"], signal.SIGKILL)


if __name__ == "__main__":
    unittest.main()
