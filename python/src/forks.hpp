#pragma once
// What a forked child may still touch: nothing of rollring's.

#include <cstdint>
#include <new>
#include <optional>
#include <utility>

namespace rollring::python {

// Grows in each forked child. An object that was made under another number is its parent's.
std::uint64_t fork_number();

// For destructors in a forked child, which leave the child's copy as it is: another thread of the
// parent may have been in the middle of it, and the GPU is the parent's.
template <class T>
void leave_undestroyed(std::optional<T>& object) noexcept {
    if (object) new (std::nothrow) T(std::move(*object));
}

}  // namespace rollring::python
