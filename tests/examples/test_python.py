"""The frameworks' examples: how they end without their framework and without a GPU; what they do where both are there."""

from __future__ import annotations

import json
import sys
import tempfile
import unittest
from pathlib import Path

import place
from place import EXAMPLES, SKIPPED

SCRIPTS = {"pytorch": "train.py", "jax": "train.py", "cupy": "power_iteration.py", "numba": "waves.py"}
MODULES = {"pytorch": "torch", "jax": "jax", "cupy": "cupy", "numba": "numba"}

# The framework as it is on a machine without a GPU: its modules, as far as the example comes.
WITHOUT_GPU = {
    "pytorch": {"torch/__init__.py": "from torch import nn\nclass cuda:\n    is_available = staticmethod(lambda: False)\ndevice = None\n",
                "torch/nn.py": "Module = object\n", "torch/distributed.py": ""},
    "jax": {"jax/__init__.py": "def devices(kind):\n    raise RuntimeError(f'Unknown backend {kind}\\nmore')\n", "jax/numpy.py": ""},
    "cupy": {"cupy.py": "class cuda:\n    class runtime:\n        class CUDARuntimeError(RuntimeError):\n            pass\n"
                        "        @classmethod\n        def getDeviceCount(cls):\n            raise cls.CUDARuntimeError('cudaErrorNoDevice')\n"},
    "numba": {"numpy.py": "", "numba/__init__.py": "", "numba/cuda.py": "def is_available():\n    return False\n"},
}
# CuPy on a machine with a GPU, up to the first array.
CUPY_WITH_GPU = """
__version__ = "0"
class cuda:
    off = False
    def set_allocator(allocator):
        cuda.off = allocator is None
    class runtime:
        CUDARuntimeError = RuntimeError
        getDeviceCount = staticmethod(lambda: 1)
        getDeviceProperties = staticmethod(lambda ordinal: {"name": b"a GPU"})
class random:
    def RandomState(seed):
        print("the first array comes", "after" if cuda.off else "before", "set_allocator(None)")
        raise SystemExit(0)
"""


class Frameworks(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def run_example(self, example: str, modules: dict[str, str]):
        """With these modules and nothing else that is installed."""
        for name, text in modules.items():
            (self.folder / example / name).parent.mkdir(parents=True, exist_ok=True)
            (self.folder / example / name).write_text(text, encoding="utf-8")
        return place.run(sys.executable, "-S", "-B", EXAMPLES / example / SCRIPTS[example],
                         env=place.support.clean_environment(PYTHONPATH=str(self.folder / example)))

    def assert_skipped(self, result, *words: str):
        self.assertEqual((result.returncode, result.stderr, len(result.stdout.splitlines())), (SKIPPED, "", 1), result.stdout)
        for word in ("skipped: ", *words):
            self.assertIn(word, result.stdout)

    def test_without_the_framework_it_names_the_package(self):
        for example in SCRIPTS:
            with self.subTest(example):
                self.assert_skipped(self.run_example(example, {}), "cannot be imported", "pip install")

    def test_a_framework_that_cannot_load_its_libraries_is_as_good_as_none(self):
        for example, module in MODULES.items():
            with self.subTest(example):
                broken = {f"{module}.py": "raise OSError('libcudart.so.13: cannot open shared object file')", "numpy.py": ""}
                self.assert_skipped(self.run_example(example, broken), "libcudart.so.13")

    def test_without_a_gpu_it_says_so(self):
        for example, modules in WITHOUT_GPU.items():
            with self.subTest(example):
                self.assert_skipped(self.run_example(example, modules), "sees no GPU")

    def test_cupy_loses_its_pool_before_its_first_array(self):
        result = self.run_example("cupy", {"cupy.py": CUPY_WITH_GPU})
        self.assertEqual((result.returncode, result.stdout.splitlines()[-1]), (0, "the first array comes after set_allocator(None)"), result.stderr)

    def test_the_versions_that_they_name_are_the_readmes(self):
        for example, script in SCRIPTS.items():
            source = (EXAMPLES / example / script).read_text(encoding="utf-8")
            package = source.split("pip install ")[1].split('"')[0].strip("')")
            self.assertIn(package, (EXAMPLES / example / "README.md").read_text(encoding="utf-8"), example)

    def test_where_framework_and_gpu_are_there_it_runs_and_its_memory_is_seen(self):
        ran = []
        for example, script in SCRIPTS.items():
            report = self.folder / f"{example}.json"
            environment = place.support.clean_environment(PATH=place.simulated()["PATH"])
            result = place.run("cupool", "run", "--report", report, "--", sys.executable, "-B", EXAMPLES / example / script, env=environment)
            self.assertIn(result.returncode, (0, SKIPPED), (example, result.stdout, result.stderr))
            if result.returncode == 0:
                self.assertGreater(json.loads(report.read_text(encoding="utf-8"))["devices"][0]["counters"]["allocations"], 20, example)
                ran.append(example)
        if not ran:
            self.skipTest("no framework with a GPU here")


if __name__ == "__main__":
    unittest.main()
