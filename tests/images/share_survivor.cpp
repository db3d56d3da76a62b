#include "share_survivor.hpp"

#include <unistd.h>

#include <cstring>
#include <memory>
#include <utility>

#include "share_book.hpp"
#include "ticket.hpp"

namespace rollring::test {

std::uint64_t number_of(const std::string& ticket) {
    TicketHead head;
    require(ticket.size() >= sizeof head, "a ticket of {} B", ticket.size());
    std::memcpy(&head, ticket.data(), sizeof head);
    return head.number;
}

std::set<Id> verified(const Sequences& share) {
    std::set<Id> ids;
    for (const Sequence& one : share.sequences()) {
        SmallLoad::verify(one.view);
        require(ids.insert(SmallLoad::id_of(one.view)).second, "a share has a record twice");
    }
    return ids;
}

StashOptions pairs() {
    return {.group_size = 2, .batch = BatchTarget::groups(2)};
}

ShareSurvivor::ShareSurvivor(const RingOptions& options)
    : ring_("image-shared", options),
      segment_(attach_whole(ring_.name())),
      memory_(map_writable(segment_)) {}

void ShareSurvivor::recover(std::span<const std::byte> image,
                            const std::vector<SharedBatch>& shared, const std::set<Id>& held) {
    require(image.size() == memory_.bytes(), "an image of another ring");
    std::memcpy(memory_.data(), image.data(), image.size());
    recoveries_++;
    Reader reader = take_seat();
    std::vector<Share> shares;
    for (const SharedBatch& batch : shared) {
        auto share = reader.open(batch.ticket);
        require(share.has_value(), "{}", share ? "" : share.error().to_string());
        require(verified(*share) == batch.ids, "a share has other records than its batch");
        shares.push_back(std::move(*share));
    }
    auto stash = Stash::open(ring_.name(), pairs(), {.attach_timeout = {}, .spin = {}});
    require(stash.has_value(), "{}", stash ? "" : stash.error().to_string());
    for (Share& share : shares) {
        const auto closed = share.close();
        require(!closed && closed.error().code == Errc::stale_ticket,
                "a share is good though another trainer has come");
    }
    for (const SharedBatch& batch : shared) {
        const auto share = reader.open(batch.ticket);
        require(!share && share.error().code == Errc::stale_ticket,
                "a ticket is good though another trainer has come");
    }
    drain(**stash, reader, held);
}

// The dead one's is the first that is free, and says nothing of what the dead one read.
Reader ShareSurvivor::take_seat() const {
    auto reader = Reader::attach(ring_.name(), {.name = "survivor", .attach_timeout = {}});
    require(reader.has_value(), "{}", reader ? "" : reader.error().to_string());
    const auto& seat = memory_.at<ShareSeat>(segment_.geometry().share_seats_offset());
    require(seat.pid.load() == static_cast<std::uint32_t>(getpid()), "the seat is not taken");
    for (const auto& hold : seat.holds) {
        require(hold.load() == 0, "who takes a seat holds what the dead one held");
    }
    return std::move(*reader);
}

void ShareSurvivor::drain(Stash& stash, Reader& reader, const std::set<Id>& held) const {
    std::set<Id> come;
    std::int64_t step = stash.last_acked_step();
    Batch batch;
    while (stash.next(batch, Deadline::now()) == NextBatch::batch ||
           stash.rest(batch) == NextBatch::batch) {
        const std::set<Id> ids = verified(batch);
        for (const Id& id : ids) {
            require(come.insert(id).second, "record {}/{} came twice", id.first, id.second);
        }
        const auto ticket = batch.ticket();
        require(ticket.has_value(), "{}", ticket ? "" : ticket.error().to_string());
        auto share = reader.open(*ticket);
        require(share.has_value(), "{}", share ? "" : share.error().to_string());
        require(verified(*share) == ids, "a share has other records than its batch");
        step++;
        const auto early = batch.ack(step, Deadline::now());
        require(!early && early.error().code == Errc::busy && batch.leased(),
                "a batch was acknowledged under its reader");
        const auto closed = share->close();
        require(closed.has_value(), "{}", closed ? "" : closed.error().to_string());
        const auto acked = batch.ack(step, Deadline::now());
        require(acked.has_value(), "{}", acked ? "" : acked.error().to_string());
    }
    for (const Id& id : held) {
        const bool has_second = held.contains({id.first, id.second ^ 1});
        require(come.contains(id) == has_second, "record {}/{}, {} pair: came {}", id.first,
                id.second, has_second ? "of a" : "without its", come.contains(id));
    }
    for (const Id& id : come) {
        require(held.contains(id), "record {}/{} was acknowledged", id.first, id.second);
    }
}

}  // namespace rollring::test
