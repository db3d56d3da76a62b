#pragma once
// The elements in which two runs of memory differ.

#include <cstddef>
#include <cstdint>

namespace rollring::device {

// Of a call: indices are distances from a base, so they need no more than 16 bits. Room beyond the
// elements of the call lets a vector be stored whole.
inline constexpr std::uint32_t changes_max = 4096;
inline constexpr std::uint32_t changes_spare = 64;

// Writes index and new value of each element that differs, in ascending order, and returns their
// number. `elements`: changes_max at most. `index`: elements + changes_spare entries, and `value`
// as many elements; the entries behind the result are overwritten with anything. Index i stands for
// first_index + i. Element: u8, u16, u32 or u64; the addresses need no alignment.
template <class Element>
std::uint32_t find_changes(const std::byte* live, const std::byte* next, std::uint32_t elements,
                           std::uint16_t first_index, std::uint16_t* index, Element* value);

// The same without instructions that not every CPU has; for tests and for other CPUs.
template <class Element>
std::uint32_t find_changes_plain(const std::byte* live, const std::byte* next,
                                 std::uint32_t elements, std::uint16_t first_index,
                                 std::uint16_t* index, Element* value);

}  // namespace rollring::device
