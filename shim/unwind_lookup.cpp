// Finds an object's unwind tables for the libgcc unwinder that is linked into this library.
//
// libgcc of GCC 12 and later calls _dl_find_object, which only glibc 2.35 and later have; this definition keeps the library loadable on
// glibc 2.34. It is hidden, so that no other unwinder gets here. It is slower than glibc's, but runs only where an exception is thrown.
#include <dlfcn.h>
#include <link.h>

#ifdef DLFO_STRUCT_HAS_EH_DBASE

#include <algorithm>
#include <cstdint>

namespace {

struct Search {
  std::uintptr_t address;
  dl_find_object* result;
};

int visit_object(dl_phdr_info* info, std::size_t, void* argument) {
  const Search& search = *static_cast<Search*>(argument);
  std::uintptr_t begin = UINTPTR_MAX;
  std::uintptr_t end = 0;
  std::uintptr_t eh_frame = 0;
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const ElfW(Phdr)& segment = info->dlpi_phdr[i];
    const std::uintptr_t start = info->dlpi_addr + segment.p_vaddr;
    if (segment.p_type == PT_GNU_EH_FRAME) eh_frame = start;
    if (segment.p_type != PT_LOAD) continue;
    begin = std::min(begin, start);
    end = std::max(end, start + segment.p_memsz);
  }
  if (search.address < begin || search.address >= end) return 0;
  if (eh_frame == 0) return -1;
  *search.result = dl_find_object{};
  search.result->dlfo_map_start = reinterpret_cast<void*>(begin);
  search.result->dlfo_map_end = reinterpret_cast<void*>(end);
  search.result->dlfo_eh_frame = reinterpret_cast<void*>(eh_frame);
  return 1;
}

}  // namespace

extern "C" [[gnu::visibility("hidden")]] int _dl_find_object(void* address, dl_find_object* result) noexcept;

int _dl_find_object(void* address, dl_find_object* result) noexcept {
  Search search{reinterpret_cast<std::uintptr_t>(address), result};
  return dl_iterate_phdr(&visit_object, &search) == 1 ? 0 : -1;
}

#endif
