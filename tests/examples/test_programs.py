"""The C++ examples on the simulated driver, alone and under the pool, and as a user's nvcc builds them."""

from __future__ import annotations

import json
import re
import shutil
import tempfile
import unittest
from pathlib import Path

import place
from place import BUILT, EXAMPLES, SKIPPED


def readme(example: str) -> str:
    return (EXAMPLES / example / "README.md").read_text(encoding="utf-8")


def simulator_of(example: str) -> dict[str, str]:
    """The variables of the simulated driver in an example's commands."""
    variables = re.findall(r"LD_LIBRARY_PATH=\$PWD/build/sim((?: CUSIM_\w+=\S+?)*)(?: |`)", readme(example))
    assert len(set(variables)) == 1, variables
    return dict(word.split("=", 1) for word in variables[0].split())


class Program(unittest.TestCase):
    EXAMPLE = ""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def logged(self, name: str, **environment: str) -> dict[str, str]:
        """As the README says that the simulated driver is set up for its outputs."""
        variables = place.simulated(CUSIM_LOG=str(self.folder / name), **environment)
        del variables["CUSIM_MEMORY"]
        return {**variables, **simulator_of(self.EXAMPLE)}

    def violations(self, name: str) -> list[str]:
        """What was done in run `name` that no correct program does, as the simulated driver saw it."""
        return json.loads((self.folder / name).read_text(encoding="utf-8"))["violations"]

    def under_the_pool(self, *command: object, **environment: str):
        result = place.run("cupool", "run", "--report", self.folder / "report.json", *command, env=self.logged("pooled", **environment))
        return result, json.loads((self.folder / "report.json").read_text(encoding="utf-8"))

    def assert_as_the_readme_says(self, output: str):
        """Figures too; not pids, times and where the report lies."""
        def same(text: str) -> str:
            return re.sub(r"cupool\[\d+\]|[\d.]+ us|(?:/[\w.+-]+)+/", "", text)
        self.assertIn(same(output), [same(block) for block in place.fenced(readme(self.EXAMPLE), "text")])


