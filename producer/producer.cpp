#include "rollring/producer.hpp"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <thread>
#include <utility>

#include "fault_point.hpp"
#include "prefetch.hpp"
#include "producer_impl.hpp"
#include "record_bytes.hpp"

namespace rollring {

std::string_view name(Push push) {
    switch (push) {
        case Push::ok:
            return "ok";
        case Push::timed_out:
            return "timed_out";
        case Push::too_large:
            return "too_large";
        case Push::bad_record:
            return "bad_record";
        case Push::closed:
            return "closed";
        case Push::not_reserved:
            return "not_reserved";
    }
    return "unknown";
}

namespace {

constexpr std::int64_t look_ns = 1'000'000'000;  // between checks of the ring's name
constexpr std::int64_t pause_ns = 5'000'000;     // between records: after it the name is checked
constexpr std::uint64_t bytes_most = std::uint64_t{1} << 48;  // declared sizes are untrusted
constexpr std::uint64_t prefetch_max = 48 * line_bytes;  // longer runs the CPU prefetches itself

// The error text, with both numbers if a column has the wrong length or rank.
std::string problem_text(const Encoder& encoder, const Draft& draft, const Schema& schema) {
    const std::string_view blamed = encoder.problem_column();
    if (blamed.empty()) return std::string(encoder.problem());
    const std::string name = fmt::format("'{}': ", blamed);
    for (const DraftColumn& column : draft.columns()) {
        const Column& declared = schema.columns()[column.column];
        if (declared.name != blamed) continue;
        const bool any_shape = declared.per == Per::record && declared.dims.empty();
        if (!any_shape && column.dims != declared.dims.size() + 1) {
            return name + fmt::format("has {} dimensions, and is declared with {}", column.dims,
                                      declared.dims.size() + 1);
        }
        if (declared.per == Per::token && column.shape[0] != draft.n_tokens()) {
            return name +
                   fmt::format("has {} entries for {} tokens", column.shape[0], draft.n_tokens());
        }
    }
    return name + std::string(encoder.problem());
}

}  // namespace

void Producer::Impl::start() {
    LaneOwner& own = owner();
    const ReaderEntry& reader = map.entry(lane);
    // Position and epoch come from the consumer's page: this page was written by a previous
    // producer.
    store_release(own.tail, observe(reader.restart_at));
    last = {own.tail, lane, 0};
    const Geometry& geometry = map.geometry();
    writer.emplace(own.tail, reader.head, NativePlatform::Frames{data.data()}, geometry.lane_bytes,
                   geometry.soft_bytes);
    if (std::thread::hardware_concurrency() < 2) options.spin = {};
    pacer = Pacer(map, lane, options.spin.count() != 0);
    own.name.store(options.name.empty() ? program_invocation_short_name : options.name);
    poke(own.pid, static_cast<std::uint32_t>(getpid()));
    poke(own.records, std::uint64_t{0});
    poke(own.shown_ns, std::int64_t{0});
    poke(own.wants_room_bytes, std::uint64_t{0});
    poke(own.wants_place_bytes, std::uint64_t{0});
    poke(own.record_lines, 0U);
    poke(own.state, static_cast<std::uint32_t>(OwnerState::active));
    admission.emplace(map);
    admission->start(own, reader);
    bound.emplace(map, options.max_records);
    bound->start(own, reader);
    laps_before = {peek(own.laps_soft), peek(own.laps_full), peek(own.jumps)};
    epoch = observe(reader.retired_epoch) + 1;
    FAULT_POINT("open.before_epoch");
    store_release(own.epoch, epoch);
    FAULT_POINT("open.after_epoch");
    map.consumer_bell().lane_changes.fetch_add(1);
    ring_bell(map.consumer_bell());
}

Push Producer::Impl::refuse(Push push, std::string why) {
    problem = std::move(why);
    return push;
}

Push Producer::Impl::refuse_closed() {
    return refuse(Push::closed, "this producer was closed, or belongs to the parent of a fork");
}

// The consumer discards everything behind the damage: stop filling the lane.
Push Producer::Impl::check_quarantine() {
    if (observe(map.entry(lane).quarantine) == 0) return Push::ok;
    return refuse(Push::closed, "the consumer has quarantined this lane as damaged");
}

Push Producer::Impl::check_ring() {
    if (!map.is_removed(true)) return check_quarantine();
    return refuse(
        Push::closed,
        fmt::format("ring {} was removed or replaced while this producer was open: open it again",
                    map.segment().ring()));
}

// Called with every record, so it must cost almost nothing: the remover of the ring sets `removed`
// beside the policy version. The name itself is checked from time to time, in case other software
// unlinked it.
Push Producer::Impl::check_name() {
    const bool said = peek(map.policy().removed) != 0;
    if (!said && !look_due) [[likely]]
        return Push::ok;
    look_due = false;
    return check_ring();
}

// Called after show(). A consumer that has set `removed` reads the tails after that, and nothing
// later. `removed` and the tail are sequentially consistent: either the consumer reads the new
// record, or we see `removed` and refuse it here.
Push Producer::Impl::check_shown() {
    if (map.policy().removed.load() == 0) [[likely]]
        return Push::ok;
    return check_ring();
}

// Shows our demand to the stash, which makes room for it, and sees when all producers wait.
// After a timeout the demand stays shown until the next call, because a caller that cannot wait
// retries.
void Producer::Impl::wish(std::uint64_t room_bytes, std::uint64_t place_bytes) {
    if (room_bytes + place_bytes == 0 && !wishes) return;
    wishes = room_bytes + place_bytes != 0;
    poke(owner().wants_room_bytes, room_bytes);
    store_release(owner().wants_place_bytes, place_bytes);
}

// The bytes of the longest record with its frame; 0: unknown. The stash reads this word in the
// lane, because the other members of a group may be far longer than the first.
std::uint64_t Producer::Impl::declare(const GroupPlan& plan) {
    if (plan.record_bytes == 0) return 0;
    const std::uint64_t bytes =
        line_bytes + round_up(std::min(plan.record_bytes, bytes_most), line_bytes);
    const auto lines =
        static_cast<std::uint32_t>(std::min<std::uint64_t>(bytes, lane_bytes_max) / line_bytes);
    keep(owner().record_lines, std::max(peek(owner().record_lines), lines));
    return bytes;
}

// Sleeps until may_go(): the process that releases records rings the bells of all lanes.
template <class Ask>
Push Producer::Impl::wait_for_place(Deadline deadline, Ask may_go) {
    show();  // pending records may complete groups
    stats.waits++;
    add(owner().waits, std::uint64_t{1});
    Bell& bell = map.lane_bell(lane);
    NativeBell core = bell_of(bell);
    while (!deadline.passed()) {
        if (check_ring() != Push::ok) return Push::closed;
        map.consumer_bell().openers.store(1);
        const std::uint32_t seen = core.prepare();
        const bool go = may_go();
        FAULT_POINT("admit.before_sleep");
        if (!go) futex_sleep(bell.sequence, seen, deadline);
        core.cancel();
        if (go) return Push::ok;
    }
    // After a stop (SIGSTOP) the deadline may have passed although there is a place.
    return may_go() ? Push::ok : Push::timed_out;
}

// Waits until the ring may hold one more record.
Push Producer::Impl::place(Deadline deadline) {
    const auto take = [&] { return bound->take_place(stats.records, owner()); };
    if (take()) return Push::ok;
    const Push got = wait_for_place(deadline, take);
    if (got != Push::timed_out) return got;
    return refuse(Push::timed_out, fmt::format("{} has {} unreleased records, the limit is {}: {}",
                                               map.segment().ring(), bound->count(), bound->most(),
                                               map.consumer_alive() ? "the consumer is alive"
                                                                    : "no consumer is attached"));
}

void Producer::Impl::give_place_back() {
    if (bound->give_back(stats.records, owner())) ring_all_lanes();
}

// Wakes the producers that wait under the bound on records.
void Producer::Impl::ring_all_lanes() {
    if (map.consumer_bell().openers.load() == 0) return;
    for (std::uint32_t each = 0; each < map.geometry().lane_count; each++) {
        ring_bell(map.lane_bell(each));
    }
}

// Waits until the group may be opened, if it is not open already.
Push Producer::Impl::admit(const GroupKey& key, const GroupNeed& need, Deadline deadline,
                           bool may_choose) {
    Admission::Answer answer = admission->ask(key, need, owner());
    if (answer == Admission::Answer::go) return Push::ok;
    if (answer == Admission::Answer::never_fits) {
        return refuse(Push::too_large, admission->why(answer, need));
    }
    const std::uint64_t even_bytes = round_up(admission->claim_bytes(need), 2);
    wish(0, may_choose && deadline.passed() ? even_bytes : even_bytes + 1);
    const Push got = wait_for_place(deadline, [&] {
        answer = admission->ask(key, need, owner());
        return answer == Admission::Answer::go;
    });
    if (got != Push::timed_out) return got;
    if (may_choose) wish(0, even_bytes);
    return refuse(got, admission->why(answer, need));
}

Push Producer::Impl::reserve(const Draft& draft, Deadline deadline, std::span<std::byte>& payload,
                             bool filled_later) {
    if (!usable()) return refuse_closed();
    if (check_name() != Push::ok) return Push::closed;
    const Encoder encoder(draft, map.schema(), options.checksum);
    if (!encoder.problem().empty()) {
        return refuse(Push::bad_record, problem_text(encoder, draft, map.schema()));
    }
    // Otherwise a reader would see bytes of an older record there.
    if (encoder.has_holes() && !filled_later) {
        return refuse(Push::bad_record, "a column has no data: only reserve() accepts that");
    }
    wish(0, 0);
    // Refuse it before its group takes a place, which would stay taken.
    const std::uint64_t bytes = line_bytes + encoder.bytes();
    if (bytes > map.geometry().lane_bytes) {
        return too_large(bytes, draft.n_tokens(), draft.meta.group_size);
    }
    serial++;
    if (admission->active() || admission->owes()) {
        reserved_key = encoder.group_key();
        const GroupNeed need{draft.meta.group_size, bytes, draft.n_tokens()};
        const Push admitted = admit(reserved_key, need, deadline, false);
        if (admitted != Push::ok) return admitted;
        wish(0, 0);
    }
    const Push got = room(bytes, deadline);
    if (got == Push::ok) wish(0, 0);
    if (got != Push::ok) return got;
    // Last, so that no failure takes a credit of the record bound from other producers.
    if (bound->active()) {
        if (const Push placed = place(deadline); placed != Push::ok) return placed;
    }
    payload = {data.data() + writer->offset() + line_bytes, encoder.bytes()};
    FAULT_POINT("write.before");
    encoder.write(payload, map.ring_id(), peek(map.policy().version));
    FAULT_POINT("write.after");
    return Push::ok;
}

// The exact clock costs as much as the copy of a short record. One reading in each kernel tick (1
// to 10 ms) is enough for ages, and infrequent records get the exact time in any case. Called for
// each record, also behind a skip or pending records, because its producer may have waited since.
void Producer::Impl::stamp() {
    timespec now{};
    static_cast<void>(clock_gettime(CLOCK_MONOTONIC_COARSE, &now));  // cannot fail
    if (now.tv_sec == tick.tv_sec && now.tv_nsec == tick.tv_nsec) return;
    tick = now;
    const std::int64_t before_ns = std::exchange(stamp_ns, monotonic_ns());
    // A producer that sends rarely checks each time: a system call costs nothing beside the pause.
    if (stamp_ns - looked_ns < look_ns && stamp_ns - before_ns < pause_ns) return;
    looked_ns = stamp_ns;
    look_due = true;
}

void Producer::Impl::commit(std::span<std::byte> payload, std::uint64_t record_bytes) {
    seal_record(payload.first(record_bytes));
    Frame frame{};
    frame.bytes = line_bytes + record_bytes;
    frame.payload_bytes = record_bytes;
    frame.sequence = sequence++;
    frame.epoch = epoch;
    frame.lane = lane;
    stamp();
    frame.committed_ns = stamp_ns;
    const Admission::Sent sent = admission->note_sent(reserved_key);
    frame.groups_opened = sent.groups;
    frame.lines_claimed = sent.lines;
    last = {writer->position(), lane, static_cast<std::uint32_t>(frame.bytes / line_bytes)};
    writer->commit(frame);
    prefetch_next(frame.bytes);
    stats.records++;
    stats.bytes += frame.bytes;
}

// The consumer read the memory of the next record a lap ago, and has it in its cache: a store to a
// line has to fetch the line from there. Prefetches the first lines of a next record of the same
// length, while the caller composes the next draft.
void Producer::Impl::prefetch_next(std::uint64_t bytes) const {
    const std::uint64_t from = writer->offset();
    const std::byte* at = data.data() + from;
    const std::byte* const end = at + std::min({bytes, prefetch_max, data.bytes() - from});
    for (; at < end; at += line_bytes) prefetch_to_write(at);
}

void Producer::Impl::show() {
    LaneOwner& own = owner();
    // `shown_ns` shares the tail's cache line and is stored first, so it costs no line of its own.
    if (stats.records != shown.records) poke(own.shown_ns, stamp_ns);
    FAULT_POINT("commit.before");
    if (writer->show()) {
        FAULT_POINT("commit.after");
        ring_bell(map.consumer_bell());
        FAULT_POINT("wake.after");
    }
    store_release(own.records, peek(own.records) + stats.records - shown.records);
    store_release(own.records_total, peek(own.records_total) + stats.records - shown.records);
    bound->note_shown(own);
    add(own.tokens, stats.tokens - shown.tokens);
    add(own.bytes, stats.bytes - shown.bytes);
    const LapCounters& laps = writer->laps();
    poke(own.laps_soft, laps_before.soft + laps.soft);
    poke(own.laps_full, laps_before.full + laps.full);
    poke(own.jumps, laps_before.jumps + laps.jumps);
    shown = stats;
}

void Producer::LetGo::operator()(Impl* impl) const noexcept {
    if (--impl->users == 0) delete impl;
}

Producer::Producer(std::unique_ptr<Impl> impl) : impl_(impl.release()) {}
Producer::Producer(Producer&&) noexcept = default;
Producer& Producer::operator=(Producer&& other) noexcept {
    if (this != &other) {
        close();
        impl_ = std::move(other.impl_);
    }
    return *this;
}
Producer::~Producer() {
    close();
}

Push Producer::push_later(const Draft& draft, Deadline deadline) {
    std::span<std::byte> payload;
    const Push got = impl_->reserve(draft, deadline, payload, false);
    if (got != Push::ok) return got;
    impl_->stats.tokens += draft.n_tokens();
    impl_->commit(payload, payload.size());
    return Push::ok;
}

Push Producer::push(const Draft& draft, Deadline deadline) {
    const Push got = push_later(draft, deadline);
    if (got != Push::ok) return got;
    impl_->show();
    return impl_->check_shown();
}

void Producer::flush() {
    if (impl_->usable()) impl_->show();
}

Push Producer::reserve(const Draft& draft, Deadline deadline, Reservation& reservation) {
    std::span<std::byte> payload;
    const Push got = impl_->reserve(draft, deadline, payload, true);
    if (got != Push::ok) return got;
    reservation = Reservation();
    impl_->users++;
    reservation.impl_.reset(impl_.get());
    reservation.serial_ = impl_->serial;
    reservation.payload_ = payload;
    reservation.versions_named_ =
        draft.meta.policy_version_min >= 0 || draft.meta.policy_version_max >= 0;
    return Push::ok;
}

void Producer::close() {
    if (impl_ == nullptr || !impl_->usable()) return;
    impl_->show();
    impl_->give_place_back();
    impl_->open = false;
    FAULT_POINT("close.before_state");
    store_release(impl_->owner().state, static_cast<std::uint32_t>(OwnerState::closed));
    FAULT_POINT("close.after_state");
    impl_->keep_lane(0);
    // The lane stays ours while a reservation of it lives: another producer must not write there.
    if (impl_->users == 1) const LifeLock gone = std::move(impl_->life);
    impl_->map.consumer_bell().lane_changes.fetch_add(1);
    ring_bell(impl_->map.consumer_bell());
}

std::string Producer::problem() const {
    return impl_->problem;
}
const Schema& Producer::schema() const {
    return impl_->map.schema();
}
std::uint32_t Producer::lane() const {
    return impl_->lane;
}
RecordRef Producer::last() const {
    return impl_->last;
}
std::uint64_t Producer::durable_records() const {
    const ReaderEntry& entry = impl_->map.entry(impl_->lane);
    if (observe(entry.durable_epoch) != impl_->epoch) return 0;
    return std::min(observe(entry.durable_records), impl_->sequence);
}

bool Producer::consumer_alive() const {
    return impl_->map.consumer_alive();
}

ProducerStats Producer::stats() const {
    ProducerStats stats = impl_->stats;
    const LapCounters& laps = impl_->writer->laps();
    stats.laps_soft = laps.soft;
    stats.laps_full = laps.full;
    stats.jumps = laps.jumps;
    stats.lane_bytes = impl_->map.geometry().lane_bytes;
    return stats;
}

}  // namespace rollring
