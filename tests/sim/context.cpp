// How contexts come, break and end. The exported functions are in api_context.cpp.
#include "tests/sim/simulator.hpp"

namespace cusim {

Context* Simulator::find_context(CUcontext handle) {
  for (const auto& context : contexts) {
    if (as_handle(context.get()) == handle) return context.get();
  }
  return nullptr;
}

Context* Simulator::create_context(int device, bool primary, unsigned flags) {
  auto fresh = std::make_unique<Context>();
  fresh->device = device;
  fresh->primary = primary;
  fresh->flags = flags;
  fresh->id = next_id();
  fresh->api_version = 3020;  // what current drivers answer
  fresh->legacy = std::make_unique<Stream>();
  fresh->legacy->context = fresh.get();
  fresh->legacy->legacy = true;
  fresh->legacy->id = next_id();
  contexts.push_back(std::move(fresh));
  return contexts.back().get();
}

void Simulator::break_context(Context& context, CUresult code) {
  if (context.broken == CUDA_SUCCESS) context.broken = code;
}

void Simulator::end_context(Context& context, Lock& lock) {
  for (const auto& capture : std::vector(captures)) {
    if (capture->origin != nullptr && capture->origin->context == &context) forget_capture(capture);
  }
  wait_for_context(context, lock);
  while (context.memory != nullptr) release(*context.memory);
  std::erase_if(arrays, [&](const auto& entry) {
    if (entry.second->context != &context) return false;
    devices[static_cast<std::size_t>(context.device)]->memory.uncharge(entry.second->charged_bytes);
    return true;
  });
  std::erase_if(events, [&](const auto& entry) { return entry.second->context == &context; });
  for (Stream* stream : std::set(context.streams)) streams.erase(stream->handle);
  context.streams.clear();
  context.per_thread.clear();
  context.legacy->tail = nullptr;
  context.gate = nullptr;
  context.orphans.clear();
  context.peers.clear();
  for (const auto& other : contexts) other->peers.erase(&context);
  trim_pools(context.device);
  devices[static_cast<std::size_t>(context.device)]->memory.uncharge(context.charged_bytes);
  context.charged_bytes = 0;
  context.broken = CUDA_SUCCESS;
  context.alive = false;
  context.destroyed = !context.primary;
}

}  // namespace cusim
