// User objects: what graphs keep alive. The destroy function runs when the last reference goes, in the thread that lets go of it, as a host function:
// it makes no call. Source: CUDA Driver API 13.0, Graph Management.
#include <climits>
#include <utility>

#include "tests/sim/graph_nodes.hpp"

namespace cusim {

UserObject::~UserObject() {
  ThreadState& state = Simulator::instance().thread();
  const bool was_inside = std::exchange(state.in_host_function, true);
  if (destroy_ != nullptr) destroy_(object_);
  state.in_host_function = was_inside;
}

}  // namespace cusim

using namespace cusim;

namespace {

bool is_count(unsigned count) { return count != 0 && count <= INT_MAX; }

/// So many references are held there.
CUresult find_object(Call& c, const HeldObjects& held, CUuserObject handle, unsigned count) {
  const auto found = held.find(as_number(handle));
  if (found == held.end() || found->second.count < count) {
    c.sim.violate(c.name() + " of a user object of which not so many references are held there");
    return CUDA_ERROR_INVALID_VALUE;
  }
  return CUDA_SUCCESS;
}

/// One more holder of an object that anybody still holds.
CUresult add_references(Call& c, HeldObjects& held, CUuserObject handle, unsigned count) {
  const auto known = c.sim.known_objects.find(as_number(handle));
  std::shared_ptr<UserObject> object = known != c.sim.known_objects.end() ? known->second.lock() : nullptr;
  if (object == nullptr) {
    c.sim.violate(c.name() + " of a user object that is destroyed or unknown");
    return CUDA_ERROR_INVALID_VALUE;
  }
  HeldObject& place = held[as_number(handle)];
  place.object = std::move(object);
  place.count += count;
  return CUDA_SUCCESS;
}

void let_go(HeldObjects& held, CUuserObject handle, unsigned count) {
  const auto found = held.find(as_number(handle));
  found->second.count -= count;
  if (found->second.count == 0) held.erase(found);
}

}  // namespace

extern "C" {

CUresult cuUserObjectCreate(CUuserObject* out, void* object, CUhostFn destroy, unsigned count, unsigned flags) {
  return call(Symbol::cuUserObjectCreate, [&](Call& c) -> CUresult {
    if (out == nullptr || destroy == nullptr || !is_count(count) || flags != CU_USER_OBJECT_NO_DESTRUCTOR_SYNC) return CUDA_ERROR_INVALID_VALUE;
    const std::uint64_t handle = c.sim.new_handle();
    auto made = std::make_shared<UserObject>(object, destroy);
    c.sim.known_objects.emplace(handle, made);
    c.sim.user_objects.emplace(handle, HeldObject{std::move(made), count});
    *out = reinterpret_cast<CUuserObject>(handle);
    return CUDA_SUCCESS;
  });
}

CUresult cuUserObjectRetain(CUuserObject object, unsigned count) {
  return call(Symbol::cuUserObjectRetain,
              [&](Call& c) -> CUresult { return is_count(count) ? add_references(c, c.sim.user_objects, object, count) : CUDA_ERROR_INVALID_VALUE; });
}

CUresult cuUserObjectRelease(CUuserObject object, unsigned count) {
  return call(Symbol::cuUserObjectRelease, [&](Call& c) -> CUresult {
    if (!is_count(count)) return CUDA_ERROR_INVALID_VALUE;
    CUSIM_TRY(find_object(c, c.sim.user_objects, object, count));
    let_go(c.sim.user_objects, object, count);
    return CUDA_SUCCESS;
  });
}

CUresult cuGraphRetainUserObject(CUgraph handle, CUuserObject object, unsigned count, unsigned flags) {
  return call(Symbol::cuGraphRetainUserObject, [&](Call& c) -> CUresult {
    const bool moves = flags == CU_GRAPH_USER_OBJECT_MOVE;
    if (!is_count(count) || (flags != 0 && !moves)) return CUDA_ERROR_INVALID_VALUE;
    std::shared_ptr<Graph> graph;
    CUSIM_TRY(find_graph(c, handle, &graph));
    if (moves) CUSIM_TRY(find_object(c, c.sim.user_objects, object, count));
    CUSIM_TRY(add_references(c, graph->objects, object, count));
    if (moves) let_go(c.sim.user_objects, object, count);
    return CUDA_SUCCESS;
  });
}

CUresult cuGraphReleaseUserObject(CUgraph handle, CUuserObject object, unsigned count) {
  return call(Symbol::cuGraphReleaseUserObject, [&](Call& c) -> CUresult {
    if (!is_count(count)) return CUDA_ERROR_INVALID_VALUE;
    std::shared_ptr<Graph> graph;
    CUSIM_TRY(find_graph(c, handle, &graph));
    CUSIM_TRY(find_object(c, graph->objects, object, count));
    let_go(graph->objects, object, count);
    return CUDA_SUCCESS;
  });
}

}  // extern "C"
