"""layers.py finds each breach on a temporary tree, and nothing on a good one."""

import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import layers  # noqa: E402
from cpp_text import code_only, without_comments  # noqa: E402

GOOD = {
    "config/options.hpp": '// Options.\n#include <string>\n#include "config/units.hpp"\n',
    "config/units.cpp": '// getenv stands in a comment and in "getenv".\nconst char* k = "getenv(dlsym) std::thread";\n',
    "pool/core/result.hpp": "// Result.\n#include <cuda.h>\n",
    "pool/core/mutex.hpp": "// A mutex.\n#include <pthread.h>\n",
    "pool/driver/driver_api.hpp": '// The driver.\n#include "pool/core/result.hpp"\n#include "pool/driver/driver_api.def"\n',
    "pool/driver/driver_api.def": "// The pool's own list.\nDRIVER_CALL(cuMemAlloc_v2, 3020, REQUIRED)\n",
    "pool/heap/heap.hpp": '// Geometry.\n#include "pool/core/bytes.hpp"\n#include "config/options.hpp"\n',
    "pool/observe/live_page.hpp": '// The live page.\n#include "pool/driver/driver_api.hpp"\n',
    "pool/observe/report.cpp": '// The report.\n#include <nlohmann/json.hpp>\n#include "pool/observe/live_page.hpp"\n',
    "pool/vmm/pages.hpp": '// Pages.\n#include "pool/heap/heap.hpp"\n#include "pool/driver/driver_api.hpp"\n',
    "pool/device/pool_set.hpp": '// All.\n#include "pool/vmm/pages.hpp"\nint printer_of(int);\nint retry_exit_code(int);\n',
    "pool/ipc/registry.hpp": '// What was exported.\n#include "pool/device/pool_set.hpp"\n',
    "shim/entry_points.def": "// Hooks.\n//   cuNotThere\nHOOK(cuMemAlloc, cuMemAlloc_v2, 3020, take, allocate)\nHOOK(cuMemFree, cuMemFree_v2, 3020, free, free_plain)\n",
    "shim/front_door.cpp": '// cuMemAlloc_v2 in a comment.\n#include "pool/device/pool_set.hpp"\n#include <dlfcn.h>\n'
                           "void f() { own.api.cuMemFree_v2(0); api->cuMemAlloc_v2(0); cuMemAlloc_v3(); }\n",
    "shim/log.cpp": "// The log.\n#include <spdlog/logger.h>\nspdlog::logger* l;\n",
    "tests/long.def": "// Over 400 lines: one row per symbol.\n" + "ROW\n" * 500,
    "scripts/tool": "#!/bin/sh\n",
    "scripts/data.json": "{}\n" * 1000,
}


