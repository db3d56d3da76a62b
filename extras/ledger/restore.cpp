#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <memory>
#include <optional>
#include <utility>

#include "columns_text.hpp"
#include "file_names.hpp"
#include "file_scan.hpp"
#include "kept_records.hpp"
#include "ledger_layout.hpp"
#include "ledger_scan.hpp"
#include "liveness.hpp"
#include "log_writer.hpp"
#include "parked_file.hpp"
#include "record_stream.hpp"
#include "restored_map.hpp"
#include "restored_records.hpp"
#include "rollring/extras/ledger.hpp"
#include "rollring/extras/parked.hpp"
#include "rollring/producer.hpp"
#include "rollring/relay.hpp"
#include "rollring/ring.hpp"
#include "stash_ledger.hpp"

namespace rollring {
namespace ledger {
namespace {

template <class T>
void take(const LedgerRing& ring, std::string_view name, T& to) {
    if (const auto size = ring.size(name)) to = static_cast<T>(*size);
}

RingOptions options_of(const Contents& found, const std::string& ledger_dir) {
    RingOptions options;
    take(found.ring, "lanes", options.lanes);
    take(found.ring, "lane_bytes", options.lane_bytes);
    take(found.ring, "soft_bytes", options.soft_bytes);
    take(found.ring, "journal_records", options.journal_records);
    if (const auto spill = found.ring.size("spill_bytes")) options.spill_bytes = spill;
    take(found.ring, "group_rows", options.group_rows);
    take(found.ring, "requests", options.requests);
    take(found.ring, "request_bytes", options.request_bytes);
    take(found.ring, "ledger_bytes", options.ledger_bytes);
    take(found.ring, "durable", options.durable);
    options.schema = found.schema;
    options.ledger_dir = ledger_dir;
    return options;
}

// Writes a note of records that the checkpoint has, in a segment of its own.
Result<void> write_settled(const std::filesystem::path& directory, Contents& found,
                           const std::vector<std::uint64_t>& numbers) {
    const RingHead head{.ring_id = found.ring.id, .name_bytes = found.ring.name.size()};
    std::string ring(reinterpret_cast<const char*>(&head), sizeof head);
    ring += found.ring.name + found.ring.sizes;
    LogWriter log({.directory = directory,
                   .columns = recording::columns_text(found.schema),
                   .schema_id = found.schema.id(),
                   .ring = ring,
                   .max_bytes = std::uint64_t{1} << 20,
                   .durable = Durable::group},
                  found.segments, found.next_segment, [](const Mark&) {});
    if (auto started = log.start(); !started) return started;
    const std::array parts{std::as_bytes(std::span(numbers))};
    log.append({.kind = stored(Kind::gone), .time_ns = realtime_ns()}, parts);
    return log.wait_for(log.hand_over(), Deadline::after_ms(disk_patience_ms));
}

std::unexpected<Error> was_restored(std::string_view ring) {
    return refused(Errc::busy,
                   fmt::format("a restore has sent records into ring {} already: remove it "
                               "('rollring rm {}'), or name another one",
                               ring, ring));
}

// Workers may have come already.
Result<void> check_existing(const RingStat& there, const Contents& found,
                            const std::string& ledger_dir, std::string_view producer_name) {
    const std::string& name = there.name;
    const bool restored = std::ranges::any_of(
        there.lanes, [&](const LaneStat& one) { return one.producer == producer_name; });
    if (restored) return was_restored(name);
    if (there.schema.id() != found.schema.id()) {
        return refused(Errc::layout_mismatch,
                       fmt::format("ring {} has other columns than the ledger", name));
    }
    std::error_code unknown;
    const bool same = there.ledger_dir == ledger_dir ||
                      std::filesystem::equivalent(there.ledger_dir, ledger_dir, unknown);
    if (same) return {};
    return refused(
        Errc::invalid_argument,
        fmt::format("ring {} has {}, and the restored records would be in {}: remove the "
                    "ring, and restore makes it",
                    name,
                    there.ledger_dir.empty() ? "no ledger" : "its ledger in " + there.ledger_dir,
                    ledger_dir));
}

Result<void> find_ring(std::string_view ring, const Contents& found, const std::string& ledger_dir,
                       std::string_view producer_name) {
    const auto there = stat_ring(ring);
    if (there) return check_existing(*there, found, ledger_dir, producer_name);
    if (there.error().code != Errc::not_found) return std::unexpected(there.error());
    return create_ring(ring, options_of(found, ledger_dir));
}

}  // namespace
}  // namespace ledger

struct LedgerRestore::Impl {
    std::string ring;
    bool elsewhere;  // the new ring's ledger
    Schema schema;
    ledger::Book book;
    ledger::GroupMembers members;
    std::vector<std::uint64_t> order;
    // Open for all of the restore: a trainer may settle records meanwhile, and so remove files.
    std::unique_ptr<ledger::RecordStream, ledger::RecordStream::End> stream;
    ledger::OlderCopies older;
    Producer producer;
    RestoreStat stat;
    MakerProcess maker = {};
    std::size_t at = 0;                         // in the order, of the record to send
    std::optional<TrajectoryView> record = {};  // that one, once it was read
    std::optional<Error> problem = {};          // that ends it

