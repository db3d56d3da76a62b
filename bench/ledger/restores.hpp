#pragma once
// The return of a ledger's records into a new ring, beside a plain read of its files.

#include "ledger/training.hpp"

namespace bench {

// A ledger with that many records, all of which were trained on and none of which a checkpoint has.
void fill_ledger(const Training& training, const Plan& plan, const std::filesystem::path& ledger,
                 const Cpus& cpus);

struct Restored {
    double seconds = 0;        // until the last record was read in the new ring
    double begin_seconds = 0;  // of these, until the ring was there
};
// Zeros: interrupted. The page cache has nothing of the files beforehand.
Restored restore(const Training& training, const std::filesystem::path& ledger, const Plan& plan,
                 const Cpus& cpus);
std::vector<std::filesystem::path> files_of_ledger(const std::filesystem::path& ledger);

}  // namespace bench
