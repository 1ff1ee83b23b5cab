"""The hand-over: what each framework variable becomes, who wins, and what the pools are told. See scripts/cupool_lib/handover.py."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import support
from support import clean_environment, cupool
from cupool_lib import handover, handover_rules, locate
from cupool_lib.handover import Explicit, merge_pytorch

FRAMEWORK_VARIABLES = sorted({rule.variable for rule in handover_rules.RULES}
                             | {setting.variable for pool in handover_rules.POOLS for setting in pool.settings}
                             | {pool.aside_variable for pool in handover_rules.POOLS if pool.aside_variable})
JAX_ALLOCATOR, JAX_PREALLOCATE = "XLA_PYTHON_CLIENT_ALLOCATOR", "XLA_PYTHON_CLIENT_PREALLOCATE"
FRACTION, OLD_FRACTION = "XLA_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_MEM_FRACTION"
CEILING = "JAX_PREALLOCATION_SIZE_LIMIT_BYTES"
TF_ALLOCATOR, TF_GROWTH, TF_PREALLOC = "TF_GPU_ALLOCATOR", "TF_FORCE_GPU_ALLOW_GROWTH", "TF_CUDA_MALLOC_ASYNC_SUPPORTED_PREALLOC"
TORCH, OLD_TORCH = "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"
ASIDE = {TORCH: "backend:cudaMallocAsync", OLD_TORCH: "backend:cudaMallocAsync", JAX_ALLOCATOR: "cuda_async", JAX_PREALLOCATE: "false",
         TF_ALLOCATOR: "cuda_malloc_async"}


def planned(environment: dict[str, str], keep: tuple[str, ...] = (), **explicit: str) -> handover.Plan:
    choices = {name: Explicit(value, f"--{name} {value}") for name, value in explicit.items()}
    return handover.plan(environment, choices, frozenset(keep))


def options_of(environment: dict[str, str], **explicit: str) -> dict[str, str]:
    """The CUPOOL_ options that come out, without prefix."""
    changes = planned(environment, **explicit).changes
    return {change.variable[7:].lower(): change.value for change in changes if change.variable.startswith("CUPOOL_")}


class Translation(unittest.TestCase):
    ROWS = (
        ({}, {}),
        ({JAX_PREALLOCATE: "false"}, {"policy": "grow"}),
        ({JAX_PREALLOCATE: "0"}, {"policy": "grow"}),
        ({JAX_PREALLOCATE: "FALSE"}, {"policy": "preallocate"}),  # JAX reads only false, False and 0 as a no
        ({JAX_PREALLOCATE: "true"}, {"policy": "preallocate"}),
        ({JAX_PREALLOCATE: ""}, {}),
        ({FRACTION: "0.5"}, {"policy": "preallocate", "preallocate": "50%", "limit": "50%"}),
        ({OLD_FRACTION: ".45"}, {"policy": "preallocate", "preallocate": "45%", "limit": "45%"}),
        ({FRACTION: "1"}, {"policy": "preallocate", "preallocate": "100%", "limit": "100%"}),
        ({FRACTION: "3.3e-1"}, {"policy": "preallocate", "preallocate": "33%", "limit": "33%"}),
        ({FRACTION: "0.123456789"}, {"policy": "preallocate", "preallocate": "12.3456789%", "limit": "12.3456789%"}),
        ({FRACTION: "0.5", JAX_PREALLOCATE: "false"}, {"policy": "grow", "limit": "50%"}),
        ({FRACTION: "0.5", JAX_PREALLOCATE: "true", CEILING: "8589934592"},
         {"policy": "preallocate", "preallocate": "min(50%,8589934592)", "limit": "50%"}),
        ({CEILING: "8589934592"}, {"policy": "preallocate", "preallocate": "min(75%,8589934592)"}),
        ({CEILING: "8589934592", JAX_PREALLOCATE: "false"}, {"policy": "grow"}),
        ({CEILING: "8 GB"}, {}),
        ({JAX_ALLOCATOR: "platform"}, {"policy": "platform"}),
        ({JAX_ALLOCATOR: "Platform", JAX_PREALLOCATE: "false"}, {"policy": "platform"}),
        ({JAX_ALLOCATOR: "platform", OLD_FRACTION: "0.95"}, {"policy": "platform", "limit": "95%"}),
        ({JAX_ALLOCATOR: "bfc"}, {}),
        ({JAX_ALLOCATOR: "cuda_async"}, {"policy": "async"}),
        ({JAX_ALLOCATOR: "cuda_async", JAX_PREALLOCATE: "true"}, {"policy": "async", "preallocate": "-1"}),
        ({JAX_ALLOCATOR: "cuda_async", FRACTION: "0.5"}, {"policy": "async", "preallocate": "50%", "limit": "50%"}),
        ({TF_ALLOCATOR: "cuda_malloc_async"}, {"policy": "async"}),
        ({TF_ALLOCATOR: "cuda_malloc_async", TF_PREALLOC: "-1"}, {"policy": "async", "preallocate": "-1"}),
        ({TF_ALLOCATOR: "cuda_malloc_async", TF_PREALLOC: "1048576"}, {"policy": "async", "preallocate": "1048576"}),
        ({TF_ALLOCATOR: "cuda_malloc_async", TF_PREALLOC: "0"}, {"policy": "async"}),
        ({TF_ALLOCATOR: "cuda_malloc"}, {}),
        ({TF_GROWTH: "true"}, {"policy": "grow"}),
        ({TF_GROWTH: "false"}, {"policy": "preallocate"}),
        ({TF_GROWTH: "yes"}, {}),  # TensorFlow ignores it too
        ({TF_GROWTH: "true", TF_PREALLOC: "1048576"}, {"policy": "grow", "preallocate": "1048576"}),
    )

    def test_each_variable_keeps_its_meaning(self):
        for environment, expected in self.ROWS:
            with self.subTest(environment):
                self.assertEqual(options_of(environment), expected)
                self.assertEqual(planned(environment).conflicts == [], environment.get(JAX_ALLOCATOR) != "bfc")

    def test_the_library_reads_what_comes_out(self):
        texts = {value for _, expected in self.ROWS for name, value in expected.items() if name != "policy"}
        for text in texts:  # the forms that config/amount.cpp knows
            self.assertRegex(text, r"^(-1|\d+|\d+(\.\d+)?%|min\(\d+(\.\d+)?%,\d+\))$")

    def test_every_rule_is_reached_by_a_row(self):
        seen = {variable for environment, _ in self.ROWS for variable in environment}
        self.assertEqual(seen, {rule.variable for rule in handover_rules.RULES})


class Conflicts(unittest.TestCase):
    def only_line(self, environment: dict[str, str], **explicit: str) -> str:
        lines = planned(environment, **explicit).conflicts
        self.assertEqual(len(lines), 1, lines)
        return lines[0]

    def test_what_is_set_for_cupool_wins_and_is_named(self):
        self.assertEqual(options_of({FRACTION: "0.5"}, limit="1GiB", policy="grow"), {})
        self.assertIn("--limit 1GiB", self.only_line({FRACTION: "0.5"}, limit="1GiB"))
        self.assertIn("--policy grow", self.only_line({JAX_PREALLOCATE: "true"}, policy="grow"))
        self.assertIn("--policy preallocate", self.only_line({JAX_PREALLOCATE: "false"}, policy="preallocate"))
        self.assertIn("--policy async", self.only_line({JAX_ALLOCATOR: "platform"}, policy="async"))
        self.assertIn("--preallocate 1GiB", self.only_line({TF_PREALLOC: "-1"}, preallocate="1GiB"))
        self.assertIn("--preallocate 1GiB", self.only_line({JAX_PREALLOCATE: "false"}, preallocate="1GiB"))

    def test_equal_settings_are_no_conflict(self):
        for same in ("50%", "0.5", ".5", " 50.0 %"):
            self.assertEqual(planned({FRACTION: ".50"}, limit=same, preallocate=same, policy="preallocate").conflicts, [], same)
        self.assertEqual(len(planned({FRACTION: "0.5"}, limit="5").conflicts), 1)
        self.assertEqual(planned({JAX_ALLOCATOR: "platform"}, policy="grow").conflicts, [])  # a route of its own

    def test_jax_s_own_fraction_is_said_to_give_way_to_the_limit_that_holds(self):
        for explicit in ({}, {"limit": "10GiB"}):
            why = next(change.why for change in planned({FRACTION: "0.5"}, **explicit).changes if (change.variable, change.value) == (FRACTION, "1.0"))
            self.assertEqual(why, "JAX: CUPOOL_LIMIT is the cap instead")
        self.assertEqual(planned({JAX_PREALLOCATE: "false"}, policy="GROW", preallocate="none").conflicts, [])

    def test_one_line_for_each_variable_that_loses(self):
        line = self.only_line({FRACTION: "0.5", OLD_FRACTION: "0.3"})
        self.assertTrue(line.startswith(f"{OLD_FRACTION}=0.3 conflicts with {FRACTION}=0.5"), line)
        line = self.only_line({JAX_ALLOCATOR: "platform", JAX_PREALLOCATE: "true", OLD_FRACTION: "0.95", CEILING: "8589934592"})
        self.assertTrue(line.startswith(f"{JAX_PREALLOCATE}=true conflicts with {JAX_ALLOCATOR}=platform"), line)
        self.assertIn(TF_GROWTH, self.only_line({JAX_PREALLOCATE: "false", TF_GROWTH: "false"}))
        self.assertIn(TF_ALLOCATOR, self.only_line({JAX_ALLOCATOR: "platform", TF_ALLOCATOR: "cuda_malloc_async"}))
        self.assertEqual(len(planned({FRACTION: "0.5", JAX_PREALLOCATE: "true"}, policy="grow", limit="1GiB").conflicts), 2)

    def test_a_setting_that_is_not_understood_leaves_that_framework_alone(self):
        for variable, value in ((FRACTION, "2.0"), (FRACTION, "0"), (OLD_FRACTION, "half"), (JAX_ALLOCATOR, "vmm"), (TF_ALLOCATOR, "memory_guard")):
            framework = "JAX" if variable.startswith("XLA") else "TensorFlow"
            with self.subTest(variable=variable, value=value):
                environment = {variable: value, JAX_PREALLOCATE: "true", TF_GROWTH: "true"}
                plan = planned(environment)
                self.assertEqual(len(plan.conflicts), 1)
                self.assertIn(f"{framework} keeps its own pool", plan.conflicts[0])
                self.assertFalse([change for change in plan.changes if change.why.startswith(framework)])
                self.assertEqual(plan.apply(environment)[variable], value)

    def test_what_our_own_settings_replace_is_named(self):
        self.assertIn("bfc", self.only_line({JAX_ALLOCATOR: "bfc"}))
        self.assertEqual(planned({JAX_ALLOCATOR: "default"}).conflicts, [])
        self.assertIn("backend:native", self.only_line({TORCH: "backend:native"}))
        line = self.only_line({OLD_TORCH: "expandable_segments:True,max_split_size_mb:512"})
        self.assertTrue(line.startswith(f"{OLD_TORCH}: expandable_segments, max_split_size_mb left out"), line)


class StandingAside(unittest.TestCase):
    def after(self, environment: dict[str, str], **explicit: str) -> dict[str, str]:
        return {key: value for key, value in planned(environment, **explicit).apply(environment).items() if not key.startswith("CUPOOL_")}

    def test_every_pool_is_told(self):
        self.assertEqual(self.after({"PATH": "/bin"}), {"PATH": "/bin", **ASIDE})

    def test_jax_does_not_take_its_share_twice(self):
        self.assertEqual(self.after({FRACTION: "0.5"})[FRACTION], "1.0")
        self.assertEqual(self.after({OLD_FRACTION: "0.5"})[OLD_FRACTION], "1.0")
        both = self.after({FRACTION: "0.5", OLD_FRACTION: "0.5"})  # which JAX itself refuses
        self.assertEqual((both[FRACTION], OLD_FRACTION in both), ("1.0", False))
        self.assertEqual(self.after({TF_PREALLOC: "1048576"})[TF_PREALLOC], "0")

    def test_routes_that_reach_us_already_stay(self):
        self.assertEqual(self.after({JAX_ALLOCATOR: "platform"}, policy="grow")[JAX_ALLOCATOR], "platform")
        self.assertEqual(self.after({TF_ALLOCATOR: "cuda_malloc"})[TF_ALLOCATOR], "cuda_malloc")
        uncached = self.after({"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"})
        self.assertFalse({TORCH, OLD_TORCH} & set(uncached))
        self.assertIn(TORCH, self.after({"PYTORCH_NO_CUDA_MEMORY_CACHING": "0"}))

    def test_policies_that_change_nothing_leave_all_pools(self):
        environment = {FRACTION: "0.5", TORCH: "expandable_segments:True", TF_GROWTH: "false"}
        for policy in ("off", "platform", " Platform "):
            plan = planned(environment, policy=policy)
            self.assertEqual((plan.changes, plan.conflicts, len(plan.notes)), ([], [], 1))
        self.assertEqual(self.after({JAX_ALLOCATOR: "platform", TF_GROWTH: "true"}), {JAX_ALLOCATOR: "platform", TF_GROWTH: "true"})

    def test_pools_that_are_to_be_kept(self):
        environment = {FRACTION: "0.5", TF_GROWTH: "true"}
        plan = planned(environment, keep=("JAX", "PyTorch"))
        self.assertEqual({change.variable for change in plan.changes}, {"CUPOOL_POLICY", TF_ALLOCATOR})
        self.assertEqual(planned(environment, keep=("JAX", "PyTorch", "TensorFlow")).changes, [])
        self.assertEqual(planned({FRACTION: "2.0", OLD_FRACTION: "1"}, keep=("JAX",)).conflicts, [])

    def test_inside_a_run_nothing_is_handed_over_again(self):
        environment = planned({FRACTION: "0.5"}).apply({FRACTION: "0.5"})
        self.assertEqual(planned({**environment, "CUPOOL_RUN_ID": "outer"}, limit="50%").changes, [])

    def test_what_comes_out_is_what_the_routes_table_promises(self):
        text = " ".join(route.how for route in handover_rules.ROUTES)
        for pool in handover_rules.POOLS:
            self.assertTrue(any(setting.variable in text for setting in pool.settings), pool.framework)
            self.assertIn(pool.framework, {route.framework for route in handover_rules.ROUTES})


class PyTorchSettings(unittest.TestCase):
    OURS = "backend:cudaMallocAsync"

    def test_merging(self):
        for theirs, merged, dropped in (
                ("", "", []),
                ("expandable_segments:True", "", ["expandable_segments"]),
                ("expandable_segments:False", "", []),
                ("roundup_power2_divisions:[256:1,512:2,>:4],pinned_use_background_threads:True", "pinned_use_background_threads:True",
                 ["roundup_power2_divisions"]),
                (" pinned_num_register_threads : 8 , backend : native ", "pinned_num_register_threads:8", ["backend:native"]),
                ("backend:cudaMallocAsync", "", []),
                ("garbage_collection_threshold:0.8,max_split_size_mb:128", "", ["garbage_collection_threshold", "max_split_size_mb"]),
                ("of_a_later_version:7", "of_a_later_version:7", []),
                ("roundup_power2_divisions:[1:2", "", ["roundup_power2_divisions"])):
            with self.subTest(theirs):
                self.assertEqual(merge_pytorch(self.OURS, theirs), (f"{self.OURS},{merged}".rstrip(","), dropped))

    def test_the_older_name_fills_the_newer_but_not_the_other_way(self):
        pinned = "pinned_use_background_threads:True"
        old = planned({OLD_TORCH: pinned}).apply({OLD_TORCH: pinned})
        self.assertEqual((old[TORCH], old[OLD_TORCH]), (f"{self.OURS},{pinned}",) * 2)
        new = planned({TORCH: pinned}).apply({TORCH: pinned})  # a PyTorch that knows only the older name may not know the key
        self.assertEqual((new[TORCH], new[OLD_TORCH]), (f"{self.OURS},{pinned}", self.OURS))


class CommandLine(unittest.TestCase):
    def run_with(self, *arguments: str, **variables: str) -> subprocess.CompletedProcess:
        plain = {key: value for key, value in clean_environment().items() if key not in FRAMEWORK_VARIABLES}
        return cupool("run", "--library", support.PRELOAD, "--report", "none", *arguments, env={**plain, **variables})

    def environment_of(self, *flags: str, **variables: str) -> dict[str, str]:
        result = self.run_with(*flags, "--", "env", "-0", **variables)
        self.assertEqual(result.returncode, 0, result.stderr)
        return dict(entry.split("=", 1) for entry in result.stdout.split("\0") if entry)

    def test_the_program_gets_what_was_planned(self):
        found = self.environment_of(XLA_PYTHON_CLIENT_MEM_FRACTION="0.5")
        self.assertEqual({name: found.get(name) for name in ASIDE}, ASIDE)
        self.assertEqual((found["CUPOOL_LIMIT"], found["CUPOOL_PREALLOCATE"], found["CUPOOL_POLICY"]), ("50%", "50%", "preallocate"))
        found = self.environment_of("--keep-framework-pool", XLA_PYTHON_CLIENT_MEM_FRACTION="0.5")
        self.assertEqual([name for name in found if name in FRAMEWORK_VARIABLES or name in ("CUPOOL_LIMIT", "CUPOOL_POLICY")],
                         ["XLA_PYTHON_CLIENT_MEM_FRACTION"])
        self.assertNotIn(TORCH, self.environment_of("--keep-framework-pool=pytorch"))

    def test_a_profile_wins_over_a_framework(self):
        found = self.environment_of("--profile", "inference", XLA_CLIENT_MEM_FRACTION="0.5")
        self.assertEqual((found["CUPOOL_LIMIT"], found["CUPOOL_POLICY"]), ("90%", "grow"))

    def test_a_value_that_the_library_does_not_take_gives_way_to_a_framework_s(self):
        result = self.run_with("--", "env", CUPOOL_LIMIT="bogus", CUPOOL_POLICY="growl", XLA_CLIENT_MEM_FRACTION="0.5")
        self.assertLessEqual({"CUPOOL_LIMIT=50%", "CUPOOL_POLICY=preallocate", "XLA_CLIENT_MEM_FRACTION=1.0"}, set(result.stdout.splitlines()))
        self.assertEqual(result.stderr.splitlines(), [f"cupool: {old} is no value for it: {new} is used (JAX: XLA_CLIENT_MEM_FRACTION=0.5)" for old, new in
                                                      (("CUPOOL_POLICY=growl", "preallocate"), ("CUPOOL_LIMIT=bogus", "50%"))])
        alone = self.run_with("--", "env", CUPOOL_LIMIT="bogus")  # the library says it
        self.assertIn("CUPOOL_LIMIT=bogus", alone.stdout.splitlines())
        self.assertEqual(alone.stderr, "")

    def test_conflicts_are_one_line_each_on_stderr(self):
        result = self.run_with("--limit", "1GiB", "--", "true", XLA_CLIENT_MEM_FRACTION="0.5")
        self.assertEqual(result.stderr, "cupool: XLA_CLIENT_MEM_FRACTION=0.5 conflicts with --limit 1GiB, which wins\n")
        self.assertEqual(self.run_with("--limit", "1GiB", "--log", "error", "--", "true", XLA_CLIENT_MEM_FRACTION="0.5").stderr, "")
        self.assertEqual(self.run_with("--", "true", XLA_CLIENT_MEM_FRACTION="0.5").stderr, "")

    def test_control_characters_do_not_reach_the_terminal(self):
        result = self.run_with("--", "true", XLA_PYTHON_CLIENT_ALLOCATOR="bad\x1b[31m\nword")
        self.assertEqual(len(result.stderr.splitlines()), 1)
        self.assertNotIn("\x1b", result.stderr)

    def test_dry_run_says_what_and_why_and_runs_nothing(self):
        with tempfile.TemporaryDirectory() as folder:
            mark = Path(folder) / "mark"
            result = self.run_with("--limit", "1GiB", "--dry-run", "--", "touch", str(mark), XLA_PYTHON_CLIENT_PREALLOCATE="true")
            self.assertFalse(mark.exists())
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        for words in (f"would run: touch {mark}", f"LD_PRELOAD={support.PRELOAD}", "CUPOOL_LIMIT=1GiB", "you: --limit 1GiB", "CUPOOL_POLICY=preallocate",
                      "JAX: XLA_PYTHON_CLIENT_PREALLOCATE=true", "TF_GPU_ALLOCATOR=cuda_malloc_async"):
            self.assertIn(words, result.stdout)
        self.assertEqual(self.run_with("--dry-run").returncode, 125)

    def test_flags_take_what_the_library_takes(self):
        for word in ("warning", "err", "critical", "WARN", " info "):
            result = self.run_with("--log", word, "--dry-run", "--", "true")
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertIn(f"CUPOOL_LOG={word}", result.stdout)
        result = self.run_with("--log", "loud", "--", "true")
        self.assertEqual(result.returncode, 125)
        self.assertIn("trace, debug, info, warn, error, off", result.stderr)
        self.assertEqual(self.run_with("--keep-framework-pool=cupy", "--", "true").returncode, 125)


@unittest.skipUnless(support.HAS_LIBRARY, "the library or the simulated driver is not built")
class EndToEnd(unittest.TestCase):
    def test_the_library_does_what_a_jax_user_asked_for(self):
        with tempfile.TemporaryDirectory() as folder:
            report = Path(folder) / "r.json"
            plain = {key: value for key, value in support.simulator_environment().items() if key not in FRAMEWORK_VARIABLES}
            environment = {**plain, FRACTION: "0.25", CEILING: str(1 << 30), TF_PREALLOC: "0"}
            result = cupool("run", "--library", support.LIBRARY, "--report", report, "--", support.CUPOOL, "fill", "--to", "100%", env=environment)
            self.assertEqual((result.returncode, result.stderr), (0, ""))
            data = json.loads(report.read_text(encoding="utf-8"))
        self.assertIn("2.00 GiB of 2.00 GiB in use", result.stdout)  # a quarter of 8 GiB, the limit
        values = {name: (data["options"][name]["value"], data["options"][name]["source"]) for name in ("policy", "preallocate", "limit")}
        self.assertEqual(values, {"policy": ("preallocate", "env"), "preallocate": ("min(25%,1GiB)", "env"), "limit": ("25%", "env")})
        self.assertEqual(data["devices"][0]["counters"]["reserved_bytes"]["peak"], 2 << 30)


class ReadmeTable(unittest.TestCase):
    TABLE = locate.root() / "scripts" / "handover_table"

    def check(self, root: Path, *arguments: str) -> subprocess.CompletedProcess:
        return subprocess.run([sys.executable, "-B", str(self.TABLE), "--root", str(root), *arguments], capture_output=True, text=True, check=False)

    def test_the_readme_is_up_to_date(self):
        result = self.check(support.ROOT, "--check")
        self.assertEqual(result.returncode, 0, result.stderr)

    def test_an_old_table_is_noticed_and_replaced(self):
        with tempfile.TemporaryDirectory() as folder:
            readme = Path(folder) / "README.md"
            readme.write_text("before\n<!-- handover:begin -->\nold\n<!-- handover:end -->\nafter\n", encoding="utf-8")
            self.assertEqual(self.check(Path(folder), "--check").returncode, 1)
            self.assertEqual(self.check(Path(folder)).returncode, 0)
            self.assertEqual(self.check(Path(folder), "--check").returncode, 0)
            text = readme.read_text(encoding="utf-8")
            self.assertTrue(text.startswith("before\n") and text.endswith("after\n"))
            for route in handover_rules.ROUTES:
                self.assertIn(route.seen, text)
            readme.write_text("no markers\n", encoding="utf-8")
            self.assertEqual(self.check(Path(folder)).returncode, 1)

    def test_no_cell_breaks_the_table(self):
        for route in handover_rules.ROUTES:
            for cell in (route.framework, route.route, route.how, route.arrives, route.seen):
                self.assertTrue(cell and "|" not in cell and "\n" not in cell, cell)


if __name__ == "__main__":
    os.chdir("/")
    unittest.main()
