#pragma once
// One lane as the consumer sees it: the lock-free reader, plus who writes, in which order, and
// whether what arrives can be believed.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "ring_map.hpp"
#include "rollring/consumer.hpp"

namespace rollring {

class LaneFeed {
  public:
    enum class [[nodiscard]] Feed { record, empty, torn, quarantined };

    // `lane` has a producer that is not retired. Maps the lane's released-bits writable.
    static Result<LaneFeed> open(const RingMap& map, const Mapping& segment,
                                 const Mapping& reader_pages, std::uint32_t lane);

    // The next record. After `torn` it has been dropped and counted, after `quarantined` the lane
    // stays silent until its producer is gone; problem() says why.
    Feed next(Record& record, const Schema& schema);

    void release(const Span& span) {
        reader_.release(span);
        add(entry_->released, std::uint64_t{1});
    }
    // For the journal: marks, and settles when all are marked.
    void mark(const Span& span) { reader_.mark(span); }
    void settle(std::uint64_t released) {
        reader_.settle();
        add(entry_->released, released);
    }

    // A producer has taken the lane anew.
    void begin_epoch();
    // Whether its producer is gone for good: closed, or proven dead. Ask before drained().
    [[nodiscard]] bool ended(const RingMap& map) const;
    [[nodiscard]] bool closed() const;
    // Nothing left to deliver; a quarantined lane: nothing left that is held.
    [[nodiscard]] bool drained() const;
    // Hands the lane back. Returns what happened, for the event.
    Event retire(const RingMap& map);

    [[nodiscard]] std::uint32_t lane() const { return lane_; }
    [[nodiscard]] std::uint32_t epoch() const { return epoch_; }
    [[nodiscard]] bool active() const { return active_; }
    [[nodiscard]] bool quarantined() const { return quarantined_; }
    [[nodiscard]] const std::string& problem() const { return problem_; }
    [[nodiscard]] std::uint64_t read_position() const { return reader_.read_position(); }
    // Ring the producer's bell when it has moved; next() moves it too, over skips.
    [[nodiscard]] std::uint64_t head() const { return reader_.head(); }
    [[nodiscard]] const ReaderEntry& entry() const { return *entry_; }
    [[nodiscard]] bool covers(const Span& span) const { return reader_.covers(span); }
    [[nodiscard]] Event event(Event::Kind kind) const;

  private:
    LaneFeed(std::uint32_t lane, NativeReader reader, Mapping bits, const std::byte* data,
             const LaneOwner& owner, ReaderEntry& entry);
    void recover();
    Feed quarantine(Quarantine reason, std::string why);
    bool in_sequence(const Frame& frame);

    std::uint32_t lane_;
    NativeReader reader_;
    Mapping bits_;
    const std::byte* data_;
    const LaneOwner* owner_;
    ReaderEntry* entry_;
    std::uint64_t lane_bytes_ = 0;
    std::uint32_t epoch_ = 0;
    bool active_ = false;
    bool quarantined_ = false;
    std::uint64_t delivered_at_attach_ = 0;        // below it records are redelivered
    Quarantine found_damaged_ = Quarantine::none;  // by a predecessor, in this epoch
    std::uint32_t last_epoch_ = 0;
    std::uint64_t next_sequence_ = 0;
    bool baseline_ = false;  // last_epoch_ and next_sequence_ are known
    std::uint64_t epoch_records_ = 0;
    std::string problem_;
};

}  // namespace rollring
