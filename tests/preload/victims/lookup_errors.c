// dlerror() after lookups that fail and that succeed, dlvsym, null names of handles: all as without us.
//! report absent
#include "resolve_object.h"

static void print_error(const char* what) {
  const char* text = dlerror();
  printf("%s: %s\n", what, text != NULL ? text : "no error");
}

int main(void) {
  void* driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  print_error("open");
  printf("%d\n", dlsym(driver, "cuNoSuchFunction") == NULL);
  print_error("unknown cu name");
  print_error("again");
  printf("%d\n", dlsym(driver, "no_such_function") == NULL);
  printf("%d\n", dlsym(driver, "cuMemAlloc_v2") != NULL);
  print_error("a success after a failure");
  printf("%d\n", dlsym(RTLD_DEFAULT, "cuMemAlloc_v2") == NULL);
  const char* text = dlerror();  // the object that it names cannot be the program under us: the end of the text is compared
  const char* end = text != NULL ? strstr(text, "undefined symbol: cuMemAlloc_v2") : NULL;
  printf("not in the global scope: %s\n", end != NULL ? end : "no error");
  printf("%d\n", dlsym(RTLD_NEXT, "cuNoSuchFunction") == NULL);
  print_error("RTLD_NEXT of the program");
  printf("%d\n", dlvsym(driver, "cuMemAlloc_v2", "NO_SUCH_VERSION") == NULL);
  print_error("dlvsym of another version");
  printf("%s\n", symbol_at(dlvsym(RTLD_DEFAULT, "getpid", "GLIBC_2.2.5")));
  print_error("dlvsym of libc");
  printf("%d\n", dlsym(NULL, "cu") == NULL);
  print_error("two letters");
  printf("%d\n", dlsym(RTLD_DEFAULT, "c") == NULL);
  print_error("one letter");
  printf("%d\n", dlsym(RTLD_DEFAULT, "") == NULL);
  print_error("no letter");
  return 0;
}
