"""`cupool trace`: what it makes of whole, cut and broken traces, and that a job, traced, converted and replayed, stays itself."""

from __future__ import annotations

import contextlib
import csv
import gzip
import io
import json
import os
import subprocess
import tempfile
import unittest
from pathlib import Path

import support
from cupool_lib import trace_file
from support import cupool, simulator_environment
from trace_bytes import chunk, header, record

REPLAY = support.BUILD / "bench" / "replay"
CORPUS = support.ROOT / "tests/fuzz/corpus/trace"
A, B = 1 << 44, (1 << 44) + 4096


def a_job() -> bytes:
    return header(dropped=0) + chunk(
        record("region_create", A, None, 2 << 20, thread=0), record("allocate", A, 1000, elapsed=500), record("allocate", B, 7, 512, stream=0xABC),
        record("free_requested", A, stream=0xABC, thread=2), record("free_completed", A), record("allocate", A, 700, 2 << 20, origin=9),
        record("oom", 5, 1 << 60, 0), record("free_requested", B, ticks=3000))


class WithFile(unittest.TestCase):
    def setUp(self):
        holder = tempfile.TemporaryDirectory()
        self.addCleanup(holder.cleanup)
        self.folder = Path(holder.name)
        self.path = self.folder / "t"

    def convert(self, data: bytes, *arguments: object) -> str:
        self.path.write_bytes(data)
        result = cupool("trace", self.path, *arguments)
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        return result.stdout

    def body(self, data: bytes) -> list[str]:
        return self.convert(data).splitlines()[1:]


