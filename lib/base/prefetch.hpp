#pragma once
// Memory that will be wanted soon. In assembly, which the compiler keeps: GCC takes a function that
// does nothing but __builtin_prefetch for one without effect, and drops the calls.

#include <cstddef>

namespace rollring {

inline void prefetch_to_read(const void* at) {
#if defined(__x86_64__)
    asm("prefetcht0 %0" : : "m"(*static_cast<const char*>(at)));
#else
    __builtin_prefetch(at);
    asm("");
#endif
}

// Fetches the line of `at`, which another CPU may have in its cache, as one that is going to be
// written. A fetch for reading would bring it shared, and the store would have to ask for it again:
// that made short records a third slower. GCC makes such a one of __builtin_prefetch(at, 1) unless
// it may assume prefetchw, which every x86-64 CPU since 2014 has and older ones pass over.
inline void prefetch_to_write(const void* at) {
#if defined(__x86_64__)
    asm("prefetchw %0" : : "m"(*static_cast<const char*>(at)));
#else
    __builtin_prefetch(at, 1);
    asm("");
#endif
}

template <class T>
void prefetch_to_read(const T& object, std::size_t bytes) {
    const auto* at = reinterpret_cast<const char*>(&object);
    for (std::size_t i = 0; i < bytes; i += 64) prefetch_to_read(at + i);
}
template <class T>
void prefetch_to_write(const T& object, std::size_t bytes) {
    const auto* at = reinterpret_cast<const char*>(&object);
    for (std::size_t i = 0; i < bytes; i += 64) prefetch_to_write(at + i);
}

}  // namespace rollring
