"""The launcher scripts, with stand-ins for torchrun, srun and mpirun that start ranks as the real ones do: one report for each."""

from __future__ import annotations

import json
import os
import sys
import tempfile
import unittest
from pathlib import Path

import place
from place import BUILT, EXAMPLES

# Each stand-in starts its ranks side by side, with the variables that the real one sets, and ends with the worst code.
LAUNCHERS = {
    "torchrun": """
import os, subprocess, sys
assert sys.argv[1:3] == ["--standalone", "--nproc-per-node"], sys.argv
count = int(sys.argv[3])
ranks = [dict(os.environ, RANK=str(i), LOCAL_RANK=str(i), WORLD_SIZE=str(count)) for i in range(count)]
started = [subprocess.Popen([sys.executable, *sys.argv[4:]], env=rank) for rank in ranks]
sys.exit(max(abs(rank.wait()) for rank in started))
""",
    # Nothing of the caller's environment reaches a rank on another machine but what the machine has anyway.
    "mpirun": """
import os, subprocess, sys
assert sys.argv[1] == "-np", sys.argv
kept = {name: os.environ[name] for name in ("PATH", "HOME", "LD_LIBRARY_PATH", "CUSIM_MEMORY", "CUSIM_DEVICES") if name in os.environ}
ranks = [dict(kept, OMPI_COMM_WORLD_RANK=str(i), OMPI_COMM_WORLD_LOCAL_RANK=str(i), PWD="/") for i in range(int(sys.argv[2]))]
started = [subprocess.Popen(sys.argv[3:], env=rank, cwd="/") for rank in ranks]
sys.exit(max(abs(rank.wait()) for rank in started))
""",
    "srun": """
import os, subprocess, sys
assert sys.argv[1] == "--kill-on-bad-exit=1", sys.argv
ranks = [dict(os.environ, SLURM_PROCID=str(i), SLURM_LOCALID=str(i)) for i in range(int(os.environ["SLURM_NTASKS"]))]
started = [subprocess.Popen(sys.argv[2:], env=rank) for rank in ranks]
sys.exit(max(abs(rank.wait()) for rank in started))
""",
    "scontrol": "import sys; assert sys.argv[1:] == ['show', 'hostnames', 'node[1-2]'], sys.argv; print('node1'); print('node2')",
}
# Allocates 1 MiB more than its rank; dies, fails or tells its environment where it is asked to.
JOB = """
import ctypes, os, signal, sys
rank = int(os.environ["RANK"])
driver = ctypes.CDLL("libcuda.so.1")
device, context, address = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64()
assert driver.cuInit(0) == 0 and driver.cuDeviceGet(ctypes.byref(device), 0) == 0
assert driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device) == 0 and driver.cuCtxSetCurrent(context) == 0
assert driver.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t((rank + 1) << 20)) == 0
line = " ".join(map(str, (rank, *(os.environ.get(name) for name in ("WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")))))
os.write(1, (line + "\\n").encode())  # one write: the ranks share the pipe
if sys.argv[1:] == ["killed", str(rank)]:
    os.kill(os.getpid(), signal.SIGKILL)
sys.exit(5 if sys.argv[1:] == ["fails", str(rank)] else 0)
"""


class Launcher(unittest.TestCase):
    RANKS = 3

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name).resolve()
        (self.folder / "bin").mkdir()
        for name, text in LAUNCHERS.items():
            (self.folder / "bin" / name).write_text(f"#!{sys.executable} -B\n{text}", encoding="utf-8")
            (self.folder / "bin" / name).chmod(0o755)
        self.job = self.folder / "job.py"
        self.job.write_text(JOB, encoding="utf-8")

    def environment(self, **extra: str) -> dict[str, str]:
        environment = place.simulated(**extra)
        return {**environment, "PATH": f"{self.folder / 'bin'}:{environment['PATH']}"}

    def run_script(self, example: str, *arguments: object, **extra: str):
        return place.run(EXAMPLES / example, *arguments, env=self.environment(**extra), cwd=self.folder)

    def reports(self, folder: str) -> dict[int, dict]:
        """By the rank in the name, which must be the one inside. No other file is there."""
        found = {}
        for path in sorted((self.folder / folder).iterdir()):
            self.assertRegex(path.name, r"^rank\d+\.json$")
            report = json.loads(path.read_text(encoding="utf-8"))
            self.assertEqual(path.name, f"rank{report['process']['rank']}.json")
            found[report["process"]["rank"]] = report
        return found

    def assert_each_rank_reported(self, result, folder: str, code: int = 0):
        self.assertEqual(result.returncode, code, result.stderr)
        reports = self.reports(folder)
        self.assertEqual(sorted(reports), list(range(self.RANKS)))
        for rank, report in reports.items():
            self.assertEqual(report["devices"][0]["counters"]["requested_bytes"]["peak"], (rank + 1) << 20)
        named = [line.split()[-1] for line in result.stdout.splitlines() if line.startswith("report: ")]
        self.assertEqual([Path(self.folder, name).is_file() for name in named], [True] * self.RANKS)


