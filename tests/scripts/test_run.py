"""`cupool run`: ends as the program ends, changes nothing it need not, and fails with its own codes."""

from __future__ import annotations

import faulthandler
import os
import pty
import re
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import support
from support import clean_environment, cupool, run_arguments

PYTHON = "/usr/bin/python3" if os.path.exists("/usr/bin/python3") else sys.executable


def status_of(*command: object, **options) -> int:
    """Return code as subprocess gives it: negative for a signal."""
    return subprocess.run(run_arguments(*command), env=clean_environment(), check=False, timeout=60, **options).returncode


class ExitFidelity(unittest.TestCase):
    def test_exit_codes_are_passed_on(self):
        for code in (*range(0, 4), 41, 63, 64, 77, 99, *range(123, 131), 137, 139, 143, 200, 254, 255):
            with self.subTest(code=code):
                self.assertEqual(status_of("/bin/sh", "-c", f"exit {code}"), code)

    def test_deaths_by_signal_are_passed_on_without_a_core(self):
        fatal = ["HUP", "INT", "QUIT", "ILL", "TRAP", "ABRT", "BUS", "FPE", "KILL", "USR1", "SEGV", "USR2", "PIPE", "ALRM", "TERM", "XCPU", "SYS"]
        numbers = [getattr(signal, f"SIG{name}") for name in fatal] + [signal.SIGRTMIN + 3]
        with tempfile.TemporaryDirectory() as folder:
            for number in numbers:
                with self.subTest(signal=number):
                    arguments = run_arguments("/bin/sh", "-c", f"ulimit -c 0; kill -{int(number)} $$")
                    child = subprocess.Popen(arguments, env=clean_environment(), cwd=folder)
                    _, status = os.waitpid(child.pid, 0)
                    child.returncode = 0
                    self.assertTrue(os.WIFSIGNALED(status))
                    self.assertEqual(os.WTERMSIG(status), number)
                    self.assertFalse(os.WCOREDUMP(status))
            self.assertEqual(list(Path(folder).glob("core*")), [])

    def test_output_is_the_programs_alone(self):
        result = subprocess.run(run_arguments("/bin/sh", "-c", "echo out; echo err >&2; exit 3"), env=clean_environment(), capture_output=True, check=False)
        self.assertEqual((result.stdout, result.stderr, result.returncode), (b"out\n", b"err\n", 3))

    def test_stdin_reaches_the_program(self):
        result = subprocess.run(run_arguments("cat"), env=clean_environment(), input=b"\x00\xffdata", capture_output=True, check=False)
        self.assertEqual(result.stdout, b"\x00\xffdata")


