// A command line that is longer than what a report keeps of it is cut, and the report says so.
//! case kept
//! args 3
//! check len(report["process"]["command"]) == 5 and not any("is cut" in warning for warning in report["data_quality"]["warnings"])
//! case cut
//! args 20
//! check sum(len(word) + 1 for word in report["process"]["command"]) in (65536, 65537)
//! check any(warning == "process.command is cut: the command line is longer" for warning in report["data_quality"]["warnings"])
#include "victim.h"

int main(int argc, char** argv) {
  if (argc > 2) {
    enter_device(0);
    allocate(1000);
    return 0;
  }
  static char word[8000];
  memset(word, 'w', sizeof word - 1);
  char* words[32] = {argv[0], argv[1]};
  for (int i = 0; i < atoi(argv[1]); ++i) words[i + 2] = word;
  execv("/proc/self/exe", words);
  return 97;
}
