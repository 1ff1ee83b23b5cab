// refers FUNCTION [yes|no PROGRAM]...: does each program refer to the function that is linked into it, or not? Exit 1 if one is otherwise.
#include <cstdio>
#include <fstream>
#include <iterator>
#include <string>

#include "shim/elf_references.hpp"

int main(int count, char** words) {
  int wrong = 0;
  for (int i = 2; i + 1 < count; i += 2) {
    std::ifstream stream(words[i + 1], std::ios::binary);
    const std::string file{std::istreambuf_iterator<char>(stream), {}};
    const bool refers = cupool::shim::refers_to_own_function(std::as_bytes(std::span(file)), words[1]);
    std::printf("%s: %s\n", words[i + 1], refers ? "yes" : "no");
    if (file.empty() || refers != (std::string(words[i]) == "yes")) ++wrong;
  }
  return wrong == 0 && count > 3 ? 0 : 1;
}
