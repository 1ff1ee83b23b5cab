/* Built with AddressSanitizer. With an argument it reads what it has given back. */
#include <stdlib.h>

char* volatile g_kept;

int main(int count, char** words) {
  (void)words;
  g_kept = malloc(10);
  free(g_kept);
  return count > 1 ? g_kept[1] : 0;
}
