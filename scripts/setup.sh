# shellcheck shell=bash
# The steps that scripts/build, demo, fuzz and test share: packages, CUDA headers, configure, build.
# Sourced, with the source tree as the working directory. Prints only what it changes.

# What the build and the tests need: "what to look for=the Debian or Ubuntu package that brings it" (has_thing).
readonly REQUIRED_PACKAGES=(
  "command cmake=cmake" "command ninja=ninja-build" "command g++=g++" "command python3=python3"
  "header nlohmann/json.hpp=nlohmann-json3-dev" "header spdlog/spdlog.h=libspdlog-dev" "header fmt/format.h=libfmt-dev"
  "header catch2=catch2" "header zlib.h=zlib1g-dev" "header mimalloc-2.0/mimalloc.h|mimalloc-2.1/mimalloc.h|mimalloc.h=libmimalloc-dev"
  "command shellcheck=shellcheck" "command mypy=mypy" "command clang++=clang" "command clang-format=clang-format"
  "module jsonschema=python3-jsonschema" "module yaml=python3-yaml"
  "header jemalloc/jemalloc.h=libjemalloc-dev"
)

note() { echo "scripts: $*"; }
die() { echo "scripts: $*" >&2; exit 1; }
# Prints $2, the value of the flag $1; ends the script where there is none.
value_of() {
  if [ $# -ge 2 ]; then printf '%s' "$2"; return; fi
  echo "${0#"$PWD/"}: $1 needs a value (see --help)" >&2
  exit 2
}
# Ends the script unless $1 is a number of parallel jobs, or empty, which means the default.
check_jobs() {
  [[ ${1:-1} =~ ^[1-9][0-9]{0,3}$ ]] && return
  echo "${0#"$PWD/"}: --jobs $1: not a number from 1 to 9999 (see --help)" >&2
  exit 2
}
# Ends the script unless CMakePresets.json has the preset $1.
check_preset() {
  grep -qF "\"name\": \"$1\"" CMakePresets.json && return
  echo "${0#"$PWD/"}: --preset $1: there is no such preset (see --help)" >&2
  exit 2
}

has_thing() {  # has_thing "command NAME" | "module PYTHON_NAME" | "header A|B"
  local kind=${1%% *} names=${1#* } name
  if [ "$kind" = command ]; then command -v "$names" >/dev/null 2>&1; return; fi
  if [ "$kind" = module ]; then python3 -c "import $names" >/dev/null 2>&1; return; fi
  local IFS='|'
  for name in $names; do
    if [ -e "/usr/include/$name" ] || [ -e "/usr/local/include/$name" ]; then return 0; fi
    compgen -G "/usr/include/*/$name" >/dev/null && return 0
  done
  return 1
}

missing_packages() {
  local row
  for row in "${REQUIRED_PACKAGES[@]}"; do
    has_thing "${row%%=*}" || echo "${row#*=}"
  done
}

install_packages() {  # install_packages yes|no
  local missing
  mapfile -t missing < <(missing_packages)
  [ ${#missing[@]} -gt 0 ] || return 0
  command -v apt-get >/dev/null 2>&1 || die "these are missing (Debian's names): ${missing[*]}; install them by your system's means"
  if [ "$1" = no ] || [ "$(id -u)" -ne 0 ]; then
    die "packages are missing. Run: sudo apt-get update && sudo apt-get install -y --no-install-recommends ${missing[*]}"
  fi
  note "installing: ${missing[*]}"
  local log
  log=$(mktemp)
  if ! { apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "${missing[@]}"; } >"$log" 2>&1; then
    tail -n 20 "$log" >&2
    die "apt-get failed; the end of its output stands above, all of it in $log"
  fi
  rm -f "$log"
}

# The header wheels' version: the one that the project is developed against.
readonly CUDA_WHEEL_VERSION='13.0.*'

find_cuda_headers() {  # sets CUDA_HOME for CMake where the headers had to be fetched
  local root
  for root in "${CUDA_HOME:-}" "${CUDA_PATH:-}" /usr/local/cuda /opt/cuda /usr; do
    if [ -n "$root" ] && [ -f "$root/include/cuda.h" ]; then return 0; fi
  done
  if [ ! -f build/cuda-headers/include/cuda.h ]; then fetch_cuda_headers; fi
}

fetch_cuda_headers() {
  note "no cuda.h in CUDA_HOME, CUDA_PATH or /usr/local/cuda: fetching NVIDIA's header wheels ($CUDA_WHEEL_VERSION) into build/cuda-headers"
  python3 -m pip --version >/dev/null 2>&1 || install_pip
  local wheels
  wheels=$(mktemp -d)
  # cuda-runtime carries cuda.h, cuda_runtime_api.h and libcudart; cuda-crt carries crt/host_defines.h, which they include.
  python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: --dest "$wheels" \
    "nvidia-cuda-runtime==$CUDA_WHEEL_VERSION" "nvidia-cuda-crt==$CUDA_WHEEL_VERSION" \
    || die "pip could not fetch the header wheels; install a CUDA toolkit (12.8 or newer) and set CUDA_HOME"
  rm -rf build/cuda-headers
  mkdir -p build/cuda-headers
  python3 - "$wheels" build/cuda-headers <<'PY'
import pathlib, sys, zipfile
for wheel in sorted(pathlib.Path(sys.argv[1]).glob("*.whl")):
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            for folder in ("include", "lib"):
                prefix = f"nvidia/cu13/{folder}/"
                if name.startswith(prefix) and not name.endswith("/"):
                    if ".." in name.split("/"):
                        sys.exit(f"{wheel.name}: {name} would be unpacked outside {sys.argv[2]}")
                    target = pathlib.Path(sys.argv[2], folder, name[len(prefix):])
                    target.parent.mkdir(parents=True, exist_ok=True)
                    target.write_bytes(archive.read(name))
PY
  rm -rf "$wheels"
  ln -sf libcudart.so.13 build/cuda-headers/lib/libcudart.so
  [ -f build/cuda-headers/include/cuda.h ] || die "the header wheels hold no cuda.h; set CUDA_HOME to a CUDA toolkit"
}

install_pip() {
  if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null 2>&1; then
    die "pip is needed to fetch the CUDA headers. Run: sudo apt-get install -y --no-install-recommends python3-pip"
  fi
  note "installing: python3-pip"
  { apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends python3-pip; } >/dev/null 2>&1 \
    || die "apt-get could not install python3-pip"
}

build_folder() {  # build_folder PRESET
  case $1 in
    dev | release) echo build ;;
    *) echo "build/$1" ;;
  esac
}

default_jobs() {  # one per CPU, but never more than one per GiB of free memory
  local cpus memory_kib
  cpus=$(nproc)
  memory_kib=$(awk '/^MemAvailable/ {print $2}' /proc/meminfo)
  local by_memory=$((memory_kib / 1048576))
  [ "$by_memory" -ge 1 ] || by_memory=1
  echo $((cpus < by_memory ? cpus : by_memory))
}

configure() {  # configure PRESET CXX [CMAKE ARGUMENT]...
  local preset=$1 cxx=$2
  shift 2
  local arguments=("$@")
  if command -v ccache >/dev/null 2>&1; then
    export CCACHE_NOHASHDIR=1
    arguments+=(-DCMAKE_CXX_COMPILER_LAUNCHER=ccache -DCMAKE_C_COMPILER_LAUNCHER=ccache)
  fi
  [ -z "$cxx" ] || arguments+=("-DCMAKE_CXX_COMPILER=$cxx")
  local cache log
  cache=$(build_folder "$preset")/CMakeCache.txt
  # A tree that was moved, copied or is mounted elsewhere: what was built names the old place everywhere.
  if [ -f "$cache" ] && ! [ "$(sed -n 's/^CMAKE_HOME_DIRECTORY:INTERNAL=//p' "$cache")" -ef "$PWD" ]; then
    note "$cache is of another folder: configuring anew"
    rm -rf "$cache" "${cache%/*}/CMakeFiles"
  fi
  log=$(mktemp)
  if ! cmake --preset "$preset" "${arguments[@]}" >"$log" 2>&1; then
    cat "$log" >&2
    rm -f "$log"
    die "configuring the preset '$preset' failed"
  fi
  rm -f "$log"
}

build_targets() {  # build_targets PRESET JOBS [TARGET]...
  local preset=$1 jobs=$2
  shift 2
  local arguments=(--build "$(build_folder "$preset")" --parallel "$jobs")
  [ $# -eq 0 ] || arguments+=(--target "$@")
  local log
  log=$(mktemp)
  if [ -t 1 ]; then
    cmake "${arguments[@]}"
  elif ! cmake "${arguments[@]}" >"$log" 2>&1; then
    cat "$log" >&2
    rm -f "$log"
    die "building the preset '$preset' failed"
  fi
  rm -f "$log"
}
