#pragma once
// The lane core's platform on simulated memory, and one lane with an oracle that knows what each
// record must be: written, held by a consumer, or given back.

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include "doorbell.hpp"
#include "journal.hpp"
#include "lane_reader.hpp"
#include "lane_writer.hpp"
#include "memory.hpp"
#include "orders.hpp"

namespace model {

using rollring::Frame;
using rollring::line_bytes;
using U64 = Atomic<std::uint64_t>;

// The real orders, as variables: a mutant is one of them weakened.
struct ModelOrders {
    using Real = rollring::Orders;
    static inline std::memory_order store_tail = Real::store_tail;
    static inline std::memory_order read_tail = Real::read_tail;
    static inline std::memory_order store_head = Real::store_head;
    static inline std::memory_order read_head = Real::read_head;
    static inline std::memory_order bell_waiting = Real::bell_waiting;
    static inline std::memory_order store_cursor = Real::store_cursor;
    static inline std::memory_order store_bits = Real::store_bits;
    static inline std::memory_order store_journal = Real::store_journal;
    static inline std::memory_order recover = Real::recover;
};

class LaneMemory;
inline constexpr std::size_t journal_max = 5;

struct Platform {
    template <class T>
    using Atomic = model::Atomic<T>;
    using Order = ModelOrders;
    static constexpr std::uint64_t bits_per_word = 2;  // so that most records span two words

    struct Frames {
        LaneMemory* lane;
        void write(std::uint64_t offset, const Frame& frame) const;
        [[nodiscard]] Frame read(std::uint64_t offset) const;
        void prefetch(std::uint64_t, std::uint64_t) const {}  // reads nothing
    };
    struct JournalEntries {
        std::array<Plain<rollring::JournalEntry>, journal_max>* entries;
        void write(std::uint64_t index, const rollring::JournalEntry& entry) const {
            (*entries)[index].write(entry);
        }
        [[nodiscard]] rollring::JournalEntry read(std::uint64_t index) const {
            return (*entries)[index].read();
        }
    };
};

using Writer = rollring::LaneWriter<Platform>;
using Reader = rollring::LaneReader<Platform>;
using Journal = rollring::Journal<Platform>;
using Bell = rollring::BellCore<Platform>;

// The states that a scenario must have met, or it proves nothing.
enum class Mark : std::size_t {
    full,  // reserve found no room
    soft_wrap,
    full_wrap,
    jump,
    writer_restart,  // a successor took the lane
    unshown,         // its predecessor had written records that stay unseen
    reader_restart,
    redelivered,      // a record that the predecessor had read
    passed_over,      // a record that the predecessor had released above its cursor
    half_marked,      // recovery found a record with some of its bits set, and not the first
    cursor_ahead,     // recovery found the cursor above the head
    bits_under_skip,  // a skip below the cursor covers bits that a jump has put to use
    replayed,         // recovery found a committed journal
    set_gone,         // a set whose release was cut off counted as released
    set_back,         // or came back as a whole
    out_of_order,     // a release above the cursor
    asleep,
    second_look,  // prepare() and then nothing to sleep for
    started_over,
    whole_lane,  // a record of full capacity fitted in the end
    count
};
inline constexpr std::array mark_names = {
    "full",         "soft-wrap",       "full-wrap",   "jump",         "writer-restart",
    "unshown",      "reader-restart",  "redelivered", "passed-over",  "half-marked",
    "cursor-ahead", "bits-under-skip", "replayed",    "set-gone",     "set-back",
    "out-of-order", "asleep",          "second-look", "started-over", "whole-lane"};
inline constexpr std::size_t marks_count = static_cast<std::size_t>(Mark::count);
static_assert(mark_names.size() == marks_count);
inline std::array<std::uint64_t, marks_count> marks{};
inline void mark(Mark which, std::uint64_t times = 1) {
    marks[static_cast<std::size_t>(which)] += times;
}

struct Record {
    std::uint64_t position = 0;
    std::uint64_t lines = 0;
    bool releasing = false;  // release was called
    bool released = false;   // and has returned, or its effect was seen
    bool delivered = false;
    bool in_set = false;  // of the last journalled set
};

// The shared words and lines of one lane, and the oracle. Oracle calls are not steps.
class LaneMemory {
  public:
    static constexpr std::size_t lines_max = 32;

