#include "rollring/batch.hpp"

#include <fmt/core.h>

#include <utility>

#include "ring_lanes.hpp"
#include "shared_ring.hpp"

namespace rollring {

struct Reader::Impl {
    explicit Impl(SharedRing of) : ring(std::move(of)), lanes(ring.map(), ring.all()) {}
    SharedRing ring;
    RingLanes lanes;
};

// The share's word in the reader's seat; the share keeps it, and so do objects made of its views.
struct Share::Hold {
    std::shared_ptr<Reader::Impl> reader;
    TicketHead ticket;
    std::uint32_t place;

    Hold(std::shared_ptr<Reader::Impl> of, const TicketHead& head, std::uint32_t at)
        : reader(std::move(of)), ticket(head), place(at) {}
    Hold(const Hold&) = delete;
    Hold& operator=(const Hold&) = delete;
    ~Hold() {
        if (!reader->ring.inherited()) reader->ring.let_go(place);
    }
    [[nodiscard]] Result<void> check(bool begin = false) const {
        return reader->ring.check(ticket, place, begin);
    }
};

Share::Share() = default;
Share::Share(Share&& other) noexcept : Sequences() {
    *this = std::move(other);
}
Share& Share::operator=(Share&& other) noexcept {
    if (this == &other) return *this;
    static_cast<void>(close());
    Sequences::operator=(std::move(static_cast<Sequences&>(other)));  // own members follow
    hold_ = std::move(other.hold_);
    views_ = std::move(other.views_);
    indices_ = std::move(other.indices_);
    rank_ = other.rank_;
    world_ = other.world_;
    return *this;
}
Share::~Share() {
    static_cast<void>(close());
}

Result<void> Share::check() const {
    if (hold_ == nullptr) return refused(Errc::not_leased, "the share is already closed");
    return hold_->check();
}

Result<void> Share::close() {
    auto checked = check();
    if (lease_.state_ != nullptr) {
        lease_.state_->leased = false;
        // The memory stays mapped as long as an object has the lease, but is no longer held for it.
        lease_.state_->stash = hold_->reader;
    }
    hold_.reset();
    lease_ = {};
    clear();
    views_.clear();
    indices_.clear();
    return checked;
}

Reader::Reader(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}
Reader::Reader(Reader&&) noexcept = default;
Reader& Reader::operator=(Reader&&) noexcept = default;
Reader::~Reader() = default;

Result<Reader> Reader::attach(std::string_view ring, const ReaderOptions& options) {
    auto attached = SharedRing::attach(ring, options.name, Deadline::after(options.attach_timeout));
    if (!attached) return std::unexpected(attached.error());
    return Reader(std::make_shared<Impl>(std::move(*attached)));
}

const Schema& Reader::schema() const {
    return impl_->ring.map().schema();
}

Result<Share> Reader::open(std::string_view ticket) {
    SharedRing& ring = impl_->ring;
    if (ring.inherited()) {
        return refused(Errc::forked,
                       "the reader belongs to the parent process: attach another one");
    }
    auto named = Ticket::read(ticket);
    if (!named) return std::unexpected(named.error());
    if (named->head.ring_id != ring.map().ring_id()) {
        return refused(
            Errc::stale_ticket,
            fmt::format(
                "the ticket belongs to another ring than {}, or to a removed ring of that name",
                ring.map().segment().ring()));
    }
    const auto place = ring.hold(named->head.number);
    if (!place) {
        return refused(Errc::busy,
                       fmt::format("this reader has {} shares open: close one", shares_a_seat));
    }
    Share share;
    share.hold_ = std::make_shared<Share::Hold>(impl_, named->head, *place);
    if (auto checked = share.hold_->check(true); !checked) return std::unexpected(checked.error());
    share.rank_ = named->head.rank;
    share.world_ = named->head.world;
    share.views_.resize(named->records.size());
    // An owner of the lanes keeps the reader alive, and not the share.
    share.lease_to(share.hold_, nullptr, std::shared_ptr<const MappedLanes>(impl_, &impl_->lanes));
    share.begin(named->records.size());
    std::size_t next = 0;
    for (const TicketGroup& group : named->groups) {
        for (std::uint32_t i = 0; i < group.records; i++, next++) {
            const TicketRecord& record = named->records[next];
            const auto payload = ring.find(record);
            if (!payload) return std::unexpected(payload.error());
            TrajectoryView& view = share.views_[next];
            const std::string_view wrong =
                view.parse(*payload, schema(), TrajectoryView::Look::again);
            if (!wrong.empty() || view.n_tokens() != record.n_tokens) {
                return refused(
                    Errc::bad_record,
                    fmt::format("the record at position {} of lane {} does not match the batch: {}",
                                record.position, record.lane,
                                wrong.empty() ? "a different number of tokens" : wrong));
            }
            share.add(view, record.member, record.withheld != 0, record.reward, record.advantage);
            share.indices_.push_back(record.index);
        }
        share.end_group({{group.key_low, group.key_high},
                         group.size,
                         group.members,
                         group.bad_rewards,
                         group.unrewarded});
    }
    if (auto checked = share.check(); !checked) return std::unexpected(checked.error());
    return share;
}

}  // namespace rollring
