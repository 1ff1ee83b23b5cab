// A pattern that names no file, because its variable is not set, is a bad value: one line says so, the default is used, and the report's options say that.
//! case trace
//! env CUPOOL_TRACE=%q{NOT_SET_HERE}
//! stderr cupool\[<pid>\]: warning: CUPOOL_TRACE=%q\{NOT_SET_HERE\}: names no file here.*
//! check report["options"]["trace"]["source"] == "default" and any("CUPOOL_TRACE" in line for line in warnings)
//! case report
//! env CUPOOL_REPORT=%q{NOT_SET_HERE}
//! stderr cupool\[<pid>\]: warning: CUPOOL_REPORT=%q\{NOT_SET_HERE\}: names no file here.*
//! check report["options"]["report"]["source"] == "default"
//! case folder
//! env CUPOOL_REPORT=reports/%q{NOT_SET_HERE}
//! stderr cupool\[<pid>\]: warning: CUPOOL_REPORT=reports/%q\{NOT_SET_HERE\}: names no file here.*
//! case part_of_a_name
//! env CUPOOL_REPORT=cupool-report.%q{NOT_SET_HERE}.%p.json
#include "victim.h"

int main(void) {
  enter_device(0);
  allocate(MIB);
  return 0;
}