class Conversions(WithFile):
    def test_text_is_the_format_of_the_recorded_jobs(self):
        first, *lines = self.convert(a_job()).splitlines()
        self.assertEqual(lines, ["a 0 1000 0", "a 1 7 1", "f 0", "a 2 700 0", "f 1"])
        metadata = json.loads(first[2:])
        self.assertEqual({key: metadata[key] for key in ("events", "allocs", "frees", "peak_live", "end_live", "device", "dropped_events")},
                         {"events": 5, "allocs": 3, "frees": 2, "peak_live": 1007, "end_live": 700, "device": 0, "dropped_events": 0})
        self.assertEqual(metadata["workload"], "job")

    def test_rmm_is_what_its_replay_benchmark_reads(self):
        rows = list(csv.DictReader(io.StringIO(self.convert(a_job(), "--format", "rmm"))))
        self.assertEqual(list(rows[0]), ["Thread", "Time", "Action", "Pointer", "Size", "Stream"])
        self.assertEqual([(row["Action"], int(row["Pointer"], 16), int(row["Size"]), int(row["Stream"]), row["Thread"]) for row in rows], [
            ("allocate", A, 1000, 0, "1"), ("allocate", B, 7, 1, "1"), ("free", A, 1000, 1, "2"), ("allocate", A, 700, 0, "1"), ("free", B, 7, 1, "1")])
        self.assertEqual([row["Time"] for row in rows][::4], ["00:00:05.000000", "00:00:05.000001"])

    def test_native_and_json_hold_everything(self):
        lines = self.convert(a_job(), "--format", "native").splitlines()
        self.assertEqual(lines[2:5], [f"5000000000 0 region_create {A:#x} - 2097152 0 0 0", f"5000000250 0 allocate {A:#x} 1000 1024 0 0 1",
                                      f"5000000251 0 allocate {B:#x} 7 512 2748 0 1"])
        found = json.loads(self.convert(a_job(), "--format", "json"))
        self.assertEqual((found["schema"], found["pid"], found["devices"], len(found["events"])), ("cupool.trace/1", 7, [0], 8))
        rows = [dict(zip(found["columns"], row)) for row in found["events"]]
        self.assertEqual(rows[5], {"unix_ns": 5000000252, "device": 0, "kind": "allocate", "address": A, "requested_bytes": 700, "bytes": 2 << 20,
                                   "stream": 0, "site": 9, "thread": 1})
        self.assertEqual((rows[6]["kind"], rows[6]["requested_bytes"], rows[7]["unix_ns"]), ("oom", 1 << 60, 5000001000))

    def test_output_goes_to_a_file_whole_or_not_at_all(self):
        out = self.folder / "out.trace.gz"
        self.assertEqual(self.convert(a_job(), "-o", out), "")
        self.assertIn("a 0 1000 0\n", gzip.open(out, "rt").read())
        self.path.write_bytes(a_job()[:-10])
        result = cupool("trace", self.path, "--format", "json", "-o", self.folder / "broken")
        self.assertEqual(result.returncode, 1)
        self.assertEqual(sorted(path.name for path in self.folder.iterdir()), ["out.trace.gz", "t"])
        self.path.write_bytes(a_job())
        self.assertEqual(cupool("trace", self.path, "-o", self.folder / "." / "t").returncode, 2)
        self.assertEqual(self.path.read_bytes(), a_job())
        for name in ("/nowhere/out", "/nowhere/out.gz"):
            result = cupool("trace", self.path, "-o", name)
            self.assertEqual((result.returncode, result.stderr), (1, f"cupool: {name}: No such file or directory\n"))

    def test_a_pipe_or_device_is_written_to_and_stays(self):
        pipe, link = self.folder / "pipe", self.folder / "link"
        os.mkfifo(pipe)
        link.symlink_to("/dev/null")
        with subprocess.Popen(["cat", pipe], stdout=subprocess.PIPE, text=True) as reader:
            self.assertEqual(self.convert(a_job(), "-o", pipe), "")
            self.assertIn("a 0 1000 0\n", reader.communicate(timeout=60)[0])
        self.assertEqual(self.convert(a_job(), "-o", link), "")
        self.assertTrue(link.is_symlink() and pipe.is_fifo())

    def test_a_compressed_trace_is_read_too(self):
        self.assertEqual(self.body(gzip.compress(a_job())), self.body(a_job()))

    def test_the_clock_lies_on_the_line_through_the_first_and_the_latest_reading(self):
        for readings, expected in ((((1000, 50),), 50), (((1000, 50), (2000, 1050)), 1050), (((1000, 50), (9, 9), (2000, 2050)), 2050),
                                   (((1000, 50), (9, 9), (8, 8), (3000, 4050)), 2050)):
            with self.subTest(readings):
                text = self.convert(header(readings=readings) + chunk(record("allocate", A, 1, ticks=2000)), "--format", "native")
                self.assertEqual(text.splitlines()[2].split()[0], str(expected))


class Losses(WithFile):
    def test_a_record_that_was_cut_off_ends_its_chunk_and_no_other(self):
        torn = chunk(record("allocate", A, 1), b"\0" * 8 + b"\x07" * 24)
        self.assertEqual(self.body(header() + torn + chunk(record("free_requested", A), sequence=2)), ["a 0 1 0", "f 0"])

    def test_dropped_events_leave_something_that_can_be_replayed(self):
        data = header(dropped=3) + chunk(record("free_requested", B), record("allocate", A, 1)) + chunk(
            record("allocate", A, 2), record("free_requested", A), record("free_requested", A), sequence=2, dropped_before=3)
        self.assertEqual(self.body(data), ["a 0 1 0", "f 0", "a 1 2 0", "f 1"])
        self.assertIn("3 events dropped", self.convert(data, "--format", "native"))

    def test_chunks_count_in_their_own_order(self):
        data = header() + chunk(record("free_requested", A), sequence=2) + chunk(record("allocate", A, 1)) + chunk(sequence=0)
        self.assertEqual(self.body(data), ["a 0 1 0", "f 0"])

    def test_a_process_killed_while_it_made_a_chunk(self):
        for end in (b"", b"\0" * 10, b"\0" * 4096):
            self.assertEqual(self.body(header() + chunk(record("allocate", A, 1)) + end), ["a 0 1 0"])

    def test_what_a_later_version_adds_is_skipped(self):
        later = record(77, 1, 2, 3, stream=4, origin=5, ticks=6)
        self.assertEqual(self.body(header() + chunk(later, record("allocate", A, 1))), ["a 0 1 0"])

    def test_several_devices_are_listed_by_time_and_converted_one_by_one(self):
        data = header() + chunk(record("allocate", A, 1, elapsed=5), record("free_requested", A, elapsed=5)) + chunk(
            record("allocate", A, 2, elapsed=7), device=3)
        self.path.write_bytes(data)
        for form in ("text", "rmm"):
            result = cupool("trace", self.path, "--format", form)
            self.assertEqual(result.returncode, 1)
            self.assertIn("devices 0, 3: choose one with --device", result.stderr)
        self.assertEqual([line.split()[1] for line in self.convert(data, "--format", "native").splitlines()[2:]], ["0", "3", "0"])
        self.assertEqual(self.convert(data, "--device", "3").splitlines()[1:], ["a 0 2 0"])
        self.assertEqual(cupool("trace", self.path, "--device", "1").returncode, 1)

    def test_an_empty_trace_is_a_trace(self):
        self.assertEqual(self.body(header() + chunk(sequence=0)), [])


