#!/usr/bin/env python3
"""Whatever a report or a live page holds: `cupool report` and `cupool validate` answer with lines and an exit code, in bounded time.

Fixed mutations of every file of the corpus: the same seed number gives the same inputs. With --seconds, on and on until then; where
atheris is installed it chooses the inputs of such a run by coverage. An input that breaks a property is written to a file and named.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import hashlib
import io
import json
import os
import random
import resource
import signal
import sys
import tempfile
import time
import traceback
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.dont_write_bytecode = True
sys.path[:0] = [str(HERE.parents[1] / "scripts"), str(HERE)]
import report_mutations  # noqa: E402
from cupool_lib import cli, completion, json_schema, live_page, locate, report_file, validate  # noqa: E402

CORPUS = HERE / "corpus" / "report"
PAGE_MAGIC = live_page.MAGIC.to_bytes(8, "little")
INPUT_BYTES_MAX = 4 << 20
ERROR_LINE_MAX = 1000
SECONDS_MAX, MEMORY_MAX_BYTES = 3, 3 << 30
DEPTHS = range(sys.getrecursionlimit() - 40, sys.getrecursionlimit())
SCHEMA = json.loads(locate.data_file("report.schema.json").read_text(encoding="utf-8"))


class Broken(Exception):
    """A property does not hold; the text is a sentence."""


class TooSlow(BaseException):
    """Not an Exception: what is under test must not swallow it."""


def require(holds: bool, sentence: str, detail: object = "") -> None:
    if not holds:
        raise Broken(f"{sentence}: {detail!r:.400}" if detail != "" else sentence)


class Scratch:
    """The file that the commands read, and the folder of live pages."""

    def __init__(self, folder: str):
        self.report = os.path.join(folder, "r.json")
        self.pages = Path(folder, "pages")
        self.pages.mkdir(mode=0o700)
        self.written: list[str] = []
        # A damaged page names any file as the report's: nothing but this scratch is written or read.
        completion.write_atomically = lambda _target, text: self.written.append(text)
        completion.load = self._no_oom_report

    @staticmethod
    def _no_oom_report(path: str) -> dict:
        raise report_file.BadReport(f"{path}: not looked for")


def run_command(name: str, path: str, encoding: str) -> tuple[int, str, str]:
    """What the command printed, through streams that are as strict as a terminal's."""
    out = io.TextIOWrapper(io.BytesIO(), encoding=encoding, errors="strict", newline="")
    errors = io.TextIOWrapper(io.BytesIO(), encoding=encoding, errors="backslashreplace", newline="")
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
        code = cli.main([name, path])
    out.flush()
    errors.flush()
    return code, out.buffer.getvalue().decode(encoding), errors.buffer.getvalue().decode(encoding)


def check_lines(text: str, what: str, longest: int) -> None:
    require(text == "" or text.endswith("\n"), f"{what} ends in the middle of a line", text[-80:])
    for line in text.split("\n"):
        require(line.isprintable(), f"{what} has a character that a terminal obeys", line)
        require(len(line) <= longest, f"{what} has an endless line", line[:80])


def check_command(name: str, path: str, encoding: str, lines_max: int) -> int:
    code, out, errors = run_command(name, path, encoding)
    require(code in (0, 1), f"{name} ends with 0 or 1", code)
    check_lines(out, f"{name}'s output", INPUT_BYTES_MAX)
    check_lines(errors, f"{name}'s errors", ERROR_LINE_MAX)
    require((code == 0) == (errors == ""), f"{name} says what is wrong, and only then", (code, errors))
    require((code == 0) == (out != ""), f"{name} shows something, or says why not", (code, out[:80]))
    lines = errors.splitlines()
    require(all(line.startswith("cupool: ") for line in lines), f"{name}'s errors carry the prefix", lines[:1])
    require(len(lines) <= lines_max, f"{name} says it in few lines", len(lines))
    return code


def check_report(data: bytes, scratch: Scratch) -> None:
    with open(scratch.report, "wb") as stream:
        stream.write(data)
    encoding = ("utf-8", "ascii", "latin-1")[len(data) % 3]
    shown = check_command("report", scratch.report, encoding, 1)
    valid = check_command("validate", scratch.report, encoding, 21)
    require(shown == 0 or valid == 1, "what is valid can be shown")


def check_page(data: bytes, scratch: Scratch) -> None:
    try:
        page = live_page.parse(data)
    except live_page.BadPage as error:
        require(len(str(error)) <= ERROR_LINE_MAX, "a page is refused in few words", str(error)[:80])
        return
    path = scratch.pages / f"{page.pid}.{page.start_ticks}"
    path.write_bytes(data)
    scratch.written.clear()
    try:
        with contextlib.redirect_stderr(io.StringIO()) as errors:
            lines = completion.complete_run(page.run_id(), {page.pid: len(data) % 256}, 2 * 10**18, scratch.pages)
    finally:
        path.unlink(missing_ok=True)
    require(len(lines) <= 1, "one line for one page", lines)
    for text in [*scratch.written, *filter(None, [errors.getvalue()])]:
        check_report(text.encode("utf-8", "replace"), scratch)
        report = report_file.load(scratch.report)  # or raises: what cupool writes, cupool reads
        if not list(json_schema.problems(report, SCHEMA)):
            require(not list(validate.arithmetic(report)), "a completed report contradicts itself", list(validate.arithmetic(report))[:1])


