#include "rollring/consumer.hpp"

#include <fmt/format.h>

#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "consumer_impl.hpp"
#include "fault_point.hpp"

namespace rollring {
namespace {

constexpr std::int64_t look_busy_ns = 50'000'000;  // between looks for deaths under traffic
constexpr std::uint32_t polls_per_clock = 256;
struct Released {
    std::uint64_t records = 0;
    std::uint64_t bytes = 0;
};

constexpr int torn_max = 64;  // in one poll: a producer of rubbish must not keep us from the others

}  // namespace

Journal<NativePlatform> Consumer::Impl::journal() const {
    const Geometry& geometry = map.geometry();
    ReaderControl& own = control();
    auto* entries =
        &reader_pages.at<JournalEntry>(geometry.journal_offset() - geometry.reader_offset());
    return {own.journal_count,
            own.journal_step,
            own.last_acked_step,
            {entries},
            geometry.journal_records};
}

Result<Consumer> Consumer::open(std::string_view ring, const ConsumerOptions& options) {
    const Deadline deadline = Deadline::after_ms(options.attach_timeout_ms);
    auto map = RingMap::attach(ring, deadline);
    if (!map) return std::unexpected(map.error());
    std::optional<LifeLock> seat;
    for (;;) {
        if (!map->segment().linked()) {  // removed while we waited: there may be a new one
            map = RingMap::attach(ring, deadline);
            if (!map) return std::unexpected(map.error());
        }
        auto lock = LifeLock::take(map->segment().fd(), LifeByte::consumer());
        if (!lock) return std::unexpected(lock.error());
        seat = std::move(*lock);
        if (seat) {
            auto stays = map->segment().stays(deadline);
            if (!stays) return std::unexpected(stays.error());
            if (*stays) break;
            continue;
        }
        if (deadline.passed()) {
            return std::unexpected(Error{
                Errc::busy, 0,
                fmt::format("ring {} has a live consumer (pid {}); one ring has one consumer: stop "
                            "it, or use several rings and ShardedProducer",
                            map->segment().name(), peek(map->control().pid))});
        }
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    const Segment& segment = map->segment();
    const Geometry& geometry = map->geometry();
    auto all = segment.map(0, geometry.segment_bytes(), false);
    if (!all) return std::unexpected(all.error());
    auto overflow = Overflow::open(*map);
    if (!overflow) return std::unexpected(overflow.error());
    if (*overflow) {
        std::byte* const spill = all->data() + geometry.data_offset(geometry.spill_lane());
        if (auto laid = (*overflow)->lay_under(spill, false); !laid) {
            return std::unexpected(laid.error());
        }
    }
    auto own = segment.map(geometry.reader_offset(),
                           geometry.owners_offset() - geometry.reader_offset(), true);
    if (!own) return std::unexpected(own.error());
    auto impl = std::make_unique<Impl>(std::move(*map), options, std::move(*seat), std::move(*all),
                                       std::move(*overflow), std::move(*own));
    if (auto started = impl->start(); !started) return std::unexpected(started.error());
    return Consumer(std::move(impl));
}

Result<void> Consumer::Impl::check_usable() const {
    if (usable()) return {};
    return std::unexpected(Error{Errc::forked, 0, problem()});
}

Result<void> Consumer::Impl::check_step(std::int64_t step) const {
    if (step >= 0 && step >= last_step) return {};
    return std::unexpected(
        Error{Errc::invalid_argument, 0,
              fmt::format("step {}: steps are 0 or more and do not go back, and the last one "
                          "acknowledged in ring {} is {}; a trainer that starts again goes on "
                          "behind last_acked_step()",
                          step, map.segment().name(), last_step)});
}

std::string Consumer::Impl::problem() const {
    if (generation != fork_generation()) {
        return fmt::format(
            "the seat at ring {} is that of the process which forked this one: its "
            "child can neither read nor acknowledge",
            map.segment().name());
    }
    if (!forsaken) return {};
    return fmt::format(
        "ring {} was removed, its producers are gone, and all that they left is read",
        map.segment().name());
}

void Consumer::Impl::close() {
    const LifeLock gone = std::move(life);
    open = false;
}

void Consumer::Impl::publish_groups() {
    for (const std::uint32_t lane : active) feeds[lane]->publish_groups();
}

Result<void> Consumer::Impl::open_spill() {
    const std::uint32_t lane = map.geometry().spill_lane();
    if (map.geometry().spill_bytes == 0) return {};
    if (!feeds[lane]) {
        if (auto feed = open_lane(lane, false); !feed) return feed;
    }
    if (auto set = Spill::set_tail(map, feeds[lane]->restart_at()); !set) return set;
    auto opened = Spill::open(map, control(), overflow_file());
    if (!opened) return std::unexpected(opened.error());
    spill.emplace(std::move(*opened));
    return {};
}

std::optional<RecordRef> Consumer::Impl::evacuate(const RecordRef& from, const Frame& frame) {
    if (!spill) return std::nullopt;
    const Geometry& geometry = map.geometry();
    const std::byte* bytes =
        all.data() + geometry.data_offset(from.lane) + from.position % geometry.capacity(from.lane);
    const auto moved = spill->move({from, frame, bytes, &*feeds[from.lane]},
                                   *feeds[geometry.spill_lane()], control(), journal());
    if (moved) ring_bell(map.lane_bell(from.lane));
    return moved;
}

std::uint64_t Consumer::Impl::held_bytes() const {
    std::uint64_t bytes = 0;
    for (const auto& feed : feeds) bytes += feed ? feed->unreleased_bytes() : 0;
    return bytes;
}

Poll Consumer::Impl::poll(Record& record) {
    if (!usable()) return Poll::closed;
    if (!counts_groups && !asks_nobody) {
        // A stash that was killed here has left its bound behind, and nobody counts any more.
        publish(control().max_open_groups, std::uint64_t{0});
        asks_nobody = true;
        for (const std::uint32_t lane : active) ring_bell(map.lane_bell(lane));
    }
    const bool arrived = map.consumer_bell().arrivals.load() != arrivals_seen;
    const bool due = ++polls % polls_per_clock == 0 && monotonic_ns() - looked_ns > look_busy_ns;
    if (arrived || due) look_around();
    int torn = 0;
    for (std::size_t tried = 0; tried < active.size();) {
        LaneFeed& feed = *feeds[active[turn]];
        if (feed.idle()) {
            turn = turn + 1 < active.size() ? turn + 1 : 0;
            turn_left = turn_bytes;
            tried++;
            continue;
        }
        const std::uint64_t head = feed.head();
        if (!counts_groups) feed.publish_groups();
        const LaneFeed::Feed got = feed.next(record, map.schema());
        if (feed.head() != head) ring_bell(map.lane_bell(active[turn]));
        switch (got) {
            case LaneFeed::Feed::record:
                count(record);
                // All of it before the lanes, as it came before what they still hold.
                if (feed.is_spill()) return Poll::record;
                if (record.ref.bytes() < turn_left) {
                    turn_left -= record.ref.bytes();
                } else {
                    turn = turn + 1 < active.size() ? turn + 1 : 0;
                    turn_left = turn_bytes;
                }
                return Poll::record;
            case LaneFeed::Feed::torn:
                tell(feed.event(Event::Kind::torn));
                if (++torn < torn_max) continue;
                break;
            case LaneFeed::Feed::quarantined:
                quarantines++;
                tell(feed.event(Event::Kind::quarantined));
                break;
            case LaneFeed::Feed::empty:
                break;
        }
        turn = turn + 1 < active.size() ? turn + 1 : 0;
        turn_left = turn_bytes;
        tried++;
    }
    if (!untouched.empty()) touch_some();
    if (monotonic_ns() - looked_ns > look_gap_ns) look_at_some();
    return Poll::empty;
}

void Consumer::Impl::count(const Record& record) {
    stats.records++;
    stats.tokens += record.view.n_tokens();
    stats.bytes += record.ref.bytes();
    stats.redelivered += record.redelivered ? 1 : 0;
    if (counts_groups) return;
    if (newest.full()) remember_in_hand(newest.take());
    newest.add(record.ref);
}

void Consumer::Impl::remember_in_hand(const RecordRef& record) {
    auto& lane = handed[record.lane];
    if (!lane) lane.emplace(map.geometry().capacity(record.lane));
    lane->add({record.position, record.bytes()});
}

void Consumer::Impl::remember_newest() {
    while (!newest.empty()) remember_in_hand(newest.take());
}

bool Consumer::Impl::in_hand(const RecordRef& record) {
    remember_newest();
    if (record.lane >= handed.size() || !handed[record.lane]) return false;
    const Span span{record.position, record.bytes()};
    return feeds[record.lane]->delivered(span) && handed[record.lane]->holds(span);
}

bool Consumer::Impl::take_older(const RecordRef& record) {
    remember_newest();
    if (record.lane >= handed.size() || !handed[record.lane]) return false;
    const Span span{record.position, record.bytes()};
    return feeds[record.lane]->delivered(span) && handed[record.lane]->take(span);
}

Consumer::Consumer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Consumer::Consumer(Consumer&&) noexcept = default;
Consumer& Consumer::operator=(Consumer&&) noexcept = default;
Consumer::~Consumer() = default;

Poll Consumer::poll(Record& record) {
    return impl_->poll(record);
}

Poll Consumer::wait(Record& record, Deadline deadline) {
    Bell& bell = impl_->map.consumer_bell();
    NativeBell core = bell_of(bell);
    std::int64_t spin_until = monotonic_ns() + impl_->options.spin_us * 1000;
    bool slept = false;
    for (;;) {
        Poll got = impl_->poll(record);
        if (got != Poll::empty) return got;
        // After a sleep, so that a caller who takes it for a timeout does not spin.
        if (slept && impl_->forsaken) return Poll::closed;
        const std::int64_t now = monotonic_ns();
        if (deadline.at_ns <= now) return Poll::timed_out;
        if (now < spin_until) {
            for (int i = 0; i < 16; i++) spin_pause();
            continue;
        }
        const std::uint32_t seen = impl_->barriers ? core.prepare_for_light() : core.prepare();
        got = impl_->poll(record);
        FAULT_POINT("wait.before_sleep");
        if (got == Poll::empty) futex_sleep(bell.sequence, seen, deadline);
        core.cancel();
        if (got != Poll::empty) return got;
        spin_until = 0;
        slept = true;
    }
}

bool Consumer::view(const RecordRef& record, TrajectoryView& view) const {
    view = TrajectoryView();
    // A stash knows what it asks for, and may ask for what only a predecessor has seen.
    if (!impl_->counts_groups && !impl_->in_hand(record)) return false;
    const Geometry& geometry = impl_->map.geometry();
    const LaneSize size(geometry.capacity(record.lane));
    const std::uint64_t offset = size.offset(record.position);
    ROLLRING_ASSERT(record.lines != 0 && record.bytes() <= size.bytes() - offset,
                    fmt::format("lane {} lines {}", record.lane, record.lines));
    const std::byte* at = impl_->all.data() + geometry.data_offset(record.lane) + offset;
    const auto frame = load_once<Frame>(at);
    const bool same = frame.position == record.position && frame.bytes == record.bytes() &&
                      frame.payload_bytes <= frame.bytes - line_bytes;
    // Its content was verified when it was delivered.
    const bool whole = same && view.parse({at + line_bytes, frame.payload_bytes}, schema(),
                                          TrajectoryView::Look::again)
                                   .empty();
    if (!whole) view = TrajectoryView();
    return whole;
}

bool Consumer::release(const RecordRef& record) {
    if (!impl_->usable()) return false;
    if (!impl_->take_from_hand(record)) {
        impl_->stats.strays++;
        return false;
    }
    impl_->release(record);
    return true;
}

void Consumer::Impl::release(const RecordRef& record) {
    FAULT_POINT("release.before");
    feeds[record.lane]->release({record.position, record.bytes()});
    FAULT_POINT("release.after");
    ring_bell(map.lane_bell(record.lane));
}

Result<void> Consumer::release_all(std::span<const RecordRef> records, std::int64_t step) {
    if (auto usable = impl_->check_usable(); !usable) return usable;
    if (step != -1) {
        if (auto checked = impl_->check_step(step); !checked) return checked;
    }
    std::size_t taken = 0;
    while (taken < records.size() && impl_->take_from_hand(records[taken])) taken++;
    const auto put_back = [&] {
        for (const RecordRef& one : records.first(taken)) impl_->remember_in_hand(one);
    };
    if (taken < records.size()) {
        const RecordRef& stray = records[taken];
        put_back();
        return std::unexpected(
            Error{Errc::not_leased, 0,
                  fmt::format("record {} of {} (lane {}, position {}, {} lines) is not held: it "
                              "was released before, is there twice, or was never delivered",
                              taken, records.size(), stray.lane, stray.position, stray.lines)});
    }
    auto released = impl_->release_all(records, step, true);
    if (!released) put_back();
    return released;
}

Result<void> Consumer::Impl::release_all(std::span<const RecordRef> records, std::int64_t step,
                                         bool delivered) {
    if (auto usable = check_usable(); !usable) return usable;
    auto book = journal();
    if (records.size() > book.entries_max()) {
        publish(control().journal_graves, std::uint64_t{0});
        return std::unexpected(
            Error{Errc::journal_full, 0,
                  fmt::format("{} records in one acknowledgement, the ring's journal holds {}: "
                              "create it with a larger --journal-records",
                              records.size(), book.entries_max())});
    }
    std::vector<JournalEntry> entries;
    entries.reserve(records.size());
    std::vector<Released> released(feeds.size());
    for (const RecordRef& record : records) {
        ROLLRING_ASSERT(record.lane < feeds.size() && feeds[record.lane],
                        fmt::format("lane {}", record.lane));
        entries.push_back({record.position, record.lane, record.lines});
        released[record.lane].records++;
        released[record.lane].bytes += record.bytes();
    }
    FAULT_POINT("ack.before_journal");
    book.release_all(entries, step, [&](const JournalEntry& entry) {
        FAULT_POINT("ack.while_marking");
        commit_graves();
        feeds[entry.lane]->mark({entry.position, std::uint64_t{entry.lines} * line_bytes});
    });
    if (step >= 0) last_step = step;
    publish(control().journal_graves, std::uint64_t{0});
    FAULT_POINT("ack.before_settle");
    for (std::uint32_t lane = 0; lane < released.size(); lane++) {
        if (released[lane].records == 0) continue;
        feeds[lane]->settle(released[lane].records, delivered ? released[lane].bytes : 0);
        ring_bell(map.lane_bell(lane));
    }
    FAULT_POINT("ack.after");
    if (step >= 0) add(control().batches_acked, std::uint64_t{1});
    return {};
}

std::uint64_t Consumer::journal_records() const {
    return impl_->map.geometry().journal_records;
}
std::int64_t Consumer::last_acked_step() const {
    return impl_->last_step;
}
std::int64_t Consumer::policy_version() const {
    return peek(impl_->map.policy().version);
}
const Schema& Consumer::schema() const {
    return impl_->map.schema();
}

std::string Consumer::problem() const {
    return impl_->problem();
}

bool Consumer::next_event(Event& event) {
    if (!impl_->usable() || impl_->events.empty()) return false;
    event = std::move(impl_->events.front());
    impl_->events.pop_front();
    return true;
}

std::uint32_t Consumer::producers_active() const {
    std::uint32_t count = 0;
    for (const std::uint32_t lane : impl_->active) count += impl_->feeds[lane]->active() ? 1 : 0;
    return count;
}

ConsumerStats Consumer::stats() const {
    const ConsumerStats now = impl_->totals();
    const ConsumerStats& before = impl_->before;
    ConsumerStats stats = impl_->stats;
    stats.released = now.released - before.released;
    stats.lost = now.lost - before.lost;
    stats.duplicates = now.duplicates - before.duplicates;
    stats.torn = now.torn - before.torn;
    stats.producers_lost = now.producers_lost - before.producers_lost;
    stats.producers_closed = now.producers_closed - before.producers_closed;
    stats.dropped_bytes = now.dropped_bytes - before.dropped_bytes;
    stats.quarantines = impl_->quarantines;
    return stats;
}

}  // namespace rollring
