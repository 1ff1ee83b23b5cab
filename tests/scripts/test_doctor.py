"""`cupool doctor`: each check's ok, warning and failure, and what it says about commands."""

from __future__ import annotations

import json
import os
import struct
import sys
import tempfile
import unittest
import unittest.mock
from pathlib import Path

import support
from support import clean_environment, cupool, simulator_environment
from cupool_lib import elf

PYTHON = "/usr/bin/python3" if os.path.exists("/usr/bin/python3") else sys.executable


def findings(*arguments: object, env: dict | None = None, **options) -> dict[str, list[dict]]:
    """Findings by check."""
    result = cupool("doctor", "--json", "--library", support.PRELOAD, *arguments, env=env, **options)
    data = json.loads(result.stdout)
    failed = any(check["status"] == "failure" for check in data["checks"])
    assert data["ok"] == (not failed) == (result.returncode == 0), result
    by_check: dict[str, list[dict]] = {}
    for check in data["checks"]:
        assert check["status"] == "ok" or check["advice"], check
        by_check.setdefault(check["check"], []).append(check)
    return by_check


class Machine(unittest.TestCase):
    def test_a_missing_library_is_a_failure(self):
        result = cupool("doctor", "--library", "/no/such.so")
        self.assertEqual(result.returncode, 1)
        self.assertRegex(result.stdout, r"failure +library .*no such file")

    def test_a_file_that_is_no_library_is_a_failure(self):
        with tempfile.NamedTemporaryFile(suffix=".so") as file:
            file.write(b"\x7fELF" + b"\xff" * 200)
            file.flush()
            result = cupool("doctor", "--library", file.name)
        self.assertRegex(result.stdout, r"failure +library ")
        self.assertRegex(result.stdout, r"failure +preload ")  # ld.so complains

    def test_misspelt_variables_get_the_nearest(self):
        check = findings(env=clean_environment(CUPOOL_POLICI="grow"))["variables"][0]
        self.assertEqual(check["status"], "warning")
        self.assertIn("CUPOOL_POLICY", check["advice"])

    def test_bad_choices_are_named(self):
        check = findings(env=clean_environment(CUPOOL_POLICY="greedy"))["variables"][0]
        self.assertIn("greedy", check["detail"])
        self.assertEqual(findings(env=clean_environment(CUPOOL_POLICY="platform"))["variables"][0]["status"], "ok")

    def test_values_that_the_library_would_not_take_are_named(self):
        bad = {"CUPOOL_LIMIT": "banana", "CUPOOL_PREALLOCATE": "2000%", "CUPOOL_TIMELINE": "abc", "CUPOOL_STACK_DEPTH": "129", "CUPOOL_RELEASE_THRESHOLD": "1.5"}
        checks = findings(env=clean_environment(**bad))["variables"]
        self.assertEqual([check["detail"].partition(" ")[0] for check in checks], sorted(f"{name}={text}" for name, text in bad.items()))
        self.assertEqual({check["status"] for check in checks}, {"warning"})
        good = {"CUPOOL_LIMIT": "0:40GiB,50%", "CUPOOL_PREALLOCATE": "-1", "CUPOOL_TIMELINE": "16Mi", "CUPOOL_STACK_DEPTH": "128", "CUPOOL_RELEASE_THRESHOLD": "unlimited"}
        self.assertEqual([check["status"] for check in findings(env=clean_environment(**good))["variables"]], ["ok"])

    def test_call_sites_are_not_served_yet(self):
        check = findings(env=clean_environment(CUPOOL_STACKS="all"))["variables"][0]
        self.assertEqual(check["status"], "warning")
        self.assertIn("not served yet", check["detail"])
        self.assertEqual(findings(env=clean_environment(CUPOOL_STACKS="off"))["variables"][0]["status"], "ok")

    def test_files_that_cannot_be_opened_are_named(self):
        with tempfile.TemporaryDirectory() as folder:
            there = Path(folder) / "there"
            there.write_text("")
            os.link(there, Path(folder) / "twice")
            (Path(folder) / "own").write_text("")
            for variable, check, cases in (
                    ("CUPOOL_LOG_FILE", "log file", (("none/log", True), ("there", False), ("there/log", False), ("", False), ("there/%p.log", False), ("new", True), ("own", True), ("%p.log", True))),
                    ("CUPOOL_TRACE", "trace", (("there", False), ("there/x.trace", False), ("there/%p.trace", False), ("new", True), ("none/%p.trace", True)))):
                for name, is_good in cases:
                    with self.subTest(variable=variable, name=name):
                        found = findings(env=clean_environment(**{variable: f"{folder}/{name}" if name else folder}))
                        self.assertEqual(check not in found, is_good, found.get(check))

    def test_report_folder(self):
        for pattern, status in (("/proc/x/%p.json", "failure"), ("none", "ok"), ("stderr", "ok"), ("%p.json", "ok"), ("/etc/hostname/x.json", "failure"), ("/dev/null", "failure"),
                                ("/etc", "failure"), ("/dev/stdout", "failure")):
            with self.subTest(pattern):
                self.assertEqual(findings(env=clean_environment(CUPOOL_REPORT=pattern))["report"][0]["status"], status)

    def test_a_start_that_noise_made_earlier_is_told_as_no_later(self):
        from cupool_lib import doctor_machine
        self.assertEqual([doctor_machine._later(added) for added in (-1890.0, 4.9, 5.0, 1234.0)], ["no later", "no later", "0.01 ms later", "1.23 ms later"])

    def test_other_preloads(self):
        libm = "/lib/x86_64-linux-gnu/libm.so.6"
        self.assertEqual(findings(env=clean_environment(LD_PRELOAD=libm))["preloads"][0]["status"], "ok")
        with tempfile.TemporaryDirectory() as folder:
            rival = Path(folder) / "libvgpu.so"
            rival.symlink_to(libm)
            check = findings(env=clean_environment(LD_PRELOAD=str(rival)))["preloads"][0]
        self.assertIn("HAMi", check["detail"])
        self.assertIn("does not exist", findings(env=clean_environment(LD_PRELOAD="/no/such.so"))["preloads"][0]["detail"])

    def test_preloads_of_the_system(self):
        from cupool_lib import doctor_machine
        with tempfile.NamedTemporaryFile("w", suffix=".preload") as file, unittest.mock.patch.dict(os.environ, {"LD_PRELOAD": ""}):
            file.write("# shares the GPU\n/usr/local/vgpu/libvgpu.so:/no/such.so # there\n")
            file.flush()
            with unittest.mock.patch.object(doctor_machine, "_SYSTEM_PRELOADS", Path(file.name)):
                finding = doctor_machine._preloads(None)
            with unittest.mock.patch.object(doctor_machine, "_SYSTEM_PRELOADS", Path("/no/such/file")):
                self.assertEqual(doctor_machine._preloads(None).status, "ok")
        self.assertEqual(finding.status, "warning")
        self.assertIn("/usr/local/vgpu/libvgpu.so (HAMi-core)", finding.detail)

    def test_no_colour_and_a_count_at_the_end(self):
        output = cupool("doctor", "--library", support.PRELOAD).stdout
        self.assertNotIn("\x1b", output)
        self.assertRegex(output.splitlines()[-1], r"^\d+ ok, \d+ warnings?, \d+ failures?$")