class ClosedStreams(unittest.TestCase):
    """Where stdout or stderr is closed or full: the program starts and its end is passed on, and cupool's own failures keep their codes."""

    STREAMS = (">&-", "2>&-", "<&-", ">&- 2>&-", "<&- >&- 2>&-", "> /dev/full", "2> /dev/full")

    def ended(self, streams: str, *command: object, **variables: str) -> subprocess.CompletedProcess:
        """Return code as subprocess gives it, and what is said where stdout or stderr is open."""
        shell = ["/bin/sh", "-c", f'exec "$@" {streams}', "sh", *map(str, command)]
        return subprocess.run(shell, env=clean_environment(**variables), capture_output=True, text=True, check=False, timeout=60)

    def test_the_program_runs_and_its_end_is_passed_on(self):
        for streams in self.STREAMS:
            with self.subTest(streams), tempfile.TemporaryDirectory() as folder:
                self.assertEqual(self.ended(streams, *run_arguments("/bin/sh", "-c", 'touch "$0"/ran; exit 3', folder)).returncode, 3)
                self.assertTrue(Path(folder, "ran").exists())
                self.assertEqual(self.ended(streams, *run_arguments("/bin/sh", "-c", "kill -9 $$")).returncode, -signal.SIGKILL)

    def test_the_program_finds_them_closed_too(self):
        for streams, numbers in ((">&-", "1"), ("2>&-", "2"), ("<&- >&- 2>&-", "0 1 2")):
            program = f"for n in {numbers}; do [ -e /proc/self/fd/$n ] && exit 1; done; exit 0"
            self.assertEqual(self.ended(streams, *run_arguments("/bin/sh", "-c", program)).returncode, 0, streams)

    def test_lines_that_nobody_hears_change_nothing(self):
        conflict = {"XLA_CLIENT_MEM_FRACTION": "0.5", "CUPOOL_LIMIT": "1GiB"}
        self.assertIn("conflicts", self.ended("", *run_arguments("/bin/sh", "-c", "exit 3"), **conflict).stderr)
        for streams in ("2>&-", "2> /dev/full"):
            self.assertEqual(self.ended(streams, *run_arguments("/bin/sh", "-c", "exit 3"), **conflict).returncode, 3, streams)
            self.assertEqual(self.ended(streams, *run_arguments("no-such-command-anywhere")).returncode, 127, streams)

    def test_output_that_cannot_be_written_is_one_line(self):
        dry_run = [*run_arguments("true")[:2], "--dry-run", *run_arguments("true")[2:]]
        for code, command in ((125, dry_run), (125, [support.CUPOOL, "run", "--help"]), (1, [support.CUPOOL, "explain"]), (1, [support.CUPOOL, "doctor"]),
                              (1, [support.CUPOOL, "doctor", "--json"]), (1, [support.CUPOOL, "--help"])):
            for streams, words in ((">&-", "Bad file descriptor"), ("> /dev/full", "No space left")):
                with self.subTest(command=command[1:], streams=streams):
                    result = self.ended(streams, *command)
                    self.assertEqual((result.returncode, len(result.stderr.splitlines())), (code, 1), result.stderr)
                    self.assertIn(words, result.stderr)
                    self.assertEqual(self.ended(f"{streams} 2>&-", *command).returncode, code)


class OwnFailures(unittest.TestCase):
    def failure(self, code: int, *arguments: object, **options) -> str:
        result = cupool("run", "--library", support.PRELOAD, *arguments, **options)
        self.assertEqual(result.returncode, code, result.stderr)
        self.assertEqual(result.stdout, "")
        self.assertEqual(len(result.stderr.splitlines()), 1, result.stderr)
        self.assertTrue(result.stderr.startswith("cupool: "))
        return result.stderr

    def test_command_not_found(self):
        self.assertIn("not found", self.failure(127, "--", "no-such-command-anywhere"))
        self.failure(127, "--", "/no/such/path")

    def test_not_executable(self):
        with tempfile.TemporaryDirectory() as folder:
            plain = Path(folder) / "plain"
            plain.write_text("not a program")
            self.failure(126, "--", plain)
            self.failure(126, "--", folder)

    def test_missing_interpreter(self):
        with tempfile.TemporaryDirectory() as folder:
            script = Path(folder) / "script"
            script.write_text("#!/no/such/interpreter\n")
            script.chmod(0o755)
            self.assertIn("interpreter", self.failure(126, "--", script))

    def test_usage(self):
        self.assertIn("no command", self.failure(125))
        self.failure(125, "--no-such-flag", "x", "--", "true")
        self.failure(125, "--policy", "greedy", "--", "true")
        self.failure(125, "--policy")
        self.assertIn("no profile", self.failure(125, "--profile", "no-such-profile", "--", "true"))

    def test_bad_profiles(self):
        with tempfile.TemporaryDirectory() as folder:
            profile = Path(folder) / "p.json"
            for text, words in (("{\n oops", "p.json:2:2"), ('{"polciy": "grow"}', "polciy"), ("[1]", "expected an object"),
                                ('{"policy": [1]}', "policy"), ('{"timeline": true}', "must be a string or a number")):
                profile.write_text(text)
                self.assertIn(words, self.failure(125, "--profile", profile, "--", "true"))

    def test_library_that_cannot_be_preloaded(self):
        with tempfile.TemporaryDirectory(prefix="a b") as folder:
            copy = Path(folder) / "libcupool.so"
            copy.write_bytes(b"")
            result = cupool("run", "--library", copy, "--", "true")
            self.assertEqual(result.returncode, 125)
            self.assertIn("space", result.stderr)
        self.assertEqual(cupool("run", "--library", "/no/such.so", "--", "true").returncode, 125)
        with tempfile.NamedTemporaryFile(suffix=".so") as file:
            for content in (b"", b"no library", b"\x7fELF" + b"\x00" * 60):
                file.seek(0)
                file.truncate()
                file.write(content)
                file.flush()
                result = cupool("run", "--library", file.name, "--", "echo", "ran")
                self.assertEqual((result.returncode, result.stdout), (125, ""), content)
                self.assertIn("not a shared library", result.stderr)

    def test_file_without_a_first_line_is_run_by_sh(self):
        with tempfile.TemporaryDirectory() as folder:
            script = Path(folder) / "script"
            script.write_text("exit 17\n")
            script.chmod(0o755)
            self.assertEqual(status_of(script), 17)


