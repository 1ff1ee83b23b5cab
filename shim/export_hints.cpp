// See export_hints.hpp. The ELF tables of the main program are read as the loader left them, within its segments.
#include "shim/export_hints.hpp"

#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <span>
#include <string_view>

#include "shim/elf_references.hpp"
#include "shim/entry_points.hpp"
#include "shim/process.hpp"

namespace cupool::shim::export_hints {
namespace {

constexpr std::string_view kRuntimeExport = "cudaIpcGetMemHandle";

std::atomic<bool> g_looked_up{false};
std::atomic<bool> g_ranges_looked_up{false};

/// How many processes of the job run on this machine: torchrun and its kin, DeepSpeed, Horovod, Open MPI, MPICH and Intel MPI (Hydra), MVAPICH 2 and
/// 3, Cray PALS and PMI, IBM jsrun. Slurm's may be a list: "2(x3),1".
constexpr const char* kLocalSizes[] = {"LOCAL_WORLD_SIZE",
                                       "LOCAL_SIZE",
                                       "HOROVOD_LOCAL_SIZE",
                                       "OMPI_COMM_WORLD_LOCAL_SIZE",
                                       "MPI_LOCALNRANKS",
                                       "MV2_COMM_WORLD_LOCAL_SIZE",
                                       "MVP_COMM_WORLD_LOCAL_SIZE",
                                       "PALS_LOCAL_SIZE",
                                       "PMI_LOCAL_SIZE",
                                       "JSM_NAMESPACE_LOCAL_SIZE",
                                       "SLURM_NTASKS_PER_NODE",
                                       "SLURM_STEP_TASKS_PER_NODE",
                                       "SLURM_TASKS_PER_NODE"};
/// Which of them this one is: any but the first has others beside it.
constexpr const char* kLocalRanks[] = {"LOCAL_RANK",
                                       "HOROVOD_LOCAL_RANK",
                                       "OMPI_COMM_WORLD_LOCAL_RANK",
                                       "MPI_LOCALRANKID",
                                       "MV2_COMM_WORLD_LOCAL_RANK",
                                       "MVP_COMM_WORLD_LOCAL_RANK",
                                       "PALS_LOCAL_RANKID",
                                       "PMI_LOCAL_RANK",
                                       "PMIX_LOCAL_RANK",
                                       "JSM_NAMESPACE_LOCAL_RANK",
                                       "SLURM_LOCALID",
                                       "FLUX_TASK_LOCAL_ID"};

/// The largest number of a list like "2(x3),1"; what stands in parentheses is how often it comes. 0 for anything else.
long largest_of(const char* text) {
  long largest = 0;
  while (*text != '\0') {
    char* end = nullptr;
    const long value = std::strtol(text, &end, 10);
    if (end == text || value < 0) return 0;
    largest = value > largest ? value : largest;
    const char* comma = std::strchr(end, ',');
    if (comma == nullptr) break;
    text = comma + 1;
  }
  return largest;
}

bool says_more_than(const char* name, long bound) {
  const char* value = secure_getenv(name);
  return value != nullptr && largest_of(value) > bound;
}

bool has_role(std::string_view name, Role role) {
  const std::optional<Entry> entry = name.starts_with("cu") ? find_symbol(name) : std::nullopt;
  return entry && kEntryPoints[static_cast<std::size_t>(*entry)].role == role;
}

/// Is it a function that hands memory to other processes, in the driver's names or the runtime's?
bool is_export(std::string_view name) { return name == kRuntimeExport || has_role(name, Role::exporting); }
bool is_range_export(std::string_view name) { return has_role(name, Role::ranges); }

/// The main program's tables; everything that they point to is checked to lie in its loaded segments.
class Program {
 public:
  using IsWanted = bool (*)(std::string_view name);

