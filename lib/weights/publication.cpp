#include "publication.hpp"

#include <fmt/core.h>

#include <iterator>

#include "rollring/time.hpp"

namespace rollring::weights {

void Publication::begin(std::int64_t version, std::uint64_t parts) {
    number_++;
    version_ = version;
    end_part_number_ = next_part_number_ + parts;
    filled_ns_ = 0;
    PublicationLine& line = this->line();
    store_release(line.id, std::uint64_t{0});
    store_release(line.version, version);
    store_release(line.first_part_number, next_part_number_);
    store_release(line.outcome, static_cast<std::uint32_t>(Outcome::open));
    store_release(line.put, 0U);
    line.why.store("");
    store_release(line.id, number_);
    store_release(page_->publication, number_);
    all_put_ = false;
    open_ = true;
}

std::uint64_t Publication::place_part(std::uint32_t part, std::uint32_t slot) {
    PartLine& line = page_->parts[next_part_number_ % parts_kept];
    store_release(line.part, part);
    store_release(line.slot, slot);
    store_release(line.number, next_part_number_);
    return next_part_number_++;
}

void Publication::all_put() {
    all_put_ = true;
    store_release(line().put, 1U);
}

void Publication::commit() {
    resume(version_);
    close(Outcome::committed, "");
}

void Publication::resume(std::int64_t version) {
    store_release(page_->committed, version);
    version_ = committed_ = version;
}

void Publication::abort(std::string_view why) {
    close(Outcome::aborted, why);
    add(page_->aborts, std::uint64_t{1});
}

void Publication::close(Outcome outcome, std::string_view why) {
    line().why.store(why);
    store_release(line().outcome, static_cast<std::uint32_t>(outcome));
    open_ = false;
}

void Publication::count_sync(const SyncTimes& times) {
    add(page_->syncs, std::uint64_t{1});
    const std::int64_t all[] = {times.wait_slot_ns, times.put_ns, times.publish_ns, times.staged_ns,
                                times.commit_ns};
    for (std::size_t i = 0; i < std::size(all); i++) poke(page_->times[i], all[i]);
}

std::uint64_t Publication::ask_rollback(std::int64_t version) {
    const std::uint64_t number = peek(page_->asked) + 1;
    store_release(page_->asked_version, version);
    store_release(page_->asked, number);
    return number;
}

std::unexpected<Error> Publication::silent(std::string_view stage, std::string_view who) const {
    return refused(Errc::timed_out,
                   fmt::format("version {}: by the deadline {} had not {}; wait again, expel them, "
                               "or end their processes",
                               version_, who, stage));
}

std::unexpected<Error> Publication::still_packing() const {
    return refused(
        Errc::timed_out,
        fmt::format("version {}: the device did not finish packing by the deadline", version_));
}

void Publication::part_filled(std::uint64_t part_number) {
    const std::scoped_lock lock(filled_mutex_);
    filled_ahead_.insert(part_number);
    std::uint64_t filled = peek(page_->filled);
    while (filled_ahead_.erase(filled) == 1) filled++;
    store_release(page_->filled, filled);
    filled_ns_ = monotonic_ns();
}

}  // namespace rollring::weights
