// Streams, events, captures, graphs.
#include <dlfcn.h>

#include "walk.hpp"

namespace walks {

void Walk::create_stream() {
  const int context = draw(contexts_);
  if (context == kNone || is_captured(kNone) || streams_.size() > 400) return;
  Stream stream;
  stream.context = context;
  const unsigned flags = one_in(3) ? CU_STREAM_DEFAULT : CU_STREAM_NON_BLOCKING;
  const Context& owner = contexts_[static_cast<std::size_t>(context)];
  if (!use(context)) return;
  say("flags", flags);
  const bool is_green = owner.kind == Context::green;
  if (answered("", on_thread([&] {
                 return is_green ? cuGreenCtxStreamCreate(&stream.handle, owner.green_handle, CU_STREAM_NON_BLOCKING, 0)
                                 : cuStreamCreate(&stream.handle, flags);
               }))) {
    streams_.push_back(stream);
  }
}

void Walk::destroy_stream() {
  const int index = draw(streams_, [&](const Stream& s) { return is_usable(s) && s.capture == kNone && !is_default(s); });
  if (index == kNone || is_captured(kNone)) return;
  Stream& stream = streams_[static_cast<std::size_t>(index)];
  if (!one_in(4) && !use(stream.context)) return;
  say(named('s', index));
  if (!answered("", on_thread([&] { return cuStreamDestroy(stream.handle); }))) return;
  stream.is_alive = false;
  for (Executable& executable : executables_) {
    if (executable.stream == index) executable.writes.emplace_back(kNone, 0);  // never launched again
  }
}

void Walk::create_event() {
  const int context = draw(contexts_);
  if (context == kNone || !use(context)) return;
  Event event;
  event.context = context;
  if (answered("", on_thread([&] { return cuEventCreate(&event.handle, one_in(2) ? CU_EVENT_DEFAULT : CU_EVENT_DISABLE_TIMING); })))
    events_.push_back(event);
}

void Walk::destroy_event() {
  const int index = draw(events_);
  if (index == kNone || is_captured(kNone)) return;
  Event& event = events_[static_cast<std::size_t>(index)];
  say(named('e', index));
  if (answered("", on_thread([&] { return cuEventDestroy(event.handle); }))) event.is_alive = false;
}

/// One stream waits for another; where that one captures, it joins.
void Walk::cross_streams() {
  const int from = draw(streams_, [&](const Stream& s) { return is_usable(s) && s.handle != CU_STREAM_LEGACY; });
  if (from == kNone) return;
  Stream& first = streams_[static_cast<std::size_t>(from)];
  const int to = draw(streams_, [&](const Stream& s) {
    if (!is_usable(s) || s.handle == CU_STREAM_LEGACY || &s == &first) return false;
    if (is_default(s) && (s.context != first.context || (first.thread != kNone && first.thread != s.thread))) return false;
    if (first.capture != kNone && s.capture == kNone) return s.context == first.context;
    return s.capture == first.capture;
  });
  const int index = draw(events_, [&](const Event& e) { return e.is_alive && e.context == first.context; });
  if (to == kNone || index == kNone) return;
  if (streams_[static_cast<std::size_t>(to)].thread != kNone) thread_ = streams_[static_cast<std::size_t>(to)].thread;
  if (!reach(first, true)) return;
  const CUevent event = events_[static_cast<std::size_t>(index)].handle;
  Stream& second = streams_[static_cast<std::size_t>(to)];
  say(named('s', from) + " " + named('s', to));
  if (!answered("record", on_thread([&] { return cuEventRecord(event, first.handle); }))) return;
  if (!answered("wait", on_thread([&] { return cuStreamWaitEvent(second.handle, event, 0); }))) return;
  second.capture = first.capture;
}

void Walk::synchronise() {
  const int index = draw_idle_stream();
  if (index == kNone || is_forbidden()) return;
  const Stream& stream = streams_[static_cast<std::size_t>(index)];
  if (is_captured(stream.context) || !reach(stream, true)) return;
  if (one_in(3)) answered("all", on_thread([] { return cuCtxSynchronize(); }));
  else answered(named('s', index).c_str(), on_thread([&] { return cuStreamSynchronize(stream.handle); }));
}

void Walk::spin() {
  using Launch = CUresult (*)(CUstream, std::uint64_t);
  static const Launch launch = reinterpret_cast<Launch>(dlsym(RTLD_DEFAULT, "cusim_launch_spin"));
  const int index = draw(streams_, [&](const Stream& s) { return is_usable(s); });
  if (index == kNone) return;
  const Stream& stream = streams_[static_cast<std::size_t>(index)];
  if (stream.handle == CU_STREAM_LEGACY && is_captured(kNone)) return;
  if (!reach(stream, true)) return;
  say(named('s', index));
  answered("", on_thread([&] { return launch(stream.handle, 1 + below(1'000'000)); }));
}

void Walk::begin_capture() {
  const int index = draw(streams_, [&](const Stream& s) { return is_usable(s) && s.capture == kNone && s.handle != CU_STREAM_LEGACY; });
  if (index == kNone || is_tight_ || (is_captured(kNone) && !one_in(4))) return;
  Stream& stream = streams_[static_cast<std::size_t>(index)];
  Capture capture;
  if (stream.thread != kNone) thread_ = stream.thread;
  capture.stream = index;
  capture.thread = thread_;
  capture.mode = static_cast<CUstreamCaptureMode>(below(3));
  if (!use(stream.context)) return;
  say(named('s', index));
  say("mode", static_cast<std::uint64_t>(capture.mode));
  if (!answered("", on_thread([&] { return cuStreamBeginCapture(stream.handle, capture.mode); }))) return;
  stream.capture = static_cast<int>(captures_.size());
  captures_.push_back(capture);
}

void Walk::end_capture() {
  const int index = draw(captures_, [](const Capture& c) { return c.is_running; });
  if (index == kNone) return;
  Capture& capture = captures_[static_cast<std::size_t>(index)];
  Stream& origin = streams_[static_cast<std::size_t>(capture.stream)];
  thread_ = capture.thread;
  if (!use(origin.context)) return;
  say(named('s', capture.stream));
  for (Stream& stream : streams_) {  // whoever joined comes back
    if (stream.capture != index || &stream == &origin) continue;
    thread_ = stream.thread != kNone ? stream.thread : capture.thread;
    const bool is_there = use(origin.context);
    static_cast<void>(is_there);
    CUevent event = nullptr;
    const bool is_back = answered("event", on_thread([&] { return cuEventCreate(&event, CU_EVENT_DISABLE_TIMING); })) &&
                         answered("record", on_thread([&] { return cuEventRecord(event, stream.handle); })) &&
                         answered("wait", on_thread([&] { return cuStreamWaitEvent(origin.handle, event, 0); }));
    static_cast<void>(is_back);
    stream.capture = kNone;
    answered("destroy", on_thread([&] { return cuEventDestroy(event); }));
  }
  thread_ = capture.thread;
  if (!use(origin.context)) return;
  CUgraph graph = nullptr;
  const bool is_ended = answered("", on_thread([&] { return cuStreamEndCapture(origin.handle, &graph); }));
  origin.capture = kNone;
  capture.is_running = false;
  if (!is_ended) return;
  Executable executable;
  executable.stream = capture.stream;
  executable.writes = capture.writes;
  if (answered("instantiate", on_thread([&] { return cuGraphInstantiateWithFlags(&executable.handle, graph, 0); })))
    executables_.push_back(executable);
  answered("destroy", on_thread([&] { return cuGraphDestroy(graph); }));
}

void Walk::launch_graph() {
  const int index = draw(executables_);
  if (index == kNone) return;
  Executable& executable = executables_[static_cast<std::size_t>(index)];
  const Stream& stream = streams_[static_cast<std::size_t>(executable.stream)];
  if (!is_usable(stream) || stream.capture != kNone) return;
  for (const auto& [block, value] : executable.writes) {
    if (block == kNone || !blocks_[static_cast<std::size_t>(block)].is_alive || blocks_[static_cast<std::size_t>(block)].stream != executable.stream)
      return;
  }
  if (!reach(stream, true)) return;
  say(named('g', index));
  if (!answered("", on_thread([&] { return cuGraphLaunch(executable.handle, stream.handle); }))) return;
  for (const auto& [block, value] : executable.writes) blocks_[static_cast<std::size_t>(block)].value = value;
}

void Walk::destroy_graph() {
  const int index = draw(executables_);
  if (index == kNone || is_captured(kNone)) return;
  Executable& executable = executables_[static_cast<std::size_t>(index)];
  say(named('g', index));
  if (answered("", on_thread([&] { return cuGraphExecDestroy(executable.handle); }))) executable.is_alive = false;
}

/// How much the driver keeps for graphs depends on when their work was over: it is not compared.
void Walk::trim_graphs() {
  if (is_captured(kNone)) return;
  const int device = static_cast<int>(below(static_cast<std::uint64_t>(devices_)));
  answered("", on_thread([&] { return cuDeviceGraphMemTrim(device); }));
}

}  // namespace walks
