#!/usr/bin/env bash
# A torchrun job under the pool, one report for each rank. Usage: run.sh RANKS [SCRIPT.py [ARGUMENT]...]
# Without a script it trains examples/pytorch/train.py. REPORTS names the folder of the reports.
set -euo pipefail

here=$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")
if [ $# -lt 1 ]; then
  echo "usage: run.sh RANKS [SCRIPT.py [ARGUMENT]...]" >&2
  exit 2
fi
ranks=$1
shift
[ $# -gt 0 ] || set -- "$here/../pytorch/train.py"
cupool=$(command -v cupool || echo "$here/../../scripts/cupool")
reports=${REPORTS:-reports/$(date +%Y-%m-%dT%H-%M-%S)}

# torchrun hands the environment on to its workers and gives each its RANK, which %r reads. torchrun itself uses no GPU
# and leaves no report. On several machines: the same line on each; RANK counts through all of them.
code=0
"$cupool" run --report "$reports/rank%r.json" -- torchrun --standalone --nproc-per-node "$ranks" "$@" || code=$?

for report in "$reports"/rank*.json; do
  if [ -e "$report" ]; then echo "report: $report"; fi
done
exit "$code"
