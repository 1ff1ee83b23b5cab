// One slot per exported symbol: the assembly in exports.S jumps through it. The slot has the type that <cuda.h> gives
// the symbol, so a body of the wrong signature does not compile.
#include "shim/hooked.hpp"

namespace cupool::shim {

#define CUPOOL_BODY(the_symbol, role, method)                                            \
  template <>                                                                            \
  struct Body<Entry::the_symbol> {                                                       \
    using Signature = decltype(::the_symbol);                                            \
    static constexpr Role kRole = role;                                                  \
    template <class... Args>                                                             \
    static CUresult run(const Real<Signature>& real, Args... args) {                     \
      return front_door::method(real, args...);                                          \
    }                                                                                    \
  };
#define HOOK(name, symbol, since, method) CUPOOL_BODY(symbol, Role::serve, method)
#define HOOK_TAKE(name, symbol, since, method) CUPOOL_BODY(symbol, Role::take, method)
#define HOOK_FREE(name, symbol, since, method) CUPOOL_BODY(symbol, Role::free, method)
#define HOOK_COPY(name, symbol, since, method) CUPOOL_BODY(symbol, Role::copy, method)
#define HOOK_WAIT(name, symbol, since, method) CUPOOL_BODY(symbol, Role::wait, method)
#define HOOK_READ(name, symbol, since, method) CUPOOL_BODY(symbol, Role::read, method)
#define HOOK_EXPORT(name, symbol, since, method) CUPOOL_BODY(symbol, Role::exporting, method)
#define HOOK_RANGE(name, symbol, since, method) CUPOOL_BODY(symbol, Role::ranges, method)
#define HOOK_LOOKUP(name, symbol, since, method) CUPOOL_BODY(symbol, Role::lookup, method)
#include "shim/entry_points.def"
#undef HOOK
#undef HOOK_TAKE
#undef HOOK_FREE
#undef HOOK_COPY
#undef HOOK_WAIT
#undef HOOK_READ
#undef HOOK_EXPORT
#undef HOOK_RANGE
#undef HOOK_LOOKUP

void* exported_address(Entry entry) {
  switch (entry) {
#define HOOK(name, symbol, since, method) \
  case Entry::symbol: return reinterpret_cast<void*>(&::symbol);
#include "shim/entry_points.def"
#undef HOOK
    case Entry::kCount: break;
  }
  return nullptr;
}

}  // namespace cupool::shim

extern "C" {
#define HOOK(name, symbol, since, method)                                            \
  [[gnu::visibility("hidden")]] extern decltype(&::symbol) const cupool_slot_##symbol; \
  decltype(&::symbol) const cupool_slot_##symbol = &cupool::shim::Hooked<cupool::shim::Entry::symbol>::call;
#include "shim/entry_points.def"
#undef HOOK
}
