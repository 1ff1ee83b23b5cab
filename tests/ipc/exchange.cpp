// Processes that hand blocks round in a ring, several threads in each: allocate, fill, export, and the next process opens, verifies, writes and
// closes. What each thread is answered follows from its seed alone, so natively and under the library every process prints the same.
#include <cuda.h>
#include <dlfcn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <thread>
#include <vector>

namespace {

struct Settings {
  std::uint64_t seed;
  int steps, processes, threads;
};

struct Letter {
  CUipcMemHandle handle;
  std::uint64_t bytes, offset;  ///< of the exported address in its block
  std::uint32_t value, answer;  ///< every byte before, and after the receiver has written
};

struct Block {
  CUdeviceptr address;
  std::size_t bytes;
  int value;
};

/// One thread of one process. It sends to the next process's thread of the same number, and hears from the one before.
class Partner {
 public:
  Partner(const Settings& settings, int process, int thread, int to, int from)
      : settings_(settings), name_(std::to_string(process) + "." + std::to_string(thread)), to_(to), from_(from) {
    random_.seed(settings.seed * 1'000'003 + static_cast<std::uint64_t>(process * 64 + thread));
  }

  void run(CUcontext context) {
    answered("current", cuCtxSetCurrent(context));
    for (int step = 0; step < settings_.steps; ++step) {
      line_.clear();
      if (step % 8 == 7) exchange();
      else if (below(3) != 0) allocate();
      else release();
      if (!line_.empty()) lines_ += name_ + " " + std::to_string(step) + ":" + line_ + "\n";
    }
    line_.clear();
    while (!blocks_.empty()) release();
    lines_ += name_ + " end:" + line_ + "\n";
  }
  const std::string& lines() const { return lines_; }

 private:
  std::uint64_t below(std::uint64_t bound) { return random_() % bound; }
  bool answered(const char* what, CUresult result) {
    line_ += std::string(" ") + what + "->" + std::to_string(result);
    return result == CUDA_SUCCESS;
  }

  void allocate() {
    if (blocks_.size() > 40) return release();
    Block block{0, 512 * (1 + below(below(4) == 0 ? 16384 : 256)), static_cast<int>(below(256))};
    if (!answered("allocate", cuMemAlloc(&block.address, block.bytes))) return;
    if (answered("fill", cuMemsetD8(block.address, static_cast<unsigned char>(block.value), block.bytes))) blocks_.push_back(block);
  }

  void release() {
    if (blocks_.empty()) return;
    const std::size_t index = below(blocks_.size());
    verify("kept", blocks_[index].address, blocks_[index].bytes, blocks_[index].value);
    answered("free", cuMemFree(blocks_[index].address));
    blocks_.erase(blocks_.begin() + static_cast<std::ptrdiff_t>(index));
  }

  void verify(const char* what, CUdeviceptr address, std::size_t bytes, int value) {
    bytes_.assign(bytes, 0);
    if (!answered(what, cuMemcpyDtoH(bytes_.data(), address, bytes))) return;
    if (bytes == 0 || (bytes_[0] == value && std::memcmp(bytes_.data(), bytes_.data() + 1, bytes - 1) == 0)) return;
    const auto wrong = std::count_if(bytes_.begin(), bytes_.end(), [&](unsigned char byte) { return byte != value; });
    if (wrong != 0) line_ += " WRONG=" + std::to_string(wrong);
  }

  /// A block of ours goes out and one comes in; then what the other has made of ours is looked at.
  void exchange() {
    Letter out{};
    if (blocks_.empty()) allocate();
    if (!blocks_.empty()) {
      sent_ = below(blocks_.size());
      const Block& block = blocks_[sent_];
      CUdeviceptr base = 0;
      std::size_t range = 0;
      out.bytes = block.bytes;
      out.value = static_cast<std::uint32_t>(block.value);
      if (answered("range", cuMemGetAddressRange(&base, &range, block.address + below(block.bytes)))) {
        out.offset = block.address - base;
        line_ += " of=" + std::to_string(range) + " at=" + std::to_string(out.offset);
      }
      if (answered("synchronise", cuCtxSynchronize()) && !answered("export", cuIpcGetMemHandle(&out.handle, base))) out.bytes = 0;
    }
    tell(to_, &out);
    Letter in{};
    hear(from_, &in);
    if (in.bytes != 0) open(&in);
    tell(from_, &in);
    Letter back{};
    hear(to_, &back);
    if (back.bytes == 0 || out.bytes == 0) return;
    Block& block = blocks_[sent_];
    block.value = static_cast<int>(back.answer);
    verify("back", block.address, block.bytes, block.value);
  }

