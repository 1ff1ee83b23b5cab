// A library whose constructor uses CUDA, as one with a static object that does: what it calls stands in the program that opens it.
void in_constructor(void);

__attribute__((constructor)) static void begin(void) { in_constructor(); }