    LaneMemory(std::uint64_t lines, std::uint64_t soft_lines, std::uint64_t start_lines);

    [[nodiscard]] std::uint64_t capacity() const { return capacity_; }
    [[nodiscard]] Writer make_writer() { return {tail, head, {this}, capacity_, soft_}; }
    [[nodiscard]] Reader make_reader() {
        return {tail, head, cursor, bits.data(), {this}, capacity_};
    }

    // --- the producer's side
    void writer_begins(int incarnation);
    // Fills the reservation of `lines` and commits it.
    void put(Writer& writer, std::uint64_t lines);
    void shown(const Writer& writer);  // show() has returned
    void count_laps(const Writer& writer);
    void may_write(std::uint64_t offset);
    void damage(std::size_t index);  // a stray write hits its frame
    [[nodiscard]] std::size_t written() const { return records_.size(); }

    // --- the consumer's side
    void reader_begins(int incarnation);
    void recovered();
    std::size_t delivered(const Frame& frame);
    void check_payload(std::size_t index);
    void releasing(std::size_t index, bool in_set = false);
    void released(std::size_t index);
    void new_set();
    void expect_end();  // nothing more will come for this consumer
    [[nodiscard]] const Record& record(std::size_t index) const { return records_[index]; }
    [[nodiscard]] rollring::Span span(std::size_t index) const {
        return {records_[index].position, records_[index].lines * line_bytes};
    }
    [[nodiscard]] std::size_t seen() const { return next_; }
    void give_up_all();  // the lane was started over

    // Everything is released: nothing is left behind, and the whole lane can be used.
    void check_usable();
    [[nodiscard]] bool bit_now(std::uint64_t offset) const;

    U64 tail, head, cursor;
    std::vector<U64> bits;  // one word more than there is: never to be touched

  private:
    friend struct Platform::Frames;
    struct Line {
        Frame frame{};
        std::uint64_t stamp = 0;
    };
    static std::uint64_t stamp(std::uint64_t position, std::uint64_t sequence, std::uint64_t line) {
        return position * 1'000'003 + sequence * 101 + line + 1;
    }
    Plain<Line>& line_at(std::uint64_t offset) { return lines_[offset / line_bytes]; }
    void fate(Record& record, bool gone);

    std::uint64_t capacity_;
    std::uint64_t soft_;
    std::array<Plain<Line>, lines_max> lines_;
    std::vector<Record> records_;
    std::size_t sure_ = 0;  // show() of this many has returned
    std::size_t next_ = 0;  // the first that this consumer has not seen the fate of
    std::size_t first_of_writer_ = 0;
    std::uint64_t read_before_ = 0;
    std::size_t set_gone_ = 0;
    std::size_t set_back_ = 0;
    rollring::LapCounters laps_;
};

// The shared words of the journal.
struct JournalMemory {
    U64 count;
    Atomic<std::int64_t> step;
    Atomic<std::int64_t> last_acked;
    std::array<Plain<rollring::JournalEntry>, journal_max> entries;

    JournalMemory() {
        count.keep_private();
        step.keep_private();
        last_acked.keep_private();
        count.name("journal count");
        step.name("journal step");
        last_acked.name("last acked");
    }
    [[nodiscard]] Journal make() { return {count, step, last_acked, {&entries}, entries.size()}; }
};

struct BellMemory {
    Atomic<std::uint32_t> sequence;
    Atomic<std::uint32_t> waiting;

    BellMemory() {
        sequence.name("bell sequence");
        waiting.name("bell waiting");
    }
    void ring() {
        if (Bell(sequence, waiting).must_ring()) sequence.wake();
    }
};

}  // namespace model
