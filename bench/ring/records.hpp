#pragma once
// The work's records as rollring's: three columns in, the same read in full; the sum travels along
// as the source's number. Further, the parts that every question of a ring needs at both ends.

#include <unistd.h>

#include "rollring/producer.hpp"
#include "rollring/ring.hpp"
#include "rollring/trajectory.hpp"
#include "workload.hpp"

namespace bench {

inline void fill(rollring::Draft& draft, const Slice& slice) {
    draft.meta.source_id = static_cast<std::int64_t>(slice.sum);
    draft.set(rollring::Std::token_ids, slice.token_ids)
        .set(rollring::Std::logprobs, slice.logprobs)
        .set(rollring::Std::loss_mask, slice.loss_mask);
}

inline std::uint64_t sum_record(const rollring::TrajectoryView& view) {
    const auto tokens = view.token_ids();
    const auto logprobs = view.logprobs();
    const auto mask = view.loss_mask();
    return sum_words(tokens.data(), tokens.size_bytes()) +
           sum_words(logprobs.data(), logprobs.size_bytes()) +
           sum_words(mask.data(), mask.size_bytes());
}

inline std::uint64_t sum_sent(const rollring::TrajectoryView& view) {
    return static_cast<std::uint64_t>(view.meta().source_id.value_or(0));
}

inline void check(Board& board, const rollring::TrajectoryView& view) {
    if (sum_record(view) != sum_sent(view)) {
        board.give_up("a record's sum differs from the sum that was sent");
    }
}

// The opened object, or the end of this side.
template <class T>
T must(Board& board, rollring::Result<T> result) {
    if (!result) board.give_up(result.error().to_string());
    if constexpr (!std::is_void_v<T>) return std::move(*result);
}

// A ring of this process while it lives; the sides of a run inherit its name.
class ScratchRing {
  public:
    explicit ScratchRing(const rollring::RingOptions& options)
        : name_("bench-" + std::to_string(getpid())) {
        const auto made = rollring::create_ring(name_, options);
        if (!made) fail(made.error().to_string());
    }
    ScratchRing(const ScratchRing&) = delete;
    ScratchRing& operator=(const ScratchRing&) = delete;
    ~ScratchRing() { static_cast<void>(rollring::remove_ring(name_, true)); }
    [[nodiscard]] const std::string& name() const { return name_; }

  private:
    std::string name_;
};

// A side's producer. A record that cannot be pushed ends the side.
class Sender {
  public:
    Sender(Board& board, const std::string& ring)
        : board_(&board),
          producer_(must(board, rollring::Producer::open(ring, {.name = "bench"}))) {}
    // Visible at once, or with the next that is, or at flush().
    void push(const rollring::Draft& draft, bool visible = true) {
        // One deadline serves many calls; the limit's producer reads no clock either.
        if (pushed_++ % 64 == 0) deadline_ = rollring::Deadline::after_ms(10'000);
        const rollring::Push push =
            visible ? producer_.push(draft, deadline_) : producer_.push_later(draft, deadline_);
        if (push != rollring::Push::ok) board_->give_up("push: " + producer_.problem());
    }
    [[nodiscard]] rollring::Producer& producer() { return producer_; }

  private:
    Board* board_;
    rollring::Producer producer_;
    rollring::Deadline deadline_ = rollring::Deadline::now();
    std::uint64_t pushed_ = 0;
};

}  // namespace bench