class BadFiles(WithFile):
    def test_each_fault_is_one_line_with_its_offset(self):
        whole, body = header(), len(header())
        for data, offset, words in (
                (b"", 0, "magic"), (b"hello" * 100, 0, "magic"), (header(magic=b"\0" * 8), 0, "magic"), (header(version=2), 8, "version 2"),
                (header(header_bytes=1 << 30), 12, "header of"), (header(pid=0), 16, "pid"), (header(facts=[]), 128, "not an object"),
                (header(facts={"process": {"rank": float("nan")}}), 128, "not JSON: NaN"),
                (header(state=7), 16, "state"), (whole + chunk(record("allocate", A, 1), magic=b"CUPLXXXX"), body, "no chunk"),
                (whole + chunk(record("allocate", A, 1), length=100), body, "no chunk"),
                (whole + chunk(record("allocate", A, 1), sequence=2), body + 40, "chunk 2"),
                (whole + chunk(record("allocate", A, 1), device=-1), body + 16, "device -1"),
                (whole + chunk(record("allocate", A, 1)) + chunk(record("allocate", A, 1)), body + 128 + 40, "chunk 1"),
                (whole + chunk(record("allocate", A, 1))[:-1], body + 127, "ends inside a chunk"),
                (whole + chunk(record("allocate", A, 1), b"\0\1" + b"\0" * 6), body + 64 + 24, "no record"),
                (whole + chunk(*[record("allocate", A, 1)] * 2, record("allocate", A, 1)[:8] * 2), body + 64 + 48, "no record"),
                (whole + chunk(record("allocate", A)), body + 64, "kind allocate"), (whole + chunk(record("allocate", A, 0)), body + 64, "kind allocate"),
                (whole + chunk(record("allocate", A, 1 << 51)), body + 64, "kind allocate"), (whole + chunk(record("free_requested")), body + 64, "kind free")):
            with self.subTest(words=words, offset=offset):
                self.path.write_bytes(data)
                for form in ("text", "json"):
                    result = cupool("trace", self.path, "--format", form)
                    self.assertEqual((result.returncode, len(result.stderr.splitlines())), (1, 1), result.stderr)
                    self.assertRegex(result.stderr, f"^cupool: .*/t: byte {offset}: .*{words}")

    def test_missing_files_folders_and_usage(self):
        pipe = self.folder / "pipe"
        os.mkfifo(pipe)
        for path in (pipe, "/dev/zero"):
            result = cupool("trace", path)
            self.assertEqual((result.returncode, result.stderr), (1, f"cupool: {path}: not a regular file\n"))
        for arguments, code in ((["/no/such"], 1), (["/"], 1), ([], 2), (["a", "b"], 2), (["a", "--format", "x"], 2)):
            self.assertEqual(cupool("trace", *arguments).returncode, code, arguments)

    def test_no_bytes_make_it_fail_otherwise(self):
        """Every byte of a small trace, replaced in turn."""
        data = a_job()
        self.path.write_bytes(data)
        for position in range(len(data)):
            for byte in (0, 0x7F, 0xFF):
                self.path.write_bytes(data[:position] + bytes([byte]) + data[position + 1:])
                try:
                    trace = trace_file.Trace(str(self.path))
                    with contextlib.closing(trace):
                        for device in trace.devices:
                            for move in trace_file.moves(trace, device):
                                trace.unix_ns(move.event.ticks)
                except trace_file.BadTrace as error:
                    self.assertIn(": byte ", str(error))


