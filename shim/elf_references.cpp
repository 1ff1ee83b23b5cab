// See elf_references.hpp. Code is not decoded: four bytes that lead to the function count if what stands before them is an instruction that
// takes such four bytes. Chance alone does that in 100 MB of evenly spread bytes about once in 5000 (2/256 * 1e8 / 2^32).
#include "shim/elf_references.hpp"

#include <elf.h>

#include <algorithm>
#include <cstdint>
#include <cstring>

namespace cupool::shim {
namespace {

using Bytes = std::span<const std::byte>;

constexpr int kMostDefinitions = 4;  ///< symbols of the name that are looked at: local functions of several files may share it

/// `offset` + sizeof(T) must lie within; nothing in a file is aligned for certain.
template <typename T> T read_at(Bytes bytes, std::size_t offset) {
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof value);
  return value;
}

/// May bytes[at..at+4) be the distance of a call, a jump, a conditional jump, or `lea distance(%rip), %r64`?
bool takes_distance(Bytes code, std::size_t at) {
  const auto before = [&](std::size_t count) { return at >= count ? std::to_integer<unsigned>(code[at - count]) : 0U; };
  if (before(1) == 0xe8 || before(1) == 0xe9) return true;
  if (before(2) == 0x0f && (before(1) & 0xf0) == 0x80) return true;
  return (before(1) & 0xc7) == 0x05 && before(2) == 0x8d && (before(3) & 0xf8) == 0x48;
}

/// May they be the operand of `mov $value, register` or `movq $value, memory`, as in programs that lie at fixed addresses?
bool takes_value(Bytes code, std::size_t at) {
  if (at >= 1 && (code[at - 1] & std::byte{0xf8}) == std::byte{0xb8}) return true;
  for (std::size_t count = 2; count <= 7 && count <= at; ++count)
    if (code[at - count] == std::byte{0xc7}) return true;
  return false;
}

class ElfFile {
 public:
  explicit ElfFile(Bytes file) : file_(file) {
    if (file.size() < sizeof header_) return;
    header_ = read_at<Elf64_Ehdr>(file, 0);
    const bool is_known = std::memcmp(header_.e_ident, ELFMAG, SELFMAG) == 0 && header_.e_ident[EI_CLASS] == ELFCLASS64 &&
                          header_.e_ident[EI_DATA] == ELFDATA2LSB && header_.e_machine == EM_X86_64 &&
                          (header_.e_type == ET_EXEC || header_.e_type == ET_DYN) && header_.e_shentsize == sizeof(Elf64_Shdr);
    if (!is_known || header_.e_shoff > file.size()) return;
    section_count_ = std::min<std::size_t>(header_.e_shnum, (file.size() - header_.e_shoff) / sizeof(Elf64_Shdr));
  }

  bool refers_to(std::string_view name) {
    for (std::size_t i = 0; i < section_count_; ++i) {
      const Elf64_Shdr table = section(i);
      if (table.sh_type == SHT_SYMTAB && table.sh_link < section_count_ && refers_to_symbol_of(table, name)) return true;
    }
    return false;
  }

 private:
  Elf64_Shdr section(std::size_t index) const { return read_at<Elf64_Shdr>(file_, header_.e_shoff + index * sizeof(Elf64_Shdr)); }

  /// The part's bytes; empty where they do not lie wholly in the file, or are more than may still be read.
  Bytes content(const Elf64_Shdr& part) {
    if (part.sh_type == SHT_NOBITS || part.sh_offset > file_.size() || part.sh_size > file_.size() - part.sh_offset || part.sh_size > left_bytes_)
      return {};
    left_bytes_ -= part.sh_size;
    return file_.subspan(part.sh_offset, part.sh_size);
  }

  static bool is_name(Bytes strings, std::size_t offset, std::string_view name) {
    return offset < strings.size() && strings.size() - offset > name.size() && std::memcmp(strings.data() + offset, name.data(), name.size()) == 0 &&
           strings[offset + name.size()] == std::byte{0};
  }

  bool refers_to_symbol_of(const Elf64_Shdr& table, std::string_view name) {
    const Bytes symbols = content(table);
    const Bytes strings = content(section(table.sh_link));
    int definitions = 0;
    for (std::size_t at = 0; symbols.size() - at >= sizeof(Elf64_Sym) && definitions < kMostDefinitions; at += sizeof(Elf64_Sym)) {
      const auto symbol = read_at<Elf64_Sym>(symbols, at);
      if (symbol.st_shndx == SHN_UNDEF || (symbol.st_info & 0xf) != STT_FUNC || !is_name(strings, symbol.st_name, name)) continue;
      ++definitions;
      if (refers_to_address(symbol.st_value)) return true;
    }
    return false;
  }

  bool refers_to_address(std::uint64_t target) {
    for (std::size_t i = 0; i < section_count_; ++i) {
      const Elf64_Shdr part = section(i);
      if ((part.sh_flags & SHF_ALLOC) == 0) continue;
      if (part.sh_type == SHT_PROGBITS && (part.sh_flags & SHF_EXECINSTR) != 0) {
        if (code_refers_to(content(part), part.sh_addr, target)) return true;
      } else if (may_hold_addresses(part) && holds(content(part), target)) {
        return true;
      }
    }
    return false;
  }

  /// An address stands in the relocation that stores it, or in the data where it is needed. Read-only data holds addresses only in programs at fixed
  /// addresses, and of that only .rodata is looked at: device code, which is read-only too, is full of small numbers.
  bool may_hold_addresses(const Elf64_Shdr& part) {
    if (part.sh_type == SHT_RELA) return true;
    if (part.sh_type != SHT_PROGBITS && part.sh_type != SHT_INIT_ARRAY && part.sh_type != SHT_FINI_ARRAY) return false;
    if ((part.sh_flags & SHF_WRITE) != 0) return true;
    return header_.e_type == ET_EXEC && header_.e_shstrndx < section_count_ && is_name(content(section(header_.e_shstrndx)), part.sh_name, ".rodata");
  }

  static bool holds(Bytes data, std::uint64_t target) {
    for (std::size_t at = 0; data.size() - at >= sizeof target; at += sizeof target)
      if (read_at<std::uint64_t>(data, at) == target) return true;
    return false;
  }

  /// `address`: where the code lies, in the file's terms.
  bool code_refers_to(Bytes code, std::uint64_t address, std::uint64_t target) const {
    const std::uint64_t fixed = header_.e_type == ET_EXEC && target <= UINT32_MAX ? target : 0;  // 0 is no function
    for (std::size_t at = 0; code.size() - at >= sizeof(std::int32_t); ++at) {
      const auto value = read_at<std::uint32_t>(code, at);
      const std::uint64_t end = address + at + sizeof value;
      if (value == static_cast<std::uint32_t>(target - end) &&
          end + static_cast<std::uint64_t>(std::int64_t{static_cast<std::int32_t>(value)}) == target && takes_distance(code, at))
        return true;
      if (fixed != 0 && value == fixed && takes_value(code, at)) return true;
    }
    return false;
  }

  Bytes file_;
  Elf64_Ehdr header_{};
  std::size_t section_count_ = 0;
  std::size_t left_bytes_ = kMostRead_bytes;
};

}  // namespace

bool refers_to_own_function(Bytes file, std::string_view name) noexcept { return ElfFile(file).refers_to(name); }

}  // namespace cupool::shim