  void open(Letter* letter) {
    CUdeviceptr opened = 0;
    letter->answer = letter->value;
    if (!answered("open", cuIpcOpenMemHandle(&opened, letter->handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS))) return;
    const CUdeviceptr address = opened + letter->offset;
    verify("read", address, letter->bytes, static_cast<int>(letter->value));
    const std::uint32_t value = static_cast<std::uint32_t>(below(256));
    if (answered("write", cuMemsetD8(address, static_cast<unsigned char>(value), letter->bytes)) && answered("synchronise", cuCtxSynchronize()))
      letter->answer = value;
    answered("close", cuIpcCloseMemHandle(opened));
  }

  static void tell(int socket, const Letter* letter) {
    if (write(socket, letter, sizeof *letter) != static_cast<ssize_t>(sizeof *letter)) _exit(6);
  }
  static void hear(int socket, Letter* letter) {
    if (recv(socket, letter, sizeof *letter, MSG_WAITALL) != static_cast<ssize_t>(sizeof *letter)) _exit(6);
  }

  const Settings& settings_;
  std::string name_;
  int to_, from_;
  std::mt19937_64 random_;
  std::size_t sent_ = 0;
  std::vector<Block> blocks_;
  std::vector<unsigned char> bytes_;
  std::string line_, lines_;
};

/// One process of the ring. `sockets`: [process][thread], the pair between a process and the next.
int take_part(const Settings& settings, int process, const std::vector<std::vector<std::pair<int, int>>>& sockets, int out) {
  if (cuInit(0) != CUDA_SUCCESS) return 3;
  CUcontext context = nullptr;
  if (cuDevicePrimaryCtxRetain(&context, 0) != CUDA_SUCCESS) return 3;
  const auto own = static_cast<std::size_t>(process);
  const std::size_t before = (own + sockets.size() - 1) % sockets.size();
  std::vector<Partner> partners;
  for (int thread = 0; thread < settings.threads; ++thread) {
    const auto at = static_cast<std::size_t>(thread);
    partners.emplace_back(settings, process, thread, sockets[own][at].first, sockets[before][at].second);
  }
  std::vector<std::thread> threads;
  for (Partner& partner : partners) threads.emplace_back([&] { partner.run(context); });
  for (std::thread& thread : threads) thread.join();
  std::string text;
  for (const Partner& partner : partners) text += partner.lines();
  const auto violations = reinterpret_cast<std::size_t (*)()>(dlsym(RTLD_DEFAULT, "cusim_violation_count"));
  const auto sentence = reinterpret_cast<const char* (*)(std::size_t)>(dlsym(RTLD_DEFAULT, "cusim_violation"));
  for (std::size_t i = 0; i < violations(); ++i) text += std::string("violation: ") + sentence(i) + "\n";
  cuDevicePrimaryCtxRelease(0);
  for (std::size_t at = 0; at < text.size();) {
    const ssize_t put = write(out, text.data() + at, text.size() - at);
    if (put <= 0) return 6;
    at += static_cast<std::size_t>(put);
  }
  return 0;
}

}  // namespace

int main(int count, char** arguments) {
  if (count != 5) {
    std::fprintf(stderr, "exchange SEED STEPS PROCESSES THREADS\n");
    return 2;
  }
  const auto number = [&](int index) { return std::atoi(arguments[index]); };
  const Settings settings{std::strtoull(arguments[1], nullptr, 10), number(2), number(3), number(4)};
  std::vector<std::vector<std::pair<int, int>>> sockets;
  for (int process = 0; process < settings.processes; ++process) {
    sockets.emplace_back();
    for (int thread = 0; thread < settings.threads; ++thread) {
      int pair[2];
      if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair) != 0) return 6;
      sockets.back().emplace_back(pair[0], pair[1]);
    }
  }
  std::vector<std::pair<pid_t, FILE*>> children;
  for (int process = 0; process < settings.processes; ++process) {
    FILE* const lines = std::tmpfile();
    const pid_t child = fork();
    if (child == 0) std::exit(take_part(settings, process, sockets, fileno(lines)));
    children.emplace_back(child, lines);
  }
  int worst = 0;
  for (const auto& [child, lines] : children) {
    int status = 0;
    waitpid(child, &status, 0);
    worst = std::max(worst, WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status));
    std::rewind(lines);
    char buffer[4096];
    for (std::size_t got = 0; (got = std::fread(buffer, 1, sizeof buffer, lines)) != 0;) std::fwrite(buffer, 1, got, stdout);
    std::fclose(lines);
  }
  return worst;
}
