// The lines that an OOM leaves on stderr: for people, so units are human here and only here. Ten lines at most.
#include <algorithm>
#include <cinttypes>
#include <climits>
#include <cstdio>
#include <iterator>
#include <string_view>
#include <utility>

#include "pool/core/bytes.hpp"
#include "pool/observe/frequent_size.hpp"
#include "pool/observe/enough_limit.hpp"
#include "pool/observe/human_bytes.hpp"
#include "pool/observe/ledger.hpp"
#include "pool/observe/report.hpp"
#include "pool/observe/suggestions.hpp"

namespace cupool::observe {

namespace {

constexpr std::size_t kMaxSuggestionLines = 3;
constexpr std::size_t kMostText_bytes = 400;

/// Foreign text (paths, names) is kept on its line and within a bound: control characters would break the layout.
std::string one_line(const std::string& text, std::size_t most_bytes = kMostText_bytes) {
  std::string out = text.substr(0, most_bytes);
  for (std::size_t i = 0; i < out.size(); ++i) {
    const auto byte = static_cast<unsigned char>(out[i]);
    const auto before = static_cast<unsigned char>(i > 0 ? out[i - 1] : '\0');
    const bool is_c1 = before == 0xC2 && byte >= 0x80 && byte < 0xA0;  // U+009B begins an escape sequence too
    if (byte < 0x20 || byte == 0x7F || is_c1) out[i] = '?';
    if (is_c1) out[i - 1] = '?';
  }
  return out;
}

/// The unit that moves or goes back as a whole.
std::string pieces(const OomEvidence& e) {
  const bool is_large = e.page_bytes && e.stranding_handle_bytes && *e.stranding_handle_bytes > *e.page_bytes;
  return is_large ? "pieces of up to " + human_bytes(*e.stranding_handle_bytes) : "pages";
}

/// Where the pool may take memory in other pieces, adding the shortfall alone is not enough.
std::string enough_text(const OomEvidence& e) {
  const std::optional<std::uint64_t> enough_bytes = enough_limit_bytes(e);
  return enough_bytes ? ", " + human_bytes_up(*enough_bytes - e.limit_bytes) + " more are enough" : std::string();
}

/// What is held and cannot go back.
bool holds_for_good(const OomEvidence& e) { return e.held_bytes > e.releasable_bytes; }

/// The driver refuses what exceeds the maxSize that the program set for its own memory pool.
std::string own_maximum_text(const OomEvidence& e) {
  const std::uint64_t left_bytes = saturating_sub(e.mempool_max_bytes, e.mempool_used_bytes);
  const std::string pool = "the program's memory pool has a maxSize of " + human_bytes(e.mempool_max_bytes) + ", " +
                           human_bytes_up(std::min(e.mempool_used_bytes, e.mempool_max_bytes)) + " of it used";
  return e.request_bytes <= left_bytes ? pool + "; the device has enough" : pool + ": short by " + human_bytes_up(e.request_bytes - left_bytes);
}

std::string explain(const OomVerdict& verdict, const OomEvidence& e) {
  const std::string bytes = human_bytes_up(verdict.shortfall_bytes);
  switch (verdict.cause) {
    case OomCause::impossible_request:
      if (e.limit_bytes != 0 && e.request_bytes > e.limit_bytes && e.request_bytes <= e.device_total_bytes)
        return bytes + " more than CUPOOL_LIMIT alone" +
               (holds_for_good(e) ? ", " + human_bytes_up(enough_limit_bytes(e).value_or(least_limit_bytes(e)) - e.limit_bytes) + " with what is held"
                                  : enough_text(e));
      return bytes + " more than this process could ever get";
    case OomCause::limit:
      if (verdict.shortfall_bytes == 0) return "CUPOOL_LIMIT was full at that moment" + enough_text(e) + "; the device has the memory";
      return bytes + " over CUPOOL_LIMIT as memory lies now" + enough_text(e) + "; the device has the memory";
    case OomCause::driver_refused:
      if (e.is_managed) return "the driver refused managed memory";
      return e.mempool_max_bytes != 0 ? own_maximum_text(e) : "the driver refused, and a moment later enough was free";
    case OomCause::deferred_free: return "short by " + bytes + " until the GPU finishes with memory that was freed";
    case OomCause::external_fragmentation:
      if (!e.holes_known) return "enough is idle in the driver's own pool but in pieces: what goes back to the device is short by " + bytes;
      if (e.is_outside_pool)
        return "the pool has enough that is free, but beside other blocks: what could go back to the driver is short by " + bytes;
      if (e.can_remap) return "enough is free but in " + pieces(e) + " that hold something else: what can move is short by " + bytes;
      return "enough is free but in pieces: the largest hole is short by " + bytes;
    case OomCause::other_process: return "short by " + bytes + ", which other processes hold";
    case OomCause::non_pool_memory:
      if (only_idle_is_outside(e, verdict)) return "short by " + bytes + ", which lies idle, but in pieces, in memory pools that the driver serves";
      return "short by " + bytes + ", which this process holds outside the pool";
    case OomCause::true_exhaustion:
      if (exceeds_reach(e))
        return "short by " + human_bytes_up(e.request_bytes - *reachable_bytes(e)) + " even with all freed that this process has allocated";
      if (others_may_hold(e, verdict)) return "short by " + bytes + " even fully defragmented, unless other processes hold it";
      if (only_limit_is_short(e)) return "short by " + bytes + " of CUPOOL_LIMIT even fully defragmented; the device has as much";
      return "short by " + bytes + " even fully defragmented";
  }
  return {};
}

/// The setting as it can be typed.
std::string setting(const Suggestion& suggestion) {
  const std::uint64_t mib = suggestion.enough_limit_bytes / kMiB + (suggestion.enough_limit_bytes % kMiB != 0);
  return mib == 0 ? std::string() : ": CUPOOL_LIMIT=" + std::to_string(mib) + "MiB";
}

/// How much of it a request could have in one piece: empty pages are gathered for it.
std::string piece_text(const OomEvidence& e) {
  if (!e.holes_known) return "largest hole unknown";
  if (e.is_outside_pool) return "of which may go back " + human_bytes(e.largest_free_bytes);
  if (e.can_remap) return "of which can be gathered " + human_bytes(std::max(e.largest_free_bytes, e.largest_free_remapped_bytes));
  return "largest hole " + human_bytes(e.largest_free_bytes);
}

std::string holds_line(const DeviceSnapshot& device, const OomEvidence& e) {
  const auto blocks = counter_current(device, "live_blocks");
  return "pool: " + human_bytes(device.now.live_bytes) + " live in " + std::to_string(blocks) + (blocks == 1 ? " block, " : " blocks, ") +
         human_bytes(e.pool_free_bytes) + " free (" + piece_text(e) + "), " + human_bytes(e.deferred_bytes) + " waiting for the GPU";
}

/// Names the one size that holds a quarter or more of what is live; nothing where there is only one block.
std::string most_line(const DeviceSnapshot& device) {
  const HeaviestSize most = heaviest_size(device.blocks);
  if (most.blocks == 0 || counter_current(device, "live_blocks") <= 1) return {};
  return std::to_string(most.blocks) + (most.blocks == 1 ? " block of " : " blocks of ") + human_bytes(most.requested_bytes) + ", " +
         human_bytes(most.bytes);
}

/// The kinds of what this process holds outside the pool, by the same rules as in the ledger.
std::string outside_kinds(const DeviceSnapshot& device) {
  constexpr std::pair<std::string_view, const char*> kKinds[] = {{"outside_arrays", "arrays"},
                                                                 {"outside_program_vmm", "cuMemCreate"},
                                                                 {"outside_mempools", "idle in the driver's memory pools"},
                                                                 {"outside_graphs", "CUDA graphs"},
                                                                 {"outside_managed", "managed memory"}};
  std::string text;
  const Ledger ledger = ledger_of(device);
  for (const LedgerPart& part : ledger.parts) {
    const auto* kind = std::find_if(std::begin(kKinds), std::end(kKinds), [&](const auto& one) { return one.first == part.name; });
    if (kind == std::end(kKinds) || part.bytes == 0) continue;
    text.append(text.empty() ? " (" : ", ").append(kind->second).append(" ").append(human_bytes(part.bytes));
  }
  return text.empty() ? text : text + ")";
}

std::string elsewhere_line(const OomEvidence& e, const DeviceSnapshot* device) {
  std::string text = "driver free " + (e.driver_free_bytes ? human_bytes(*e.driver_free_bytes) : std::string("unknown"));
  text += ", other processes " + (e.other_process_bytes ? human_bytes(*e.other_process_bytes) : std::string("unknown"));
  if (!e.other_process_bytes && e.unattributed_bytes.value_or(0) != 0)
    text += " (with contexts and the driver's rounding " + human_bytes(*e.unattributed_bytes) +
            (e.native_rounding_bytes != 0 ? ", of that rounding up to " + human_bytes(e.native_rounding_bytes) : std::string()) + ")";
  text += ", this process outside the pool " + human_bytes(e.own_outside_bytes);
  if (device != nullptr && e.own_outside_bytes != 0) text += outside_kinds(*device);
  if (e.limit_bytes > 0) text += ", limit " + human_bytes(e.limit_bytes) + " of which held " + human_bytes(e.held_bytes);
  return text;
}

void add_line(std::string& out, const char* label, const std::string& text, std::size_t most_bytes = kMostText_bytes) {
  char head[16];
  std::snprintf(head, sizeof head, "  %-11s", label);
  out.append(head).append(one_line(text, most_bytes)).append("\n");
}

}  // namespace

std::string oom_message(const OomRecord& oom, const OomVerdict& verdict, const ProcessFacts& process, const DeviceSnapshot* device,
                        const std::string& report_path) {
  std::string out = "cupool[" + std::to_string(process.pid) + "]: out of memory on GPU " + std::to_string(oom.device);
  if (process.rank) out += " (rank " + std::to_string(*process.rank) + ")";
  out += ": wanted " + human_bytes(oom.requested_bytes) + " (" + one_line(oom.api) + ")\n";
  add_line(out, "cause",
           std::string(name_of(verdict.cause)) + ": " + explain(verdict, oom.evidence) +
               (verdict.confidence == "high" ? "" : " (confidence " + verdict.confidence + ")"));
  if (device != nullptr) {
    add_line(out, "holds", holds_line(*device, oom.evidence));
    if (const std::string most = most_line(*device); !most.empty()) add_line(out, "holds most", most);
  }
  add_line(out, "elsewhere", elsewhere_line(oom.evidence, device));
  std::size_t lines = 0;
  for (const Suggestion& suggestion : verdict.suggestions) {
    if (suggestion.already_enabled || lines == kMaxSuggestionLines) continue;
    add_line(out, lines == 0 ? "try" : "", suggestion.message + setting(suggestion));
    ++lines;
  }
  if (!report_path.empty()) add_line(out, "report", report_path, PATH_MAX);  // a path that was cut would name another file
  return out;
}

}  // namespace cupool::observe