class Environment(unittest.TestCase):
    def environment_of(self, *flags: str, env: dict[str, str]) -> dict[str, str]:
        result = subprocess.run([str(support.CUPOOL), "run", "--library", str(support.PRELOAD), "--keep-framework-pool", *flags, "--", "env", "-0"], env=env,
                                capture_output=True, check=True)
        return dict(entry.split("=", 1) for entry in os.fsdecode(result.stdout).split("\0") if entry)

    def test_nothing_else_changes(self):
        given = {"PATH": os.environ["PATH"], "PWD": os.getcwd(), "ODD": os.fsdecode(b"\xff\xfe caf\xc3\xa9 = x"), "EMPTY": "", "PYTHONPATH": "/nowhere",
                 "PYTHONHOME": "/nowhere"}
        found = self.environment_of(env=given)
        self.assertRegex(found.pop("CUPOOL_RUN_ID"), r"^[0-9a-f]{12}$")
        self.assertEqual(found.pop("LD_PRELOAD"), str(support.PRELOAD))
        self.assertEqual(found, given)

    def test_names_that_a_shell_cannot_have_or_uses_itself_arrive(self):
        given = {"PATH": os.environ["PATH"], "a.b": "1", "BASH_FUNC_f%%": "() {  :\n}", "key": "k", "value": "v", "here": "h", "library": "l", "folder": "f",
                 "python": "p", "ignored": "i", "_cupool_key": "own", "_CUPOOL_ENVIRONMENT": "own", "BIG": "x" * 60_000}
        found = self.environment_of(env=given)
        del found["CUPOOL_RUN_ID"], found["LD_PRELOAD"]
        self.assertEqual(found, given)
        self.assertNotIn("_CUPOOL_ENVIRONMENT", self.environment_of(env={"PATH": os.environ["PATH"]}))

    def test_an_environment_too_large_to_be_handed_on_arrives_by_the_shell(self):
        given = {"PATH": os.environ["PATH"], "PWD": os.getcwd(), "key": "k", "BIG": "x" * 120_000}
        found = self.environment_of(env=given)
        del found["CUPOOL_RUN_ID"], found["LD_PRELOAD"]
        self.assertEqual(found, given)

    def test_other_preloads_stay_and_ours_comes_first_once(self):
        other = "/lib/x86_64-linux-gnu/libm.so.6"
        found = self.environment_of(env=clean_environment(LD_PRELOAD=f"{other} {support.PRELOAD}"))
        self.assertEqual(found["LD_PRELOAD"], f"{support.PRELOAD}:{other}")

    def test_other_copies_of_the_library_go(self):
        for copy in ("/elsewhere/libcupool.so", f"/elsewhere/{os.path.basename(support.PRELOAD)}"):
            self.assertEqual(self.environment_of(env=clean_environment(LD_PRELOAD=copy))["LD_PRELOAD"], str(support.PRELOAD))

    def test_flag_beats_variable_beats_profile(self):
        with tempfile.TemporaryDirectory() as folder:
            profile = Path(folder) / "mine.json"
            profile.write_text('{"description": "for the test", "policy": "preallocate", "free": "sync", "stack_depth": 7}')
            env = clean_environment(CUPOOL_FREE="immediate", CUPOOL_STACK_DEPTH="9")
            found = self.environment_of("--profile", str(profile), "--stack-depth", "11", env=env)
        self.assertEqual((found["CUPOOL_POLICY"], found["CUPOOL_FREE"], found["CUPOOL_STACK_DEPTH"]), ("preallocate", "immediate", "11"))

    def test_every_option_has_a_flag(self):
        from cupool_lib.options import INTERNAL, load_options
        text = cupool("run", "--help").stdout
        for option in load_options():
            self.assertEqual(option.name not in INTERNAL, f"{option.flag} " in text, option.flag)

    def test_a_run_inside_a_run_extends_the_id(self):
        found = self.environment_of(env=clean_environment(CUPOOL_RUN_ID="outer"))
        self.assertRegex(found["CUPOOL_RUN_ID"], r"^outer\.[0-9a-f]{12}$")
        found = self.environment_of(env=clean_environment(CUPOOL_RUN_ID="bad id/" * 20))
        self.assertRegex(found["CUPOOL_RUN_ID"], r"^[0-9a-f]{12}$")

    def test_command_flags_are_the_commands(self):
        result = subprocess.run(run_arguments("echo", "--policy", "x", "--", "-h"), env=clean_environment(), capture_output=True, check=True)
        self.assertEqual(result.stdout, b"--policy x -- -h\n")
        result = cupool("run", "--library", support.PRELOAD, "echo", "--policy", "x")
        self.assertEqual(result.stdout, "--policy x\n")


