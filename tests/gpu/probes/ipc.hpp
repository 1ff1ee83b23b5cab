// The second process of the IPC probe: gpu_probe --open WHAT HANDLE opens an exported handle and answers what it found.
#pragma once

namespace probe {

inline constexpr const char* kOpenMode = "--open";
/// words: a label for the answers, and the handle in hexadecimal. The exit code of the process.
[[nodiscard]] int open_in_this_process(int count, char** words);

}  // namespace probe
