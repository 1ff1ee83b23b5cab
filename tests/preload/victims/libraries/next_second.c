/* The library that next_first.c wraps. */
int probe_value(int depth) { return 10 + depth; }
int cuProbeValue(int depth) { return 20 + depth; }