  explicit Program(const dl_phdr_info& info) : info_(info) {
    const ElfW(Dyn)* entry = nullptr;
    const ElfW(Dyn)* end = nullptr;
    for (int i = 0; i < info.dlpi_phnum; ++i) {
      const ElfW(Phdr)& segment = info.dlpi_phdr[i];
      if (segment.p_type != PT_DYNAMIC) continue;
      entry = reinterpret_cast<const ElfW(Dyn)*>(info.dlpi_addr + segment.p_vaddr);
      end = entry + segment.p_memsz / sizeof *entry;
    }
    for (; entry != end && entry->d_tag != DT_NULL; ++entry) read(*entry);
  }

  bool imports(IsWanted is_wanted) const {
    return symbols_ != 0 && strings_ != 0 && (refers_to(calls_, calls_bytes_, is_wanted) || refers_to(data_, data_bytes_, is_wanted));
  }

 private:
  void read(const ElfW(Dyn) & entry) {
    switch (entry.d_tag) {
      case DT_SYMTAB: symbols_ = address_of(entry); break;
      case DT_STRTAB: strings_ = address_of(entry); break;
      case DT_STRSZ: strings_bytes_ = entry.d_un.d_val; break;
      case DT_JMPREL: calls_ = address_of(entry); break;
      case DT_PLTRELSZ: calls_bytes_ = entry.d_un.d_val; break;
      case DT_RELA: data_ = address_of(entry); break;
      case DT_RELASZ: data_bytes_ = entry.d_un.d_val; break;
      default: break;
    }
  }

  /// The address that an entry names: glibc has made it absolute in most programs, musl in none.
  ElfW(Addr) address_of(const ElfW(Dyn) & entry) const {
    return entry.d_un.d_ptr >= info_.dlpi_addr ? entry.d_un.d_ptr : entry.d_un.d_ptr + info_.dlpi_addr;
  }

  bool is_loaded(ElfW(Addr) begin, std::size_t bytes) const {
    for (int i = 0; i < info_.dlpi_phnum; ++i) {
      const ElfW(Phdr)& segment = info_.dlpi_phdr[i];
      const ElfW(Addr) start = info_.dlpi_addr + segment.p_vaddr;
      if (segment.p_type == PT_LOAD && begin >= start && bytes <= segment.p_memsz && begin - start <= segment.p_memsz - bytes) return true;
    }
    return false;
  }

  /// Does a relocation of the table name a wanted function? Every imported function has one. Most relocations are relative and name symbol 0.
  bool refers_to(ElfW(Addr) table, std::size_t bytes, IsWanted is_wanted) const {
    if (table == 0 || bytes == 0 || !is_loaded(table, bytes)) return false;
    const auto* relocation = reinterpret_cast<const ElfW(Rela)*>(table);
    for (const auto* end = relocation + bytes / sizeof *relocation; relocation != end; ++relocation) {
      const std::size_t index = relocation->r_info >> 32;  // ELF64_R_SYM; the library is built for 64 bits only
      if (index != 0 && is_wanted_symbol(symbols_ + index * sizeof(ElfW(Sym)), is_wanted)) return true;
    }
    return false;
  }

  bool is_wanted_symbol(ElfW(Addr) address, IsWanted is_wanted) const {
    if (!is_loaded(address, sizeof(ElfW(Sym)))) return false;
    const auto* symbol = reinterpret_cast<const ElfW(Sym)*>(address);
    if (symbol->st_shndx != SHN_UNDEF || symbol->st_name >= strings_bytes_ || !is_loaded(strings_, strings_bytes_)) return false;
    const auto* name = reinterpret_cast<const char*>(strings_) + symbol->st_name;
    return is_wanted({name, strnlen(name, strings_bytes_ - symbol->st_name)});
  }

