#pragma once
// Everything that bounds the memory of a ring on this machine, and the least of it.

#include <cstdint>
#include <string>
#include <vector>

#include "rollring/error.hpp"
#include "rollring/export.hpp"

namespace rollring {

struct MemoryBound {
    enum class Kind : std::uint8_t {
        space,          // of /dev/shm
        files,          // inodes of /dev/shm: a count, not bytes
        cgroup,         // memory.max or memory.limit_in_bytes, of each level of the hierarchy
        machine,        // memory and swap that the machine has
        object_length,  // RLIMIT_FSIZE: of one object, holes included
        address_space,  // RLIMIT_AS: of all that this process maps
    };
    Kind kind;
    std::string name;     // "/dev/shm", "RLIMIT_FSIZE (ulimit -f)", ...
    std::uint64_t free;   // bytes, or files
    std::uint64_t total;  // likewise
    std::string remedy;   // a phrase: "raise the limit"

    // Whether pages that are reserved count against it.
    [[nodiscard]] bool of_pages() const {
        return kind == Kind::space || kind == Kind::cgroup || kind == Kind::machine;
    }
};

// All bounds that are there and known, those of pages first, the least of them in front. A bound
// that cannot be read is left out, and so is a /dev/shm without a limit (statvfs: 0 blocks).
ROLLRING_API std::vector<MemoryBound> memory_bounds();

// The least of those that count pages: how many bytes can be reserved now. Nothing known: 2^63.
ROLLRING_API MemoryBound least_memory_bound();

// The least total of those: what a machine like this one has for rings. Nothing known: 2^63.
ROLLRING_API std::uint64_t memory_total();

}  // namespace rollring
