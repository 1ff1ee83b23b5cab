#!/usr/bin/env python3
"""Blocks that go round between processes, several threads in each: every answer as natively. --seed N --rounds K: others than the test's."""
import argparse
import os
import random
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

BUILD, LIBRARY, PROGRAM = (Path(os.environ[name]) for name in ("CUPOOL_BUILD", "CUPOOL_LIBRARY", "CUPOOL_IPC_EXCHANGE"))
SETTINGS = ({}, {}, {"CUPOOL_IPC": "native"}, {"CUPOOL_POLICY": "preallocate", "CUPOOL_PREALLOCATE": "256MiB"}, {"CUPOOL_FREE": "sync"},
            {"CUPOOL_RELEASE_THRESHOLD": "0"}, {"CUPOOL_LIMIT": "2GiB"}, {"CUPOOL_POLICY": "platform"}, {"CUPOOL_POLICY": "off"})
GIVEN = argparse.Namespace(seed=1, rounds=8, steps=120)


def lines(seed, processes, threads, settings, folder):
    env = {k: v for k, v in os.environ.items() if not k.startswith(("CUPOOL_", "CUSIM_", "CUDA_"))}
    env.update(settings, LD_LIBRARY_PATH=str(BUILD / "sim"), CUPOOL_REPORT=f"{folder}/%p.json", CUPOOL_LOG="off")
    command = [str(PROGRAM), str(seed), str(GIVEN.steps), str(processes), str(threads)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=100, check=False)
    return done.stdout.splitlines() + [f"ended with {done.returncode}"]


class Exchange(unittest.TestCase):
    maxDiff = 2000

    def test_every_answer_is_the_native_one(self):
        for seed in range(GIVEN.seed, GIVEN.seed + GIVEN.rounds):
            rng = random.Random(seed)
            processes, threads, chosen = rng.choice([2, 3, 4]), rng.choice([1, 2, 4]), rng.choice(SETTINGS)
            with self.subTest(seed=seed, settings=chosen), tempfile.TemporaryDirectory(prefix="cupool-exchange-") as folder:
                driver = {"CUSIM_CLOCK": "real", "CUSIM_DRIVER_VERSION": rng.choice(["13030", "13000", "12080", "12040", "11080"])}
                native = lines(seed, processes, threads, driver, folder)
                self.assertEqual(native[-1], "ended with 0")
                self.assertGreater(sum(" open->0" in line for line in native), 0)
                ours = lines(seed, processes, threads, {**driver, **chosen, "LD_PRELOAD": str(LIBRARY)}, folder)
                self.assertEqual(ours, native)
                self.assertFalse([line for line in ours if "WRONG" in line])
                reports = list(Path(folder).glob("*.json"))
                self.assertEqual(len(reports), 0 if chosen.get("CUPOOL_POLICY") == "off" else processes)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    for name in ("seed", "rounds", "steps"):
        parser.add_argument(f"--{name}", type=int, default=getattr(GIVEN, name))
    parser.parse_args(namespace=GIVEN)
    unittest.main(argv=sys.argv[:1])