# For programs with handlers: returns at a signal, also at one that came just before, over which signal.pause() would sleep.
NEXT_SIGNAL = ("import os, signal, sys\n"
               "wakeups, signalled = os.pipe()\nos.set_blocking(signalled, False)\nsignal.set_wakeup_fd(signalled)\n"
               "def next_signal(): os.read(wakeups, 1)\n")


class Signals(unittest.TestCase):
    def start(self, program: str, **options) -> subprocess.Popen:
        """A program that says `ready`, under the wrapper."""
        process = subprocess.Popen(run_arguments(PYTHON, "-c", program), env=clean_environment(), stdin=subprocess.PIPE,
                                   stdout=subprocess.PIPE, **options)
        self.addCleanup(lambda: (process.poll() is None and process.kill(), process.stdin.close(), process.stdout.close(), process.wait()))
        self.assertEqual(process.stdout.readline(), b"ready\n")
        return process

    def test_signals_are_handed_on(self):
        program = (f"{NEXT_SIGNAL}"
                   "for s in (1, 2, 3, 10, 12, 14, 15, 28): signal.signal(s, lambda n, f: (print(n, flush=True), n == 15 and sys.exit(21)))\n"
                   "print('ready', flush=True)\n"
                   "while True: next_signal()\n")
        process = self.start(program)
        for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM, signal.SIGWINCH, signal.SIGTERM):
            process.send_signal(number)
            self.assertEqual(process.stdout.readline(), b"%d\n" % number)
        self.assertEqual(process.wait(timeout=30), 21)

    def test_default_deaths_by_a_signal_to_the_wrapper(self):
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            process = self.start("import signal\nsignal.signal(2, signal.SIG_DFL)\nprint('ready', flush=True)\nwhile True: signal.pause()")
            process.send_signal(number)
            self.assertEqual(process.wait(timeout=30), -number)

    @unittest.skipUnless(os.geteuid() == 0, "only root can make a program that has other rights than its caller")
    def test_a_signal_that_may_not_be_handed_on_is_dropped(self):
        with tempfile.TemporaryDirectory() as folder:
            os.chmod(folder, 0o755)
            privileged = Path(folder, "python")  # as sudo: all of its user ids become root's
            shutil.copyfile(os.path.realpath(PYTHON), privileged)
            privileged.chmod(0o4755)
            program = "import os, sys\nos.setuid(0)\nprint('ready', flush=True)\nsys.stdin.read()\nsys.exit(7)"
            arguments = run_arguments(privileged, "-I", "-c", program)
            process = subprocess.Popen(arguments, env=clean_environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, user=65534, group=65534)
            with process:
                if process.stdout.readline() != b"ready\n":
                    process.stdin.close()
                    self.skipTest("set-user-ID programs have no effect here")
                process.send_signal(signal.SIGTERM)
                while int(re.search(r"ShdPnd:\s*(\w+)", Path(f"/proc/{process.pid}/status").read_text())[1], 16):
                    pass  # until the wrapper has taken it
                process.stdin.close()
                self.assertEqual((process.stderr.read(), process.wait(timeout=30)), (b"", 7))

    def test_an_interrupt_while_it_starts_is_quiet(self):
        """While modules are loaded, the first and a later one: it ends by the signal, with no traceback."""
        for module in ("cupool_lib.cli", "argparse"):
            program = ("import builtins, os, runpy, signal, sys\nown = builtins.__import__\n"
                       f"def load(name, *rest):\n  if name == {module!r}: os.kill(os.getpid(), signal.SIGINT)\n  return own(name, *rest)\n"
                       f"builtins.__import__ = load\nsys.argv = ['cupool', 'run', '--', 'true']\nrunpy.run_path({str(support.ROOT / 'scripts/cupool_lib/__main__.py')!r}, run_name='__main__')\n")
            result = subprocess.run([PYTHON, "-I", "-S", "-c", program], env=clean_environment(), capture_output=True, text=True, check=False, timeout=60)
            self.assertEqual((result.returncode, result.stderr), (-signal.SIGINT, ""), module)

    def test_killing_the_wrapper_kills_the_program(self):
        process = self.start("import signal\nprint('ready', flush=True)\nwhile True: signal.pause()")
        process.kill()
        self.assertEqual(process.wait(timeout=30), -signal.SIGKILL)
        self.assertEqual(process.stdout.read(), b"")  # the end of the pipe: nobody has it open any more

    def test_the_wrapper_stops_and_continues_with_the_program(self):
        for number in (signal.SIGSTOP, signal.SIGTSTP):
            # A group of its own, with a parent outside it: in an orphaned group SIGTSTP would be lost.
            process = self.start(f"import os\nprint('ready', flush=True)\nos.kill(os.getpid(), {int(number)})\nprint('on', flush=True)",
                                 preexec_fn=os.setpgrp)
            _, status = os.waitpid(process.pid, os.WUNTRACED)
            self.assertTrue(os.WIFSTOPPED(status))
            self.assertEqual(os.WSTOPSIG(status), number)
            process.send_signal(signal.SIGCONT)
            self.assertEqual(process.stdout.readline(), b"on\n")
            self.assertEqual(process.wait(timeout=30), 0)

    def facts(self, preexec) -> tuple[int, int]:
        result = subprocess.run(run_arguments("/usr/bin/grep", "-E", "SigIgn|SigBlk", "/proc/self/status"), env=clean_environment(), preexec_fn=preexec,
                                restore_signals=False, capture_output=True, check=True)
        blocked, ignored = (int(line.split()[1], 16) for line in result.stdout.splitlines())
        return blocked, ignored

    def test_mask_and_ignored_signals_are_the_callers(self):
        def plain():
            for number in (signal.SIGPIPE, signal.SIGXFSZ):
                signal.signal(number, signal.SIG_DFL)

        def odd():
            plain()
            for number in (signal.SIGPIPE, signal.SIGHUP, signal.SIGINT):
                signal.signal(number, signal.SIG_IGN)
            signal.pthread_sigmask(signal.SIG_SETMASK, {signal.SIGUSR2})

        def bits(*numbers):
            return sum(1 << (number - 1) for number in numbers)

        self.assertEqual(self.facts(plain), (0, 0))
        self.assertEqual(self.facts(odd), (bits(signal.SIGUSR2), bits(signal.SIGPIPE, signal.SIGHUP, signal.SIGINT)))

    def test_a_terminals_interrupt_arrives_once(self):
        program = (f"{NEXT_SIGNAL}count = 0\n"
                   "def on_int(n, f):\n  global count\n  count += 1\n  print('int', flush=True)\n"
                   "signal.signal(2, on_int)\nsignal.signal(10, lambda n, f: (print('count', count, flush=True), sys.exit(5)))\n"
                   "print('ready', os.isatty(0), os.tcgetpgrp(0) == os.getpgrp() == os.getppid(), flush=True)\n"
                   "while True: next_signal()\n")
        pid, terminal = pty.fork()
        if pid == 0:
            os.execve(support.CUPOOL, run_arguments(PYTHON, "-c", program), clean_environment())
        with os.fdopen(terminal, "r+b", buffering=0) as stream:
            seen = b""

            def wait_for(text: bytes):
                nonlocal seen
                while text not in seen:
                    seen += os.read(stream.fileno(), 1024)

            wait_for(b"ready True True\r\n")
            stream.write(b"\x03")
            wait_for(b"int\r\n")
            os.kill(pid, signal.SIGUSR1)  # after any second SIGINT that the wrapper would have handed on
            wait_for(b"count 1\r\n")
            _, status = os.waitpid(pid, 0)
        self.assertEqual(os.waitstatus_to_exitcode(status), 5)


