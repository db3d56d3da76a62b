#pragma once
// The delivered and unreleased records, in private memory. A release is checked against this table
// and not against the record's frame, which its producer may have damaged since.

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "lane_reader.hpp"
#include "producer_roster.hpp"
#include "rollring/consumer.hpp"

namespace rollring {

// The newest records of all lanes, in the order of delivery. A caller that releases them in that
// order needs nothing else.
class NewestHanded {
  public:
    [[nodiscard]] bool empty() const { return from_ == to_; }
    [[nodiscard]] bool full() const { return to_ - from_ == records_.size(); }
    void add(const RecordRef& record) { records_[to_++ % records_.size()] = record; }
    // Removes the oldest.
    RecordRef take() { return records_[from_++ % records_.size()]; }
    // Removes the oldest if it is this record.
    [[nodiscard]] bool take(const RecordRef& record) {
        if (empty() || records_[from_ % records_.size()] != record) return false;
        from_++;
        return true;
    }

  private:
    std::array<RecordRef, 256> records_{};
    std::uint32_t from_ = 0;
    std::uint32_t to_ = 0;
};

// The older records of one lane: a bit at the first line of each, and one at the last.
class Handed {
  public:
    explicit Handed(std::uint64_t capacity_bytes)
        : size_(capacity_bytes), words_(capacity_bytes / line_bytes / 64 + 1) {}

    void add(const Span& span) {
        const Lines lines = lines_of(span);
        words_[lines.first / 64].first |= bit(lines.first);
        words_[lines.last / 64].last |= bit(lines.last);
    }

    // Whether exactly this span was added and not removed since.
    [[nodiscard]] bool holds(const Span& span) const { return held_lines(span).has_value(); }

    // Removes the span if it is there.
    [[nodiscard]] bool take(const Span& span) {
        const auto lines = held_lines(span);
        if (!lines) return false;
        words_[lines->first / 64].first &= ~bit(lines->first);
        words_[lines->last / 64].last &= ~bit(lines->last);
        return true;
    }

  private:
    struct Lines {
        std::uint64_t first;
        std::uint64_t last;
    };
    [[nodiscard]] Lines lines_of(const Span& span) const {
        const std::uint64_t first = size_.offset(span.position) / line_bytes;
        return {first, first + span.bytes / line_bytes - 1};
    }
    [[nodiscard]] std::optional<Lines> held_lines(const Span& span) const {
        if ((span.position | span.bytes) % line_bytes != 0 || span.bytes < 2 * line_bytes)
            return {};
        const Lines lines = lines_of(span);
        const bool held = lines.last / 64 < words_.size() &&
                          (words_[lines.first / 64].first & bit(lines.first)) != 0 &&
                          (words_[lines.last / 64].last & bit(lines.last)) != 0 &&
                          !begins_within(lines.first + 1, lines.last);
        return held ? std::optional(lines) : std::nullopt;
    }
    static std::uint64_t bit(std::uint64_t line) { return std::uint64_t{1} << line % 64; }

    // Whether a record begins at one of the lines `from` to `to`.
    [[nodiscard]] bool begins_within(std::uint64_t from, std::uint64_t to) const {
        const std::uint64_t behind = ~std::uint64_t{0} << from % 64;
        const std::uint64_t before = ~std::uint64_t{0} >> (63 - to % 64);
        std::uint64_t word = from / 64;
        const std::uint64_t end = to / 64;
        if (word == end) return (words_[word].first & behind & before) != 0;
        if ((words_[word].first & behind) != 0) return true;
        for (word++; word < end; word++) {
            if (words_[word].first != 0) return true;
        }
        return (words_[end].first & before) != 0;
    }

    struct Word {
        std::uint64_t first = 0;
        std::uint64_t last = 0;
    };
    LaneSize size_;
    std::vector<Word> words_;
};

// All delivered and unreleased records: the newest ones, and the older ones by lane.
class InHand {
  public:
    // The roster must outlive this object.
    explicit InHand(const ProducerRoster& roster)
        : roster_(&roster), older_(roster.feeds().size()) {}

    void add(const RecordRef& record) {
        if (newest_.full()) put_back(newest_.take());
        newest_.add(record);
    }
    [[nodiscard]] bool holds(const RecordRef& record) {
        const Handed* const lane = lane_of(record);
        return lane != nullptr && lane->holds({record.position, record.bytes()});
    }
    // Removes the record if it is there.
    [[nodiscard]] bool take(const RecordRef& record) {
        if (newest_.take(record)) return true;
        Handed* const lane = lane_of(record);
        return lane != nullptr && lane->take({record.position, record.bytes()});
    }
    // Puts a record back that take() has removed.
    void put_back(const RecordRef& record) {
        auto& lane = older_[record.lane];
        if (!lane) lane.emplace(roster_->feed(record.lane).capacity_bytes());
        lane->add({record.position, record.bytes()});
    }

  private:
    // Moves the newest records to their lanes. Returns those of the record's lane; null if the lane
    // has not delivered this record.
    [[nodiscard]] Handed* lane_of(const RecordRef& record) {
        while (!newest_.empty()) put_back(newest_.take());
        if (record.lane >= older_.size() || !older_[record.lane]) return nullptr;
        const bool delivered =
            roster_->feed(record.lane).delivered({record.position, record.bytes()});
        return delivered ? &*older_[record.lane] : nullptr;
    }

    const ProducerRoster* roster_;
    NewestHanded newest_;
    std::vector<std::optional<Handed>> older_;
};

}  // namespace rollring
