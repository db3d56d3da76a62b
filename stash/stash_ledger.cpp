#include "stash_ledger.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "stash_impl.hpp"

namespace rollring {

constinit std::atomic<OpenStashLedger> open_stash_ledger = nullptr;

namespace {

constexpr std::int64_t look_every_ns = 20'000'000;  // while the ledger takes nothing
constexpr std::int64_t acked_every_ms = 1;          // likewise, for records that came meanwhile

std::string sizes_of(const Segment& segment) {
    const SegmentHeader& header = segment.header();
    return fmt::format(
        "lanes {}\nlane_bytes {}\nsoft_bytes {}\njournal_records {}\nspill_bytes {}\n"
        "group_rows {}\nrequests {}\nrequest_bytes {}\nledger_bytes {}\ndurable {}\n",
        header.lane_count, header.lane_bytes, header.soft_bytes, header.journal_records,
        header.spill_bytes, header.group_rows, header.requests, header.request_bytes,
        segment.ledger().bytes, static_cast<int>(segment.ledger().durable));
}

}  // namespace

Result<void> Stash::Impl::open_ledger(std::string_view ring) {
    const LedgerPlan& place = core.map().segment().ledger();
    if (place.directory.empty() || !options.advanced.ledger) return {};
    const OpenStashLedger open = open_stash_ledger.load();
    if (open == nullptr) {
        return refused(
            Errc::unsupported,
            fmt::format("ring {} has a ledger, and this program is linked without them", ring));
    }
    auto opened = open(
        {.plan = place,
         .ring = ring,
         .ring_id = core.map().ring_id(),
         .schema = core.map().schema(),
         .sizes = sizes_of(core.map().segment()),
         .show = [this](std::uint32_t lane, std::uint32_t epoch,
                        std::uint64_t records_below) { show_durable(lane, epoch, records_below); },
         .moved_are_read = [this] { return spill_was_read(); }});
    if (!opened) return std::unexpected(opened.error());
    ledger = std::move(*opened);
    // The trainer goes on from a checkpoint of an earlier ring.
    core.continue_after(ledger->settled_step());
    return {};
}

bool Stash::Impl::spill_was_read() const {
    const ProducerRoster& roster = core.roster();
    const std::uint32_t lane = core.map().geometry().spill_lane();
    if (!roster.has(lane)) return true;
    const LaneFeed& spill = roster.feed(lane);
    return spill.quarantined() || spill.read_position() >= spill.restart_at();
}

void Stash::Impl::show_durable(std::uint32_t lane, std::uint32_t epoch,
                               std::uint64_t records_below) {
    const Geometry& geometry = core.map().geometry();
    if (lane >= geometry.lane_count) return;
    auto& entry = core.seat().reader_pages().at<ReaderEntry>(
        geometry.entries_offset() - geometry.reader_offset() + lane * sizeof(ReaderEntry));
    // A trainer that starts again reads earlier records anew, and a spill has those of earlier
    // epochs.
    if (epoch < peek(entry.durable_epoch)) return;
    if (epoch != peek(entry.durable_epoch)) {
        store_release(entry.durable_records, std::uint64_t{0});
        store_release(entry.durable_epoch, epoch);
    }
    if (records_below <= peek(entry.durable_records)) return;
    store_release(entry.durable_records, records_below);
    ring_bell(core.map().lane_bell(lane));
}

Result<void> Stash::Impl::note_in_ledger(std::span<const std::uint32_t> numbers, std::size_t marks,
                                         std::int64_t step, bool dropped) {
    if (ledger == nullptr) return {};
    std::vector<const Record*> all;
    all.reserve(numbers.size());
    for (const std::uint32_t number : numbers) all.push_back(&records[number]);
    std::ranges::rotate(all, all.begin() + static_cast<std::ptrdiff_t>(marks));
    if (dropped) {
        for (const Record* one : all) ledger->dropped(*one);
        ledger->end_turn();
        return {};
    }
    ledger->begin_ack(all, step);
    return wait_acked();
}

// Reads on meanwhile, up to the next batch: otherwise the disk would stand still from the end of
// this acknowledgement until that batch has been read.
Result<void> Stash::Impl::wait_acked() {
    const Deadline patience = Deadline::after_ms(disk_patience_ms);
    while (!ledger->ack_is_over() && !patience.passed()) {
        const bool reads = ledger->takes() && !(counts_groups() && has_whole_batch());
        if (reads && read(monotonic_ns(), Reads::until_acked) == Poll::record) continue;
        ledger->wait(Deadline::after_ms(acked_every_ms));
    }
    return ledger->end_ack(Deadline::now());
}

Result<std::uint64_t> Stash::Impl::settle_in_ledger(const Receipt& receipt) const {
    std::vector<RecordIdentity> named;
    named.reserve(receipt.entries.size());
    for (const ReceiptEntry& one : receipt.entries) {
        named.push_back({one.producer_lane, one.producer_epoch, one.sequence});
    }
    return ledger->settle(receipt.ring_id, named);
}

Stash::Impl::Ledger Stash::Impl::ask_ledger(bool cut, Deadline deadline) {
    if (ledger == nullptr || (cut ? ledger->may_cut() : ledger->takes())) return Ledger::takes;
    if (!ledger->problem().empty()) return Ledger::broken;
    const std::int64_t now = monotonic_ns();
    if (now >= deadline.at_ns || core.take_interrupt()) return Ledger::late;
    const Deadline until{std::min(deadline.at_ns, now + look_every_ns)};
    if (cut) {
        static_cast<void>(ledger->sync(until));
    } else {
        ledger->wait(until);
    }
    return Ledger::waited;
}

bool Stash::Impl::wait_cut() {
    const Deadline patience = Deadline::after_ms(disk_patience_ms);
    Ledger asked = Ledger::waited;
    while (asked == Ledger::waited && (ledger == nullptr || !ledger->has_no_space())) {
        asked = ask_ledger(true, patience);
    }
    return asked == Ledger::takes;
}

Result<std::uint64_t> Stash::checkpointed(std::int64_t step) {
    if (auto usable = impl_->core.check_usable(); !usable) return std::unexpected(usable.error());
    if (impl_->ledger == nullptr) return std::uint64_t{0};
    return impl_->ledger->settle_through(step);
}

Result<void> Stash::sync_ledger(Deadline deadline) {
    if (auto usable = impl_->core.check_usable(); !usable) return usable;
    if (impl_->ledger == nullptr) return {};
    return impl_->ledger->sync(deadline);
}

}  // namespace rollring
