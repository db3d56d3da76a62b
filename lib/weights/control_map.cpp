#include "control_map.hpp"

#include <fmt/core.h>

namespace rollring::weights {
namespace {

std::unexpected<Error> bad(std::string_view what) {
    return refused(Errc::bad_manifest,
                   fmt::format("the publisher's control memory is damaged: {}", what));
}

}  // namespace

Result<OwnControl> OwnControl::make(const ControlHeader& facts) {
    OwnControl made;
    made.offsets_ = {facts.subscribers_max, facts.ranks};
    auto memory = Sealed::make("control", made.offsets_.end());
    if (!memory) return std::unexpected(memory.error());
    auto front = memory->map(0, made.offsets_.subscriber(0), true);
    if (!front) return std::unexpected(front.error());
    auto seats = memory->map(made.offsets_.subscriber(0),
                             made.offsets_.end() - made.offsets_.subscriber(0), false);
    if (!seats) return std::unexpected(seats.error());
    made.memory_ = std::move(*memory);
    made.front_ = std::move(*front);
    made.seats_ = std::move(*seats);

    auto& header = made.front_.at<ControlHeader>(0);
    header = facts;
    header.magic = control_magic;
    header.abi = control_abi;
    header.header_bytes = sizeof header;
    header.control_bytes = made.offsets_.end();
    poke(made.publisher_to_write().committed, std::int64_t{-1});
    poke(made.publisher_to_write().ranks_id, facts.created_ns);
    poke(made.ranks_page().decision, std::int64_t{-1});
    poke(made.ranks_page().committed, std::int64_t{-1});
    for (auto& rank : made.ranks_page().ranks) {
        poke(rank.staged, std::int64_t{-1});
        poke(rank.begun, std::int64_t{-1});
    }
    return made;
}

Result<PeerControl> PeerControl::accept(Fd fd, std::uint64_t control_bytes) {
    PeerControl made;
    auto memory = Sealed::accept(std::move(fd), control_bytes, false);
    if (!memory) return std::unexpected(memory.error());
    if (control_bytes < page_bytes) return bad("too short");
    auto first = memory->map(0, page_bytes, false);
    if (!first) return std::unexpected(first.error());
    made.header_ = load_once<ControlHeader>(first->data());
    const ControlHeader& header = made.header_;
    if (header.magic != control_magic || header.abi != control_abi ||
        header.header_bytes != sizeof header) {
        return bad("magic or ABI");
    }
    if (header.subscribers_max == 0 || header.subscribers_max > subscribers_limit) {
        return bad("subscribers_max");
    }
    if (header.ranks == 0 || header.ranks > ranks_limit || header.rank >= header.ranks) {
        return bad("ranks");
    }
    made.offsets_ = {header.subscribers_max, header.ranks};
    if (header.control_bytes != control_bytes || made.offsets_.end() != control_bytes) {
        return bad("bytes");
    }
    auto all = memory->map(0, control_bytes, false);
    if (!all) return std::unexpected(all.error());
    made.memory_ = std::move(*memory);
    made.all_ = std::move(*all);
    return made;
}

Result<void> PeerControl::take_seat(std::uint32_t seat) {
    if (seat >= header_.subscribers_max) return bad("seat");
    auto bells = memory_.map(offsets_.bells(), offsets_.bells_bytes(), true);
    if (!bells) return std::unexpected(bells.error());
    auto own = memory_.map(offsets_.subscriber(seat), page_bytes, true);
    if (!own) return std::unexpected(own.error());
    bells_ = std::move(*bells);
    own_ = std::move(*own);
    return {};
}

Result<void> PeerControl::take_rank() {
    auto bells = memory_.map(offsets_.bells(), offsets_.bells_bytes(), true);
    if (!bells) return std::unexpected(bells.error());
    auto ranks = memory_.map(offsets_.ranks_page(), offsets_.ranks_bytes(), true);
    if (!ranks) return std::unexpected(ranks.error());
    bells_ = std::move(*bells);
    own_ = std::move(*ranks);
    return {};
}

std::optional<PublicationView> look_up(const PublisherPage& page, std::uint64_t publication) {
    const PublicationLine& line = page.publications[publication % publications_kept];
    if (observe(line.id) != publication) return {};
    const PublicationView view{observe(line.version), observe(line.first_part_number),
                               static_cast<Outcome>(observe(line.outcome)), observe(line.put) != 0};
    if (observe(line.id) != publication) return {};
    if (view.version < 0 || view.outcome > Outcome::aborted) return {};  // no publisher writes that
    return view;
}

std::optional<Outcome> decided(const RanksPage& page, std::int64_t version) {
    const std::int64_t word = observe(page.decision);
    if (word < 0 || word / outcomes < version) return {};
    if (word / outcomes == version) return static_cast<Outcome>(word % outcomes);
    // A later version was decided, and aborted: none is committed without this rank's vote. So if
    // this version was committed, it is the last one that was.
    return observe(page.committed) == version ? Outcome::committed : Outcome::aborted;
}

bool decide(RanksPage& page, std::int64_t version, Outcome outcome) {
    std::int64_t seen = observe(page.decision);
    const std::int64_t wanted = version * outcomes + static_cast<std::int64_t>(outcome);
    while (seen < 0 || seen / outcomes < version) {
        // Before the word is replaced: a rank that has voted may not have seen it yet.
        if (seen >= 0 && static_cast<Outcome>(seen % outcomes) == Outcome::committed) {
            std::int64_t last = observe(page.committed);
            while (last < seen / outcomes &&
                   !page.committed.compare_exchange_weak(last, seen / outcomes)) {
            }
        }
        if (page.decision.compare_exchange_weak(seen, wanted)) return true;
    }
    return false;
}

}  // namespace rollring::weights
