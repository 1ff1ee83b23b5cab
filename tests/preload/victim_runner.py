"""Runs one case of one victim under the preloaded library, and on the bare simulated driver, and judges both.

    run_victim.py --build BUILD --library libcupool.so --source victims/x.c --program x [--case NAME]

A victim is a small unmodified program; what must become of it stands in its own source (victim_spec.py). Exit 0: all as
expected. Otherwise every broken expectation is printed, with what the program wrote.
"""
from __future__ import annotations

import argparse
import contextlib
import glob
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))
from cupool_lib import validate  # noqa: E402

import victim_spec  # noqa: E402

TYPE_CHECKING = False
if TYPE_CHECKING:  # imported where they are needed: few tests do, and hundreds start
    from cupool_lib import live_page, trace_file

SKIPPED = 77
LATE_CALL = " called after the driver was deinitialised"


@dataclass
class Outcome:
    """What `check` expressions see: these fields, and d / c (device 0 of the exit report, its counters), calls(symbol), warnings (about options),
    trace(name), moves(name), trace_moves(name), events(name) of a file of CUPOOL_TRACE."""

    pid: int
    code: int
    out: str
    err: str
    folder: Path
    sim: dict | None = None
    report: dict | None = None
    reports: dict[str, dict] = field(default_factory=dict)
    ooms: list[dict] = field(default_factory=list)
    bad_reports: list[str] = field(default_factory=list)
    pages: list[live_page.Page] = field(default_factory=list)
    native: "Outcome | None" = None

    def calls(self, symbol: str) -> int:
        return (self.sim or {}).get("calls", {}).get(symbol, 0)

    def trace(self, name: str) -> trace_file.Trace:
        from cupool_lib import trace_file
        return trace_file.Trace(str(self.folder / name))

    def moves(self, name: str) -> list[tuple]:
        """What the program did by the trace `name`: ("a", block, bytes) or ("f", block)."""
        return [("f", move.block) if move.is_free else ("a", move.block, move.requested_bytes) for move in self.trace_moves(name)]

    def trace_moves(self, name: str) -> list[trace_file.Move]:
        from cupool_lib import trace_file
        return list(trace_file.moves(self.trace(name), 0))

    def events(self, name: str) -> list[trace_file.Event]:
        return list(self.trace(name).events())

    def names(self) -> dict:
        device = self.report["devices"][0] if self.report and self.report["devices"] else {}
        said = self.report["data_quality"]["warnings"] if self.report else []
        warnings = [sentence for sentence in said if "CUPOOL_" in sentence]
        return {**self.__dict__, "calls": self.calls, "trace": self.trace, "moves": self.moves, "trace_moves": self.trace_moves, "events": self.events,
                "d": device, "c": device.get("counters", {}), "warnings": warnings,
                "files": sorted(p.name for p in self.folder.iterdir()), "re": re, "os": os, "glob": glob.glob, "json": json, "MiB": 1 << 20, "GiB": 1 << 30}


def environment(program: Path, build: Path, spec: victim_spec.Spec, folder: Path, library: Path | None) -> dict[str, str]:
    env = {k: v for k, v in os.environ.items() if not k.startswith(("CUPOOL_", "CUSIM_", "XLA_", "TF_", "RANK", "SLURM_", "OMPI_"))}
    env["LD_LIBRARY_PATH"] = str(build / "sim")
    env["CUSIM_LOG"] = str(folder.parent / "cusim.json")
    env["CUSIM_MEMORY"] = "8GiB"
    libraries = build / "tests" / "preload" / "victims" / "libraries"
    env["VICTIM_LIBRARIES"] = str(libraries)
    for name, value in spec.env.items():
        if library is not None or not name.startswith("CUPOOL_"):
            env[name] = value
    preloads = [[str(libraries / name) if "/" not in name else name for name in part.split(":") if name]
                for part in spec.preload.split("|")]
    all_preloads = preloads[0] + ([str(library)] if library is not None else []) + preloads[1]
    if all_preloads:
        env["LD_PRELOAD"] = ":".join(all_preloads)
    return env


def page_folder(spec: victim_spec.Spec) -> Path:
    return Path("/dev/shm") / f"cupool-{os.geteuid() if spec.uid is None else spec.uid}"


def pages_of_all(spec: victim_spec.Spec) -> set[Path]:
    usual = page_folder(spec)
    return {path for folder in [usual, *usual.parent.glob(f"{usual.name}.*")] if folder.is_dir() for path in folder.iterdir()}


