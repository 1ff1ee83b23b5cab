"""scripts/check-api: the toolkit's cuda.h has nothing that cupool does not know, and what is new in a header is named."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path

import support

HEADER = Path(os.environ.get("TEST_CUDA_INCLUDE", "/usr/local/cuda/include")) / "cuda.h"


def check_api(*arguments: object) -> subprocess.CompletedProcess:
    return subprocess.run([str(support.ROOT / "scripts/check-api"), *map(str, arguments)], env=support.clean_environment(), text=True, capture_output=True,
                          check=False, timeout=60)


class Header(unittest.TestCase):
    def setUp(self):
        self.folder = Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.folder)

    def doctored(self, before: str, after: str) -> Path:
        text = HEADER.read_text(encoding="utf-8", errors="replace")
        self.assertIn(before, text)
        path = self.folder / "cuda.h"
        path.write_text(text.replace(before, after, 1), encoding="utf-8")
        return path

    def test_every_function_of_the_toolkit_is_known(self):
        result = check_api(HEADER)
        self.assertEqual(result.returncode, 0, result.stdout)
        self.assertIn(", 0 unknown", result.stdout)

    def test_the_headers_of_graphics_libraries_are_read_too(self):
        for name in ("cudaGL", "cudaEGL", "cudaVDPAU"):
            result = check_api(HEADER.with_name(f"{name}.h"))
            self.assertEqual(result.returncode, 0, result.stdout)
            self.assertRegex(result.stdout, rf"^{name}: [1-9]\d* functions, .*, 0 unknown")
        new = "CUresult CUDAAPI cuGLMapShiny(CUdeviceptr *dptr);\n"
        (self.folder / "cudaGL.h").write_text(new, encoding="utf-8")
        self.assertIn("UNKNOWN in cudaGL: CUresult cuGLMapShiny(CUdeviceptr *dptr);", check_api(self.folder / "cudaGL.h").stdout)

    def test_a_prototype_whose_line_breaks_before_its_name_is_one(self):
        new = "CUresult CUDAAPI\ncuMemAllocShiny(CUdeviceptr *dptr);\n"
        self.assertIn("cuMemAllocShiny(", check_api(self.doctored("CUresult CUDAAPI cuMemFree(", new + "CUresult CUDAAPI cuMemFree(")).stdout)

    def test_a_new_function_is_named_with_its_prototype(self):
        new = "CUresult CUDAAPI cuMemAllocShiny(CUdeviceptr *dptr,\n    size_t bytesize);\n"
        result = check_api(self.doctored("CUresult CUDAAPI cuMemFree(", new + "CUresult CUDAAPI cuMemFree("))
        self.assertEqual(result.returncode, 1)
        self.assertRegex(result.stdout, r"UNKNOWN in \d+\.\d: CUresult cuMemAllocShiny\(CUdeviceptr \*dptr, size_t bytesize\);")

    def test_a_function_is_known_by_what_it_takes_whatever_it_is_called(self):
        new = "CUresult CUDAAPI cuShinyThing(CUdeviceptr *out);\n"
        self.assertIn("cuShinyThing(", check_api(self.doctored("CUresult CUDAAPI cuMemFree(", new + "CUresult CUDAAPI cuMemFree(")).stdout)

    def test_a_new_version_and_its_stream_variant_are_named(self):
        header = HEADER.read_text(encoding="utf-8", errors="replace")
        line = re.search(r"^ *#define cuMemAllocAsync +__CUDA_API_PTSZ\(cuMemAllocAsync\)$", header, re.MULTILINE).group()
        stdout = check_api(self.doctored(line, line.replace("(cuMemAllocAsync)", "(cuMemAllocAsync_v2)"))).stdout
        self.assertIn("CUresult cuMemAllocAsync_v2(", stdout)
        self.assertIn("CUresult cuMemAllocAsync_v2_ptsz(", stdout)

    def test_a_file_that_is_no_header_and_a_wrong_list_are_refused(self):
        for path in (support.ROOT / "README.md", "/no/such/cuda.h", "/"):
            result = check_api(path)
            self.assertEqual((result.returncode, result.stdout, len(result.stderr.splitlines())), (2, "", 1), result.stderr)
            self.assertIn(str(path), result.stderr)
        shim = self.folder / "shim"
        shim.mkdir()
        shutil.copy(support.ROOT / "shim/entry_points.def", shim)
        (shim / "passed_through.txt").write_text("[asks]\ncuMemAlloc_v2\n", encoding="utf-8")
        result = check_api(HEADER, "--root", self.folder)
        self.assertEqual((result.returncode, result.stdout), (1, ""))
        self.assertIn("also in entry_points.def: cuMemAlloc_v2", result.stderr)
        self.assertEqual(check_api("--frobnicate").returncode, 2)


if __name__ == "__main__":
    unittest.main()