@unittest.skipUnless(support.HAS_LIBRARY, "the library or the simulated driver is not built")
class Driver(unittest.TestCase):
    def test_everything_is_well_on_the_simulated_driver(self):
        found = findings("--", "/bin/sh", env=simulator_environment(CUSIM_DEVICES="2"))
        for name in ("library", "preload", "driver", "GPU 0", "GPU 1", "pool", "live page", "command", "outcome"):
            self.assertEqual([check["status"] for check in found[name]], ["ok"], found[name])
        self.assertIn("simulated", found["driver"][0]["detail"])

    def test_no_device(self):
        check = findings(env=simulator_environment(CUSIM_NO_DEVICE="1"))["driver"][0]
        self.assertEqual(check["status"], "failure")
        self.assertIn("CUDA_ERROR_NO_DEVICE", check["detail"])

    def test_an_old_driver(self):
        check = findings(env=simulator_environment(CUSIM_DRIVER_VERSION="11000"))["driver"][0]
        self.assertEqual(check["status"], "failure")
        self.assertIn("11.4", check["detail"])

    def test_no_virtual_memory_management(self):
        self.assertEqual(findings(env=simulator_environment(CUSIM_VMM="0"))["GPU 0"][0]["status"], "warning")

    def test_the_backing_and_its_reason(self):
        def backing(**variables: str) -> str:
            return findings(env=simulator_environment(**variables))["backing"][0]["detail"]
        self.assertIn("pages, as CUPOOL_BACKING says", backing(CUPOOL_BACKING="pages"))
        self.assertIn("no device has virtual memory management", backing(CUSIM_VMM="0"))
        self.assertIn("segments: several ranks run on this machine (LOCAL_WORLD_SIZE=4)", backing(LOCAL_WORLD_SIZE="4"))
        self.assertIn("(SLURM_STEP_TASKS_PER_NODE=1,2(x3))", backing(SLURM_STEP_TASKS_PER_NODE="1,2(x3)"))
        self.assertNotIn("ranks", backing(SLURM_STEP_TASKS_PER_NODE="1(x4)", LOCAL_RANK="0"))

    def test_a_limit_for_a_device_that_is_not_there(self):
        check = findings(env=simulator_environment(CUSIM_DEVICES="2", CUPOOL_LIMIT="1:1GiB,5:10GiB"))["variables"][0]
        self.assertEqual(check["status"], "warning")
        self.assertIn("limits device 5, and there is none here", check["detail"])
        self.assertEqual(findings(env=simulator_environment(CUSIM_DEVICES="2", CUPOOL_LIMIT="1:1GiB"))["variables"][0]["status"], "ok")

    def test_platform_stays_native(self):
        outcome = findings("--", "/bin/sh", env=simulator_environment(CUPOOL_POLICY="platform"))["outcome"][0]
        self.assertEqual(outcome["status"], "ok")
        self.assertIn("stay native", outcome["detail"])
        self.assertNotIn("from the pool", outcome["detail"])

    def test_a_launcher_that_loses_the_environment_is_no_ok(self):
        with tempfile.TemporaryDirectory() as folder:
            ssh = Path(folder) / "ssh"
            ssh.write_text("#!/bin/sh\n")
            ssh.chmod(0o755)
            outcome = findings("--", ssh, "host", "x", env=simulator_environment())["outcome"][0]
        self.assertEqual(outcome["status"], "warning")
        self.assertIn("would not get the library", outcome["detail"])

    def test_off_is_said(self):
        outcome = findings("--", "/bin/sh", env=simulator_environment(CUPOOL_POLICY="off"))["outcome"][0]
        self.assertIn("do nothing", outcome["detail"])