@unittest.skipUnless(REPLAY.is_file() and support.HAS_LIBRARY, "the replay program or the library is not built")
class Replays(WithFile):
    def replay(self, *arguments: object, **env: str) -> subprocess.CompletedProcess:
        return subprocess.run([str(REPLAY), *map(str, arguments)], env=simulator_environment(**env), text=True, capture_output=True, check=False, timeout=120)

    def test_both_readers_agree_on_every_file_of_the_corpus(self):
        for path in sorted(CORPUS.iterdir()):
            data = gzip.decompress(path.read_bytes()) if path.read_bytes()[:2] == b"\x1f\x8b" else path.read_bytes()
            if not data.startswith(b"CUPL"):
                continue
            with self.subTest(path.name):
                ours, theirs = cupool("trace", path), self.replay(path)
                self.assertEqual(ours.returncode, theirs.returncode, ours.stderr + theirs.stderr)
                if ours.returncode == 0:
                    counts = json.loads(ours.stdout.splitlines()[0][2:])
                    self.assertIn(f"replay: {counts['allocs']} allocations, {counts['frees']} frees", theirs.stdout)
                else:
                    place = ours.stderr.split(": byte ")[1].split(":")[0] if ": byte " in ours.stderr else None
                    self.assertIn(f"byte {place}" if place else "--device", theirs.stderr)

    def test_a_job_that_is_traced_and_converted_is_the_job(self):
        for name in ("a2_gpt_fixed_real", "gpu_cs336_silmont_fwd_bf16"):
            job = support.ROOT / f"tests/bench/traces/{name}.trace.gz"
            recorded, converted = self.folder / f"{name}.cupool", self.folder / f"{name}.trace.gz"
            result = self.replay(job, LD_PRELOAD=str(support.LIBRARY), CUPOOL_TRACE=str(recorded), CUPOOL_REPORT="none")
            self.assertEqual((result.returncode, result.stderr), (0, ""))
            self.assertEqual(cupool("trace", recorded, "-o", converted).returncode, 0)
            with gzip.open(job, "rt") as before, gzip.open(converted, "rt") as after:
                wanted, found = json.loads(before.readline()[2:]), json.loads(after.readline()[2:])
                for key in ("events", "allocs", "frees", "peak_live", "end_live"):
                    self.assertEqual(found[key], wanted[key], (name, key))
                self.assertEqual(list(renumbered(after)), list(renumbered(before)))
            for form in (recorded, converted):
                result = self.replay("--verify", form)
                self.assertIn(f"replay: {wanted['allocs']} allocations, {wanted['frees']} frees", result.stdout)

    def test_a_device_is_chosen_before_a_replay(self):
        self.path.write_bytes(header() + chunk(record("allocate", A, 1)) + chunk(record("allocate", A, 1), device=1))
        result = self.replay(self.path)
        self.assertEqual(result.returncode, 1)
        self.assertIn("cupool trace --device", result.stderr)


def renumbered(lines):
    """Moves with blocks counted in the order of their allocation, which ids need not be."""
    blocks = {}
    for line in lines:
        kind, block, *rest = line.split()
        if kind == "a":
            blocks[block] = len(blocks)
        yield kind, blocks[block], *rest[:1]


if __name__ == "__main__":
    unittest.main()
