"""`cupool doctor` and `cupool run` where files may not be looked at or have names that no file can have; and what tells doctor of other ranks."""

from __future__ import annotations

import os
import re
import tempfile
import unittest
import unittest.mock

import support
from support import clean_environment, cupool, simulator_environment
from cupool_lib import doctor_machine

NO_NAME = "/tmp/" + "x" * 300 + "/file.json"


class Places(unittest.TestCase):
    def test_a_name_that_no_file_can_have_is_a_finding(self):
        for variable in ("CUPOOL_REPORT", "CUPOOL_LOG_FILE", "CUPOOL_TRACE"):
            with self.subTest(variable):
                result = cupool("doctor", "--library", support.PRELOAD, env=clean_environment(**{variable: NO_NAME}))
                self.assertNotIn("Traceback", result.stderr)
                self.assertRegex(result.stdout, r"(failure|warning) +(report|log file|trace) ")

    def test_a_library_that_no_file_can_be_is_told(self):
        result = cupool("run", "--library", NO_NAME, "--", "true")
        self.assertEqual((result.returncode, result.stderr.count("\n")), (125, 1))

    def test_a_number_of_thousands_of_digits_stops_nothing(self):
        result = cupool("run", "--library", support.PRELOAD, "--", "echo", "started", env=clean_environment(CUPOOL_LIMIT="9" * 5000))
        self.assertEqual((result.returncode, result.stdout), (0, "started\n"), result.stderr[-500:])

    @unittest.skipUnless(support.HAS_LIBRARY, "the library or the simulated driver is not built")
    def test_the_files_and_the_memory_of_the_job_are_left_to_the_job(self):
        with tempfile.TemporaryDirectory() as folder:
            wishes = {"CUPOOL_TRACE": f"{folder}/job.trace", "CUPOOL_LOG_FILE": f"{folder}/log", "CUPOOL_REPORT": f"{folder}/%p.json", "CUPOOL_PREALLOCATE": "75%"}
            result = cupool("doctor", "--library", support.PRELOAD, env=simulator_environment(**wishes), cwd=folder)
            self.assertEqual((result.returncode, os.listdir(folder)), (0, []), result.stdout)
            self.assertRegex(result.stdout, r"ok +pool ")

    def test_words_of_the_report_in_any_case(self):
        for word in ("NONE", "StdErr"):
            result = cupool("doctor", "--library", support.PRELOAD, env=clean_environment(CUPOOL_REPORT=word))
            self.assertRegex(result.stdout, rf"ok +report +CUPOOL_REPORT={word}")


class Ranks(unittest.TestCase):
    def test_the_variables_are_those_that_the_library_reads(self):
        source = (support.ROOT / "shim" / "export_hints.cpp").read_text(encoding="utf-8")
        for array, names in (("kLocalSizes", doctor_machine._LOCAL_SIZES), ("kLocalRanks", doctor_machine._LOCAL_RANKS)):
            listed = re.search(rf"{array}\[\] = \{{(.*?)\}};", source, re.DOTALL)
            self.assertEqual(re.findall(r'"(\w+)"', listed[1]), list(names))

    def test_the_first_of_some_ranks_knows_of_others(self):
        for variables, expected in (({"LOCAL_RANK": "0", "WORLD_SIZE": "2"}, "WORLD_SIZE=2"), ({"LOCAL_RANK": "0", "WORLD_SIZE": "1"}, ""), ({"WORLD_SIZE": "2"}, ""),
                                    ({"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "WORLD_SIZE": "2"}, ""), ({"HOROVOD_LOCAL_SIZE": "4"}, "HOROVOD_LOCAL_SIZE=4")):
            with self.subTest(variables), unittest.mock.patch.dict(os.environ, variables, clear=True):
                self.assertEqual(doctor_machine.local_ranks(), expected)


if __name__ == "__main__":
    unittest.main()
