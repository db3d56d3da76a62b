#pragma once
// The owner's side of tickets: the batches of a stash that other processes may read, and their
// readers.
//
//   owner   batches[row] = number | ending;  look at all seats;  wait;  0;   release the records
//   reader  holds[i] = number;   look at batches[row];   read;   look again
//
// Both sides store first and load afterwards, seq_cst, so one of the two sees the other. A batch
// without tickets costs nothing of this.

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
    // `map` and `page`, the consumer's own, must outlive this object.
    ShareBook(const RingMap& map, SharePage& page) : map_(&map), page_(&page) {}

    // Ends the shares of a predecessor.
    void open();

    // A batch with tickets.
    struct Shared {
        std::uint64_t number;
        std::uint32_t row;
    };
    Result<Shared> share();
    // Keeps new readers out, and waits until no live process reads the batch. Errc::busy names a
    // reader that is left at the deadline: nothing has changed then.
    Result<void> recall(const Shared& shared, Deadline deadline);
    // Its tickets are stale from now on, even if it is being read.
    void end(const Shared& shared) { say(shared, 0); }
    // After recall(): the batch is shared again.
    void restore(const Shared& shared) { say(shared, shared.number); }

  private:
    void say(const Shared& shared, std::uint64_t word) {
        store_release(page_->batches[shared.row], word);
    }
    Result<void> map_seats();
    // A live process that reads the batch.
    [[nodiscard]] std::optional<std::uint32_t> reader_of(std::uint64_t number) const;

    const RingMap* map_;
    SharePage* page_;
    std::optional<Mapping> seats_;  // once a batch was shared
};

// Reserves and maps the seats of a ring.
Result<Mapping> map_share_seats(const Segment& segment, bool writable);
inline ShareSeat& share_seat(const Mapping& seats, std::uint32_t seat) {
    return seats.at<ShareSeat>(seat * sizeof(ShareSeat));
}

}  // namespace rollring
