"""The command line: which subcommand, which flags, what --help says. The work is done in the modules of that name."""

from __future__ import annotations

import argparse
import io
import os
import signal
import sys

from cupool_lib import VERSION, locate
from cupool_lib.options import HANDED_ON, INTERNAL, Option, load_options
from cupool_lib.terminal import OutputFailed, fail, open_streams, put

OVERVIEW = """\
cupool pools CUDA memory for programs that know nothing of it, and says where the memory went.

  cupool run [FLAGS] [--] COMMAND...   run a program (and all that it starts) under the pool
  cupool report FILE                   show a report as text: why memory ran out, who holds it, how fragmented it is
  cupool doctor [-- COMMAND...]        check this machine, and what would happen to a command
  cupool fill [--to 90%]               take device memory step by step up to a target, to test with or to hold it
  cupool validate FILE                 check a report against its schema, and its arithmetic
  cupool trace FILE                    show what CUPOOL_TRACE recorded, or convert it into a benchmark
  cupool trim PID                      ask a running process to give back device memory that it does not use
  cupool dump PID                      ask a running process for a report now
  cupool explain [WORD]                what a word of the report means: a cause, a metric, a part of the ledger

`cupool SUBCOMMAND --help` tells more. Examples:

  cupool run --policy preallocate -- python train.py
  cupool run --limit 40GiB --report 'run.%r.json' -- torchrun --nproc-per-node 8 train.py
  cupool report cupool-report.myhost.4711.json
"""

RUN_HELP = """\
Runs COMMAND with libcupool.so preloaded, and ends exactly as it ends: with its exit code, or by its signal. stdin, the
terminal and the process group stay as they are; signals are handed on. A process of the run that is killed leaves a report
too: it is completed from the counters in shared memory. A failure of cupool itself ends with 125, a command that cannot
be run with 126, one that is not found with 127.

A flag wins over its variable in the environment, and that wins over a profile.

What JAX's and TensorFlow's own variables ask for (XLA_PYTHON_CLIENT_PREALLOCATE, XLA_CLIENT_MEM_FRACTION, TF_GPU_ALLOCATOR and
others) is translated for cupool, where nothing above says otherwise; then the pools of PyTorch, JAX and TensorFlow are told to
stand aside, so that every tensor comes from cupool. --dry-run shows it, --keep-framework-pool leaves all of that alone.
"""

RUN_EXAMPLES = """\
examples:
  cupool run -- python train.py                       grow on demand, report in the working folder
  cupool run --policy preallocate -- python train.py  take 75% of the GPU at the start
  cupool run --policy platform --report run.json -- ./app
                                                      change nothing, only count and report
  cupool run --limit 0:40GiB,1:50% -- ./app           at most so much on each device
  cupool run --dry-run -- python train.py             what would be set, and why; runs nothing
"""


class _Parser(argparse.ArgumentParser):
    """Errors as one line with our prefix, and with our own exit code."""

    failure_code = 2

    def print_help(self, file=None):
        put(self.format_help())

    def error(self, message: str):
        sys.exit(fail(f"{message} (see {self.prog} --help)", self.failure_code))


class _RunParser(_Parser):
    failure_code = 125


def _plain(doc: str) -> str:
    return doc.replace("`", "").replace("%", "%%")


def _value_of(option: Option):
    """What the library takes is taken; a typing error is told before the program starts."""
    def read(text: str) -> str:
        if problem := option.problem(text):
            raise argparse.ArgumentTypeError(f"'{text}' {problem}")
        return text
    return read


def _frameworks(text: str) -> frozenset[str]:
    from cupool_lib.handover_rules import POOLS
    known = {pool.framework.lower(): pool.framework for pool in POOLS}
    words = list(known) if text.strip().lower() == "all" else [word.strip().lower() for word in text.split(",")]
    if not set(words) <= set(known):
        raise argparse.ArgumentTypeError(f"'{text}' is not of {', '.join(known)}")
    return frozenset(known[word] for word in words)


