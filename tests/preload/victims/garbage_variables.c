// A bad value in any variable: one line on stderr that names it, the default is used, the program runs to its own exit code.
//! exit 3
//! check c["allocations"] == 1 and len(warnings) == 1
//! stderr cupool\[<pid>\]: warning: CUPOOL_[A-Z_]+=.*; using the default \(.*\)
//! case policy
//! env CUPOOL_POLICY=bananas
//! check report["options"]["policy"] == {"value": "grow", "source": "default"} or report["options"]["policy"]["source"] == "default"
//! case preallocate
//! env CUPOOL_PREALLOCATE=lots
//! case limit
//! env CUPOOL_LIMIT=0:1GiB,,x
//! case limit_negative
//! env CUPOOL_LIMIT=-5
//! case backing
//! env CUPOOL_BACKING=sand
//! case free
//! env CUPOOL_FREE=sometimes
//! case release_threshold
//! env CUPOOL_RELEASE_THRESHOLD=1XiB
//! case ipc
//! env CUPOOL_IPC=maybe
//! case stacks
//! env CUPOOL_STACKS=cobol
//! case stack_depth
//! env CUPOOL_STACK_DEPTH=minus
//! case timeline
//! env CUPOOL_TIMELINE=99999999999999999999999999
//! case log
//! env CUPOOL_LOG=loudly
//! case bytes_not_text
//! env CUPOOL_POLICY=%s%n%s%n
//! case forged_lines
//! setup env["CUPOOL_POLICY"] = "x\ncupool[1]: error: forged\x1b[2J"
//! check "forged" in warnings[0] and "\n" not in warnings[0] and "\x1b" not in warnings[0]
//! case not_unicode
//! setup env["CUPOOL_FREE"] = "\udcff\udcc3("
//! case very_long
//! setup env["CUPOOL_BACKING"] = "9" * 120000
//! check len(err) < 2000 and len(json.dumps(report)) < 100000
//! case more_than_a_number
//! env CUPOOL_LIMIT=99999999999999999999999999999GiB
//! case less_than_nothing
//! env CUPOOL_STACK_DEPTH=-2147483649
#include "victim.h"

int main(void) {
  enter_device(0);
  allocate(MIB);
  return 3;
}
