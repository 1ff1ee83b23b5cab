// gpu_probe NAME: puts one probe's questions to the driver. gpu_probe --list names them. Exit 0 when the probe ran to
// its end (whatever was answered), 2 for a wrong name, 3 when there is no usable driver or device.
#include <cstdio>
#include <cstring>

#include "tests/gpu/probes/ipc.hpp"
#include "tests/gpu/probes/probe.hpp"

int main(int count, char** words) {
  if (count >= 2 && std::strcmp(words[1], probe::kOpenMode) == 0) return probe::open_in_this_process(count - 2, words + 2);
  if (count == 2 && std::strcmp(words[1], "--list") == 0) {
    for (const probe::Probe& one : probe::all_probes()) std::puts(one.name);
    return 0;
  }
  for (const probe::Probe& one : probe::all_probes()) {
    if (count != 2 || std::strcmp(words[1], one.name) != 0) continue;
    try {
      probe::Session session;
      probe::group(one.name, [&] { one.run(session); });
      return 0;
    } catch (const std::runtime_error& error) {
      std::fprintf(stderr, "gpu_probe: %s\n", error.what());
      return 3;
    }
  }
  std::fprintf(stderr, "usage: gpu_probe NAME (gpu_probe --list)\n");
  return 2;
}
