#pragma once
// Internal queries of memory limits (MemoryBound in rollring/ring.hpp).

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "rollring/ring.hpp"

namespace rollring::detail {

// `proc`: a folder like /proc/self, with cgroup and mountinfo.
std::vector<MemoryBound> cgroup_bounds(const std::string& proc);

// The limit of a cgroup or of the machine that reserving `bytes` more would exceed; empty if none
// is known. Check it before reserving: the kernel kills a process that reserves beyond it, while a
// full /dev/shm is an error of the call.
std::optional<MemoryBound> bound_of_pages(std::uint64_t bytes);

// The file-size limit that an object of `bytes`, holes included, exceeds (the kernel sends
// SIGXFSZ).
std::optional<MemoryBound> bound_of_length(std::uint64_t bytes);

// "a lane needs 64 MiB but /dev/shm has 3 MiB free of 64 MiB: start the container with ..., "
std::string shortage(const MemoryBound& bound, std::string_view what, std::uint64_t bytes,
                     std::string_view remedy);

}  // namespace rollring::detail
