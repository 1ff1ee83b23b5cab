"""The built libcupool.so as a file: what DESIGN section 4 demands of it. Usage: check_library_file.py LIBRARY DEF"""

import re
import subprocess
import sys

LIBRARY, DEFINITIONS = sys.argv[1:3]
MAY_NEED = {"libc.so.6", "libm.so.6", "ld-linux-x86-64.so.2"}
BESIDE_THE_ROWS = {"dlsym@GLIBC_2.2.5", "dlsym@@GLIBC_2.34", "_exit", "_Exit", "quick_exit"}  # both versions that glibc has of dlsym
GLIBC_FLOOR = (2, 34)
LOADED_BYTES_MAX = 6 << 20


def output_of(*command: str) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def rows() -> set[str]:
    with open(DEFINITIONS, encoding="utf-8") as text:
        return set(re.findall(r"^HOOK\(\s*\w+,\s*(\w+),", text.read(), re.M))


def problems() -> list[str]:
    found = []
    dynamic = output_of("readelf", "-dW", LIBRARY)
    needed = set(re.findall(r"NEEDED.*\[(.*)\]", dynamic))
    if needed - MAY_NEED:
        found.append(f"needs {sorted(needed - MAY_NEED)}")
    for tag in ("RPATH", "RUNPATH", "TEXTREL"):
        if tag in dynamic:
            found.append(f"has {tag}")
    if "BIND_NOW" not in dynamic:
        found.append("is not bound at load (-z now)")

    symbols = [line.split() for line in output_of("nm", "-D", "--with-symbol-versions", LIBRARY).splitlines()]
    defined = {parts[2] for parts in symbols if len(parts) == 3 and parts[1] != "A"}
    wanted = rows() | BESIDE_THE_ROWS
    if len(rows()) < 60:
        found.append(f"only {len(rows())} rows were read from {DEFINITIONS}")
    if defined - wanted:
        found.append(f"shows {sorted(defined - wanted)[:5]} and {len(defined - wanted)} in all that it must hide")
    if wanted - defined:
        found.append(f"does not export {sorted(wanted - defined)}")
    unique = [parts[2] for parts in symbols if len(parts) == 3 and parts[1] == "u"]
    if unique:
        found.append(f"has STB_GNU_UNIQUE symbols: {unique[:3]}")

    versions = output_of("readelf", "-VW", LIBRARY)
    for name in sorted(set(re.findall(r"Name: (\w+)", versions.partition("Version needs section")[2]))):
        match = re.fullmatch(r"GLIBC_(\d+)", name)
        if not match and not name.startswith("GLIBC"):
            found.append(f"needs the version {name}")
    for major, minor in {(int(a), int(b)) for a, b in re.findall(r"GLIBC_(\d+)\.(\d+)", versions)}:
        if (major, minor) > GLIBC_FLOOR:
            found.append(f"needs glibc {major}.{minor}, the floor is {GLIBC_FLOOR[0]}.{GLIBC_FLOOR[1]}")
    definitions = versions.partition("Version definition section")[2].partition("Version needs section")[0]
    if set(re.findall(r"Name: (\S+)", definitions)) - {"libcupool.so"} != {"GLIBC_2.2.5", "GLIBC_2.34"}:
        found.append("defines other versions than those of dlsym")

    code = output_of("objdump", "-dC", "--no-show-raw-insn", LIBRARY)
    registering, function = set(), ""
    for line in code.splitlines():
        if line.endswith(">:"):
            function = line.partition("<")[2]
        elif "<__cxa_atexit" in line and "call" in line:
            registering.add(function)
    if not registering:
        found.append("shows no call of __cxa_atexit at all: libstdc++ has some")
    if own := sorted(name for name in registering if "cupool" in name):
        found.append(f"has objects that are destroyed before it is done: {own}")

    headers = output_of("readelf", "-lW", LIBRARY)
    if "GNU_RELRO" not in headers:
        found.append("has no RELRO")
    if re.search(r"GNU_STACK.*RWE", headers):
        found.append("has an executable stack")
    loaded = sum(int(size, 16) for size in re.findall(r"^\s+LOAD\s+\S+\s+\S+\s+\S+\s+\S+\s+(0x[0-9a-f]+)", headers, re.M))
    if not 0 < loaded <= LOADED_BYTES_MAX:
        found.append(f"maps {loaded} bytes, {LOADED_BYTES_MAX} are allowed")
    return found


if __name__ == "__main__":
    broken = problems()
    for line in broken:
        print(f"{LIBRARY}: {line}")
    sys.exit(1 if broken else 0)
