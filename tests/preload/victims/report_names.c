// Where the report goes: patterns, folders that are made, none, stderr.
//! exit 3
//! report elsewhere
//! case patterns
//! env CUPOOL_REPORT=deep/er/%h.r%r.%q{VICTIM_JOB}.%p.%%.json
//! env VICTIM_JOB=a/b
//! env RANK=7
//! check [str(p.relative_to(folder)) for p in folder.rglob("*.json")] == [f"deep/er/{os.uname().nodename}.r7.a_b.{pid}.%.json"]
//! check report is not None and report["process"]["rank"] == 7
//! case slurm_rank
//! env CUPOOL_REPORT=r%r.json
//! env SLURM_PROCID=5
//! check files == ["r5.json"]
//! case replaces
//! env CUPOOL_REPORT=out.json
//! setup open(folder / "out.json", "w").write("old")
//! check files == ["out.json"] and report["event"] == "exit"
//! case none
//! env CUPOOL_REPORT=none
//! check files == []
//! case bad_pattern
//! env CUPOOL_REPORT=x%z.json
//! stderr cupool\[<pid>\]: warning: .*CUPOOL_REPORT.*
//! check report is not None and files == [f"cupool-report.{os.uname().nodename}.{pid}.json"]
#include "victim.h"

int main(void) {
  enter_device(0);
  allocate(MIB);
  return 3;
}