def take_pages(pid: int, spec: victim_spec.Spec, before: set[Path]) -> list[live_page.Page]:
    """Pages that this process left behind; read, then removed. `before`: pages of dead processes, whose pid may have come again."""
    found = []
    for path in sorted(pages_of_all(spec) - before):
        if not path.name.startswith(f"{pid}."):
            continue
        from cupool_lib import live_page
        found.append(live_page.parse(path.read_bytes()))
        path.unlink()
    return found


def read_reports(outcome: Outcome) -> None:
    for path in sorted(outcome.folder.rglob("*.json")):
        try:
            report = json.loads(path.read_text(encoding="utf-8"))
        except (ValueError, OSError) as error:
            outcome.bad_reports.append(f"{path.name}: {error}")
            continue
        if not str(report.get("schema", "")).startswith("cupool.report/"):
            continue
        outcome.reports[path.name] = report
        said = io.StringIO()
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            is_valid = validate.run(str(path)) == 0
        if not is_valid:
            outcome.bad_reports.append(f"{path.name}: not a valid report: {said.getvalue()}")
        if path.stat().st_mode & 0o777 != 0o600:
            outcome.bad_reports.append(f"{path.name}: mode {path.stat().st_mode & 0o777:o}")
        if report["process"]["pid"] != outcome.pid:
            continue
        if report["event"] == "exit":
            outcome.report = report
        elif report["event"] == "oom":
            outcome.ooms.append(report)


def root() -> bool:
    """May files be given away and other users' processes be started here? A root of a user namespace often may not."""
    with tempfile.NamedTemporaryFile() as file:
        try:
            os.chown(file.name, 65000, 65000)
            return subprocess.run(["true"], user=65000, group=65000, extra_groups=[], check=False).returncode == 0
        except (OSError, subprocess.SubprocessError):
            return False


def give_to(uid: int, scratch: Path) -> None:
    """What setup gave to others already stays theirs."""
    for path in [scratch, *scratch.rglob("*")]:
        if path.lstat().st_uid == os.geteuid() and not path.name.startswith("kept-"):
            os.chown(path, uid, uid, follow_symlinks=False)


def reason_to_skip(spec: victim_spec.Spec) -> str:
    if spec.uid is not None and not root():
        return "it cannot start a process of another user here"
    names = {"root": root, "glob": glob.glob, "os": os}
    return next((f"not here: {expression}" for expression in spec.needs if not eval(expression, names)), "")


