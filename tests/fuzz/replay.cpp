// The driver of a fuzzer where there is no libFuzzer: every file of the given folders, as it is and in fixed mutations.
//
// Usage: NAME_fuzz MUTATIONS_PER_FILE FOLDER...
// Deterministic: the same files give the same inputs. A property that does not hold aborts; no file at all is an error.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t bytes);

namespace {

constexpr std::size_t kMostBytes = 4096;
constexpr char kInteresting[] = "\0\n\t%{}(),:=.-+0195KMGTPEib \x7f\xff\x80";

void check(const std::string& input) { LLVMFuzzerTestOneInput(reinterpret_cast<const std::uint8_t*>(input.data()), input.size()); }

/// One small change: a byte replaced, removed or put in, a piece of `other` put in, or a piece doubled.
void mutate(std::string& text, const std::string& other, std::mt19937& random) {
  const auto below = [&](std::size_t end) { return end == 0 ? 0 : static_cast<std::size_t>(random()) % end; };
  const std::size_t at = below(text.size() + 1);
  const char byte = kInteresting[below(sizeof(kInteresting) - 1)];
  switch (below(5)) {
    case 0:
      if (at < text.size()) text[at] = byte;
      break;
    case 1: text.erase(at, 1 + below(4)); break;
    case 2: text.insert(at, 1 + below(20) / 19 * 60, byte); break;
    case 3: text.insert(at, other.substr(below(other.size() + 1), below(40))); break;
    default: text.insert(at, text.substr(at, below(40))); break;
  }
  text.resize(std::min(text.size(), kMostBytes));
}

}  // namespace

int main(int count, char** arguments) {
  const unsigned long mutations = count > 1 ? std::strtoul(arguments[1], nullptr, 10) : 0;
  std::vector<std::filesystem::path> paths;
  for (int i = 2; i < count; ++i) {
    for (const auto& entry : std::filesystem::directory_iterator(arguments[i])) paths.push_back(entry.path());
  }
  std::sort(paths.begin(), paths.end());
  std::vector<std::string> files;
  for (const std::filesystem::path& path : paths) {
    std::ifstream stream(path, std::ios::binary);
    files.emplace_back(std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>());
  }
  std::mt19937 random(1);
  for (const std::string& file : files) {
    check(file);
    std::string text = file;
    for (unsigned long i = 0; i < mutations; ++i) {
      if (i % 20 == 0) text = file;
      mutate(text, files[random() % files.size()], random);
      check(text);
    }
  }
  std::printf("%zu files, %lu mutations of each\n", files.size(), mutations);
  return files.empty() ? 1 : 0;
}
