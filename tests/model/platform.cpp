#include "platform.hpp"

#include <string>

namespace model {

void Platform::Frames::write(std::uint64_t offset, const Frame& frame) const {
    lane->may_write(offset);
    lane->line_at(offset).write({frame, 0});
}

Frame Platform::Frames::read(std::uint64_t offset) const {
    return lane->line_at(offset).read().frame;
}

LaneMemory::LaneMemory(std::uint64_t lines, std::uint64_t soft_lines, std::uint64_t start_lines)
    : bits(lines / Platform::bits_per_word + 1),
      capacity_(lines * line_bytes),
      soft_(soft_lines * line_bytes) {
    tail.name("tail");
    head.name("head");
    cursor.name("cursor");
    cursor.keep_private();
    for (U64& word : bits) {
        word.keep_private();
        word.name("bits");
    }
    bits[lines / Platform::bits_per_word].reset(~std::uint64_t{0});  // a run must end before it
    const std::uint64_t start = (4 * lines + start_lines) * line_bytes;
    tail.reset(start);
    head.reset(start);
    cursor.reset(start);
}

// --- the producer's side

void LaneMemory::writer_begins(int incarnation) {
    const std::size_t before = records_.size();
    while (!records_.empty() && records_.back().position >= tail.now()) records_.pop_back();
    if (records_.size() < sure_) world->fail("shown record lost with its producer");
    if (incarnation == 0) return;
    mark(Mark::writer_restart);
    if (records_.size() < before) mark(Mark::unshown);
    first_of_writer_ = records_.size();
    laps_ = {};
}

void LaneMemory::may_write(std::uint64_t offset) {
    for (const Record& record : records_) {
        const std::uint64_t first = record.position % capacity_;
        if (record.releasing || offset < first || offset >= first + record.lines * line_bytes) {
            continue;
        }
        world->fail("memory of an unreleased record is written again");
    }
    if (bit_now(offset)) world->fail("a released-bit is set in free memory");
}

void LaneMemory::put(Writer& writer, std::uint64_t lines) {
    const std::uint64_t offset = writer.offset();
    const std::uint64_t sequence = records_.size();
    for (std::uint64_t i = 0; i < lines; i++) may_write(offset + i * line_bytes);
    Frame frame{};
    frame.bytes = lines * line_bytes;
    frame.sequence = sequence;
    frame.payload_bytes = (lines - 1) * line_bytes;
    for (std::uint64_t line : {std::uint64_t{1}, lines - 1}) {
        if (line == 0 || line >= lines) continue;
        line_at(offset + line * line_bytes).write({{}, stamp(writer.position(), sequence, line)});
        if (lines == 2) break;  // the first is the last
    }
    Record record;
    record.position = writer.position();
    record.lines = lines;
    // The commit writes the frame; may_write() must not take the record for a held one.
    writer.commit(frame);
    records_.push_back(record);
}

void LaneMemory::damage(std::size_t index) {
    line_at(records_[index].position % capacity_).write({});
}

void LaneMemory::shown(const Writer& writer) {
    world->external();
    sure_ = records_.size();
    while (sure_ > 0 && records_[sure_ - 1].position >= writer.shown()) sure_--;
}

void LaneMemory::count_laps(const Writer& writer) {
    mark(Mark::soft_wrap, writer.laps().soft - laps_.soft);
    mark(Mark::full_wrap, writer.laps().full - laps_.full);
    mark(Mark::jump, writer.laps().jumps - laps_.jumps);
    laps_ = writer.laps();
}

// --- the consumer's side

bool LaneMemory::bit_now(std::uint64_t offset) const {
    const std::uint64_t index = offset / line_bytes;
    return bits[index / Platform::bits_per_word].now() >> (index % Platform::bits_per_word) & 1;
}

void LaneMemory::reader_begins(int incarnation) {
    next_ = 0;
    while (next_ < records_.size() && records_[next_].released) next_++;
    if (incarnation == 0) return;
    mark(Mark::reader_restart);
    if (cursor.now() > head.now()) mark(Mark::cursor_ahead);
    for (std::size_t i = 1; i < records_.size(); i++) {  // skips lie between records
        const std::uint64_t from = records_[i - 1].position + records_[i - 1].lines * line_bytes;
        bool used = false;
        for (std::uint64_t at = from; at < records_[i].position; at += line_bytes) {
            used |= bit_now(at % capacity_);
        }
        if (used && from >= head.now() && from < cursor.now()) mark(Mark::bits_under_skip);
    }
    for (const Record& record : records_) {
        if (record.released || record.position < cursor.now()) continue;
        const std::uint64_t first = record.position % capacity_;
        bool later = false;
        for (std::uint64_t i = 1; i < record.lines; i++) later |= bit_now(first + i * line_bytes);
        if (later && !bit_now(first)) mark(Mark::half_marked);
    }
}

// A set is released whole or not at all, whatever its consumer died at.
void LaneMemory::fate(Record& record, bool gone) {
    if (!record.in_set || record.released) return;
    (gone ? set_gone_ : set_back_)++;
    if (set_gone_ > 0 && set_back_ > 0) world->fail("a journalled set is released in part");
    mark(gone ? Mark::set_gone : Mark::set_back);
    if (!gone) record.in_set = false;
}

std::size_t LaneMemory::delivered(const Frame& frame) {
    const std::size_t index = frame.sequence;
    if (index >= records_.size()) world->fail("a record that nobody wrote");
    if (index < next_) world->fail("a record delivered twice or out of order");
    for (; next_ < index; next_++) {
        Record& gone = records_[next_];
        if (!gone.releasing) world->fail("an unreleased record is missing");
        fate(gone, true);
        gone.released = true;
        mark(Mark::passed_over);
    }
    Record& record = records_[index];
    if (record.released) world->fail("a released record came back");
    if (frame.position != record.position || frame.bytes != record.lines * line_bytes) {
        world->fail("a record with a wrong frame");
    }
    if (record.delivered) mark(Mark::redelivered);
    fate(record, false);
    record.releasing = false;
    record.delivered = true;
    next_ = index + 1;
    check_payload(index);
    return index;
}

void LaneMemory::check_payload(std::size_t index) {
    const Record record = records_[index];
    const std::uint64_t offset = record.position % capacity_;
    for (std::uint64_t line : {std::uint64_t{1}, record.lines - 1}) {
        if (line == 0 || line >= record.lines) continue;
        const Line found = line_at(offset + line * line_bytes).read();
        if (found.stamp != stamp(record.position, index, line)) world->fail("a torn record");
        if (record.lines == 2) break;
    }
}

void LaneMemory::releasing(std::size_t index, bool in_set) {
    Record& record = records_[index];
    record.releasing = true;
    record.in_set = in_set;
    if (record.position != cursor.now()) mark(Mark::out_of_order);
}

void LaneMemory::released(std::size_t index) {
    world->external();
    records_[index].released = true;
    records_[index].in_set = false;
}

void LaneMemory::new_set() {
    for (Record& record : records_) record.in_set = false;
    set_gone_ = set_back_ = 0;
}

void LaneMemory::expect_end() {
    for (; next_ < records_.size(); next_++) {
        Record& gone = records_[next_];
        if (gone.position >= tail.now()) return;
        if (!gone.releasing) world->fail("an unreleased record is missing");
        fate(gone, true);
        gone.released = true;
        mark(Mark::passed_over);
    }
}

void LaneMemory::give_up_all() {
    records_.clear();
    sure_ = next_ = first_of_writer_ = 0;
    laps_ = {};
    mark(Mark::started_over);
}

void LaneMemory::check_usable() {
    for (const Record& record : records_) {
        if (!record.released) return world->fail("a record was neither released nor missed");
    }
    Reader reader = make_reader();
    if (!reader.recover()) return world->fail("the words left behind contradict each other");
    Writer writer = make_writer();
    reader_begins(0);
    Frame frame;
    for (int tries = 0; tries < 4; tries++) {
        if (reader.poll(frame) != rollring::LanePoll::empty) {
            return world->fail("something is left in a drained lane");
        }
        for (std::uint64_t at = 0; at < capacity_; at += line_bytes) {
            if (bit_now(at)) return world->fail("a released-bit is left in a drained lane");
        }
        if (head.now() != tail.now()) return world->fail("a drained lane is not free");
        if (writer.reserve(capacity_) != rollring::Reserve::ok) continue;
        put(writer, capacity_ / line_bytes);
        (void)writer.show();
        if (reader.poll(frame) != rollring::LanePoll::record) break;
        const std::size_t index = delivered(frame);
        if (!world->failure().empty()) return;
        releasing(index);
        reader.release(span(index));
        released(index);
        if (head.now() != tail.now()) break;
        mark(Mark::whole_lane);
        return;
    }
    world->fail("a record of full capacity does not fit into a drained lane");
}

}  // namespace model
