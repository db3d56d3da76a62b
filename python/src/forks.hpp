#pragma once
// A forked child must not touch any object of rollring.

#include <cstdint>
#include <new>
#include <optional>
#include <utility>

namespace rollring::python {

// Grows in each forked child. An object that was made under another number belongs to the parent.
std::uint64_t fork_number();

// For destructors in a forked child, which leave the child's copy as it is: another thread of the
// parent may have been using it at the fork, and the GPU is the parent's.
template <class T>
void leave_undestroyed(std::optional<T>& object) noexcept {
    if (object) new (std::nothrow) T(std::move(*object));
}

}  // namespace rollring::python
