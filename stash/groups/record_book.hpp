#pragma once
// The account of all records that the stash was given (promise P5), and the list of those that are
// to be released.

#include <cstdint>
#include <vector>

#include "group.hpp"

namespace rollring {

struct Dropped {
    std::uint32_t record;
    DropReason reason;
};

struct RecordBook {
    StashAccount account;
    std::vector<Dropped> dropped;

    void drop(const Subsequence& record, DropReason reason) {
        const Amount amount{1, record.n_tokens};
        account.held -= amount;
        account.dropped[static_cast<std::size_t>(reason)] += amount;
        dropped.push_back({record.record, reason});
    }
    // Drops the records of a member.
    void drop_member(Group& group, Member& member, DropReason reason) {
        group.total -= member.subsequences.amount();
        for (const Subsequence& one : member.subsequences.all()) drop(one, reason);
        member.subsequences.clear();
    }
};

}  // namespace rollring
