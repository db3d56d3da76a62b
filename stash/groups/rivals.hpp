#pragma once
// Several producers that send the same attempt of one member. A producer that dies between two
// subsequences leaves a part, and its successor sends the member again from the start, perhaps
// before anybody knows of the death. As soon as a subsequence comes that another one has sent
// already, its sender has an entry of its own among the group's members, which gets all that it
// sends from then on, and whichever entry is final first is the member. Until then nobody can tell
// two producers apart who take turns: one goes on where the other stopped.

#include <cstdint>

#include "group.hpp"
#include "record_book.hpp"

namespace rollring {

// The entry that this record belongs to; `member` is the first of its repetition.
Member& sender(Group& group, Member& member, const Arrival& arrival);
// This one stays, its rivals leave. Returns where it lies then.
Member& outlast(Group& group, Member& member, DropReason reason, RecordBook& book);
// What a producer that is gone has begun and others send, too, is theirs. True if there was any.
bool leave_to_rivals(Group& group, std::uint32_t lane, std::uint32_t epoch, RecordBook& book);

}  // namespace rollring
