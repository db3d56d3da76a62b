#include "rollring/extras/store.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "human.hpp"
#include "keeper.hpp"
#include "liveness.hpp"
#include "quiet_thread.hpp"
#include "rollring/ring.hpp"
#include "stored.hpp"
#include "writer_lanes.hpp"

namespace rollring {
namespace {

constexpr std::size_t clear_most = 4096;       // values that one record names
constexpr std::int64_t keep_ns = 500'000'000;  // between checks of the values held by this process
constexpr std::int64_t seat_ns = 100'000'000;  // between checks whether the books are kept
// Frame, header and directory of a value, and some of its key.
constexpr std::uint64_t overhead_bytes = 512;

Draft draft_of(std::string_view key, std::string_view column, std::int64_t now_ns) {
    Draft draft(key.empty() ? std::string_view(".") : key);
    draft.meta.status = Status::filtered;  // promises no tokens
    draft.meta.repetition_id = key.empty() ? 0 : 1;
    // Part of the group key, which a reader checks.
    draft.meta.visit = column.empty() ? 0 : GroupKey::of(column, 0).low;
    draft.meta.created_ns =
        now_ns;  // by the clock that all processes share, so that the newer value is known
    return draft;
}

Errc code_of(Push push) {
    switch (push) {
        case Push::too_large:
            return Errc::too_large;
        case Push::bad_record:
            return Errc::invalid_argument;
        case Push::timed_out:
            return Errc::store_full;
        default:
            return Errc::closed;
    }
}

}  // namespace

struct Store::Impl {
    StoreRings rings;
    std::string name;
    std::string who;
    StoredValues stored;
    std::uint64_t generation = fork_generation();
    std::mutex writing;
    WriterLanes values;
    WriterLanes clears;
    Interruption stop;
    std::thread keeper;

    Impl(StoreRings of, std::string_view called, const StoreOptions& options)
        : rings(std::move(of)),
          name(called),
          who(options.name),
          stored(rings.values),
          values(rings.values, name, who, lanes_max),
          clears(rings.clears, StoreRings::clears_name(name), who, 1) {}
    Impl(const Impl&) = delete;
    Impl& operator=(const Impl&) = delete;
    ~Impl() {
        if (!keeper.joinable()) return;
        stop.raise(rings.values.consumer_bell());
        keeper.join();
    }

