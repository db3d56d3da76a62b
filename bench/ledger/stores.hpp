#pragma once
// The databases of bench/peers, holding a ledger's records.

#include <cstdint>
#include <filesystem>

#include "peers/store.hpp"
#include "workload.hpp"

namespace bench {

struct StoreWork {
    std::uint32_t n_tokens = 0;
    std::uint64_t records = 0;
    std::uint64_t records_a_commit = 1;
    bool realtime = false;
};
// Tokens a second, until the last commit has ended. 0: interrupted.
double store_rate(const StorePeer& peer, const std::filesystem::path& directory,
                  const StoreWork& work);

}  // namespace bench
