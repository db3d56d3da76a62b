#pragma once
// Which of a stash's batches other processes may read, and who reads them: the owner's side of
// tickets.
//
//   owner   batches[row] = number | ending;  look at all seats;  wait;  0;   release the records
//   reader  holds[i] = number;   look at batches[row];   read;   look again
//
// Both store first and look then, seq_cst: one of the two sees the other. A batch without tickets
// costs nothing of this.

#include <cstdint>
#include <optional>
#include <string>

#include "mapping.hpp"
#include "ring_map.hpp"
#include "rollring/error.hpp"
#include "rollring/time.hpp"

namespace rollring {

class ShareBook {
  public:
    // `map` and `page`, the consumer's own, outlive this.
    ShareBook(const RingMap& map, SharePage& page) : map_(&map), page_(&page) {}

    // What a predecessor shared is over.
    void open();

    // A batch that is shared from now on.
    struct Shared {
        std::uint64_t number;
        std::uint32_t row;
    };
    Result<Shared> share();
    // Nobody begins to read it any more, and waits until nobody who is alive reads it. Errc::busy
    // names one who still does at the deadline: nothing has changed then.
    Result<void> recall(const Shared& shared, Deadline deadline);
    // Its tickets are stale from now on, whoever reads.
    void end(const Shared& shared) { say(shared, 0); }
    // After recall(): it is shared again.
    void restore(const Shared& shared) { say(shared, shared.number); }

  private:
    void say(const Shared& shared, std::uint64_t word) {
        store_release(page_->batches[shared.row], word);
    }
    Result<void> map_seats();
    // Somebody alive who reads it.
    [[nodiscard]] std::optional<std::uint32_t> reader_of(std::uint64_t number) const;

    const RingMap* map_;
    SharePage* page_;
    std::optional<Mapping> seats_;  // once something was shared
};

// The seats of a ring, reserved.
Result<Mapping> map_share_seats(const Segment& segment, bool writable);
inline ShareSeat& share_seat(const Mapping& seats, std::uint32_t seat) {
    return seats.at<ShareSeat>(seat * sizeof(ShareSeat));
}

}  // namespace rollring
