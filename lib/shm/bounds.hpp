#pragma once
// Limits of memory for the library's own use; rollring/ring.hpp explains them.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "rollring/ring.hpp"

namespace rollring::detail {

// `proc`: a folder like /proc/self, with cgroup and mountinfo.
std::vector<MemoryBound> cgroup_bounds(const std::string& proc);

// The limit of a cgroup or of the machine that reserving this many new pages would exceed; empty if
// none is known. To be checked before: the kernel kills a process that reserves beyond such a
// limit, while a full /dev/shm is an error of the call.
std::optional<MemoryBound> bound_of_pages(std::uint64_t bytes);

// The limit that an object of this length, holes included, exceeds: the kernel would end the
// process with SIGXFSZ.
std::optional<MemoryBound> bound_of_length(std::uint64_t bytes);

// "a lane needs 64 MiB but /dev/shm has 3 MiB free of 64 MiB: enlarge it to ...".
// `all_bytes`: of all such parts and a trainer, where `bytes` is that of one part; 0: unknown.
std::string shortage(const MemoryBound& bound, std::string_view what, std::uint64_t bytes,
                     std::string_view remedy, std::uint64_t all_bytes = 0);

}  // namespace rollring::detail
