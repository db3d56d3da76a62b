#include <fmt/core.h>

#include <atomic>
#include <filesystem>
#include <system_error>
#include <utility>

#include "disk.hpp"
#include "file_names.hpp"
#include "human.hpp"
#include "ledger_layout.hpp"
#include "liveness.hpp"
#include "parked_file.hpp"
#include "rollring/extras/parked.hpp"
#include "rollring/ring.hpp"
#include "rollring/time.hpp"

namespace rollring {

Result<ParkedList> list_parked(const std::filesystem::path& ledger_dir) {
    const auto files = ledger::parked_files(ledger_dir);
    if (!files) return std::unexpected(files.error());
    ParkedList list;
    for (const auto& path : *files) {
        const auto found = ledger::read_parked(path);
        if (!found && found.error().code == Errc::not_found) continue;  // it is done
        if (!found) {
            list.damaged.push_back(found.error().message);
            continue;
        }
        const TrajectoryView& record = (*found)->record;
        list.rollouts.push_back({.file = path.filename().string(),
                                 .ring = (*found)->ring,
                                 .instance_id = std::string(record.instance_id()),
                                 .visit = record.meta().visit,
                                 .repetition_id = record.meta().repetition_id,
                                 .tokens = record.n_tokens(),
                                 .state_bytes = (*found)->state.size(),
                                 .file_bytes = (*found)->file_bytes,
                                 .parked_ns = (*found)->parked_ns,
                                 .is_taken = ledger::is_taken(path)});
    }
    return list;
}

struct ParkedRollout::Impl {
    std::filesystem::path path;
    ledger::ParkedContents contents;
    std::optional<LifeLock> lock;  // none: it is done, or was given back
    bool is_done = false;
    MakerProcess maker = {};

