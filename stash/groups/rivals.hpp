#pragma once
// Duplicate attempts: several producers send the same attempt of one member. A producer that dies
// between two subsequences leaves a part, and its successor sends the member again from the start,
// perhaps before the death is known. A producer that repeats a subsequence of another one gets an
// entry of its own among the group's members, for all its later subsequences. The first entry to be
// final is the member. Until such a repetition two alternating producers fill the same entry.

#include <cstdint>

#include "group.hpp"
#include "record_book.hpp"

namespace rollring {

// The entry that this record belongs to; `member` is the first of its repetition.
Member& sender(Group& group, Member& member, const Arrival& arrival);
// Keeps this entry and drops its rivals. Returns its new address.
Member& outlast(Group& group, Member& member, DropReason reason, RecordBook& book);
// Drops the unfinished entries of a producer that is gone if a rival sends the same member. True if
// there were any.
bool leave_to_rivals(Group& group, std::uint32_t lane, std::uint32_t epoch, RecordBook& book);

}  // namespace rollring