    struct Parts {
        std::string ring;
        bool elsewhere;
        std::uint64_t left_out;
        std::uint64_t parked;
        std::vector<std::uint64_t> order;
    };
    static Result<std::unique_ptr<Impl>> make(const std::filesystem::path& directory,
                                              ledger::Contents found, Producer producer,
                                              Parts parts);
    Result<bool> send(Deadline deadline);
    Result<void> read();
    Result<void> lose(Error why);
};

Result<std::unique_ptr<LedgerRestore::Impl>> LedgerRestore::Impl::make(
    const std::filesystem::path& directory, ledger::Contents found, Producer producer,
    Parts parts) {
    auto files = ledger::open_segments(directory, found);
    if (!files) return std::unexpected(files.error());
    auto older = ledger::OlderCopies::open(directory, found);
    if (!older) return std::unexpected(older.error());
    std::vector<ledger::RecordStream::Place> places;
    places.reserve(parts.order.size());
    for (const std::uint64_t number : parts.order) {
        const ledger::Kept& one = *found.book.record(number);
        places.push_back({.segment = one.segment, .offset = one.offset, .bytes = one.bytes});
    }
    ledger::GroupMembers members(found.book);
    RestoreStat stat{.records = parts.order.size(),
                     .groups = members.groups(),
                     .sent = 0,
                     .tokens = 0,
                     .bytes = 0,
                     .left_out = parts.left_out,
                     .parked = parts.parked,
                     .damaged = std::move(found.damaged),
                     .unreadable = found.lost};
    decltype(Impl::stream) stream(new ledger::RecordStream(std::move(*files), std::move(places)));
    if (auto started = stream->start(); !started) return std::unexpected(started.error());
    return std::unique_ptr<Impl>(new Impl{.ring = std::move(parts.ring),
                                          .elsewhere = parts.elsewhere,
                                          .schema = std::move(found.schema),
                                          .book = std::move(found.book),
                                          .members = std::move(members),
                                          .order = std::move(parts.order),
                                          .stream = std::move(stream),
                                          .older = std::move(*older),
                                          .producer = std::move(producer),
                                          .stat = std::move(stat)});
}

// Reads the record to send. Those that cannot be read any more are passed over.
Result<void> LedgerRestore::Impl::read() {
    while (at < order.size() && !record) {
        const std::uint64_t number = order[at];
        const ledger::Kept& kept = *book.record(number);
        auto view = ledger::view_of(stream->next(), number, kept, schema);
        if (!view) {
            if (auto copy = older.load(number, schema)) view = std::move(*copy);
        }
        if (view) {
            record = std::move(*view);
        } else if (auto lost = lose(std::move(view.error())); !lost) {
            return lost;
        }
    }
    return {};
}

// Damage that the index of a file hid. The number of the record stays unused in the lane, so that
// those behind it keep theirs.
Result<void> LedgerRestore::Impl::lose(Error why) {
    if (why.code == Errc::not_a_ring) return std::unexpected(std::move(why));
    if (why.code == Errc::system && !elsewhere) {
        return refused(Errc::ledger_failed,
                       fmt::format("{}. Remove ring {}, and restore the records that can be read "
                                   "into another directory: --ledger NEW",
                                   why.message, ring));
    }
    members.lose(book.record(order[at])->key);
    stat.groups = members.groups();
    stat.records--;
    stat.unreadable++;
    if (stat.damaged.size() < ledger::damaged_max) stat.damaged.push_back(std::move(why.message));
    RelayProducer::lose_record(producer);
    at++;
    return {};
}

Result<bool> LedgerRestore::Impl::send(Deadline deadline) {
    if (problem) return std::unexpected(*problem);
    if (auto there = read(); !there) {
        problem = there.error();
        return std::unexpected(there.error());
    }
    if (!record) return false;
    switch (producer.push(Draft::of(*record), deadline)) {
        case Push::ok:
            break;
        case Push::timed_out:
            return refused(Errc::timed_out, producer.problem());
        case Push::too_large:
            return refused(Errc::too_large, producer.problem());
        case Push::closed:
            return refused(Errc::closed, producer.problem());
        case Push::bad_record:
        case Push::not_reserved:
            return refused(Errc::bad_record, producer.problem());
    }
    stat.sent++;
    stat.tokens += record->n_tokens();
    stat.bytes += book.record(order[at])->bytes;
    record.reset();
    at++;
    return true;
}

LedgerRestore::LedgerRestore(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
LedgerRestore::LedgerRestore(LedgerRestore&&) noexcept = default;
LedgerRestore& LedgerRestore::operator=(LedgerRestore&&) noexcept = default;
LedgerRestore::~LedgerRestore() = default;

Result<bool> LedgerRestore::send(Deadline deadline) {
    if (auto ours = impl_->maker.check("this restore"); !ours) {
        return std::unexpected(ours.error());
    }
    return impl_->send(deadline);
}

RestoreStat LedgerRestore::stat() const {
    return impl_->stat;
}

namespace {

// Whether the new ring has its ledger in another directory.
bool is_elsewhere(const RestoreOptions& options, const std::filesystem::path& directory) {
    std::error_code unknown;  // it is not there yet
    return options.ledger_dir &&
           !std::filesystem::equivalent(*options.ledger_dir, directory, unknown);
}

// Opens the ring for the records, and names them before the first is sent.
Result<Producer> open_ring(const std::filesystem::path& directory, std::string_view ring,
                           const RestoreOptions& options, const std::vector<std::uint64_t>& order) {
    auto producer = Producer::open(ring, {.name = options.producer_name});
    if (!producer) return producer;
    const auto stat = stat_ring(ring);
    if (!stat) return std::unexpected(stat.error());
    const auto lane = std::ranges::find(stat->lanes, producer->lane(), &LaneStat::lane);
    if (lane == stat->lanes.end()) return refused(Errc::closed, producer->problem());
    // Another directory's ledger has no records that the map could name.
    if (is_elsewhere(options, directory)) return producer;
    const auto maps = ledger::read_maps(directory);
    if (!maps) return std::unexpected(maps.error());
    if (std::ranges::any_of(*maps, [&](const auto& one) { return one.ring_id == stat->ring_id; })) {
        return ledger::was_restored(ring);
    }
    auto written = ledger::write_map(
        directory,
        {.ring_id = stat->ring_id, .lane = lane->lane, .epoch = lane->epoch, .numbers = order});
    if (!written) return std::unexpected(written.error());
    return producer;
}

struct Parked {
    std::uint64_t count;
    std::vector<std::string> damaged;
};

Result<Parked> bring_parked(const std::filesystem::path& from, const std::filesystem::path& to,
                            std::string_view ring, bool elsewhere) {
    Parked parked{};
    if (elsewhere) {
        auto copied = ledger::copy_parked(from, to, ring);
        if (!copied) return std::unexpected(copied.error());
        parked.damaged = std::move(*copied);
    }
    const auto files = ledger::parked_files(to);
    if (!files) return std::unexpected(files.error());
    parked.count = files->size();
    return parked;
}

}  // namespace

Result<LedgerRestore> LedgerRestore::begin(const std::filesystem::path& directory,
                                           std::string_view ring, const RestoreOptions& options) {
    // Before a lock file is made anywhere.
    if (auto there = recording::files_of(directory, ledger::segment_ending);
        !there || there->empty()) {
        auto none = ledger::scan_ledger(directory);
        if (!none) return std::unexpected(none.error());
    }
    const auto locked = recording::lock_directory(directory, "ledger");
    // The old disk may take no write any more, and needs none if the new ring's ledger is
    // elsewhere.
    const bool elsewhere = is_elsewhere(options, directory);
    if (!locked && (!elsewhere || locked.error().code == Errc::busy)) {
        return std::unexpected(locked.error());
    }
    // Its last writer has ended by now, and its last writes count.
    auto found = ledger::scan_ledger(directory, {.by_index = true});
    if (!found) return std::unexpected(found.error());
    const std::string failure = ledger::failure_of(directory);
    const std::string ledger_dir =
        options.ledger_dir.value_or(std::filesystem::canonical(directory).string());
    if (!failure.empty() && !options.ledger_dir) return refused(Errc::ledger_failed, failure);
    // A stash of the new ring would refuse it.
    if (!found->unread.empty() && !elsewhere) {
        return refused(Errc::ledger_failed,
                       fmt::format("{}. Restore the records that can be read into another "
                                   "directory: --ledger NEW",
                                   found->unread));
    }
    const std::vector<std::uint64_t> settled =
        options.step ? found->book.through(*options.step) : std::vector<std::uint64_t>{};
    if (!settled.empty() && failure.empty() && locked) {
        auto noted = ledger::write_settled(directory, *found, settled);
        if (!noted) return std::unexpected(noted.error());
    }
    found->book.forget(settled);
    if (auto ready = ledger::find_ring(ring, *found, ledger_dir, options.producer_name); !ready) {
        return std::unexpected(ready.error());
    }
    auto parked = bring_parked(directory, ledger_dir, ring, elsewhere);
    if (!parked) return std::unexpected(parked.error());
    found->damaged.insert(found->damaged.end(), parked->damaged.begin(), parked->damaged.end());
    std::vector<std::uint64_t> order = found->book.in_order();
    auto producer = open_ring(directory, ring, options, order);
    if (!producer) return std::unexpected(producer.error());
    Impl::Parts parts{.ring = std::string(ring),
                      .elsewhere = elsewhere,
                      .left_out = settled.size(),
                      .parked = parked->count,
                      .order = std::move(order)};
    auto impl = Impl::make(directory, std::move(*found), std::move(*producer), std::move(parts));
    if (!impl) return std::unexpected(impl.error());
    if (locked) recording::unlock_directory(*locked);
    return LedgerRestore(std::move(*impl));
}

}  // namespace rollring
