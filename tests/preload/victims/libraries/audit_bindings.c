/* An auditing library (rtld-audit(7)): watches every binding and call through the PLT, changes nothing. */
#define _GNU_SOURCE
#include <link.h>
#include <stdint.h>

static unsigned long bindings, calls;

unsigned la_version(unsigned version) { return version < LAV_CURRENT ? version : LAV_CURRENT; }
unsigned la_objopen(struct link_map* map, Lmid_t id, uintptr_t* cookie) {
  (void)map, (void)id, (void)cookie;
  return LA_FLG_BINDTO | LA_FLG_BINDFROM;
}
uintptr_t la_symbind64(Elf64_Sym* symbol, unsigned index, uintptr_t* from, uintptr_t* to, unsigned* flags, const char* name) {
  (void)index, (void)from, (void)to, (void)flags, (void)name;
  ++bindings;
  return symbol->st_value;
}
Elf64_Addr la_x86_64_gnu_pltenter(Elf64_Sym* symbol, unsigned index, uintptr_t* from, uintptr_t* to, La_x86_64_regs* registers, unsigned* flags,
                                  const char* name, long* frame_bytes) {
  (void)index, (void)from, (void)to, (void)registers, (void)flags, (void)name, (void)frame_bytes;
  ++calls;
  return symbol->st_value;
}