def run(program: Path, spec: victim_spec.Spec, build: Path, scratch: Path, library: Path | None) -> Outcome:
    folder = scratch / ("preloaded" if library else "native") / "cwd"
    folder.mkdir(parents=True)
    env = environment(program, build, spec, folder, library)
    for statement in spec.setup:
        exec(statement, {"env": env, "os": os, "folder": folder, "scratch": folder.parent})
    if spec.uid is not None:
        give_to(spec.uid, scratch)
    pages_before = pages_of_all(spec)
    before = os.getcwd()
    os.chdir(folder)
    process = subprocess.Popen([str(program), *spec.args], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                               stdin=subprocess.DEVNULL, text=True, errors="replace", user=spec.uid, group=spec.uid,
                               extra_groups=None if spec.uid is None else [])
    os.chdir(before)
    try:
        out, err = process.communicate(timeout=spec.seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        out, err = process.communicate()
        err += f"\n(killed: it ran longer than {spec.seconds} s)"
    outcome = Outcome(process.pid, process.returncode, out, err, folder)
    log = folder.parent / "cusim.json"
    outcome.sim = json.loads(log.read_text(encoding="utf-8")) if log.exists() and log.stat().st_size else None
    outcome.pages = take_pages(process.pid, spec, pages_before)
    if spec.uid is not None:
        with contextlib.suppress(OSError):  # not there, not empty, or no folder
            page_folder(spec).rmdir()
    read_reports(outcome)
    return outcome


def judge_end(outcome: Outcome, spec: victim_spec.Spec) -> list[str]:
    wanted = -int(getattr(signal, spec.signal)) if spec.signal else spec.exit
    broken = [] if outcome.code == wanted else [f"exit {outcome.code}, expected {wanted}"]
    if outcome.sim and not spec.misuse:
        known = list(outcome.native.sim["violations"]) if outcome.native and outcome.native.sim else []
        for sentence in outcome.sim["violations"]:
            if sentence in known and LATE_CALL in sentence:
                known.remove(sentence)  # the program's own call, made natively just the same
            elif not sentence.startswith("cuDevicePrimaryCtxRelease" + LATE_CALL):  # the runtime's exit handler
                broken.append(f"the driver saw: {sentence}")
    return broken


def judge_stderr(outcome: Outcome, spec: victim_spec.Spec) -> list[str]:
    lines = outcome.err.splitlines()
    broken = []
    for index in range(max(len(lines), len(spec.stderr))):
        line = lines[index] if index < len(lines) else None
        pattern = spec.stderr[index] if index < len(spec.stderr) else spec.stderr_rest
        pattern = pattern.replace("<pid>", str(outcome.pid)) if pattern else None
        if line is None or pattern is None or not re.fullmatch(pattern, line):
            broken.append(f"stderr line {index + 1}: {line!r}, expected {pattern!r}")
    return broken


def judge_reports(outcome: Outcome, spec: victim_spec.Spec) -> list[str]:
    broken = list(outcome.bad_reports)
    if spec.report == "present" and outcome.report is None:
        broken.append(f"no exit report; files: {sorted(p.name for p in outcome.folder.iterdir())}")
    if spec.report == "present" and not spec.args and not re.match(r"cupool-report\.", next(iter(outcome.reports), "")):
        broken.append("the report has not the default name")
    own = [r for r in outcome.reports.values() if r["process"]["pid"] == outcome.pid]
    if spec.report == "absent" and any(r["event"] == "exit" for r in own):
        broken.append("there is a report, expected none")
    if len(outcome.reports) != len(own) and not spec.pages_of_children:
        broken.append("another process wrote a report")
    if spec.ooms is not None and len(outcome.ooms) != spec.ooms:
        broken.append(f"{len(outcome.ooms)} OOM reports, expected {spec.ooms}")
    if spec.page != "any" and bool(outcome.pages) != (spec.page == "left"):
        broken.append(f"live page {'left' if outcome.pages else 'gone'}, expected {spec.page}")
    litter = [p.name for p in outcome.folder.rglob("*") if p.name.startswith(".") or p.name.endswith(".tmp")]
    return broken + [f"temporary file left: {name}" for name in litter]


def judge_native(outcome: Outcome, native: Outcome) -> list[str]:
    broken = []
    if native.code != outcome.code:
        broken.append(f"natively it exits with {native.code}, preloaded with {outcome.code}")
    if native.out != outcome.out:
        ours, bare = outcome.out.splitlines(), native.out.splitlines()
        for index in range(max(len(ours), len(bare))):
            pair = [lines[index] if index < len(lines) else None for lines in (bare, ours)]
            if pair[0] != pair[1]:
                broken.append(f"stdout line {index + 1}: natively {pair[0]!r}, preloaded {pair[1]!r}")
    return broken


def judge_checks(outcome: Outcome, spec: victim_spec.Spec) -> list[str]:
    broken = []
    for expression in spec.check:
        try:
            if not eval(expression, outcome.names()):
                broken.append(f"not true: {expression}")
        except Exception as error:  # a missing key is a broken expectation as well
            broken.append(f"{type(error).__name__} ({error}) in: {expression}")
    return broken


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("--build", "--library", "--source", "--program"):
        parser.add_argument(name, type=Path, required=True)
    parser.add_argument("--case", default="default")
    parser.add_argument("--keep", action="store_true", help="leave the scratch folder, and say where it is")
    given = parser.parse_args()
    spec = victim_spec.read(given.source)[given.case]
    if why := reason_to_skip(spec):
        print(f"SKIPPED {why}")
        return SKIPPED
    scratch = Path(tempfile.mkdtemp(prefix="cupool-victim-"))
    try:
        native = run(given.program, spec, given.build, scratch, None) if spec.native == "same" else None
        outcome = run(given.program, spec, given.build, scratch, given.library)
        outcome.native = native
        broken = judge_end(outcome, spec) + judge_stderr(outcome, spec) + judge_reports(outcome, spec)
        broken += judge_native(outcome, native) if native else []
        broken += judge_checks(outcome, spec)
        for sentence in broken:
            print(f"BROKEN {sentence}")
        if broken:
            print(f"--- stdout\n{outcome.out[-4000:]}--- stderr\n{outcome.err[-4000:]}--- files {sorted(outcome.reports)}")
            if native:
                print(f"--- native stdout\n{native.out[-4000:]}--- native stderr\n{native.err[-4000:]}")
        return 1 if broken else 0
    finally:
        if given.keep:
            print(f"scratch: {scratch}")
        else:
            try:
                shutil.rmtree(scratch)
            except OSError:  # the victim took rights away
                subprocess.run(["chmod", "-R", "u+rwX", str(scratch)], check=False)
                shutil.rmtree(scratch, ignore_errors=True)
