#!/usr/bin/env python3
"""The entry point of victim_runner.py, which Python compiles once for the hundreds of tests that start it."""
import os
import sys

import victim_runner

if __name__ == "__main__":
    code = victim_runner.main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # the interpreter's own end takes as long as some victims