class Torchrun(Launcher):
    def test_one_report_for_each_rank(self):
        result = self.run_script("torchrun/run.sh", self.RANKS, self.job, REPORTS="out")
        self.assert_each_rank_reported(result, "out")
        self.assertIn("2 3 2 None None\n", result.stdout)

    def test_each_run_has_a_folder_of_its_own(self):
        result = self.run_script("torchrun/run.sh", self.RANKS, self.job)
        (folder,) = (self.folder / "reports").iterdir()
        self.assert_each_rank_reported(result, f"reports/{folder.name}")

    def test_the_reports_are_named_and_the_exit_code_is_kept_when_a_rank_fails(self):
        result = self.run_script("torchrun/run.sh", self.RANKS, self.job, "fails", 2, REPORTS="out")
        self.assert_each_rank_reported(result, "out", 5)

    def test_a_rank_that_is_killed_has_its_report_too(self):
        result = self.run_script("torchrun/run.sh", self.RANKS, self.job, "killed", 1, REPORTS="out")
        self.assert_each_rank_reported(result, "out", 9)
        self.assertEqual([self.reports("out")[rank]["data_quality"]["source"] for rank in (0, 1)], ["process", "live_page"])

    def test_usage(self):
        result = self.run_script("torchrun/run.sh")
        self.assertEqual((result.returncode, result.stderr.split()[0]), (2, "usage:"))


class Mpirun(Launcher):
    def test_one_report_for_each_rank_though_nothing_of_the_environment_travels(self):
        if not (BUILT / "changing_shapes").is_file():
            self.skipTest("the test runtime is not built")
        result = self.run_script("mpirun/run.sh", self.RANKS, BUILT / "changing_shapes", REPORTS="out", CUSIM_DEVICES="2")
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        self.assertEqual(sorted(self.reports("out")), list(range(self.RANKS)))
        self.assertEqual([line for line in result.stdout.splitlines() if line.startswith("report: ")],
                         [f"report: {self.folder}/out/rank{rank}.json" for rank in range(self.RANKS)])
        devices = sorted(line.split()[1] for line in result.stdout.splitlines() if line.startswith("device"))
        self.assertEqual(devices, ["0,", "0,", "1,"])

    def test_usage(self):
        result = self.run_script("mpirun/run.sh", 4)
        self.assertEqual((result.returncode, result.stderr.split()[0]), (2, "usage:"))


class Slurm(Launcher):
    def submit(self, *arguments: object, **extra: str):
        """As sbatch does it: a copy of the script, elsewhere, with SLURM's variables."""
        spooled = self.folder / "slurm_script"
        spooled.write_bytes((EXAMPLES / "slurm" / "job.sbatch").read_bytes())
        spooled.chmod(0o700)
        variables = {"SLURM_SUBMIT_DIR": str(self.folder), "SLURM_JOB_ID": "4711", "SLURM_NTASKS": str(self.RANKS), "SLURM_JOB_NODELIST": "node[1-2]"}
        return place.run(spooled, *arguments, env=self.environment(**variables, **extra), cwd="/")

    def test_one_report_for_each_rank_and_what_torch_distributed_wants(self):
        result = self.submit("job.py")
        self.assert_each_rank_reported(result, "reports/4711")
        self.assertIn("2 3 2 node1 24711\n", result.stdout)

    def test_a_task_that_is_killed_has_its_report_too(self):
        result = self.submit("job.py", "killed", 1)
        self.assert_each_rank_reported(result, "reports/4711", 9)
        self.assertEqual(self.reports("reports/4711")[1]["data_quality"]["source"], "live_page")

    def test_it_is_to_be_submitted(self):
        result = place.run(EXAMPLES / "slurm" / "job.sbatch", env=self.environment(), cwd="/")
        self.assertEqual(result.returncode, 1)
        self.assertIn("to be started by sbatch", result.stderr)


if __name__ == "__main__":
    os.chdir("/")
    unittest.main()
