// Looks at a ledger from outside.

#include <fmt/core.h>

#include <cstddef>
#include <memory>
#include <span>
#include <system_error>
#include <unordered_map>
#include <utility>
#include <vector>

#include "file_names.hpp"
#include "file_scan.hpp"
#include "kept_records.hpp"
#include "rollring/extras/ledger.hpp"
#include "rollring/extras/parked.hpp"
#include "segment_index.hpp"

namespace rollring {
namespace {

LedgerStat stat_of(const std::filesystem::path& directory, const ledger::Contents& found,
                   const ParkedList& parked) {
    LedgerStat stat{.directory = directory.string(),
                    .ring = found.ring.name,
                    .ring_id = found.ring.id,
                    .records = found.book.records().size(),
                    .tokens = 0,
                    .groups = ledger::groups_of(found.book),
                    .acked = found.book.acked(),
                    .record_bytes = 0,
                    .file_bytes = 0,
                    .files = found.segments.size(),
                    .is_written = recording::is_written(directory),
                    .failure = ledger::failure_of(directory),
                    .parked = parked.rollouts.size(),
                    .parked_bytes = 0,
                    .oldest_parked_ns = 0,
                    .damaged = found.damaged,
                    .unreadable = found.lost};
    if (!parked.rollouts.empty()) stat.oldest_parked_ns = parked.rollouts.front().parked_ns;
    if (found.empty && stat.parked != 0) stat.ring = parked.rollouts.front().ring;
    for (const ParkedInfo& one : parked.rollouts) stat.parked_bytes += one.file_bytes;
    stat.damaged.insert(stat.damaged.end(), parked.damaged.begin(), parked.damaged.end());
    for (const auto& [number, one] : found.book.records()) {
        stat.tokens += one.tokens;
        stat.record_bytes += one.bytes;
    }
    for (const ledger::SegmentSize& one : found.segments) {
        stat.file_bytes += one.bytes + one.index_bytes;
    }
    return stat;
}

struct Looked {
    ledger::Contents found;
    LedgerStat stat;
};

Result<Looked> look(const std::filesystem::path& directory) {
    auto parked = list_parked(directory);
    const bool none_parked = parked && parked->rollouts.empty() && parked->damaged.empty();
    // No trainer may have written a record yet.
    auto found = none_parked ? ledger::scan_ledger(directory) : ledger::scan(directory);
    if (!found) return std::unexpected(found.error());
    if (!parked) parked = ParkedList{.rollouts = {}, .damaged = {parked.error().message}};
    LedgerStat stat = stat_of(directory, *found, *parked);
    return Looked{.found = std::move(*found), .stat = std::move(stat)};
}

}  // namespace

Result<LedgerStat> stat_ledger(const std::filesystem::path& directory) {
    auto looked = look(directory);
    if (!looked) return std::unexpected(looked.error());
    return std::move(looked->stat);
}

struct KeptRecord::Impl {
    ledger::RecordMemory memory;
    TrajectoryView view;
};

KeptRecord::KeptRecord(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
KeptRecord::KeptRecord(KeptRecord&&) noexcept = default;
KeptRecord& KeptRecord::operator=(KeptRecord&&) noexcept = default;
KeptRecord::~KeptRecord() = default;

const TrajectoryView& KeptRecord::view() const {
    return impl_->view;
}

struct Ledger::Impl {
    std::filesystem::path directory;
    Schema schema;
    LedgerStat stat;
    std::unordered_map<std::uint64_t, std::uint64_t> file_ids;  // by segment
    std::vector<KeptInfo> infos;
    std::vector<ledger::Kept> kept;  // likewise
};

Ledger::Ledger(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Ledger::Ledger(Ledger&&) noexcept = default;
Ledger& Ledger::operator=(Ledger&&) noexcept = default;
Ledger::~Ledger() = default;

Result<Ledger> Ledger::open(const std::filesystem::path& directory) {
    auto looked = look(directory);
    if (!looked) return std::unexpected(looked.error());
    ledger::Contents& found = looked->found;
    // read() means the same directory after a chdir().
    std::error_code unknown;
    auto whole = std::filesystem::absolute(directory, unknown);
    if (unknown) whole = directory;
    auto impl = std::make_unique<Impl>(Impl{.directory = std::move(whole),
                                            .schema = std::move(found.schema),
                                            .stat = std::move(looked->stat),
                                            .file_ids = std::move(found.file_ids),
                                            .infos = {},
                                            .kept = {}});
    for (const std::uint64_t number : found.book.in_order()) {
        const ledger::Kept& one = *found.book.record(number);
        impl->infos.push_back({.number = number,
                               .key = one.key,
                               .tokens = one.tokens,
                               .step = one.acked ? std::optional(one.step) : std::nullopt});
        impl->kept.push_back(one);
    }
    return Ledger(std::move(impl));
}

const Schema& Ledger::schema() const {
    return impl_->schema;
}

const LedgerStat& Ledger::stat() const {
    return impl_->stat;
}

std::span<const KeptInfo> Ledger::records() const {
    return impl_->infos;
}

Result<KeptRecord> Ledger::read(std::size_t index) const {
    const ledger::Kept& record = impl_->kept[index];
    const auto path = ledger::segment_path(impl_->directory, record.segment);
    const auto file = recording::FileReader::open(path, ledger::segment_type);
    const bool there = file || file.error().code != Errc::not_found;
    if (there && !file) return std::unexpected(file.error());
    if (!there || file->header().file_id != impl_->file_ids.at(record.segment)) {
        return refused(Errc::not_found,
                       fmt::format("{} was removed since the ledger was opened: its records are "
                                   "settled or in a later file; open the ledger again",
                                   path.string()));
    }
    auto made = std::make_unique<KeptRecord::Impl>();
    auto view = ledger::load(*file, record, impl_->schema, made->memory);
    if (!view) return std::unexpected(view.error());
    made->view = std::move(*view);
    return KeptRecord(std::move(made));
}

}  // namespace rollring
