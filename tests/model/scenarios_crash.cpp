// The scenarios with one thread that is killed again and again.

#include "scenarios.hpp"

namespace model {

using rollring::JournalEntry;
using rollring::LanePoll;
using rollring::Reserve;

namespace {

constexpr std::uint64_t two_lane_lines = 6;

// Fills a lane by a producer that is gone afterwards.
void fill(LaneMemory& lane, std::initializer_list<std::uint64_t> lengths) {
    Writer writer = lane.make_writer();
    for (const std::uint64_t lines : lengths) {
        if (writer.reserve(lines * line_bytes) != Reserve::ok) world->fail("model: lane too small");
        lane.put(writer, lines);
    }
    (void)writer.show();
    lane.shown(writer);
}

}  // namespace

void TwoLanes::set_up() {
    for (auto& lane : lanes_) lane.emplace(two_lane_lines, two_lane_lines, world->choose(2) * 3);
    journal_.emplace();
    acknowledged_ = false;
    fill(*lanes_[0], {1, 1, 1});
    fill(*lanes_[1], {2, 1});
    // Which of the five records are acknowledged as a set. The others are released one by one.
    set_ = world->choose(1U << 5);
}

void TwoLanes::release_set(std::array<Reader, 2>& readers, unsigned members) {
    std::array<JournalEntry, journal_max> set{};
    std::size_t count = 0;
    for (auto& lane : lanes_) lane->new_set();
    for (unsigned i = 0; i < 5; i++) {
        if ((members >> i & 1) == 0) continue;
        const unsigned lane = i < 3 ? 0 : 1;
        const std::size_t index = i < 3 ? i : i - 3;
        set[count++] = {lanes_[lane]->record(index).position, lane,
                        static_cast<std::uint32_t>(lanes_[lane]->record(index).lines)};
        lanes_[lane]->releasing(index, true);
    }
    journal_->make().release_all({set.data(), count}, 1, [&](const JournalEntry& entry) {
        readers[entry.lane].mark({entry.position, entry.lines * line_bytes});
    });
    acknowledged_ = count > 0;
    for (auto& lane : lanes_) {
        for (std::size_t i = 0; i < lane->written(); i++) {
            if (lane->record(i).in_set) lane->released(i);
        }
    }
    for (Reader& reader : readers) reader.advance();
}

void TwoLanes::run(int, int incarnation) {
    std::array<Reader, 2> readers = {lanes_[0]->make_reader(), lanes_[1]->make_reader()};
    for (std::size_t i = 0; i < 2; i++) {
        lanes_[i]->reader_begins(incarnation);
        if (!readers[i].recover()) world->fail("recovery refuses the words of its predecessor");
    }
    const auto again = [&](const JournalEntry& entry) {
        readers[entry.lane].mark({entry.position, entry.lines * line_bytes});
    };
    if (journal_->make().recover(again) > 0) mark(Mark::replayed);
    unsigned back = 0;  // the records that are ours now
    for (std::size_t i = 0; i < 2; i++) {
        Frame frame;
        LanePoll got = LanePoll::empty;
        while ((got = readers[i].poll(frame)) == LanePoll::record) {
            back |= 1U << (lanes_[i]->delivered(frame) + (i == 0 ? 0 : 3));
        }
        if (got != LanePoll::empty) world->fail("a sound lane is taken for a damaged one");
        lanes_[i]->expect_end();
    }
    const bool gone = (back & set_) == 0 && set_ != 0;
    if (gone && journal_->last_acked.now() != 1) world->fail("a set without its step");
    if (acknowledged_ && !gone) world->fail("a set came back");
    if ((back & set_) != 0) release_set(readers, back & set_);
    // The rest one by one, the last first.
    for (int i = 4; i >= 0; i--) {
        const unsigned bit = 1U << i;
        const std::size_t lane = i < 3 ? 0 : 1;
        const std::size_t index = static_cast<std::size_t>(i < 3 ? i : i - 3);
        if ((back & bit) == 0 || lanes_[lane]->record(index).released) continue;
        lanes_[lane]->check_payload(index);
        lanes_[lane]->releasing(index);
        readers[lane].release(lanes_[lane]->span(index));
        lanes_[lane]->released(index);
    }
}

void TwoLanes::finish() {
    if (journal_->count.now() != 0) world->fail("the journal is not empty");
    for (auto& lane : lanes_) lane->check_usable();
}

// --- start over

void StartOver::set_up() {
    lane_.emplace(6, 6, world->choose(2) * 4);
    fill(*lane_, {2, 1, 1});
    // The first consumer has died with a release above its cursor.
    Reader reader = lane_->make_reader();
    Frame frame;
    if (!reader.recover() || reader.poll(frame) != LanePoll::record ||
        reader.poll(frame) != LanePoll::record) {
        return world->fail("model: nothing to release");
    }
    reader.release({frame.position, frame.bytes});
    damage_ = world->choose(4);
    // 0 and 1: the tail; 2: a record whose frame was overwritten; 3: nothing is wrong
    const std::uint64_t tail = lane_->tail.now();
    if (damage_ == 0) lane_->tail.reset(tail + 8);
    if (damage_ == 1) lane_->tail.reset(tail + 64 * lane_->capacity());
    if (damage_ == 2) lane_->damage(2);
}

void StartOver::run(int, int incarnation) {
    Reader reader = lane_->make_reader();
    if (incarnation > 0) mark(Mark::reader_restart);
    bool sound = reader.recover();
    Frame frame;
    std::array<rollring::Span, 8> held{};
    std::size_t count = 0;
    LanePoll got = LanePoll::record;
    while (sound && (got = reader.poll(frame)) == LanePoll::record) {
        held[count++] = {frame.position, frame.bytes};
    }
    if (!sound || got != LanePoll::empty) {
        while (count > 0) reader.release(held[--count]);
        (void)reader.start_over();
        // Lost to the consumer that finds them given up.
    } else if (damage_ != 3) {
        world->fail("damage was not found");
    } else {
        while (count > 0) reader.release(held[--count]);
    }
}

void StartOver::finish() {
    if (damage_ == 3) {
        if (lane_->head.now() != lane_->tail.now()) world->fail("a drained lane is not free");
        return;
    }
    // The next producer starts where the consumer says.
    const std::uint64_t fresh = lane_->head.now();
    if (fresh % lane_->capacity() != 0) world->fail("start_over left a crooked head");
    if (lane_->cursor.now() != fresh) world->fail("start_over left head and cursor apart");
    lane_->tail.reset(fresh);
    lane_->give_up_all();
    lane_->check_usable();
}

}  // namespace model
