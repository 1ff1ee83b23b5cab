"""The processes of an IPC test (agent.c), started on the simulated driver with or without the preloaded library."""
from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

BUILD = Path(os.environ["CUPOOL_BUILD"])
LIBRARY = Path(os.environ["CUPOOL_LIBRARY"])
AGENT = Path(os.environ["CUPOOL_IPC_AGENT"])
DELAYS = os.environ["CUPOOL_DELAYS"]  # a library that keeps threads at their locks
LAZY = 1  # CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS, the only flag there is
FOLDER = Path(f"/dev/shm/cupool-{os.geteuid()}")


class Agent:
    """One process. Every method sends a line and returns what came back: a number alone, or a tuple of them."""

    def __init__(self, scratch: Path, name: str, preload: bool = True, **variables: str):
        env = {k: v for k, v in os.environ.items() if not k.startswith(("CUPOOL_", "CUSIM_"))}
        self.log = scratch / f"{name}.cusim.json"
        env.update(LD_LIBRARY_PATH=str(BUILD / "sim"), CUSIM_LOG=str(self.log), CUSIM_MEMORY="2GiB", CUPOOL_REPORT="none", CUPOOL_LOG="off")
        if preload:
            env["LD_PRELOAD"] = str(LIBRARY)
        env.update(variables)
        self.process = subprocess.Popen([str(AGENT)], env=env, cwd=scratch, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.pid = self.process.pid

    def say(self, *words):
        self.process.stdin.write(" ".join(map(str, words)) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline().split()
        if not line:
            raise AssertionError(f"the agent died at {words}: {self.process.wait()}")
        values = tuple(int(text) if text.lstrip("-").isdigit() and len(text) < 25 else text for text in line)
        return values[0] if len(values) == 1 else values

    def alloc(self, size: int) -> int:
        code, address = self.say("alloc", size)
        assert code == 0, code
        return address

    def export(self, address: int) -> str:
        code, handle = self.export_any(address)
        assert code == 0, code
        return handle

    def export_any(self, address: int) -> tuple[int, str]:
        self.process.stdin.write(f"export {address}\n")
        self.process.stdin.flush()
        code, handle = self.process.stdout.readline().split()
        return int(code), handle

    def open(self, handle: str, flags: int = LAZY, word: str = "open") -> tuple[int, int]:
        return self.say(word, handle, flags)

    def opened(self, handle: str) -> int:
        code, address = self.open(handle)
        assert code == 0, code
        return address

    def registry(self) -> list[Path]:
        return list(FOLDER.glob(f"ipc.{self.pid}.*"))

    def end(self) -> dict:
        """A normal end; what the simulated driver saw."""
        if self.process.poll() is None:
            self.process.communicate("quit\n", timeout=60)
        assert self.process.returncode == 0, self.process.returncode
        return json.loads(self.log.read_text())

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()


class IpcTest(unittest.TestCase):
    """Ends its agents, and fails when the driver saw one of them do what no correct program does."""

    def setUp(self):
        self._scratch = tempfile.TemporaryDirectory(prefix="cupool-ipc-")
        self._agents: list[Agent] = []
        self.violations: dict[int, list[str]] = {}

    def agent(self, **variables) -> Agent:
        made = Agent(Path(self._scratch.name), f"agent{len(self._agents)}", **variables)
        self._agents.append(made)
        return made

    def expect_violations(self, agent: Agent, *sentences: str) -> None:
        self.violations[agent.pid] = list(sentences)

    def native_code(self, *words):
        """What the bare driver says to a process that has nothing shared."""
        bare = self.agent(preload=False)
        answer = bare.say(*words)
        bare.process.communicate("quit\n")
        bare.log.unlink()  # it was asked for the code of a misuse
        return answer

    def tearDown(self):
        try:
            for agent in self._agents:
                if agent.process.returncode is not None and not agent.log.exists():
                    continue
                seen = [sentence for sentence in agent.end()["violations"]]
                self.assertEqual(seen, self.violations.get(agent.pid, []), "violations")
                self.assertEqual(agent.registry(), [], "the registry is gone after a normal end")
        finally:
            for agent in self._agents:
                if agent.process.poll() is None:
                    agent.kill()
                for file in [*agent.registry(), *FOLDER.glob(f"{agent.pid}.*")]:  # of one that was killed
                    file.unlink(missing_ok=True)
                agent.process.stdin.close()
                agent.process.stdout.close()
            self._scratch.cleanup()


def main() -> None:
    sys.exit(not unittest.main(verbosity=2, exit=False).result.wasSuccessful())
