// Sizes, alignments and the arithmetic on them that every room shares. Everything is in bytes; alignments are powers of two. Pure.
#pragma once

#include <cstddef>
#include <cstdint>

namespace cupool {

inline constexpr std::size_t kKiB = std::size_t{1} << 10;
inline constexpr std::size_t kMiB = std::size_t{1} << 20;
inline constexpr std::size_t kGiB = std::size_t{1} << 30;

/// Every block is rounded up to a multiple of this and begins at one, as what cuMemAlloc gives does on every current device
/// (CUDA C Programming Guide: "at least 256 bytes"; 512 measured).
inline constexpr unsigned kBlockAlignment_log2 = 9;
inline constexpr std::size_t kBlockAlignment_bytes = std::size_t{1} << kBlockAlignment_log2;
inline constexpr std::size_t kHostPage_bytes = 4096;  ///< a page of the host's on x86-64: what mmap and cuMemGetHandleForAddressRange count in

/// The driver gives device memory out in pieces of this size; a region of ours is a multiple of it.
inline constexpr std::size_t kRegionGranularity_bytes = 2 * kMiB;

/// `alignment` is a power of two. Precondition of align_up: bytes + alignment does not overflow (see add_overflows).
constexpr std::size_t align_up(std::size_t bytes, std::size_t alignment) { return (bytes + alignment - 1) & ~(alignment - 1); }
constexpr std::size_t align_down(std::size_t bytes, std::size_t alignment) { return bytes & ~(alignment - 1); }
constexpr bool is_aligned(std::size_t bytes, std::size_t alignment) { return (bytes & (alignment - 1)) == 0; }
constexpr bool add_overflows(std::size_t a, std::size_t b) { return a + b < a; }

/// a - b, or 0 where that would be less.
constexpr std::uint64_t saturating_sub(std::uint64_t a, std::uint64_t b) { return a > b ? a - b : 0; }
/// a + b, or the largest number where that would be more.
constexpr std::uint64_t saturating_add(std::uint64_t a, std::uint64_t b) { return add_overflows(a, b) ? ~std::uint64_t{0} : a + b; }

/// How much of [address, address + bytes) lies in pages that are wholly inside it.
constexpr std::size_t bytes_in_whole_pages(std::size_t address, std::size_t bytes, std::size_t page_bytes) {
  const std::size_t first = align_up(address, page_bytes);
  const std::size_t end = align_down(address + bytes, page_bytes);
  return end > first ? end - first : 0;
}

/// More than any device has, and a multiple of every granularity. A call with this size is made to hear what the driver has against its other
/// arguments: a driver that has nothing against them answers that memory is out, or that the size is invalid, and neither of these counts as a
/// reason.
inline constexpr std::uint64_t kImpossible_bytes = std::uint64_t{1} << 50;

/// A request rounded up to whole blocks. 0 where it is more than any device has (kImpossible_bytes): so whatever is rounded can be rounded up once
/// more without overflow.
constexpr std::size_t round_request(std::size_t bytes) { return bytes > kImpossible_bytes ? 0 : align_up(bytes, kBlockAlignment_bytes); }

}  // namespace cupool
