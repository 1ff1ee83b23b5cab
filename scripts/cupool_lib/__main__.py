"""Entry point, started by scripts/cupool. Parses under any Python 3, so that an old one gets a sentence."""

import _signal  # type: ignore  # what `signal` is made of, without the milliseconds that enum takes

# A Ctrl-C while modules are still loaded ends it quietly; cli.main takes it from there. Ignored stays ignored.
if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:
    _signal.signal(_signal.SIGINT, _signal.SIG_DFL)

import os  # noqa: E402
import sys  # noqa: E402


def newer_python():
    """The first newer interpreter on the PATH, for systems whose /usr/bin/python3 is older than 3.9."""
    for folder in os.environ.get("PATH", "").split(":"):
        for name in ("python3", "python3.13", "python3.12", "python3.11", "python3.10", "python3.9"):
            path = os.path.join(folder or ".", name)
            if os.access(path, os.X_OK) and os.path.realpath(path) != os.path.realpath(sys.executable):
                return path
    return None


def main():
    if sys.version_info < (3, 9):
        path = newer_python() if "--retried" not in sys.argv[1:2] else None
        if path:
            os.execv(path, [path, "-I", "-S", "-B", os.path.dirname(os.path.abspath(__file__)), "--retried"] + sys.argv[1:])
        if sys.stderr:  # None: closed by the caller
            sys.stderr.write("cupool: Python 3.9 or newer is needed; %s is %d.%d\n" % ((sys.executable,) + sys.version_info[:2]))
        return 125
    sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    from cupool_lib.cli import main as cli_main
    return cli_main([argument for argument in sys.argv[1:2] if argument != "--retried"] + sys.argv[2:])


if __name__ == "__main__":
    sys.exit(main())