    [[nodiscard]] bool inherited() const { return generation != fork_generation(); }
    [[nodiscard]] bool removed(bool thorough) const {
        return rings.values.is_removed(thorough) || rings.clears.is_removed(thorough);
    }
    [[nodiscard]] Result<void> check() const;
    Result<void> start();
    void keep();
    Result<void> put_all(std::span<const StoreValue> given, std::span<Location> at,
                         Deadline deadline);
    template <class Named>
    Result<void> clear(std::span<const Named> named, ClearBy by, Deadline deadline);
    Result<void> clear_some(const Draft& draft, Deadline deadline);
    [[nodiscard]] std::string why_full(const StoreValue& value) const;
    [[nodiscard]] std::string why_too_large(const StoreValue& value) const;
    [[nodiscard]] std::string why_not(Errc code, const StoreValue& value) const;
    [[nodiscard]] StoreStat stat() const;
};

Result<void> Store::Impl::check() const {
    if (!inherited()) {
        if (!removed(false)) [[likely]]
            return {};
        return refused(Errc::closed, fmt::format("the store {} was removed: open it again", name));
    }
    return refused(
        Errc::forked,
        fmt::format(
            "the store {} was opened by the parent process: open it in this process as well",
            name));
}

Result<void> Store::Impl::start() {
    const int error = start_quiet_thread(keeper, [this] { keep(); });
    if (error == 0) return {};
    return failed(Errc::system, error, "cannot start the store's thread");
}

// The thread of each process that has the store open: it keeps the books once no other process
// does, and returns unused lanes of this process.
void Store::Impl::keep() {
    std::optional<Keeper> books;
    Bell& bell = rings.values.consumer_bell();
    while (!stop.raised()) {
        // Other software that cleans /dev/shm may have removed the store: all processes are told.
        if (removed(true)) return;
        if (!books && !rings.values.consumer_alive()) {
            if (auto opened = Keeper::open(rings, name)) books.emplace(std::move(*opened));
        }
        if (books) {
            if (!books->serve(Deadline::after_ns(keep_ns), stop)) return;
        } else {
            // Any earlier number will do: the end of the wait changes it.
            futex_sleep(bell.sequence, bell.sequence.load(), Deadline::after_ns(seat_ns));
        }
        const std::unique_lock lock(writing, std::try_to_lock);
        if (!lock.owns_lock()) continue;
        values.give_back_idle();
        clears.give_back_idle();
    }
}

std::string Store::Impl::why_full(const StoreValue& value) const {
    const StoreStat now = stat();
    return fmt::format(
        "no room for a value of {} in the store {}: {} of its {} are used, {} of that by {} values "
        "that were not cleared, and the rest lies behind those; {} of {} lanes belong to processes "
        "that write; {}",
        human_bytes(value.form.bytes()), name, human_bytes(now.used_bytes),
        human_bytes(now.capacity_bytes), human_bytes(now.value_bytes), now.values, now.lanes_taken,
        now.lanes,
        now.kept ? "clear some values, or create the store with more capacity"
                 : "its bookkeeper has ended");
}

std::string Store::Impl::why_too_large(const StoreValue& value) const {
    const StoreStat now = stat();
    return fmt::format(
        "a value of {} cannot fit into the store {}: its {} are divided into {} lanes, and a value "
        "needs one; create the store with more capacity or fewer lanes",
        human_bytes(value.form.bytes()), name, human_bytes(now.capacity_bytes), now.lanes);
}

std::string Store::Impl::why_not(Errc code, const StoreValue& value) const {
    if (code == Errc::store_full) return why_full(value);
    return code == Errc::too_large ? why_too_large(value) : values.problem();
}

Result<void> Store::Impl::put_all(std::span<const StoreValue> given, std::span<Location> at,
                                  Deadline deadline) {
    const std::int64_t now_ns = monotonic_ns();
    for (std::size_t i = 0; i < given.size(); i++) {
        const StoreValue& value = given[i];
        Draft draft = draft_of(value.key, value.column, now_ns);
        draft.meta.origin = value.form.tag;
        const ValueForm& form = value.form;
        draft.add({value_column, form.dtype, form.shape, form.dims, value.data});
        RecordRef ref;
        const Push pushed = values.push_later(draft, deadline, ref);
        if (pushed == Push::ok) {
            at[i] = location_of(ref.lane, ref.position);
            continue;
        }
        values.flush();
        const Errc code = code_of(pushed);
        const std::string why = why_not(code, value);
        static_cast<void>(
            clear(std::span<const Location>(at.first(i)), ClearBy::location, Deadline::now()));
        std::ranges::fill(at, Location{});
        return refused(code, why);
    }
    values.flush();
    return {};
}

template <class Named>
Result<void> Store::Impl::clear(std::span<const Named> named, ClearBy by, Deadline deadline) {
    while (!named.empty()) {
        const auto some = std::as_bytes(named.first(std::min(named.size(), clear_most)));
        Draft draft = draft_of({}, {}, monotonic_ns());
        draft.meta.origin = static_cast<std::uint16_t>(by);
        draft.add({static_cast<std::uint16_t>(Std::user),
                   dtype_u8,
                   {static_cast<std::uint32_t>(some.size())},
                   1,
                   some.data()});
        if (auto cleared = clear_some(draft, deadline); !cleared) return cleared;
        named = named.subspan(some.size() / sizeof(Named));
    }
    return {};
}

// Waits until the bookkeeper has cleared the values, so that no process finds them afterwards.
Result<void> Store::Impl::clear_some(const Draft& draft, Deadline deadline) {
    RecordRef ref;
    const Push pushed = clears.push_later(draft, deadline, ref);
    clears.flush();
    if (pushed != Push::ok && pushed != Push::timed_out) {
        return refused(code_of(pushed), clears.problem());
    }
    ring_bell(rings.values.consumer_bell());
    const auto done = [&] {
        return observe(rings.clears.entry(ref.lane).cursor) >= ref.position + ref.bytes();
    };
    if (pushed == Push::ok && (done() || deadline.passed())) {
        if (done()) return {};
    } else if (pushed == Push::ok) {
        Bell& bell = rings.clears.lane_bell(ref.lane);
        NativeBell core = bell_of(bell);
        while (!deadline.passed()) {
            const std::uint32_t seen = core.prepare();
            const bool over = done();
            const std::int64_t look_ns = Deadline::after_ns(seat_ns).at_ns;
            if (!over) futex_sleep(bell.sequence, seen, {std::min(deadline.at_ns, look_ns)});
            core.cancel();
            if (over) return {};
            // No process keeps the books of a removed store.
            if (auto there = check(); !there) return there;
        }
    }
    return refused(Errc::timed_out, fmt::format("no process cleared the values in time: {}",
                                                rings.values.consumer_alive()
                                                    ? "the store's bookkeeper is busy, or stopped"
                                                    : "the store's bookkeeper has ended"));
}

StoreStat Store::Impl::stat() const {
    const RingMap& map = rings.values;
    const Geometry& geometry = map.geometry();
    StoreStat made{};
    made.lanes = geometry.lane_count;
    made.capacity_bytes = std::uint64_t{geometry.lane_count} * geometry.lane_bytes;
    made.value_bytes_max = geometry.lane_bytes - overhead_bytes;
    made.kept = map.consumer_alive();
    for (std::uint32_t lane = 0; lane < geometry.lane_count; lane++) {
        const LaneOwner& owner = map.owner(lane);
        const std::uint64_t cursor = observe(map.entry(lane).cursor);
        const std::uint64_t tail = std::max(observe(owner.tail), cursor);
        made.used_bytes += std::min(tail - cursor, geometry.lane_bytes);
        const StoredValues::Sum found = stored.sum(lane);
        made.values += found.values;
        made.value_bytes += found.bytes;
        if (map.producer_alive(lane)) made.lanes_taken++;
    }
    return made;
}

Store::Store(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Store::Store(Store&&) noexcept = default;
Store& Store::operator=(Store&& other) noexcept {
    std::swap(impl_, other.impl_);
    return *this;
}
Store::~Store() {
    // A child's copy is left as it is: its thread is not there.
    if (impl_ != nullptr && impl_->inherited()) static_cast<void>(impl_.release());
}

Result<Store> Store::open(std::string_view name, const StoreOptions& options) {
    auto rings = StoreRings::open(name, options, Deadline::after(options.attach_timeout));
    if (!rings) return std::unexpected(rings.error());
    auto impl = std::make_unique<Impl>(std::move(*rings), name, options);
    if (auto started = impl->start(); !started) return std::unexpected(started.error());
    return Store(std::move(impl));
}

Result<void> Store::remove(std::string_view name, bool force) {
    // Either ring may be gone already, removed by `rollring rm` or as a leftover.
    auto values = remove_ring(name, force);
    if (!values && values.error().code != Errc::not_found) return values;
    auto clears = remove_ring(StoreRings::clears_name(name), force);
    if (!clears && clears.error().code != Errc::not_found) return clears;
    return values;
}

Result<void> Store::put(std::span<const StoreValue> values, std::span<Location> at,
                        Deadline deadline) {
    ROLLRING_ASSERT(values.size() == at.size(), "each value needs a place for its location");
    if (auto checked = impl_->check(); !checked) return checked;
    const std::lock_guard lock(impl_->writing);
    return impl_->put_all(values, at, deadline);
}

Result<void> Store::find(std::span<const Location> at, std::span<StoredValue> found) const {
    ROLLRING_ASSERT(at.size() == found.size(), "each location needs a place for its value");
    if (auto checked = impl_->check(); !checked) return checked;
    return impl_->stored.find(at, found);
}

Result<void> Store::read(std::span<const StoredValue> found, std::span<std::byte* const> to) const {
    ROLLRING_ASSERT(found.size() == to.size(), "each value needs a place for its bytes");
    if (auto checked = impl_->check(); !checked) return checked;
    return impl_->stored.read(found, to);
}

Result<void> Store::read(Location at, std::span<std::byte> to) const {
    StoredValue found;
    if (auto there = find({&at, 1}, {&found, 1}); !there) return there;
    if (found.form.bytes() != to.size()) {
        return refused(Errc::invalid_argument,
                       fmt::format("the value at {} has {} bytes, not {}", at.number,
                                   found.form.bytes(), to.size()));
    }
    std::byte* const begin = to.data();
    return read({&found, 1}, {&begin, 1});
}

Result<void> Store::clear(std::span<const Location> values, Deadline deadline) {
    if (auto checked = impl_->check(); !checked) return checked;
    const std::lock_guard lock(impl_->writing);
    return impl_->clear(values, ClearBy::location, deadline);
}

Result<void> Store::clear_keys(std::span<const std::string_view> keys, Deadline deadline) {
    if (auto checked = impl_->check(); !checked) return checked;
    std::vector<GroupKey> hashed;
    hashed.reserve(keys.size());
    for (const std::string_view key : keys) hashed.push_back(GroupKey::of(key, 0));
    const std::lock_guard lock(impl_->writing);
    return impl_->clear(std::span<const GroupKey>(hashed), ClearBy::key, deadline);
}

StoreStat Store::stat() const {
    return impl_->stat();
}

}  // namespace rollring