  const dl_phdr_info& info_;
  ElfW(Addr) symbols_ = 0;
  ElfW(Addr) strings_ = 0;
  ElfW(Addr) calls_ = 0;
  ElfW(Addr) data_ = 0;
  std::size_t strings_bytes_ = 0;
  std::size_t calls_bytes_ = 0;
  std::size_t data_bytes_ = 0;
};
static_assert(sizeof(void*) == 8);

struct Search {
  Program::IsWanted is_wanted;
  bool found = false;
};

/// The main program is the first object that dl_iterate_phdr visits; returning 1 ends the walk there.
int visit_main(dl_phdr_info* info, std::size_t, void* search) {
  static_cast<Search*>(search)->found = Program(*info).imports(static_cast<Search*>(search)->is_wanted);
  return 1;
}

bool program_imports(Program::IsWanted is_wanted) {
  Search search{is_wanted};
  dl_iterate_phdr(visit_main, &search);
  return search.found;
}

/// The file that the program was started from, mapped, also where its name is gone. Nobody can shorten it while it runs. Empty where it cannot be
/// read.
class ProgramFile {
 public:
  ProgramFile() {
    const int file = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    if (file < 0) return;
    struct stat facts {};
    if (fstat(file, &facts) == 0 && S_ISREG(facts.st_mode) && facts.st_size > 0) {
      void* memory = mmap(nullptr, static_cast<std::size_t>(facts.st_size), PROT_READ, MAP_PRIVATE, file, 0);
      if (memory != MAP_FAILED) bytes_ = {static_cast<const std::byte*>(memory), static_cast<std::size_t>(facts.st_size)};
    }
    close(file);
  }
  ~ProgramFile() {
    if (!bytes_.empty()) munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
  }
  ProgramFile(const ProgramFile&) = delete;
  ProgramFile& operator=(const ProgramFile&) = delete;

  std::span<const std::byte> bytes() const { return bytes_; }

 private:
  std::span<const std::byte> bytes_;
};

/// The program has looked a function up that shares memory. `follow`: what a pool that already serves does about it.
void note_export_lookup(void (PoolSet::*follow)()) {
  g_looked_up.store(true, std::memory_order_relaxed);
  if (Process* own = find_process(); own != nullptr && own->options->ipc == config::IpcMode::automatic) (own->pools.*follow)();
}

}  // namespace

bool has_local_ranks() {
  for (const char* name : kLocalSizes)
    if (says_more_than(name, 1)) return true;
  for (const char* name : kLocalRanks)
    if (says_more_than(name, 0)) return true;
  // The first rank of PyTorch Lightning is told only that there are others, on whatever machine.
  return secure_getenv("LOCAL_RANK") != nullptr && secure_getenv("LOCAL_WORLD_SIZE") == nullptr && says_more_than("WORLD_SIZE", 1);
}

bool program_imports_export() { return program_imports(is_export); }

bool program_calls_its_own_export() { return refers_to_own_function(ProgramFile().bytes(), kRuntimeExport); }

const char* reason() {
  if (has_local_ranks()) return "several ranks run on this machine";
  if (program_imports_export()) return "the program imports a function that shares memory with other processes";
  if (g_looked_up.load(std::memory_order_relaxed)) return "the program looked up a function that shares memory with other processes";
  return program_calls_its_own_export() ? "the program calls a function, linked into it, that shares memory with other processes" : nullptr;
}

bool may_export_ranges() { return g_ranges_looked_up.load(std::memory_order_relaxed) || program_imports(is_range_export); }

void note_range_use() {
  g_ranges_looked_up.store(true, std::memory_order_relaxed);
  if (Process* own = find_process(); own != nullptr) own->pools.begin_on_host_pages();
}

void note_proc_address(Entry entry) {
  if (kEntryPoints[static_cast<std::size_t>(entry)].role == Role::ranges) note_range_use();
}

void note_dlsym(const char* name) {
  // Some programs look all functions of the driver up, but nobody all of the runtime's: who asks for this one will share a block next.
  if (name == kRuntimeExport) note_export_lookup(&PoolSet::share_blocks);
}

void note_dlsym(Entry entry) {
  note_proc_address(entry);
  if (kEntryPoints[static_cast<std::size_t>(entry)].role == Role::exporting) note_export_lookup(&PoolSet::keep_to_segments);
}

}  // namespace cupool::shim::export_hints
