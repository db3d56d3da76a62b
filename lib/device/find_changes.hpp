#pragma once
// The elements in which two runs of memory differ.

#include <cstddef>
#include <cstdint>

namespace rollring::device {

// Of a call: indices are distances from a base, so they need no more than 16 bits. Room beyond the
// elements of the call lets a vector be stored whole.
inline constexpr std::uint32_t changes_max = 4096;
inline constexpr std::uint32_t changes_spare = 64;

// Room for the indices of elements, and for as many values.
template <class Element>
struct Changes {
    std::uint16_t* index;
    Element* value;
};

// Writes index and new value of each element that differs, in ascending order, and returns their
// number. `elements`: changes_max at most. `to`: elements + changes_spare entries; those behind the
// result are overwritten with anything. Index i stands for first_index + i. Element: u8, u16, u32
// or u64; the addresses need no alignment.
template <class Element>
std::uint32_t find_changes(const std::byte* live, const std::byte* next, std::uint32_t elements,
                           std::uint16_t first_index, Changes<Element> to);

// The same without instructions that not every CPU has; for tests and for other CPUs.
template <class Element>
std::uint32_t find_changes_plain(const std::byte* live, const std::byte* next,
                                 std::uint32_t elements, std::uint16_t first_index,
                                 Changes<Element> to);

}  // namespace rollring::device
