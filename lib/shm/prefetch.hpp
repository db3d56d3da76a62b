#pragma once
// Memory that will be written soon, and that another CPU has in its cache.

namespace rollring {

// Fetches the line of `at` as one that is going to be written. A fetch for reading would bring it
// shared, and the store would have to ask for it again: that made short records a third slower.
// GCC makes such a one of __builtin_prefetch(at, 1) unless it may assume prefetchw, which every
// x86-64 CPU since 2014 has and older ones pass over.
inline void prefetch_to_write(const void* at) {
#if defined(__x86_64__)
    asm("prefetchw %0" : : "m"(*static_cast<const char*>(at)));
#else
    __builtin_prefetch(at, 1);
#endif
}

}  // namespace rollring
