// Which functions of its own a program refers to: this very program, small files made by hand, and damaged ones, each of which ends where no
// byte behind it can be read.
#include "shim/elf_references.hpp"

#include <elf.h>
#include <sys/mman.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <initializer_list>
#include <iterator>
#include <random>
#include <span>
#include <string>
#include <vector>

using cupool::shim::refers_to_own_function;

// What the linker makes of a call, a tail call, an address in a register, one in a table, and of none of these.
#define LINKED_IN extern "C" __attribute__((noinline, used)) int
LINKED_IN cupool_test_called(int value) { return value + 1; }
LINKED_IN cupool_test_tail_called(int value) { return value + 2; }
LINKED_IN cupool_test_taken(int value) { return value + 3; }
LINKED_IN cupool_test_in_table(int value) { return value + 4; }
LINKED_IN cupool_test_unused(int value) { return value + 5; }
LINKED_IN cupool_test_calls(int value) { return cupool_test_called(value) * 3; }
LINKED_IN cupool_test_jumps(int value) { return cupool_test_tail_called(value); }
extern "C" {
int (*volatile cupool_test_pointer)(int) = nullptr;
extern int (*const volatile cupool_test_table[])(int);
int (*const volatile cupool_test_table[])(int) = {cupool_test_in_table};
}

namespace {

constexpr std::uint64_t kCodeAddress = 0x401000;
constexpr std::uint64_t kTarget = 0x404560;
constexpr const char* kName = "cudaIpcGetMemHandle";

std::vector<std::byte> bytes_of(std::initializer_list<unsigned> values) {
  std::vector<std::byte> bytes;
  for (const unsigned value : values) bytes.push_back(static_cast<std::byte>(value));
  return bytes;
}

template <typename T> void append(std::vector<std::byte>& bytes, const T& value) {
  bytes.resize(bytes.size() + sizeof value);
  std::memcpy(bytes.data() + bytes.size() - sizeof value, &value, sizeof value);
}

/// An instruction of `opcode` whose last four bytes lead to `target`, at the fourth byte of the code.
std::vector<std::byte> leading(std::initializer_list<unsigned> opcode, std::uint64_t target = kTarget) {
  std::vector<std::byte> code(4, std::byte{0x90});
  const std::vector<std::byte> begin = bytes_of(opcode);
  code.insert(code.end(), begin.begin(), begin.end());
  append(code, static_cast<std::uint32_t>(target - (kCodeAddress + code.size() + 4)));
  return code;
}

/// The same, but the four bytes are the address.
std::vector<std::byte> holding(std::initializer_list<unsigned> opcode) {
  std::vector<std::byte> code = bytes_of(opcode);
  append(code, static_cast<std::uint32_t>(kTarget));
  return code;
}

/// A program with code, one section of data, and a symbol table of one symbol.
struct Image {
  std::vector<std::byte> code = bytes_of({0xc3});
  std::vector<std::byte> data = std::vector<std::byte>(16);
  std::string data_name = ".data";
  std::uint32_t data_type = SHT_PROGBITS;
  std::uint64_t data_flags = SHF_ALLOC | SHF_WRITE;
  std::uint16_t type = ET_DYN;
  std::uint16_t machine = EM_X86_64;
  std::uint32_t symbols_type = SHT_SYMTAB;
  std::string symbol_name = kName;
  unsigned char symbol_type = STT_FUNC;
  std::uint16_t symbol_section = 1;

  std::vector<std::byte> build() const {
    std::vector<std::byte> file(sizeof(Elf64_Ehdr));
    std::vector<Elf64_Shdr> parts(1);
    const auto add = [&](std::uint32_t name, std::uint32_t kind, std::uint64_t flags, std::uint64_t address, const std::vector<std::byte>& content) {
      parts.push_back({name, kind, flags, address, file.size(), content.size(), 0, 0, 1, 0});
      file.insert(file.end(), content.begin(), content.end());
    };
    const auto text_of = [](const std::string& text) {
      std::vector<std::byte> bytes(text.size() + 2);
      std::memcpy(bytes.data() + 1, text.data(), text.size());
      return bytes;
    };
    Elf64_Sym symbol{};
    symbol.st_name = 1;
    symbol.st_info = symbol_type;
    symbol.st_shndx = symbol_section;
    symbol.st_value = kTarget;
    std::vector<std::byte> symbols;
    append(symbols, Elf64_Sym{});
    append(symbols, symbol);
    add(0, SHT_PROGBITS, SHF_ALLOC | SHF_EXECINSTR, kCodeAddress, code);
    add(1, data_type, data_flags, 0x500000, data);
    add(0, SHT_STRTAB, 0, 0, text_of(symbol_name));
    add(0, SHT_STRTAB, 0, 0, text_of(data_name));
    add(0, symbols_type, 0, 0, symbols);
    parts.back().sh_link = 3;
    Elf64_Ehdr header{};
    std::memcpy(header.e_ident, ELFMAG, SELFMAG);
    header.e_ident[EI_CLASS] = ELFCLASS64;
    header.e_ident[EI_DATA] = ELFDATA2LSB;
    header.e_type = type;
    header.e_machine = machine;
    header.e_shoff = file.size();
    header.e_shentsize = sizeof(Elf64_Shdr);
    header.e_shnum = static_cast<std::uint16_t>(parts.size());
    header.e_shstrndx = 4;
    std::memcpy(file.data(), &header, sizeof header);
    for (const Elf64_Shdr& part : parts) append(file, part);
    return file;
  }

