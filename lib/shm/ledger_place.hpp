#pragma once
// The ring's word for its ledger: a directory, whose files a stash writes (extras/ledger), and
// their bound. It is in the header page, so that every stash of the ring finds it.

#include <cstdint>
#include <string>

#include "layout.hpp"
#include "rollring/error.hpp"

namespace rollring {

enum class Durable : std::uint8_t;  // rollring/ring.hpp

struct LedgerPlan {
    std::string directory = {};  // absolute; empty: the ring has no ledger
    std::uint64_t bytes = 0;
    Durable durable{};
};

// Makes the directory, unless it is empty.
[[nodiscard]] Result<LedgerPlan> plan_ledger(const std::string& directory, std::uint64_t bytes,
                                             Durable durable);
[[nodiscard]] LedgerPlace to_page(const LedgerPlan& plan, std::uint64_t ring_id);
// Reads it without mapping. Errc::not_a_ring: it is damaged.
[[nodiscard]] Result<LedgerPlan> read_ledger_place(int fd, std::uint64_t ring_id,
                                                   const std::string& object);

struct LedgerFiles {
    std::uint64_t bytes = 0;
    bool failed = false;
};

// From outside, also while they are written. Nothing of a directory that cannot be read.
[[nodiscard]] LedgerFiles look_at_ledger(const std::string& directory);

}  // namespace rollring
