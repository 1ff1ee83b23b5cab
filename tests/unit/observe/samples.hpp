// Snapshots for the tests of pool/observe: small ones to judge by hand, and one as large as is asked for.
#pragma once

#include <string>
#include <vector>

#include "pool/observe/report.hpp"

namespace samples {

using cupool::observe::BlockRow;
using cupool::observe::DeviceSnapshot;
using cupool::observe::OomEvidence;
using cupool::observe::OomRecord;
using cupool::observe::OptionFact;
using cupool::observe::ReportInput;

/// Whether times mean anything: an optimised build without sanitizers.
#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) || __has_feature(memory_sanitizer)
#define SAMPLES_SANITIZED
#endif
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SAMPLES_SANITIZED
#endif
#if defined(NDEBUG) && !defined(SAMPLES_SANITIZED)
inline constexpr bool kTimesCount = true;
#else
inline constexpr bool kTimesCount = false;
#endif

inline constexpr std::uint64_t kKiB = 1024;
inline constexpr std::uint64_t kMiB = 1024 * kKiB;
inline constexpr std::uint64_t kGiB = 1024 * kMiB;
inline constexpr std::uint64_t kBase = 0x7f0000000000;

/// Every row of counters.def, all zero.
std::vector<cupool::observe::CounterValue> zero_counters();
void set_counter(DeviceSnapshot& device, const std::string& name, std::uint64_t current, std::uint64_t peak);

/// A device of `total_bytes` with nothing on it.
DeviceSnapshot empty_device(std::uint64_t total_bytes);
/// Adds a region made of the rows given as (state letter, bytes): l live, d deferred, f free. A live row's request is one byte less.
struct Piece {
  char state;
  std::uint64_t bytes;
};
void add_region(DeviceSnapshot& device, const std::vector<Piece>& pieces);
/// Divides the last region into handles of these sizes, whose states follow from the rows; 'p' pins one.
struct Sheet {
  std::uint64_t bytes;
  char state = ' ';
};
void add_handles(DeviceSnapshot& device, const std::vector<Sheet>& sheets);
/// A handle of `bytes` that is mapped nowhere.
void add_unmapped(DeviceSnapshot& device, std::uint64_t bytes);
/// Makes counters and fragmentation agree with the rows; the peak is now.
void settle(DeviceSnapshot& device);

/// `blocks` live blocks with a hole behind every fourth, in regions of 65,536 rows.
DeviceSnapshot large_device(std::size_t blocks);

/// The options as they are when nothing is set.
std::vector<OptionFact> default_options();
std::vector<OptionFact> with_option(std::vector<OptionFact> options, const std::string& name, const std::string& value);

/// 80 GiB device, 2 GiB wanted, 1 GiB free at the driver, everything else held by the pool and live: true_exhaustion, all known.
OomEvidence exhausted_evidence();
/// The same on pages: 1 GiB of what is free moves, 3 GiB lie beside blocks.
OomEvidence stranded_evidence();
/// One OOM of each cause, in order of OomCause.
std::vector<OomRecord> one_of_each_cause();

ReportInput input_of(DeviceSnapshot device);

}  // namespace samples