class Tree(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = Path(folder.name)
        for path, text in GOOD.items():
            self.write(path, text)

    def write(self, path, text):
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        (self.root / path).write_text(text, encoding="utf-8")

    def found(self):
        return [str(breach) for breach in layers.breaches_of(self.root)]

    def assert_breach(self, path, text, expected):
        """Writing `text` to `path` gives exactly one breach, which begins with `expected`; putting it back gives none."""
        self.write(path, text)
        found = self.found()
        self.assertEqual(len(found), 1, (path, text, found))
        self.assertTrue(found[0].startswith(expected), found[0])
        self.write(path, GOOD[path]) if path in GOOD else (self.root / path).unlink()
        self.assertEqual(self.found(), [])


class GoodTree(Tree):
    def test_a_good_tree_has_no_breach(self):
        self.assertEqual(self.found(), [])

    def test_the_program_says_so_by_its_status(self):
        script = Path(layers.__file__)
        good = subprocess.run([sys.executable, "-B", script, self.root], capture_output=True, text=True, check=False)
        self.assertEqual((good.returncode, good.stdout), (0, ""))
        self.write("pool/heap/heap.hpp", '// x\n#include "shim/log.hpp"\n')
        bad = subprocess.run([sys.executable, "-B", script, self.root], capture_output=True, text=True, check=False)
        self.assertEqual(bad.returncode, 1)
        self.assertIn('pool/heap/heap.hpp:2: includes "shim/log.hpp"', bad.stdout)
        empty = subprocess.run([sys.executable, "-B", script, self.root / "config"], capture_output=True, text=True, check=False)
        self.assertEqual(empty.returncode, 2)


class Includes(Tree):
    def test_a_room_includes_only_rooms_below_it(self):
        for path, include in (("config/a.cpp", "pool/core/result.hpp"), ("config/a.cpp", "shim/log.hpp"), ("pool/core/a.cpp", "pool/heap/heap.hpp"),
                              ("pool/heap/a.cpp", "pool/driver/driver_api.hpp"), ("pool/heap/a.cpp", "pool/observe/event.hpp"),
                              ("pool/driver/a.cpp", "pool/heap/heap.hpp"), ("pool/driver/a.cpp", "pool/observe/event.hpp"),
                              ("pool/observe/a.cpp", "pool/heap/heap.hpp"), ("pool/vmm/a.cpp", "pool/device/pool_set.hpp"),
                              ("pool/device/a.cpp", "pool/ipc/registry.hpp"), ("pool/device/a.cpp", "shim/log.hpp"),
                              ("shim/a.cpp", "tests/sim/cusim.h"), ("pool/device/a.cpp", "tests/sim/cusim.h")):
            self.assert_breach(path, f'// x\n  # include "{include}"\n', f'{path}:2: includes "{include}"')

    def test_only_the_live_page_may_know_the_names_of_driver_calls(self):
        self.assert_breach("pool/observe/event.hpp", '// x\n#include "pool/driver/driver_api.hpp"\n', "pool/observe/event.hpp:2")
        self.assert_breach("pool/observe/live_page.hpp", '// x\n#include "pool/driver/handles.hpp"\n', "pool/observe/live_page.hpp:2")

    def test_paths_begin_at_the_root(self):
        self.assert_breach("pool/heap/a.cpp", '// x\n#include "heap.hpp"\n', "pool/heap/a.cpp:2: includes \"heap.hpp\": write the path")
        self.assert_breach("pool/heap/a.cpp", '// x\n#include "../core/bytes.hpp"\n', "pool/heap/a.cpp:2")

    def test_a_source_lies_in_a_room(self):
        self.assert_breach("pool/tools/a.cpp", "// x\n", "pool/tools/a.cpp:1: lies in no room")

    def test_system_headers_that_a_room_must_not_know(self):
        self.assert_breach("config/a.cpp", "// x\n#include <cuda.h>\n", "config/a.cpp:2: includes <cuda.h>")
        self.assert_breach("config/a.cpp", "// x\n#include <iostream>\n", "config/a.cpp:2")
        self.assert_breach("pool/heap/a.cpp", "// x\n#include <cuda.h>\n", "pool/heap/a.cpp:2")
        self.assert_breach("pool/device/a.cpp", "// x\n#include <dlfcn.h>\n", "pool/device/a.cpp:2")

    def test_an_include_in_a_comment_is_none(self):
        self.write("pool/heap/a.cpp", '// x\n// #include "shim/log.hpp"\n/*\n#include "shim/log.hpp"\n*/\n')
        self.assertEqual(self.found(), [])


class Words(Tree):
    def test_what_the_pool_and_the_options_never_say(self):
        for code in ('getenv("X");', "secure_getenv(n);", "dlsym(h, n);", 'extern "C" void f();', "extern \"C\" {", "spdlog::info(1);",
                     "std::thread t;", "std::jthread t;", "pthread_create(a, b, c, d);", "std::async(f);", "std::cerr << 1;", "fprintf(stderr, x);",
                     "printf(x);", "puts(x);", "std::abort();", "_exit(1);", "exit(1);", "std::terminate();", "int n = 1'000; getenv(n);"):
            for folder in ("config", "pool/device"):
                self.assert_breach(f"{folder}/a.cpp", f"// x\n\n{code}\n", f"{folder}/a.cpp:3: ")

    def test_spdlog_stands_in_one_file(self):
        self.assert_breach("shim/a.cpp", "// x\nnamespace spdlog {}\n", "shim/a.cpp:2: names spdlog")
        self.write("shim/a.cpp", "// spdlog is not used here.\n")
        self.assertEqual(self.found(), [])

    def test_nlohmann_stands_in_two_sources_and_in_no_header(self):
        include = "// x\n#include <nlohmann/json.hpp>\n"
        self.assert_breach("shim/a.hpp", include, "shim/a.hpp:2: includes <nlohmann/json.hpp> in a header")
        self.write("config/a.cpp", include)
        self.assertEqual(self.found(), [])
        self.assert_breach("shim/b.cpp", include, "shim/b.cpp:1: is one user of nlohmann/json too many: config/a.cpp, pool/observe")


class Names(Tree):
    def test_an_intercepted_function_is_named_in_its_list_only(self):
        for code in ('if (name == "cuMemAlloc") f();', "case Entry::cuMemAlloc_v2:", "::cuMemFree(0);", "other.cuMemFree_v2(0);", "cuMemFree_v2(0);"):
            self.assert_breach("shim/a.cpp", f"// x\n{code}\n", "shim/a.cpp:2: names cuMem")

    def test_files_are_named_after_what_they_hold(self):
        for stem in ("utils", "string_util", "common", "helpers", "pool_manager"):
            self.assert_breach(f"shim/{stem}.cpp", "// x\n", f"shim/{stem}.cpp:1: is named after nothing")

    def test_a_source_begins_with_what_it_owns(self):
        self.assert_breach("shim/a.cpp", '#include "shim/log.hpp"\n', "shim/a.cpp:1: does not begin with a comment")

    def test_a_long_file_says_why(self):
        self.assert_breach("tests/a.cpp", "// x\n" * 401, "tests/a.cpp:1: has 401 lines")
        self.assert_breach("scripts/tool", "#!/bin/sh\n" + "true\n" * 400, "scripts/tool:1: has 401 lines")
        self.write("tests/a.cpp", "// x\n" * 400)
        self.assertEqual(self.found(), [])


@unittest.skipUnless(shutil.which("cc") and shutil.which("ar"), "no C compiler")
class Globals(Tree):
    def breaches_of_c(self, code):
        (self.root / "a.c").write_text(code, encoding="utf-8")
        subprocess.run(["cc", "-fPIC", "-c", "a.c", "-o", "a.o"], cwd=self.root, check=True)
        subprocess.run(["ar", "rc", "a.a", "a.o"], cwd=self.root, check=True)
        return [str(breach) for breach in layers.breaches_of(self.root, self.root / "a.a")]

    def test_writable_static_storage_is_found_wherever_it_hides(self):
        for code in ("int found;", "int found = 1;", "static int found; int* f(void) { return &found; }",
                     "int* f(void) { static int found = 3; return &found; }", "static __thread int found; int* f(void) { return &found; }"):
            found = self.breaches_of_c(code)
            self.assertEqual(len(found), 1, code)
            self.assertIn("has writable static storage: found", found[0])

    def test_constants_are_none(self):
        code = 'const int a = 1; const char* const b[] = {"x"}; int f(int c) { int d = c; return d; }'
        self.assertEqual(self.breaches_of_c(code), [])


class Text(unittest.TestCase):
    def test_comments_and_strings_are_blanked_line_by_line(self):
        text = "a // b\n/* c\nd */ e \"f\\\"g//h\" 1'000 'i' R\"x(j\n)\")x\" k\n"
        self.assertEqual(without_comments(text).split(), ["a", "e", '"f\\"g//h"', "1'000", "'i'", 'R"x(j', ')")x"', "k"])
        self.assertEqual(code_only(text).split(), ["a", "e", "1'000", "k"])
        self.assertEqual(code_only(text).count("\n"), text.count("\n"))

    def test_names_of_includes_and_linkage_stay(self):
        self.assertEqual(code_only('#include "a.hpp"\nextern "C" f("x");\n').split(), ["#include", '"a.hpp"', "extern", '"C"', "f(", ");"])


if __name__ == "__main__":
    unittest.main()
