#!/usr/bin/env python3
"""Small questions about ctest's own files, for scripts/test.

ctest_facts.py FILE                      prints "PASSED FAILED SKIPPED" of a ctest JUnit file
ctest_facts.py --failures FILE           prints the failed tests of it, each with the end of its output
ctest_facts.py --targets FOLDER LABEL…   prints the files of a build folder that its tests with these labels start or read,
                                         one per line: what has to be built to run them
"""

import glob
import os
import re
import sys
import xml.etree.ElementTree as ElementTree


LINES_OF_A_FAILURE = 60


def outcome(case):
    """A test that could not be run (its program was not built) has failed; one that asked to be skipped has not."""
    reason = case.find("skipped")
    if case.get("status") == "run":
        return "passed"
    if reason is not None and reason.get("message", "").startswith("SKIP_") or case.get("status") == "disabled":
        return "skipped"
    return "failed"


def counts(path):
    outcomes = [outcome(case) for case in ElementTree.parse(path).getroot().iter("testcase")]
    return tuple(outcomes.count(name) for name in ("passed", "failed", "skipped"))


def failures(path):
    """The lines to print, a failed test after the other."""
    lines = []
    for case in ElementTree.parse(path).getroot().iter("testcase"):
        if outcome(case) == "failed":
            said = (case.findtext("system-out") or "").splitlines()
            lines += [f"failed: {case.get('name')}", *(f"  {line}" for line in said[-LINES_OF_A_FAILURE:])]
    return lines


_TEST = re.compile(r"^(add_test|set_tests_properties)\((\[=*\[.*?\]=*\]|\S+) (.*)\)$", re.MULTILINE)


def targets(folder, labels):
    """From the files that cmake wrote for ctest: before the build, ctest itself does not tell a test's command."""
    prefix = os.path.realpath(folder) + os.sep
    commands, wanted = {}, set()
    for path in glob.glob(os.path.join(folder, "**", "CTestTestfile.cmake"), recursive=True):
        with open(path, encoding="utf-8") as file:
            for kind, name, rest in _TEST.findall(file.read()):
                if kind == "add_test":
                    commands[name] = re.findall(r'"([^"]*)"', rest)
                elif re.search(r'LABELS "(?:[^"]*;)?(?:%s)(?:;[^"]*)?"' % "|".join(labels), rest):
                    wanted.add(name)
    words = {word for name in wanted for word in commands.get(name, [])}
    return sorted(word[len(prefix):] for word in words
                  if word.startswith(prefix) and "." not in os.path.basename(word) and not os.path.isdir(word))


def main(arguments):
    if arguments[:1] in (["-h"], ["--help"]):
        print(__doc__, end="")
    elif len(arguments) >= 3 and arguments[0] == "--targets":
        print("\n".join(targets(arguments[1], arguments[2:])))
    elif len(arguments) == 2 and arguments[0] == "--failures":
        for line in failures(arguments[1]):
            print(line)
    elif len(arguments) == 1 and not arguments[0].startswith("-"):
        print(*counts(arguments[0]))
    else:
        print("ctest_facts.py: FILE, --failures FILE, or --targets FOLDER LABEL... (see --help)", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
