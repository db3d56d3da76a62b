#pragma once
// What a forked child may still touch: nothing of rollring's.

#include <cstdint>

namespace rollring::python {

// Grows in each forked child. An object that was made under another number is its parent's.
std::uint64_t fork_number();

}  // namespace rollring::python
