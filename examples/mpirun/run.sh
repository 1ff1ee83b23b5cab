#!/usr/bin/env bash
# An MPI job under the pool, one report for each rank. Usage: run.sh RANKS COMMAND [ARGUMENT]...
# REPORTS names the folder of the reports. Open MPI; for others see the README.
set -euo pipefail

here=$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")
if [ $# -lt 2 ]; then
  echo "usage: run.sh RANKS COMMAND [ARGUMENT]..." >&2
  exit 2
fi
ranks=$1
shift
cupool=$(command -v cupool || echo "$here/../../scripts/cupool")
reports=$(realpath -m -- "${REPORTS:-reports/$(date +%Y-%m-%dT%H-%M-%S)}")

# cupool stands inside mpirun, not around it: mpirun does not hand the environment on to other machines. Absolute paths
# for the same reason. %r reads OMPI_COMM_WORLD_RANK.
code=0
mpirun -np "$ranks" "$cupool" run --report "$reports/rank%r.json" -- "$@" || code=$?

for report in "$reports"/rank*.json; do
  if [ -e "$report" ]; then echo "report: $report"; fi
done
exit "$code"