class Commands(unittest.TestCase):
    def setUp(self):
        holder = tempfile.TemporaryDirectory()
        self.addCleanup(holder.cleanup)
        self.folder = Path(holder.name)

    def command(self, *words: object) -> dict:
        return findings("--", *words)["command"][0]

    def script(self, text: str) -> Path:
        path = self.folder / "script"
        path.write_text(text)
        path.chmod(0o755)
        return path

    def test_plain_binaries_and_scripts(self):
        self.assertEqual(self.command("/bin/sh")["status"], "ok")
        for line in ("#!/bin/sh", "#!/usr/bin/env sh", "#!/usr/bin/env -S sh -e"):
            self.assertEqual(self.command(self.script(line + "\n"))["status"], "ok", line)

    def test_commands_that_cannot_start(self):
        self.assertIn("127", self.command("no-such-command-anywhere")["advice"])
        plain = self.folder / "plain"
        plain.write_text("no program")
        self.assertIn("126", self.command(plain)["advice"])
        self.assertIn("127", self.command(self.script("#!/no/such\n"))["advice"])
        path = self.script("")
        path.write_text(f"#!{path}\n")
        self.assertEqual(self.command(path)["status"], "failure")

    def test_privileged_programs(self):
        path = self.script("#!/bin/sh\n")
        path.chmod(0o4755)
        check = self.command(path)
        self.assertEqual(check["status"], "failure")
        self.assertIn("set-user-ID", check["detail"])

    def test_other_kinds_of_binaries(self):
        header = bytearray(b"\x7fELF\x02\x01\x01".ljust(64, b"\0"))
        header[18:20] = struct.pack("<H", 62)
        for change, words in (((4, 1, 3), "32-bit"), ((4, 2, 183), "aarch64"), ((4, 2, 62), "statically linked")):
            data = bytearray(header)
            data[change[0]] = change[1]
            data[18] = change[2]
            path = self.folder / "binary"
            path.write_bytes(data)
            path.chmod(0o755)
            check = self.command(path)
            self.assertEqual(check["status"], "failure")
            self.assertIn(words, check["detail"])

    def test_launchers_that_lose_the_environment(self):
        path = self.folder / "sudo"
        path.write_text("#!/bin/sh\n")
        path.chmod(0o755)
        self.assertIn("sudo cupool run", self.command(path, "python")["advice"])


