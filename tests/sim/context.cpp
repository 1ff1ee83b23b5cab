// How contexts come, break and end. The exported functions are in api_context.cpp.
#include "tests/sim/simulator.hpp"

#include <chrono>
#include <thread>

namespace cusim {

Context* Simulator::find_context(CUcontext handle) {
  const auto found = contexts_by_handle.find(as_number(handle));
  return found == contexts_by_handle.end() ? nullptr : found->second;
}

Context* Simulator::create_context(int device, bool primary, unsigned flags) {
  auto fresh = std::make_unique<Context>();
  Context* place = nullptr;
  if (settings.reuses_handles) {
    // The one that was destroyed last is made anew in its place, under its handle.
    for (const auto& context : contexts) {
      if (context->destroyed && context->pending == 0) place = context.get();
    }
  }
  fresh->device = device;
  fresh->primary = primary;
  fresh->flags = flags;
  fresh->handle = place != nullptr ? place->handle : new_handle();
  fresh->id = next_id();
  fresh->api_version = 3020;  // what current drivers answer
  fresh->legacy = std::make_unique<Stream>();
  fresh->legacy->context = place != nullptr ? place : fresh.get();
  fresh->legacy->legacy = true;
  fresh->legacy->id = next_id();
  if (place != nullptr) {
    *place = std::move(*fresh);
    return place;
  }
  contexts.push_back(std::move(fresh));
  contexts_by_handle.emplace(contexts.back()->handle, contexts.back().get());
  return contexts.back().get();
}

std::uint64_t Simulator::take_handle(std::vector<std::uint64_t>& given_back) {
  if (!settings.reuses_handles || given_back.empty()) return new_handle();
  const std::uint64_t handle = given_back.back();
  given_back.pop_back();
  return handle;
}

void Simulator::wait_while_ending(const Context& context, Lock& lock) {
  while (context.ending) {
    lock.unlock();
    std::this_thread::sleep_for(std::chrono::microseconds(20));  // real time: the other thread is in the driver
    lock.lock();
  }
}

CUresult Simulator::retain_primary(Device& device, Lock& lock) {
  Context& primary = *device.primary;
  wait_while_ending(primary, lock);
  if (!primary.alive) {
    if (device.broken != CUDA_SUCCESS) return device.broken;  // [?] as cuCtxCreate answers
    if (!device.memory.charge(settings.context_bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
    primary.charged_bytes = settings.context_bytes;
    primary.alive = true;
    primary.id = next_id();
  }
  ++primary.references;
  return CUDA_SUCCESS;
}

std::vector<Context*> Simulator::family(Context& context) {
  std::vector<Context*> members = {&context};
  for (Context* green : context.green) {
    if (green->parent == &context && green->alive) members.push_back(green);  // else made anew in its place, as another
  }
  return members;
}

void Simulator::break_context(Context& context, CUresult code) {
  for (Context* member : family(*context.memory_owner())) {
    if (member->broken == CUDA_SUCCESS) member->broken = code;
  }
}

void Simulator::break_device(int ordinal, CUresult code) {
  devices[static_cast<std::size_t>(ordinal)]->broken = code;
  for (const auto& context : contexts) {
    if (context->device == ordinal && context->alive && context->broken == CUDA_SUCCESS) context->broken = code;
  }
}

void Simulator::forget_captures_of(const Context& context) {
  for (const auto& capture : std::vector(captures)) {
    if (capture->origin != nullptr && capture->origin->context == &context) forget_capture(capture);
  }
}

void Simulator::end_thread(ThreadState& state) {
  for (const auto& context : contexts) {
    const auto own = context->per_thread.find(&state);
    if (own == context->per_thread.end()) continue;
    if (own->second->capture != nullptr) forget_capture(own->second->capture);
    if (own->second->tail != nullptr && !own->second->tail->done) context->orphans.push_back(own->second->tail);
    context->per_thread.erase(own);
  }
}

/// CUDA Driver API 13.0, cuCtxDestroy: "It will not destroy memory allocations by cuMemCreate(), cuMemAllocAsync() and cuMemAllocFromPoolAsync().
/// These memory allocations are not associated with any CUDA context". A primary context's reset and last release "destroy all allocations of the
/// device in the process": so what was allocated on its streams goes here, unless CUSIM_RESET_LEAVES_POOLS has it as an H100 (driver 580).
void Simulator::leave_pool_memory(Context& context) {
  if (context.primary && !settings.reset_leaves_pools) return;
  for (Allocation* memory = context.memory; memory != nullptr;) {
    Allocation* const next = memory->next;
    if (memory->kind == MemoryKind::stream_ordered) {
      disown(*memory);
      memory->context = nullptr;
      memory->previous = memory->next = nullptr;
    }
    memory = next;
  }
}

CUresult Simulator::end_context(Context& context, Lock& lock) {
  context.ending = true;
  for (const Context* member : family(context)) forget_captures_of(*member);
  wait_for_context(context, lock);
  const CUresult answer = settings.end_errors ? context.broken : CUDA_SUCCESS;
  for (Context* member : family(context)) member->alive = false;  // [?] a primary that is reset ends its green contexts
  leave_pool_memory(context);
  while (context.memory != nullptr) release(*context.memory);
  std::erase_if(arrays, [&](const auto& entry) {
    if (entry.second->context != &context) return false;
    empty_array(*entry.second);
    return true;
  });
  std::erase_if(modules, [&](const auto& entry) {
    if (entry.second.context != &context) return false;
    devices[static_cast<std::size_t>(context.device)]->memory.uncharge(kGranuleBytes);
    return true;
  });
  std::erase_if(events, [&](const auto& entry) {
    if (entry.second->context != &context) return false;
    if (context.primary) events_of_primaries.emplace(entry.first, &context);
    return true;
  });
  for (Stream* stream : std::set(context.streams)) {
    given_back_streams.push_back(stream->handle);
    streams.erase(stream->handle);
  }
  context.streams.clear();
  context.per_thread.clear();
  context.legacy->tail = nullptr;
  context.gate = nullptr;
  context.orphans.clear();
  context.peers.clear();
  for (const auto& other : contexts)
    if (!other->peers.empty()) other->peers.erase(&context);
  trim_pools(context.device);
  devices[static_cast<std::size_t>(context.device)]->memory.uncharge(context.charged_bytes);
  context.charged_bytes = 0;
  context.broken = CUDA_SUCCESS;
  context.alive = false;
  context.destroyed = !context.primary;
  context.ending = false;
  return answer;
}

}  // namespace cusim
