/* Not the driver, although its names begin with cu, and although it exports one of the driver's names. */
int cudnnFoo(void) { return 1; }
int cuFoo(void) { return 2; }
int cublasBar(void) { return 3; }
int cuMemAlloc_v2(void) { return 4; }