class HandOver(unittest.TestCase):
    """The frameworks are empty packages that stop whoever imports them."""

    def setUp(self):
        holder = tempfile.TemporaryDirectory()
        self.addCleanup(holder.cleanup)
        self.folder = Path(holder.name)
        self.script = self.folder / "train.py"
        self.script.write_text("import torch\n")

    def install(self, module: str, distribution: str = "", version: str = "") -> None:
        (self.folder / module).mkdir()
        (self.folder / module / "__init__.py").write_text("import os; os.abort()\n")
        if version:
            facts = self.folder / f"{distribution.replace('-', '_')}-{version}.dist-info"
            facts.mkdir()
            (facts / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n")

    def found(self, *command: object, **variables: str) -> dict[str, list[dict]]:
        framework_variables = ("XLA_", "JAX_", "TF_", "PYTORCH_", "PYTHON")
        plain = {key: value for key, value in clean_environment().items() if not key.startswith(framework_variables)}
        return findings("--", *(command or (PYTHON, self.script)), env={**plain, **variables})

    def only(self, check: str, *command: object, **variables: str) -> dict:
        checks = self.found(*command, **variables).get(check, [])
        self.assertEqual(len(checks), 1, checks)
        return checks[0]

    def test_no_framework_is_said(self):
        self.assertIn("there is no pool to hand over", self.only("frameworks", PYTHON, "-I", "-S", "-c", "pass")["detail"])
        self.assertNotIn("frameworks", self.found("/bin/true"))

    def test_frameworks_are_found_without_being_imported(self):
        self.install("torch", "torch", "2.9.1")
        self.install("jax")
        self.install("tensorflow", "tensorflow-cpu", "2.19.0")
        found = self.found()
        self.assertEqual(found["PyTorch"][0]["detail"], "PyTorch 2.9.1 would get PYTORCH_ALLOC_CONF=backend:cudaMallocAsync, "
                         "PYTORCH_CUDA_ALLOC_CONF=backend:cudaMallocAsync")
        self.assertEqual({name: found[name][0]["status"] for name in ("PyTorch", "JAX", "TensorFlow")}, dict.fromkeys(("PyTorch", "JAX", "TensorFlow"), "ok"))
        self.assertIn("TensorFlow 2.19.0", found["TensorFlow"][0]["detail"])

    def test_a_folder_of_data_named_like_a_framework_is_none(self):
        (self.folder / "jax").mkdir()
        self.assertNotIn("JAX", self.found())

    def test_a_pytorch_that_would_stop_is_a_failure(self):
        self.install("torch", "torch", "1.13.1")
        check = self.only("PyTorch")
        self.assertEqual(check["status"], "failure")
        self.assertIn("--keep-framework-pool=pytorch", check["advice"])
        self.assertEqual(self.only("PyTorch", PYTORCH_NO_CUDA_MEMORY_CACHING="1")["status"], "ok")

    def test_frameworks_that_keep_their_pool(self):
        for module in ("torch", "jax", "cupy"):
            self.install(module)
        self.assertEqual(self.only("JAX", XLA_CLIENT_MEM_FRACTION="2.0")["status"], "warning")
        self.assertEqual(self.only("PyTorch", XLA_CLIENT_MEM_FRACTION="2.0")["status"], "ok")
        self.assertIn("platform", self.only("PyTorch", CUPOOL_POLICY="platform")["detail"])
        self.assertEqual(self.only("CuPy")["status"], "warning")
        self.script.write_text("import cupy\ncupy.cuda.set_allocator(None)\n")
        self.assertEqual(self.only("CuPy")["status"], "ok")

    def test_frameworks_without_a_pool(self):
        self.install("numba")
        self.install("rmm")
        found = self.found()
        self.assertEqual([found[name][0]["status"] for name in ("Numba", "RMM")], ["ok", "ok"])

    def test_translated_settings_and_conflicts(self):
        settings = self.found(XLA_CLIENT_MEM_FRACTION="0.5")["settings"]
        self.assertEqual([check["detail"].partition(",")[0] for check in settings], ["CUPOOL_POLICY=preallocate", "CUPOOL_PREALLOCATE=50%", "CUPOOL_LIMIT=50%"])
        check = self.only("settings", XLA_CLIENT_MEM_FRACTION="0.5", CUPOOL_LIMIT="1GiB", CUPOOL_POLICY="grow")
        self.assertEqual(check["status"], "warning")
        self.assertIn("CUPOOL_LIMIT=1GiB", check["detail"])

    def test_what_a_script_undoes_is_named_with_its_line(self):
        for line, check, words in (
                ("os.environ['XLA_PYTHON_CLIENT_ALLOCATOR'] = 'bfc'", "settings", "XLA_PYTHON_CLIENT_ALLOCATOR itself"),
                ('os.putenv("PYTORCH_CUDA_ALLOC_CONF", "x")', "settings", "PYTORCH_CUDA_ALLOC_CONF itself"),
                ("ctypes.CDLL('libfoo.so', os.RTLD_DEEPBIND)", "deepbind", "RTLD_DEEPBIND"),
                ("os.environ.pop('LD_PRELOAD')", "preloads", "changes LD_PRELOAD"),
                ("torch.compile(model, mode='reduce-overhead')", "PyTorch", "CUDA graphs"),
                ("torch.cuda.memory._record_memory_history()", "PyTorch", "snapshots"),
                ("pool = torch.cuda.MemPool()", "PyTorch", "pools"), ("llm = LLM(name, enable_sleep_mode=True)", "PyTorch", "pools"),
                ("rmm.mr.PoolMemoryResource(up)", "RMM", "RMM")):
            with self.subTest(line):
                self.script.write_text(f"import os\n{line}\n")
                warnings = [found for found in self.found()[check] if f"{self.script}:2 " in found["detail"]]
                self.assertEqual(len(warnings), 1)
                self.assertIn(words, warnings[0]["detail"])
                self.assertEqual(warnings[0]["status"], "warning")
                self.script.write_text(f"import os\n # {line}\n")
                self.assertNotIn(f"{self.script}:", json.dumps(self.found()))

    def test_each_line_that_undoes_the_hand_over_is_named(self):
        self.script.write_text("import os\nos.environ['TF_GPU_ALLOCATOR'] = 'x'\nos.environ.update({'XLA_PYTHON_CLIENT_ALLOCATOR': 'bfc',\n"
                               "  # 'PYTORCH_ALLOC_CONF': 'z',\n  'PYTORCH_CUDA_ALLOC_CONF': 'y'})\n"
                               "os.environ.update(TF_GPU_ALLOCATOR='x', XLA_PYTHON_CLIENT_PREALLOCATE='true')\nprint({'TF_GPU_ALLOCATOR': 1})\nos.environ |= {'PYTORCH_ALLOC_CONF': 'q'}\n")
        details = [check["detail"] for check in self.found()["settings"] if f"{self.script}:" in check["detail"]]
        named = [(int(detail.partition(":")[2].split()[0]), detail.split()[2]) for detail in details]
        self.assertEqual(named, [(2, "TF_GPU_ALLOCATOR"), (3, "XLA_PYTHON_CLIENT_ALLOCATOR"), (5, "PYTORCH_CUDA_ALLOC_CONF"), (6, "TF_GPU_ALLOCATOR"),
                                 (6, "XLA_PYTHON_CLIENT_PREALLOCATE"), (8, "PYTORCH_ALLOC_CONF")])
        self.script.write_text("os.environ['TF_GPU_ALLOCATOR'] = 'x'\n" * 30)
        self.assertIn("and 20 more such lines", self.found()["settings"][-1]["detail"])

    def test_what_undoes_nothing_is_not_named(self):
        self.script.write_text("if os.environ['TF_GPU_ALLOCATOR'] == 'x': pass\nos.environ.setdefault('TF_GPU_ALLOCATOR', 'y')\n"
                               "torch.compile(m, mode='max-autotune-no-cudagraphs')\nprint('MY_TF_GPU_ALLOCATOR=3')\n")
        self.assertNotIn(f"{self.script}:", json.dumps(self.found()))

    def test_the_script_behind_launchers_and_shells_is_found(self):
        self.install("torch", "torch", "2.9.1")
        self.script.write_text("os.environ['TF_GPU_ALLOCATOR'] = 'x'\n")
        for command in (("env", "A=b", "nice", "-n", "3", PYTHON, "-u", self.script), ("timeout", "5", PYTHON, "-W", "ignore", self.script),
                        (PYTHON, "-m", "torch.distributed.run", "--nproc-per-node", "2", self.script)):
            with self.subTest(command):
                found = self.found(*command)
                self.assertIn(f"{self.script}:1 ", found["settings"][0]["detail"])
                self.assertIn("PyTorch 2.9.1", found["PyTorch"][0]["detail"])
        launcher = self.folder / "torchrun"
        launcher.write_text(f"#!{PYTHON}\n")
        launcher.chmod(0o755)
        self.assertIn(f"{self.script}:1 ", self.found(launcher, self.script)["settings"][0]["detail"])
        shell = self.folder / "job.sh"
        shell.write_text("set -e\nexport TF_GPU_ALLOCATOR=x\npython train.py\n")
        self.assertIn(f"{shell}:2 ", self.only("settings", "bash", "-e", shell)["detail"])
        self.assertIn("the command:1 ", self.only("settings", "sh", "-c", "TF_GPU_ALLOCATOR=x exec true")["detail"])

    def test_a_python_that_does_not_answer_is_a_warning(self):
        broken = self.folder / "python3"
        broken.write_text("#!/bin/sh\nexit 3\n")
        broken.chmod(0o755)
        self.assertEqual(self.only("frameworks", broken, self.script)["status"], "warning")


class ElfFiles(unittest.TestCase):
    def test_damage_is_refused_or_read_but_never_crashes(self):
        import random
        numbers = random.Random(7)
        whole = Path("/bin/true").read_bytes()
        with tempfile.NamedTemporaryFile() as file:
            for _ in range(400):
                damaged = bytearray(whole)
                for _ in range(numbers.randint(1, 20)):
                    damaged[numbers.randrange(4, 2000)] = numbers.randrange(256)
                file.seek(0)
                file.write(damaged)
                file.flush()
                try:
                    elf.highest_glibc(elf.read(file.name))
                except elf.NotElf:
                    pass

    def test_a_real_program_is_read(self):
        facts = elf.read("/bin/true")
        self.assertEqual((facts.bits, facts.machine, facts.is_static), (64, "x86-64", False))
        self.assertIn("libc.so.6", facts.needed)
        self.assertGreater(elf.highest_glibc(facts), (2, 2))


if __name__ == "__main__":
    unittest.main()
