// Contexts, streams, events, graphs and captures, as plain records; their rules are in the .cpp files of each area. Thread rule: guarded by the
// simulator's lock.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <thread>
#include <unordered_map>
#include <vector>

#include "tests/sim/allocation.hpp"
#include "tests/sim/graph_memory.hpp"
#include "tests/sim/timeline.hpp"

namespace cusim {

struct Stream;
struct ThreadState;

/// A range of mapped memory that work touches: the same pages must lie there when it runs as when it was submitted.
struct Touched {
  CUdeviceptr address = 0;
  std::size_t bytes = 0;
};

/// What an operation of a stream does; copied when a graph that recorded it is launched.
struct Work {
  std::uint64_t duration_ns = 0;
  std::function<void()> action;
  std::function<void()> host_function;
  volatile std::uint32_t* host_flag = nullptr;
  CUgraphNodeType node_type = CU_GRAPH_NODE_TYPE_KERNEL;
  std::vector<Touched> touches;  ///< only what may be mapped by cuMemMap

  void touch(CUdeviceptr address, std::size_t bytes);
};

struct Node {
  Work work;
  std::vector<std::size_t> predecessors;  ///< indices into the graph
  std::uint64_t handle = 0;
  std::shared_ptr<GraphMemory> allocates;
  std::shared_ptr<GraphMemory> frees;
};

struct GraphExec;

/// What a program hands over to be destroyed when nothing needs it any more: neither the program, nor a graph, nor a launch that is not over.
class UserObject {
 public:
  UserObject(void* object, CUhostFn destroy) : object_(object), destroy_(destroy) {}
  ~UserObject();
  UserObject(const UserObject&) = delete;
  UserObject& operator=(const UserObject&) = delete;
  void forget() { destroy_ = nullptr; }  ///< the process ends, or begins anew: nobody destroys it

 private:
  void* object_;
  CUhostFn destroy_;
};

/// References, by the object's handle.
struct HeldObject {
  std::shared_ptr<UserObject> object;
  std::uint64_t count = 0;
};
using HeldObjects = std::map<std::uint64_t, HeldObject>;

struct Graph {
  std::uint64_t id = 0;
  HeldObjects objects;
  std::vector<Node> nodes;
  std::weak_ptr<GraphExec> exec;  ///< the last instantiation

  bool has_memory_nodes() const {
    for (const Node& node : nodes) {
      if (node.allocates != nullptr || node.frees != nullptr) return true;
    }
    return false;
  }
};

struct GraphExec {
  HeldObjects objects;      ///< the graph's, when it was instantiated
  std::vector<Node> nodes;  ///< a copy: changes of the graph do not reach what was instantiated
  unsigned long long flags = 0;
  OperationPtr last;  ///< of the previous launch: the next one comes after it
};

/// One stream capture, shared by the streams that joined it.
struct Capture {
  std::uint64_t id = 0;
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
  const ThreadState* thread = nullptr;
  bool invalidated = false;
  Stream* origin = nullptr;
  std::vector<Stream*> streams;
  std::shared_ptr<Graph> graph;
  std::uint64_t graph_handle = 0;
  std::optional<std::size_t> recaptured_nodes;  ///< of a recapture: how many nodes the graph had, and must have again
};

struct Context {
  int device = 0;
  bool primary = false;
  bool alive = true;
  bool destroyed = false;  ///< a created context after cuCtxDestroy
  bool ending = false;     ///< a thread is in end_context() with it, which may give up the lock
  unsigned flags = 0;
  unsigned references = 0;   ///< of a primary
  std::uint64_t handle = 0;  ///< a number, not an address: a program that hashes it goes the same way in each run
  std::uint64_t id = 0;
  unsigned api_version = 0;
  CUresult broken = CUDA_SUCCESS;  ///< sticky error
  std::uint64_t charged_bytes = 0;
  std::size_t pending = 0;            ///< operations that are not complete
  OperationPtr gate;                  ///< cuCtxWaitEvent: everything submitted from then on comes after it
  std::vector<OperationPtr> orphans;  ///< last operations of streams that were destroyed before their work was done
  std::unique_ptr<Stream> legacy;
  std::unordered_map<const ThreadState*, std::unique_ptr<Stream>> per_thread;
  std::set<Stream*> streams;  ///< created ones
  std::set<const Context*> peers;
  Allocation* memory = nullptr;  ///< first of the list
  std::map<CUlimit, std::size_t> limits;
  CUfunc_cache cache_preference = CU_FUNC_CACHE_PREFER_NONE;
  CUsharedconfig shared_memory_preference = CU_SHARED_MEM_CONFIG_DEFAULT_BANK_SIZE;
  Context* parent = nullptr;  ///< of a green context: the primary one
  std::uint64_t green_handle = 0;
  std::vector<Context*> green;  ///< of a primary context, its green ones, and some that were

  /// A green context allocates in its primary, whose peers are its peers.
  Context* memory_owner() { return parent != nullptr ? parent : this; }
  const Context& family_head() const { return parent != nullptr ? *parent : *this; }
};

struct Stream {
  std::uint64_t handle = 0;  ///< 0 for legacy and per-thread streams
  std::uint64_t id = 0;
  Context* context = nullptr;
  unsigned flags = 0;
  int priority = 0;
  bool legacy = false;
  OperationPtr tail;
  std::shared_ptr<Capture> capture;
  std::set<std::size_t> capture_frontier;  ///< nodes that the next captured one depends on
  std::vector<CUgraphNode> told_nodes;     ///< what cuStreamGetCaptureInfo last pointed at
  std::vector<CUgraphEdgeData> told_edges;

  bool blocking() const { return (flags & CU_STREAM_NON_BLOCKING) == 0; }
};

struct Event {
  std::uint64_t handle = 0;
  Context* context = nullptr;
  unsigned flags = 0;
  bool recorded = false;
  OperationPtr operation;                ///< of the last record
  std::shared_ptr<std::uint64_t> stamp;  ///< when it completed; null without timing
  std::shared_ptr<Capture> capture;      ///< last recorded while capturing
  std::set<std::size_t> captured_frontier;

  bool complete() const { return operation == nullptr || operation->done; }
};

}  // namespace cusim
