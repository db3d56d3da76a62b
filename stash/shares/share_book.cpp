#include "share_book.hpp"

#include <fmt/core.h>

#include "fault_point.hpp"
#include "liveness.hpp"
#include "rollring/ring.hpp"

namespace rollring {

Result<Mapping> map_share_seats(const Segment& segment, bool writable) {
    const Geometry& geometry = segment.geometry();
    if (auto reserved = segment.reserve(geometry.share_seats_offset(), geometry.share_seats_bytes(),
                                        "the seats of readers", "lower --lanes");
        !reserved) {
        return std::unexpected(reserved.error());
    }
    return segment.map(geometry.share_seats_offset(), geometry.share_seats_bytes(), writable);
}

void ShareBook::open() {
    for (auto& batch : page_->batches) {
        if (peek(batch) != 0) store_release(batch, std::uint64_t{0});
    }
}

Result<void> ShareBook::map_seats() {
    if (seats_) return {};
    auto mapped = map_share_seats(map_->segment(), false);
    if (!mapped) return std::unexpected(mapped.error());
    seats_.emplace(std::move(*mapped));
    return {};
}

Result<ShareBook::Shared> ShareBook::share() {
    if (auto mapped = map_seats(); !mapped) return std::unexpected(mapped.error());
    std::uint32_t row = 0;
    while (row < shared_batches && peek(page_->batches[row]) != 0) row++;
    if (row == shared_batches) {
        return refused(
            Errc::busy,
            fmt::format("{} batches already have tickets: acknowledge one, or give it back",
                        shared_batches));
    }
    // Others may overwrite the count: a number of 0, or one with the mark, would be invalid.
    std::uint64_t number = (peek(page_->numbers) + 1) & ~share_ending;
    if (number == 0) number = 1;
    store_release(page_->numbers, number);
    FAULT_POINT("share.before_word");
    store_release(page_->batches[row], number);
    FAULT_POINT("share.after_word");
    return Shared{number, row};
}

std::optional<std::uint32_t> ShareBook::reader_of(std::uint64_t number) const {
    for (std::uint32_t seat = 0; seat < share_seats; seat++) {
        for (const auto& held : share_seat(*seats_, seat).holds) {
            if (held.load() != number) continue;
            // The word is read before the life byte is checked: a new holder of the seat clears it
            // first.
            if (alive(map_->segment().fd(), LifeByte::share_seat(seat))) return seat;
        }
    }
    return std::nullopt;
}

Result<void> ShareBook::recall(const Shared& shared, Deadline deadline) {
    page_->batches[shared.row].exchange(shared.number | share_ending);
    FAULT_POINT("share.recalled");
    std::optional<std::uint32_t> seat;
    const bool free = wait_plain(map_->share_bell(), {}, deadline, [&] {
        seat = reader_of(shared.number);
        return !seat;
    });
    if (!free) {
        restore(shared);
        const ShareSeat& reader = share_seat(*seats_, *seat);
        return refused(Errc::busy,
                       fmt::format("the batch is still being read by {} (pid {}, reader seat {}): "
                                   "it stays leased; close that share, or end the process",
                                   printable(reader.name.load()), peek(reader.pid), *seat));
    }
    end(shared);
    FAULT_POINT("share.ended");
    return {};
}

}  // namespace rollring