  bool refers() const { return refers_to_own_function(build(), kName); }
};

Image with_code(std::vector<std::byte> code, std::uint16_t type = ET_DYN) {
  Image image;
  image.code = std::move(code);
  image.type = type;
  return image;
}

/// The address of the function as the second word of the section.
Image with_word(std::string name, std::uint32_t kind, std::uint64_t flags, std::uint16_t type = ET_DYN) {
  Image image;
  std::memcpy(image.data.data() + 8, &kTarget, sizeof kTarget);
  image.data_name = std::move(name);
  image.data_type = kind;
  image.data_flags = flags;
  image.type = type;
  return image;
}

/// Pages that end where reading ends the test.
class Guarded {
 public:
  Guarded() {
    memory_ = static_cast<std::byte*>(mmap(nullptr, 2 * page_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    REQUIRE(memory_ != MAP_FAILED);
    REQUIRE(mprotect(memory_ + page_, page_, PROT_NONE) == 0);
  }
  ~Guarded() { munmap(memory_, 2 * page_); }
  Guarded(const Guarded&) = delete;
  Guarded& operator=(const Guarded&) = delete;

  std::span<const std::byte> put(std::span<const std::byte> bytes) {
    REQUIRE(bytes.size() <= page_);
    if (bytes.empty()) return {memory_ + page_, 0};
    return {static_cast<std::byte*>(std::memcpy(memory_ + page_ - bytes.size(), bytes.data(), bytes.size())), bytes.size()};
  }

 private:
  std::size_t page_ = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  std::byte* memory_ = nullptr;
};

}  // namespace

TEST_CASE("of the functions linked into this program, those that it uses are told from one that it does not", "[elf]") {
  cupool_test_pointer = cupool_test_taken;
  REQUIRE(cupool_test_pointer(cupool_test_calls(1)) + cupool_test_jumps(1) + cupool_test_table[0](1) == 17);
  std::ifstream stream("/proc/self/exe", std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(stream), {}};
  const auto file = std::as_bytes(std::span(text));
  for (const char* name : {"cupool_test_called", "cupool_test_tail_called", "cupool_test_taken", "cupool_test_in_table"}) {
    CAPTURE(name);
    CHECK(refers_to_own_function(file, name));
  }
  // Imported ones are not the program's own; __cxa_begin_catch is imported whatever sanitizer brings a malloc with it.
  for (const char* name : {"cupool_test_unused", "cupool_test_absent", "cupool_test_call", "upool_test_called", "__cxa_begin_catch", ""}) {
    CAPTURE(name);
    CHECK_FALSE(refers_to_own_function(file, name));
  }
}

TEST_CASE("instructions that lead to the function are seen, others with the same four bytes are not", "[elf]") {
  CHECK_FALSE(Image().refers());
  CHECK(with_code(leading({0xe8})).refers());
  CHECK(with_code(leading({0xe9})).refers());
  CHECK(with_code(leading({0x0f, 0x84})).refers());
  CHECK(with_code(leading({0x48, 0x8d, 0x35})).refers());
  CHECK(with_code(leading({0x4c, 0x8d, 0x05})).refers());
  CHECK_FALSE(with_code(leading({0x48, 0x8b, 0x05})).refers());
  CHECK_FALSE(with_code(leading({0x48, 0x8d, 0x04})).refers());
  CHECK_FALSE(with_code(leading({0x90})).refers());
  CHECK_FALSE(with_code(leading({0xe8}, kTarget + 1)).refers());
  CHECK_FALSE(with_code(leading({0xe8}, kTarget + (std::uint64_t{1} << 32) + 16)).refers());
  CHECK_FALSE(with_code(bytes_of({0xe8})).refers());
}

TEST_CASE("the address itself counts as an operand where programs lie at fixed addresses", "[elf]") {
  CHECK(with_code(holding({0xbf}), ET_EXEC).refers());
  CHECK(with_code(holding({0x48, 0xc7, 0xc0}), ET_EXEC).refers());
  CHECK(with_code(holding({0x48, 0xc7, 0x05, 1, 2, 3, 4}), ET_EXEC).refers());
  CHECK_FALSE(with_code(holding({0xbf})).refers());
  CHECK_FALSE(with_code(holding({0x90, 0x3d}), ET_EXEC).refers());
}

TEST_CASE("an address in data counts where the linker puts addresses", "[elf]") {
  CHECK(with_word(".data.rel.ro", SHT_PROGBITS, SHF_ALLOC | SHF_WRITE).refers());
  CHECK(with_word(".rela.dyn", SHT_RELA, SHF_ALLOC).refers());
  CHECK(with_word(".init_array", SHT_INIT_ARRAY, SHF_ALLOC | SHF_WRITE).refers());
  CHECK(with_word(".rodata", SHT_PROGBITS, SHF_ALLOC, ET_EXEC).refers());
  CHECK_FALSE(with_word(".rodata", SHT_PROGBITS, SHF_ALLOC).refers());
  CHECK_FALSE(with_word(".nv_fatbin", SHT_PROGBITS, SHF_ALLOC, ET_EXEC).refers());
  CHECK_FALSE(with_word(".debug_addr", SHT_PROGBITS, 0).refers());
  CHECK_FALSE(with_word(".bss", SHT_NOBITS, SHF_ALLOC | SHF_WRITE).refers());
  CHECK_FALSE(with_word(".dynsym", SHT_DYNSYM, SHF_ALLOC).refers());
}

TEST_CASE("a file without such a function, or for another machine, says nothing", "[elf]") {
  const Image good = with_code(leading({0xe8}));
  const auto changed = [&](auto change) {
    Image image = good;
    change(image);
    return image.refers();
  };
  CHECK(good.refers());
  CHECK_FALSE(changed([](Image& image) { image.symbols_type = SHT_PROGBITS; }));
  CHECK_FALSE(changed([](Image& image) { image.symbol_section = SHN_UNDEF; }));
  CHECK_FALSE(changed([](Image& image) { image.symbol_type = STT_OBJECT; }));
  CHECK_FALSE(changed([](Image& image) { image.symbol_name += "2"; }));
  CHECK_FALSE(changed([](Image& image) { image.symbol_name.pop_back(); }));
  CHECK_FALSE(changed([](Image& image) { image.machine = EM_AARCH64; }));
  CHECK_FALSE(changed([](Image& image) { image.type = ET_REL; }));
  CHECK_FALSE(refers_to_own_function({}, kName));
}

TEST_CASE("nothing behind the end of a cut or damaged file is read", "[elf]") {
  Guarded guarded;
  Image image = with_word(".rodata", SHT_PROGBITS, SHF_ALLOC, ET_EXEC);
  image.code = leading({0xe8});
  const std::vector<std::byte> whole = image.build();
  const std::span<const std::byte> all(whole);
  CHECK(refers_to_own_function(guarded.put(all), kName));
  for (std::size_t bytes = 0; bytes < all.size() - sizeof(Elf64_Shdr); ++bytes)
    CHECK_FALSE(refers_to_own_function(guarded.put(all.first(bytes)), kName));

  const std::uint64_t hostile[] = {0,
                                   1,
                                   23,
                                   all.size() - 1,
                                   all.size(),
                                   all.size() + 1,
                                   0x7fff,
                                   0xffff,
                                   INT32_MAX,
                                   UINT32_MAX,
                                   INT64_MAX,
                                   std::uint64_t{1} << 63,
                                   ~std::uint64_t{0} - 7,
                                   ~std::uint64_t{0}};
  std::minstd_rand random(1);
  for (std::size_t at = 0; at + 8 <= all.size(); ++at) {
    for (const std::uint64_t value : hostile) {
      for (const std::size_t width : {std::size_t{2}, std::size_t{4}, std::size_t{8}}) {
        std::vector<std::byte> damaged = whole;
        std::memcpy(damaged.data() + at, &value, width);
        (void)refers_to_own_function(guarded.put(damaged), kName);
        std::memcpy(damaged.data() + random() % (all.size() - 8), &hostile[random() % std::size(hostile)], 8);  // two fields that agree in their lie
        (void)refers_to_own_function(guarded.put(damaged), kName);
      }
    }
  }
}
