#pragma once
// Prefetches. In assembly, which the compiler keeps: GCC regards a function that only calls
// __builtin_prefetch as one without effect, and drops the calls.

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

// Fetches the line of `at`, which another CPU may have in its cache, for writing. A fetch for
// reading would bring it in the shared state, and the store would have to request it again: short
// records would be a third slower. GCC compiles __builtin_prefetch(at, 1) to this only if it may
// assume prefetchw, which every x86-64 CPU since 2014 has and older ones ignore.
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