class RuntimeExample(Program):
    EXAMPLE, PROGRAM = "cpp_runtime", BUILT / "changing_shapes"

    def setUp(self):
        super().setUp()
        if not self.PROGRAM.is_file():
            self.skipTest("no cuda_runtime_api.h: the test runtime is not built")

    def test_it_does_the_same_with_and_without_the_pool(self):
        alone = place.run(self.PROGRAM, env=self.logged("alone"))
        pooled, report = self.under_the_pool("--", self.PROGRAM)
        self.assertEqual((alone.returncode, alone.stderr, pooled.returncode, pooled.stderr), (0, "", 0, ""))
        self.assertEqual(place.shape(alone.stdout), place.shape(pooled.stdout))
        self.assertEqual(self.violations("alone"), self.violations("pooled"))  # a runtime's last call at exit may be one
        self.assert_as_the_readme_says(pooled.stdout)
        counters = report["devices"][0]["counters"]
        self.assertEqual((counters["allocations"], counters["frees"], counters["live_bytes"]["current"]), (60 * 49, 60 * 49, 0))
        taken = sum(counters["driver_calls"].get(name, 0) for name in ("cuMemAlloc_v2", "cuMemFree_v2"))
        self.assertLess(taken, 60)  # the README: a handful instead of thousands
        self.assertEqual(report["data_quality"]["unpooled_apis_seen"], [])
        said = re.search(r"driver calls +\d+ to allocate and free, where the program would have made [\d,]+", place.run("cupool", "report", self.folder / "report.json").stdout)
        self.assertIn(f"`{said.group()}`", readme("cpp_runtime"))

    def test_each_local_rank_takes_a_device_of_its_own(self):
        for variable in ("LOCAL_RANK", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK"):
            result = place.run(self.PROGRAM, env=place.simulated(CUSIM_DEVICES="2", **{variable: "3"}))
            self.assertEqual((result.returncode, result.stdout.split()[:2]), (0, ["device", "1,"]), variable)

    def test_without_a_device_it_says_so(self):
        result = place.run(self.PROGRAM, env=place.simulated(CUSIM_NO_DEVICE="1"))
        self.assertEqual((result.returncode, len(result.stdout.splitlines()), result.stderr), (SKIPPED, 1, ""))
        self.assertIn("no usable GPU", result.stdout)

    @unittest.skipUnless(shutil.which("nvcc"), "no nvcc: the real runtime cannot be linked")
    def test_nvcc_builds_it_with_the_real_runtime_which_ends_cleanly_without_a_gpu(self):
        program = self.folder / "with_nvcc"
        built = place.run("nvcc", "-O2", "-o", program, EXAMPLES / "cpp_runtime" / "changing_shapes.cpp")
        self.assertEqual((built.returncode, built.stderr), (0, ""))
        ended = place.run("cupool", "run", "--report", "none", "--", program)
        self.assertEqual((ended.returncode, ended.stderr), (SKIPPED, ""))  # NVIDIA's runtime refuses the simulated driver
        self.assertIn("no usable GPU", ended.stdout)


class DriverExample(Program):
    EXAMPLE, PROGRAM = "cpp_driver", BUILT / "until_full"

    def test_without_a_limit_it_has_enough(self):
        alone = place.run(self.PROGRAM, env=self.logged("alone"))
        pooled, report = self.under_the_pool("--", self.PROGRAM)
        self.assertEqual((alone.returncode, alone.stdout, alone.stderr), (0, pooled.stdout, pooled.stderr))
        self.assertIn("64 blocks of 64 MiB, then had enough", alone.stdout)
        self.assertEqual((self.violations("alone"), self.violations("pooled")), ([], []))
        self.assertEqual((report["ooms"], report["devices"][0]["counters"]["live_blocks"]["peak"]), ([], 64))

    def test_under_a_limit_it_meets_the_limit_and_the_report_says_so(self):
        result, report = self.under_the_pool("--limit", "1GiB", "--", self.PROGRAM)
        self.assertEqual(result.returncode, 0)
        self.assert_as_the_readme_says(result.stdout)
        self.assert_as_the_readme_says(result.stderr)
        told = json.loads((self.folder / "report.oom1.json").read_text(encoding="utf-8"))
        self.assertEqual([(oom["cause"], oom["shortfall_bytes"]) for oom in told["ooms"]], [("limit", 64 << 20)])
        self.assertEqual(report["devices"][0]["counters"]["failed_allocations"], 1)

    def test_without_a_device_it_says_so(self):
        result = place.run(self.PROGRAM, env=place.simulated(CUSIM_NO_DEVICE="1"))
        self.assertEqual((result.returncode, len(result.stdout.splitlines()), result.stderr), (SKIPPED, 1, ""))


class PiecesExample(Program):
    EXAMPLE, PROGRAM = "cpp_pieces", BUILT / "riddled"

    def test_what_lies_beside_small_blocks_is_the_cause_and_the_report_names_them(self):
        result, report = self.under_the_pool("--", self.PROGRAM)
        self.assertEqual(result.returncode, 0)
        self.assert_as_the_readme_says(result.stdout)
        self.assert_as_the_readme_says(result.stderr)
        self.assertEqual([oom["cause"] for oom in report["ooms"]], ["true_exhaustion", "external_fragmentation"])
        told = json.loads((self.folder / "report.oom2.json").read_text(encoding="utf-8"))["devices"][0]
        self.assertEqual({(pin["bytes"], pin["handles"]) for pin in told["pinned_by"]}, {(512 << 10, 1)})
        self.assertEqual(sum(tier["stranded_bytes"] for tier in told["pages"]["tiers"]), 48 << 20)
        shown = place.run("cupool", "report", self.folder / "report.oom2.json").stdout
        self.assertIn("48.00 MiB free beside others", shown)
        self.assertEqual(self.violations("pooled"), [])

    def test_without_a_device_it_says_so(self):
        result = place.run(self.PROGRAM, env=place.simulated(CUSIM_NO_DEVICE="1"))
        self.assertEqual((result.returncode, len(result.stdout.splitlines()), result.stderr), (SKIPPED, 1, ""))


if __name__ == "__main__":
    unittest.main()
