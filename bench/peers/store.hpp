#pragma once
// A peer of the ledger: a database in files that holds the same records, by their numbers, with as
// many of them in a commit. Each commit is on the disk before the next begins.

#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "workload.hpp"

namespace bench {

struct StorePeer {
    std::string key;
    std::string name;
    std::string missing = {};  // why it cannot run here
    // Opens a database in an empty directory, and lets `work` commit batches to it. Each is the
    // records from `first` on, laid out as by Flat behind each other.
    using Commit = std::function<void(std::uint64_t first, std::span<const std::byte> records)>;
    struct Shape {
        std::uint64_t record_bytes;  // as laid out
        std::uint64_t total_bytes;   // of all commits together
    };
    std::function<void(const std::filesystem::path& directory, const Shape& shape,
                       const std::function<void(const Commit&)>& work)>
        open = {};
};

StorePeer sqlite_store();
StorePeer lmdb_store();
StorePeer rocksdb_store();
std::vector<StorePeer> store_peers();

}  // namespace bench