    // Of the file that this process has, if that is one of this ledger.
    [[nodiscard]] std::uint64_t own_bytes(const std::filesystem::path& ledger_dir) const {
        const bool ours = lock && path.parent_path() == ledger::parked_folder(ledger_dir);
        return ours ? contents.file_bytes : 0;
    }
};

ParkedRollout::ParkedRollout(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
ParkedRollout::ParkedRollout(ParkedRollout&&) noexcept = default;
ParkedRollout& ParkedRollout::operator=(ParkedRollout&&) noexcept = default;
ParkedRollout::~ParkedRollout() = default;

const TrajectoryView& ParkedRollout::record() const {
    return impl_->contents.record;
}

std::span<const std::byte> ParkedRollout::state() const {
    return impl_->contents.state;
}

std::int64_t ParkedRollout::parked_ns() const {
    return impl_->contents.parked_ns;
}

Result<void> ParkedRollout::done() {
    if (auto ours = impl_->maker.check("parked rollout"); !ours) return ours;
    if (impl_->is_done) return {};
    if (!impl_->lock) {
        return refused(Errc::not_leased,
                       fmt::format("the rollout {} was given back: another process may have it",
                                   impl_->path.filename().string()));
    }
    const int error = ledger::disk().remove(impl_->path);
    if (error != 0 && error != ENOENT) {
        return recording::file_failed(error, "cannot remove", impl_->path);
    }
    impl_->is_done = true;
    impl_->lock.reset();
    // If the machine dies first, the rollout is taken again.
    static_cast<void>(ledger::disk().sync_names(impl_->path.parent_path()));
    return {};
}

void ParkedRollout::give_back() {
    impl_->lock.reset();
}

struct Parking::Impl {
    std::string ring;
    std::uint64_t ring_id;
    std::filesystem::path ledger_dir;
    std::uint64_t most_bytes;  // of parked rollouts
    Schema schema;
    std::atomic<std::int64_t> policy_version;  // the last that was seen

    [[nodiscard]] bool is_restored() const;
    [[nodiscard]] std::int64_t present_version();
};

bool Parking::Impl::is_restored() const {
    std::error_code ignored;
    return std::filesystem::exists(
        ledger_dir / fmt::format("{:016x}{}", ring_id, ledger::restored_ending), ignored);
}

std::int64_t Parking::Impl::present_version() {
    const auto stat = stat_ring(ring);
    if (stat && stat->ring_id == ring_id) policy_version = stat->policy_version;
    return policy_version;
}

Parking::Parking(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Parking::Parking(Parking&&) noexcept = default;
Parking& Parking::operator=(Parking&&) noexcept = default;
Parking::~Parking() = default;

Result<Parking> Parking::open(std::string_view ring) {
    auto stat = stat_ring(ring);
    if (!stat) return std::unexpected(stat.error());
    if (stat->ledger_dir.empty()) {
        return refused(Errc::invalid_argument,
                       fmt::format("ring {} has no ledger, so that no rollout can be parked: "
                                   "create the ring with one (ledger=DIR, or rollring create "
                                   "--ledger DIR)",
                                   ring));
    }
    return Parking(std::unique_ptr<Impl>(new Impl{.ring = std::string(ring),
                                                  .ring_id = stat->ring_id,
                                                  .ledger_dir = stat->ledger_dir,
                                                  .most_bytes = stat->ledger_bytes / 4,
                                                  .schema = std::move(stat->schema),
                                                  .policy_version = stat->policy_version}));
}

const Schema& Parking::schema() const {
    return impl_->schema;
}

Result<void> Parking::park(const Draft& draft, std::span<const std::byte> state,
                           ParkedRollout* replaces) {
    const Encoder encoder(draft, impl_->schema, Checksum::none);
    if (!encoder.problem().empty() || encoder.has_holes()) {
        return refused(
            Errc::bad_record,
            fmt::format("the rollout was not parked: {}{}{}", encoder.problem_column(),
                        encoder.problem_column().empty() ? "" : ": ",
                        encoder.problem().empty() ? "a column has no data" : encoder.problem()));
    }
    ledger::remove_unfinished(impl_->ledger_dir);
    // The place of the old file is its successor's, even if others have filled the bound since.
    const std::uint64_t bytes = encoder.bytes() + state.size();
    const std::uint64_t own =
        replaces != nullptr ? replaces->impl_->own_bytes(impl_->ledger_dir) : 0;
    if (bytes > own && ledger::exceeds(impl_->ledger_dir, impl_->most_bytes, bytes - own)) {
        return refused(
            Errc::store_full,
            fmt::format("the rollout of {} was not parked: those in {} may fill {}, a "
                        "quarter of the ring's ledger_bytes ('rollring ledger {}' counts "
                        "them). Take some up, remove damaged ones, or create the ring "
                        "with more",
                        human_bytes(bytes), ledger::parked_folder(impl_->ledger_dir).string(),
                        human_bytes(impl_->most_bytes), impl_->ledger_dir.string()));
    }
    const std::int64_t version = impl_->present_version();
    auto written = ledger::write_parked(
        impl_->ledger_dir,
        {.ring = impl_->ring,
         .schema = &impl_->schema,
         .record_bytes = encoder.bytes(),
         .write_record =
             [&](std::span<std::byte> to) { encoder.write(to, impl_->ring_id, version); },
         .state = state,
         .parked_ns = realtime_ns()});
    if (!written || replaces == nullptr) return written;
    return replaces->done();
}

Result<std::optional<ParkedRollout>> Parking::take(const Accept& accept) {
    ledger::remove_unfinished(impl_->ledger_dir);
    const auto files = ledger::parked_files(impl_->ledger_dir);
    if (!files) return std::unexpected(files.error());
    const bool restored = impl_->is_restored();
    for (const auto& path : *files) {
        auto lock = ledger::take_file(path);
        if (!lock || !*lock) continue;
        auto found = ledger::read_parked(
            path, [&](std::string_view ring) { return restored || ring == impl_->ring; });
        if (!found || !*found || (*found)->schema.id() != impl_->schema.id()) continue;
        if (accept && !accept((*found)->record, (*found)->state)) continue;
        return ParkedRollout(std::unique_ptr<ParkedRollout::Impl>(new ParkedRollout::Impl{
            .path = path, .contents = std::move(**found), .lock = std::move(*lock)}));
    }
    return std::optional<ParkedRollout>{};
}

}  // namespace rollring
