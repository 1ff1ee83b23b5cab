#!/usr/bin/env python3
"""Two small questions about ctest's own files, for scripts/test.

junit_count.py FILE               prints "PASSED FAILED SKIPPED" of a ctest JUnit file
junit_count.py --targets FOLDER   prints the build targets behind `ctest --show-only=json-v1` (stdin), one per line
"""

import json
import os
import sys
import xml.etree.ElementTree as ElementTree


def counts(path):
    """A test that could not be run (its program was not built) has failed; one that asked to be skipped has not."""
    passed = failed = skipped = 0
    for case in ElementTree.parse(path).getroot().iter("testcase"):
        reason = case.find("skipped")
        if case.get("status") == "run":
            passed += 1
        elif reason is not None and reason.get("message", "").startswith("SKIP_") or case.get("status") == "disabled":
            skipped += 1
        else:
            failed += 1
    return passed, failed, skipped


def targets(folder):
    prefix = os.path.realpath(folder) + os.sep
    found = set()
    for test in json.load(sys.stdin)["tests"]:
        for word in test.get("command", []):
            if word.startswith(prefix):
                found.add(word[len(prefix):])
    return sorted(found)


if __name__ == "__main__":
    if sys.argv[1] == "--targets":
        print("\n".join(targets(sys.argv[2])))
    else:
        print(*counts(sys.argv[1]))