def check(data: bytes, scratch: Scratch) -> None:
    """One input; raises what it broke."""
    if len(data) > INPUT_BYTES_MAX:
        return
    signal.setitimer(signal.ITIMER_VIRTUAL, SECONDS_MAX)
    signal.setitimer(signal.ITIMER_PROF, 3 * SECONDS_MAX)
    try:
        (check_page if data.startswith(PAGE_MAGIC) else check_report)(data, scratch)
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.setitimer(signal.ITIMER_PROF, 0)


def too_slow(*_) -> None:
    raise TooSlow(f"more than {SECONDS_MAX} s of processor time for one input")


def inputs(files: list[bytes], numbers: random.Random, rounds: int | None):
    """Each file as it is, those that are made to hurt, then mutations of each in turn, up to four on top of each other."""
    yield from files
    if rounds != 0:
        yield from report_mutations.attacks((CORPUS / "oom.json").read_bytes(), DEPTHS)
        yield from report_mutations.page_attacks((CORPUS / "page").read_bytes(), DEPTHS)
    kinds = [(data, [other for other in files if other.startswith(PAGE_MAGIC) == data.startswith(PAGE_MAGIC)]) for data in files]
    count = 0
    while rounds is None or count < rounds:
        count += 1
        for data, others in kinds:
            mutate = report_mutations.mutate_page if data.startswith(PAGE_MAGIC) else report_mutations.mutate_report
            for _ in range(numbers.choice((1, 1, 2, 4))):
                data = mutate(data, numbers.choice(others), numbers)[:INPUT_BYTES_MAX]
            yield data


def keep(data: bytes, folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"report-{hashlib.sha256(data).hexdigest()[:16]}"
    path.write_bytes(data)
    return path


def explore(files: list[bytes], flags: argparse.Namespace, scratch: Scratch) -> int:
    began, count = time.monotonic(), 0
    for data in inputs(files, random.Random(flags.seed), None if flags.seconds else flags.rounds):
        if flags.seconds and time.monotonic() - began > flags.seconds:
            break
        count += 1
        try:
            check(data, scratch)
        except (Exception, SystemExit, TooSlow):
            error = traceback.format_exc()  # before anything else needs memory
            sys.stderr.write(f"{error}report_fuzz: input {count} broke a property; it is in {keep(data, flags.found)}\n")
            return 1
    sys.stdout.write(f"{count} inputs from {len(files)} files, {time.monotonic() - began:.1f} s\n")
    return 0


def explore_by_coverage(flags: argparse.Namespace, scratch: Scratch) -> None:
    import atheris
    atheris.instrument_all()

    def mutate(data: bytes, size_max: int, seed: int) -> bytes:
        numbers = random.Random(seed)
        by_kind = report_mutations.mutate_page if data.startswith(PAGE_MAGIC) else report_mutations.mutate_report
        return by_kind(data, data, numbers)[:size_max] if numbers.random() < 0.7 else atheris.Mutate(data, size_max)

    flags.found.mkdir(parents=True, exist_ok=True)
    arguments = [sys.argv[0], f"-max_total_time={flags.seconds:.0f}", f"-seed={flags.seed}", "-max_len=65536", f"-artifact_prefix={flags.found}/", str(flags.found),
                 str(CORPUS)]
    atheris.Setup(arguments, lambda data: check(data, scratch), custom_mutator=mutate)
    atheris.Fuzz()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=50, metavar="N", help="mutations of each file of the corpus (default 50)")
    parser.add_argument("--seconds", type=float, default=0, metavar="N", help="go on for so long instead")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="other mutations (default 1)")
    parser.add_argument("--found", type=Path, default=Path("build/fuzz/found/report"), metavar="FOLDER",
                        help="where an input goes that broke a property (default build/fuzz/found/report)")
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE", help="check these inputs only, as they are")
    flags = parser.parse_args()
    paths = flags.files or sorted(CORPUS.iterdir())
    files = [path.read_bytes() for path in paths]
    if flags.files:
        flags.rounds, flags.seconds = 0, 0
    if not files:
        parser.error(f"no file in {CORPUS}")
    signal.signal(signal.SIGVTALRM, too_slow)
    faulthandler.register(signal.SIGPROF, chain=True)  # one call into C that does not end: says where, and ends the process
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_MAX_BYTES, MEMORY_MAX_BYTES))
    with tempfile.TemporaryDirectory(prefix="report_fuzz-") as folder:
        scratch = Scratch(folder)
        if flags.seconds:
            with contextlib.suppress(ImportError):
                explore_by_coverage(flags, scratch)  # ends the process
        return explore(files, flags, scratch)


if __name__ == "__main__":
    sys.exit(main())