class Installed(unittest.TestCase):
    def test_the_command_finds_its_parts_where_cmake_installs_them(self):
        with tempfile.TemporaryDirectory() as prefix:
            import shutil
            share, lib = Path(prefix, "share/cupool"), Path(prefix, "lib/x86_64-linux-gnu")
            (share / "profiles").mkdir(parents=True)
            lib.mkdir(parents=True)
            Path(prefix, "bin").mkdir()
            shutil.copy(support.CUPOOL, Path(prefix, "bin/cupool"))
            shutil.copytree(support.ROOT / "scripts/cupool_lib", share / "cupool_lib", ignore=shutil.ignore_patterns("__pycache__"))
            for name in ("options.json", "report.schema.json", "causes.json"):
                shutil.copy(support.ROOT / "config" / name, share / name)
            shutil.copy(support.PRELOAD, lib / "libcupool.so")
            link = Path(prefix, "link")
            link.symlink_to(Path(prefix, "bin/cupool"))
            result = subprocess.run([link, "run", "--", "env"], env=clean_environment(), capture_output=True, text=True, check=False)
            self.assertIn(f"LD_PRELOAD={lib}/libcupool.so", result.stdout, result.stderr)
            self.assertFalse(list(share.rglob("*.pyc")))
            (lib / "libcupool.so").unlink()
            self.assertEqual(subprocess.run([link, "run", "--", "true"], env=clean_environment(), capture_output=True, check=False).returncode, 125)

    def test_the_script_is_executable(self):
        self.assertTrue(os.stat(support.CUPOOL).st_mode & stat.S_IXUSR)


if __name__ == "__main__":
    faulthandler.dump_traceback_later(200, exit=True)  # waitpid has no timeout: a wrapper that hangs must not hang the tests, and is to be found
    unittest.main()
