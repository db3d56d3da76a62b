#include "scenarios.hpp"

namespace model {

using rollring::JournalEntry;
using rollring::LanePoll;
using rollring::Reserve;

namespace {

template <class T>
T pick(const std::vector<T>& from) {
    return from[world->choose(static_cast<std::uint32_t>(from.size()))];
}

}  // namespace

void LaneProgram::set_up() {
    policy_ = pick(plan_.policies);
    lane_.emplace(plan_.lines, plan_.soft_lines, pick(plan_.starts));
    journal_.emplace();
    if (plan_.bells) {
        data_bell_.emplace();
        space_bell_.emplace();
    }
    lengths_.clear();
    for (std::size_t i = 0; i < plan_.records; i++) lengths_.push_back(pick(plan_.lengths));
    wanted_bytes_ = 0;
}

void LaneProgram::run(int thread, int incarnation) {
    if (thread == 0) {
        produce(incarnation);
    } else {
        consume(incarnation);
    }
}

void LaneProgram::finish() {
    if (lane_->written() != plan_.records) world->fail("not every record was written");
    lane_->check_usable();
}

// No other thread will wake this one: is it right to sleep? Only a producer whose record does not
// fit, or a consumer that has read all there is.
bool LaneProgram::could_go_on(int thread) const {
    if (thread == 1) return lane_->seen() < lane_->written();
    return lane_->capacity() - (lane_->tail.now() - lane_->head.now()) >= wanted_bytes_;
}

void LaneProgram::produce(int incarnation) {
    lane_->writer_begins(incarnation);
    Writer writer = lane_->make_writer();
    std::uint64_t rung_tail = 0;  // a predecessor may have shown it and not rung
    tell_consumer(writer, rung_tail);
    while (lane_->written() < plan_.records) {
        const std::uint64_t lines = lengths_[lane_->written()];
        for (;;) {
            const Reserve got = writer.reserve(lines * line_bytes);
            if (got == Reserve::ok) break;
            if (got != Reserve::full) world->fail("the head is impossible");
            mark(Mark::full);
            wait_for_space(writer, lines * line_bytes, rung_tail);
        }
        lane_->put(writer, lines);
        lane_->count_laps(writer);
        if (!plan_.later_soft_lines.empty()) {
            writer.set_soft(pick(plan_.later_soft_lines) * line_bytes);
        }
        const std::size_t written = lane_->written();
        if (written % plan_.batch != 0 && written != plan_.records) continue;
        (void)writer.show();
        tell_consumer(writer, rung_tail);
        lane_->shown(writer);
    }
}

// Bells are rung when something has moved, and only then: two sides that wait for each other would
// wake each other for ever.
void LaneProgram::tell_consumer(const Writer& writer, std::uint64_t& rung_tail) {
    if (!plan_.bells || rung_tail == writer.shown()) return;
    rung_tail = writer.shown();
    data_bell_->ring();
}

void LaneProgram::tell_producer(const Reader& reader, Hands& hands) {
    if (!plan_.bells || hands.rung_head == reader.head()) return;
    hands.rung_head = reader.head();
    space_bell_->ring();
}

// reserve() shows what was committed, and a skip: each time it says full, the last time too,
// the consumer may have to be woken.
void LaneProgram::wait_for_space(Writer& writer, std::uint64_t bytes, std::uint64_t& rung_tail) {
    lane_->shown(writer);
    lane_->count_laps(writer);
    wanted_bytes_ = bytes;
    if (!plan_.bells) {
        world->nudge();  // the consumer gives something back because we wait
        world->park();
    } else {
        if (plan_.rings_too_early) tell_consumer(writer, rung_tail);
        Bell bell(space_bell_->sequence, space_bell_->waiting);
        const std::uint32_t seen = bell.prepare();
        const Reserve again = writer.reserve(bytes);
        if (again == Reserve::ok) {
            writer.abandon();
            bell.cancel();
            mark(Mark::second_look);
        } else {
            if (!plan_.rings_too_early) tell_consumer(writer, rung_tail);
            mark(Mark::asleep);
            space_bell_->sequence.sleep_while(seen);
        }
    }
    wanted_bytes_ = 0;
}

std::size_t LaneProgram::Hands::take(std::size_t at) {
    const std::size_t index = held[at];
    for (std::size_t i = at + 1; i < count; i++) held[i - 1] = held[i];
    count--;
    return index;
}

void LaneProgram::consume(int incarnation) {
    lane_->reader_begins(incarnation);
    Reader reader = lane_->make_reader();
    Journal journal = journal_->make();
    if (!reader.recover()) world->fail("recovery refuses the words of its predecessor");
    const auto again = [&](const JournalEntry& entry) {
        reader.mark({entry.position, entry.lines * line_bytes});
    };
    if (journal.recover(again) > 0) mark(Mark::replayed);
    Hands hands;
    tell_producer(reader, hands);
    Frame frame;
    while (next(reader, frame, hands)) {
        hands.held[hands.count++] = lane_->delivered(frame);
        after_delivery(reader, hands);
    }
    lane_->expect_end();
    while (hands.count > 0) give_back_one(reader, hands);
}

std::uint64_t LaneProgram::lines_in(const Hands& hands) const {
    std::uint64_t lines = 0;
    for (std::size_t i = 0; i < hands.count; i++) lines += lane_->record(hands.held[i]).lines;
    return lines;
}

bool LaneProgram::all_read(const Reader& reader) const {
    return lane_->written() == plan_.records && reader.read_position() == lane_->tail.now() &&
           lane_->record(plan_.records - 1).position < lane_->tail.now();
}

bool LaneProgram::next(Reader& reader, Frame& frame, Hands& hands) {
    for (;;) {
        std::optional<Bell> bell;
        std::uint32_t seen = 0;
        LanePoll got = reader.poll(frame);
        if (got == LanePoll::empty && plan_.bells) {
            if (!plan_.forgets_skips)
                tell_producer(reader, hands);  // poll() may have passed a skip
            if (all_read(reader)) return false;
            bell.emplace(data_bell_->sequence, data_bell_->waiting);
            seen = bell->prepare();
            got = reader.poll(frame);
            if (got != LanePoll::empty) bell->cancel();
            if (got == LanePoll::record) mark(Mark::second_look);
        }
        if (got == LanePoll::record) return true;
        if (got != LanePoll::empty) world->fail("a sound lane is taken for a damaged one");
        if (all_read(reader)) return false;
        if (bell) {
            if (!plan_.forgets_skips) tell_producer(reader, hands);
            mark(Mark::asleep);
            data_bell_->sequence.sleep_while(seen);
        } else if (wanted_bytes_ > 0 && hands.count > 0 &&
                   (policy_ != Policy::pin || lines_in(hands) > plan_.pin_lines)) {
            give_back_one(reader, hands);
        } else {
            world->park();
        }
    }
}

void LaneProgram::after_delivery(Reader& reader, Hands& hands) {
    switch (policy_) {
        case Policy::in_order:
            return give_back_one(reader, hands);
        case Policy::newest:
        case Policy::any:
            if (hands.count > plan_.hold) give_back_one(reader, hands);
            return;
        case Policy::journal:
            if (hands.count >= std::min(plan_.hold, journal_max)) give_back_set(reader, hands);
            return;
        case Policy::pin:
            while (hands.count > 0 &&
                   (lines_in(hands) > plan_.pin_lines || world->choose(2) == 1)) {
                give_back_one(reader, hands);
            }
            return;
    }
}

void LaneProgram::give_back_one(Reader& reader, Hands& hands) {
    std::size_t at = 0;
    if (policy_ == Policy::newest) at = hands.count - 1;
    if (policy_ == Policy::any) at = world->choose(static_cast<std::uint32_t>(hands.count));
    const std::size_t index = hands.take(at);
    lane_->check_payload(index);
    lane_->releasing(index);
    reader.release(lane_->span(index));
    tell_producer(reader, hands);
    lane_->released(index);
}

void LaneProgram::give_back_set(Reader& reader, Hands& hands) {
    std::array<JournalEntry, journal_max> set{};
    const std::size_t count = hands.count;
    lane_->new_set();
    // The newest first: nothing may depend on the order in a set.
    for (std::size_t i = 0; i < count; i++) {
        const std::size_t index = hands.held[count - 1 - i];
        lane_->check_payload(index);
        set[i].position = lane_->record(index).position;
        set[i].lines = static_cast<std::uint32_t>(lane_->record(index).lines);
    }
    for (std::size_t i = 0; i < count; i++) lane_->releasing(hands.held[i], true);
    journal_->make().release_all({set.data(), count}, 7, [&](const JournalEntry& entry) {
        reader.mark({entry.position, entry.lines * line_bytes});
    });
    for (std::size_t i = 0; i < count; i++) lane_->released(hands.held[i]);
    hands.count = 0;
    reader.advance();
    tell_producer(reader, hands);
}

}  // namespace model
