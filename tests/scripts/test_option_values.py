"""Values of options: what scripts take is what the library takes, and a typing error is told before a program starts."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import support
from support import clean_environment, cupool
from cupool_lib import option_values
from cupool_lib.options import load_options

SIZES = ("0", "1", "512MiB", "8GiB", "8G", "8gb", "1.5G", "1.5", "1.", ".5G", "8 GiB", " 7k ", "5B", "5.0B", "9223372036854775808", "9223372036854775809", "8EiB", "9EiB", "0x10",
         "-1", "-5", "1e9", "8GiBs", "GiB", "abc", "٣", "1,5G", "8i", "unlimited", "UNLIMITED", "none", "infinity")
AMOUNTS = (*SIZES, "75%", "75 %", "0.75", "1.0", "1.1", "100%", "100.5%", "2000%", "0%", ".0", "min(75%,8GiB)", "MIN ( 0.5 , 8G )", "min()", "min(75%", "min(75%,)", "75%%",
           "min(1,2,3,4,5,6,7,8)", "min(1,2,3,4,5,6,7,8,9)", "min(min(1,2),3)", "NONE")
LIMITS = (*AMOUNTS, "0:40GiB", "0:40GiB,1:50%", "40GiB,1:50%", "1:50%,40GiB", "0:1G,0:2G", "1G,2G", "63:1G", "64:1G", "x:1G", ":1G", "0:", "0:1G,", " 0 : 1G , 1 : 0.5 ", "-1:1G",
          "0:min(1G,50%),1G", "0:0", "0.0000000000001", "00:1G", "0:none", "1G,0:NONE", "0: none ,1:1G", "none,0:1G", "none,1G", "0:none,0:1G", "0:min(none,1G)")
COUNTS = ("0", "1", "128", "129", "64Ki", "64K", "64KiB", "16Mi", "17Mi", "16777216", "16777217", "0.5Ki", "1.5", "-1", "abc", "1e3", " 5 ", "20 K")
PATTERNS = ("none", "NONE", "a.trace", "%p.%h.%r.%%", "%q{HOME}", "%q{}", "%q{1A}", "%q", "%x", "50%", "a/", "tab\there", "plain name", "%q{A", "stderr", "off", " OFF ", "./off", "offset", "1", "True", "stdout", "./1", "~/x", "~x")
CHOICES = ("grow", "GROW", " grow ", "greedy", "off", "warn", "warning", "critical", "sync", "auto", "trace")

# Allocates once, so that there is a report.
PROGRAM = """
import ctypes, sys
cuda = ctypes.CDLL("libcuda.so.1")
context, block = ctypes.c_void_p(), ctypes.c_uint64()
for code in (cuda.cuInit(0), cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0), cuda.cuCtxSetCurrent(context)):
    assert code == 0
cuda.cuMemAlloc_v2(ctypes.byref(block), ctypes.c_size_t(1))
"""


class Values(unittest.TestCase):
    @unittest.skipUnless(support.HAS_LIBRARY, "the library or the simulated driver is not built")
    def test_scripts_and_library_take_the_same(self):
        """Each process gets one value for each option; its report says which of them counted."""
        options = {option.name: option for option in load_options()}
        columns = {"preallocate": AMOUNTS, "limit": LIMITS, "release_threshold": SIZES, "timeline": COUNTS, "stack_depth": COUNTS, "trace": PATTERNS, "policy": CHOICES,
                   "free": CHOICES, "log": CHOICES, "ipc": CHOICES}
        columns["policy"] = tuple(word for word in CHOICES if word.strip().lower() != "off")  # which reports nothing
        with tempfile.TemporaryDirectory() as folder:
            for row in itertools.zip_longest(*columns.values(), fillvalue=""):
                values = {name: text for name, text in zip(columns, row) if text}
                path = Path(folder) / "report.json"
                variables = {options[name].variable: text for name, text in values.items()}
                environment = support.simulator_environment(**variables, CUPOOL_REPORT=str(path), CUPOOL_LOG_FILE="log", LD_PRELOAD=str(support.PRELOAD))
                subprocess.run([sys.executable, "-c", PROGRAM], env=environment, cwd=folder, check=True)
                said = json.loads(path.read_text(encoding="utf-8"))
                refused = {name for name, text in values.items() if any(warning.startswith(f"{options[name].variable}=") and "using the default" in warning
                                                                        for warning in said["data_quality"]["warnings"])}
                self.assertEqual({name for name, text in values.items() if options[name].problem(text)}, refused, values)

    def test_the_words_of_a_report_s_place(self):
        self.assertEqual([bool(option_values.problem("report", text)) for text in ("none", "STDERR", "r.%p.json", "%z", "x/")], [False, False, False, True, True])

    def test_ordinals_of_a_list(self):
        self.assertEqual(option_values.ordinals("40GiB, 1:50%,5:min(1G,2G)"), [1, 5])

    def test_a_typing_error_in_a_flag_or_a_profile_stops_the_start(self):
        for flag, text in (("--limit", "banana"), ("--limit", "0"), ("--preallocate", "2000%"), ("--timeline", "abc"), ("--stack-depth", "129"), ("--release-threshold", "1.5"),
                           ("--trace", "%x")):
            result = cupool("run", "--library", support.PRELOAD, flag, text, "--", "true")
            self.assertEqual((result.returncode, len(result.stderr.splitlines())), (125, 1), result.stderr)
            self.assertIn(f"{flag}: '{text}' ", result.stderr)
        with tempfile.TemporaryDirectory() as folder:
            profile = Path(folder) / "p.json"
            profile.write_text('{"limit": "banana"}')
            result = cupool("run", "--library", support.PRELOAD, "--profile", profile, "--", "true")
            self.assertEqual(result.returncode, 125)
            self.assertIn("'limit': 'banana' is no size", result.stderr)

    def test_no_shipped_profile_asks_for_what_is_not_served(self):
        for path in (support.ROOT / "config/profiles").glob("*.json"):
            self.assertNotIn("stacks", json.loads(path.read_text(encoding="utf-8"))["options"], path)

    def test_in_the_environment_it_stops_nothing(self):
        result = cupool("run", "--library", support.PRELOAD, "--", "true", env=clean_environment(CUPOOL_LIMIT="banana"))
        self.assertEqual((result.returncode, result.stderr), (0, ""))


if __name__ == "__main__":
    unittest.main()