def _run_parser(options: list[Option]) -> argparse.ArgumentParser:
    parser = _RunParser(prog="cupool run", usage="cupool run [FLAGS] [--] COMMAND [ARGUMENT]...", description=RUN_HELP,
                        epilog=RUN_EXAMPLES, allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--profile", metavar="NAME|FILE", help="settings from a shipped profile or a JSON file")
    parser.add_argument("--library", metavar="FILE", help="the libcupool.so to use (default: the one that belongs to this command)")
    parser.add_argument("--keep-framework-pool", nargs="?", type=_frameworks, const=_frameworks("all"), default=frozenset(), metavar="NAME,...",
                        help="leave the frameworks' own pools and settings as they are; with =pytorch, =jax or =tensorflow only that one's")
    parser.add_argument("--dry-run", action="store_true", help="print what would be set and why, and run nothing")
    group = parser.add_argument_group("options of the library, each the same as its variable")
    for option in options:
        if option.name not in INTERNAL:
            group.add_argument(option.flag, dest=option.name, metavar="|".join(option.values) or "VALUE", type=_value_of(option),
                               help=f"{_plain(option.doc)}. {option.variable}, default {_plain(option.default)}")
    return parser


def _run(arguments: list[str], ignored_signals: int) -> int:
    from cupool_lib import run
    try:
        options = load_options()
    except (locate.NotFound, OSError, ValueError, KeyError) as error:
        return fail(f"run: {error}", run.OWN_FAILURE)
    parser = _run_parser(options)
    valued = {"--profile", "--library"} | {option.flag for option in options}
    own, command = run.split_command(arguments, valued)
    flags = vars(parser.parse_args(own))
    choices = run.Choices(profile=flags.pop("profile"), library=flags.pop("library"), keep_pools=flags.pop("keep_framework_pool"),
                          dry_run=flags.pop("dry_run"), flags=flags)
    return run.run(options, choices, command, ignored_signals)


def _report(arguments: list[str]) -> int:
    from cupool_lib import report_file, summary
    parser = _Parser(prog="cupool report", description="Shows a report as text. Colour only on a terminal, and never with NO_COLOR set.")
    parser.add_argument("file", metavar="FILE", help="a cupool-report.*.json")
    path = parser.parse_args(arguments).file
    try:
        put(summary.render(report_file.load(path), path))
    except report_file.BadReport as error:
        return fail(str(error), 1)
    return 0


def _validate(arguments: list[str]) -> int:
    from cupool_lib import validate
    parser = _Parser(prog="cupool validate", description="Checks a report against config/report.schema.json and its own arithmetic: "
                     "one line per problem, exit code 1 if there is any.")
    parser.add_argument("file", metavar="FILE", nargs="+", help="a cupool-report.*.json")
    return max(validate.run(path) for path in parser.parse_args(arguments).file)


def _doctor(arguments: list[str]) -> int:
    from cupool_lib import doctor
    parser = _Parser(prog="cupool doctor", usage="cupool doctor [--json] [--library FILE] [-- COMMAND...]", allow_abbrev=False,
                     description="Checks library, driver, devices, permissions, other preloads and the environment, and what would happen "
                     "to COMMAND. Each check is ok, warning or failure, with what to do. Exit code 1 if one failed. As a "
                     "container's start-up check: cupool doctor -- python train.py && exec cupool run -- python train.py")
    parser.add_argument("--json", action="store_true", help="print the checks as JSON")
    parser.add_argument("--library", metavar="FILE", help="the libcupool.so to check (default: the one that belongs to this command)")
    from cupool_lib.run import split_command
    own, command = split_command(arguments, {"--library"})
    flags = parser.parse_args(own)
    return doctor.run(command, flags.library, flags.json)


def _explain(arguments: list[str]) -> int:
    from cupool_lib import explain
    parser = _Parser(prog="cupool explain", description="What a word of the report means. Without a word: the list of words.")
    parser.add_argument("word", metavar="WORD", nargs="?", help="a cause, a metric, a part of the ledger, a counter")
    return explain.run(parser.parse_args(arguments).word)


def _trace(arguments: list[str]) -> int:
    from cupool_lib import trace
    parser = _Parser(prog="cupool trace", description="Prints or converts the file that CUPOOL_TRACE recorded; the job may still run, or have "
                     "been killed. text: 'a <id> <bytes> <stream>' and 'f <id>', what build/bench/replay and the recorded jobs use; rmm: the CSV that "
                     "RMM's replay benchmark reads; native and json: every event with all that is known of it.")
    parser.add_argument("file", metavar="FILE", help="a file that CUPOOL_TRACE named")
    parser.add_argument("--format", choices=sorted(trace.FORMATS), default="text", help="default: text")
    parser.add_argument("--device", type=int, metavar="N", help="only the events of this device (text and rmm are of one)")
    parser.add_argument("-o", "--output", metavar="OUT", help="write there instead of stdout; a name that ends in .gz is compressed")
    flags = parser.parse_args(arguments)
    return trace.run(flags.file, flags.format, flags.device, flags.output)


def _ask(name: str, what: str, arguments: list[str]) -> int:
    from cupool_lib import ask
    parser = _Parser(prog=f"cupool {name}", description=f"{what} The process answers at its next CUDA call about memory, or when it has waited for the GPU; "
                     "launching kernels is neither. What another such command has asked for is done first. Only for processes of the same user "
                     "on this machine (and in this container) that have used device memory under cupool.")
    parser.add_argument("pid", metavar="PID", type=int)
    parser.add_argument("--wait", metavar="SECONDS", type=_reader(_bounded_seconds), default=10.0, help="how long to wait for the answer (default 10)")
    flags = parser.parse_args(arguments)
    return ask.run(name, flags.pid, flags.wait)


def _trim(arguments: list[str]) -> int:
    return _ask("trim", "Asks a process to give back the device memory that its pool keeps and nobody uses.", arguments)


def _dump(arguments: list[str]) -> int:
    return _ask("dump", "Asks a process for a report now, and prints where it lies: the report's name with .request<k> before the extension.", arguments)


def _fill(arguments: list[str]) -> int:
    from cupool_lib import fill
    parser = _Parser(prog="cupool fill", description="Allocates device memory in steps until so much of the device is in use (by anybody), prints each step, "
                     "and frees it. Exit code 0 when the target was reached, 1 with what was reached when not; Ctrl-C and SIGTERM free everything first.")
    parser.add_argument("--to", metavar="SHARE|SIZE", default="90%", type=_reader(fill.Target.parse),
                        help="how full the device shall be: 90%%, 0.9 or 8GiB (default 90%%)")
    parser.add_argument("--step", metavar="SIZE", default="1GiB", type=_reader(fill.parse_bytes), help="most that one allocation takes (default 1GiB)")
    parser.add_argument("--device", metavar="N", default=0, type=int, help="which device, as CUDA counts them (default 0)")
    parser.add_argument("--hold", metavar="SECONDS|until-signal", nargs="?", const="until-signal", type=_reader(_seconds),
                        help="keep the memory so long; without a value until a signal comes (default: free it at once)")
    choice = parser.parse_args(arguments)
    if choice.step < 1:
        parser.error("--step must be at least 1 byte")
    return fill.run(choice.to, choice.step, choice.device, choice.hold)


def _seconds(text: str) -> float:
    """A number of seconds, or UNTIL_SIGNAL. Raises ValueError."""
    from cupool_lib.fill import UNTIL_SIGNAL
    if text.strip().lower() in ("until-signal", "until signal", "signal"):
        return UNTIL_SIGNAL
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < 1e9:
        raise ValueError(f"'{text}' is no number of seconds")
    return seconds


def _bounded_seconds(text: str) -> float:
    """A number of seconds, not a word. Raises ValueError."""
    if (seconds := _seconds(text)) < 0:
        raise ValueError(f"'{text}' is no number of seconds")
    return seconds


def _reader(parse):
    """`parse` with its ValueError as the message that the user sees."""
    def read(text: str):
        try:
            return parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None
    return read


_COMMANDS = {"fill": _fill, "report": _report, "validate": _validate, "doctor": _doctor, "explain": _explain, "trace": _trace, "trim": _trim,
             "dump": _dump}


def main(arguments: list[str]) -> int:
    ignored_signals = 0
    os.environ.pop(HANDED_ON, None)
    if arguments and arguments[0].startswith("--ignored-signals="):
        ignored_signals = int(arguments.pop(0).partition("=")[2] or "0", 16)
    open_streams()
    try:
        return _main(arguments, ignored_signals)
    except OutputFailed as error:
        return fail(str(error), _RunParser.failure_code if arguments[:1] == ["run"] else 1)


def _main(arguments: list[str], ignored_signals: int) -> int:
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        put(OVERVIEW)
        return 0 if arguments else 2
    if arguments[0] == "--version":
        put(f"cupool {VERSION}\n")
        return 0
    name, rest = arguments[0], arguments[1:]
    if name == "run":
        return _run(rest, ignored_signals)
    if name not in _COMMANDS:
        known = ", ".join(["run", *_COMMANDS])
        return fail(f"there is no subcommand '{name}': {known} (see cupool --help)", 2)
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `cupool report FILE | head` ends quietly
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)  # files that are not whole go
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a locale may lack a character of a report
    try:
        return _COMMANDS[name](rest)
    except MemoryError:
        return fail(f"{name}: not enough host memory for this", 1)
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
        return 130
