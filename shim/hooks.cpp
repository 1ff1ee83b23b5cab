// One slot per exported symbol: the assembly in exports.S jumps through it. The slot has the type that <cuda.h> gives
// the symbol, so a body of the wrong signature does not compile.
#include "shim/hooked.hpp"

namespace cupool::shim {

#define HOOK(name, symbol, since, role, method)                                                                                           \
  template <> struct Body<Entry::symbol> {                                                                                                \
    using Signature = decltype(::symbol);                                                                                                 \
    static constexpr Role kRole = Role::role;                                                                                             \
    template <class... Args> static CUresult run(const Real<Signature>& real, Args... args) { return front_door::method(real, args...); } \
  };
#include "shim/entry_points.def"
#undef HOOK

void* exported_address(Entry entry) {
  switch (entry) {
#define HOOK(name, symbol, since, role, method) \
  case Entry::symbol:                           \
    return reinterpret_cast<void*>(&::symbol);
#include "shim/entry_points.def"
#undef HOOK
    case Entry::kCount: break;
  }
  return nullptr;
}

}  // namespace cupool::shim

extern "C" {
#define HOOK(name, symbol, since, role, method)                                        \
  [[gnu::visibility("hidden")]] extern decltype(&::symbol) const cupool_slot_##symbol; \
  decltype(&::symbol) const cupool_slot_##symbol = &cupool::shim::Hooked<cupool::shim::Entry::symbol>::call;
#include "shim/entry_points.def"
#undef HOOK
}
