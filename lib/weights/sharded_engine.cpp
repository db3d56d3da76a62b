#include "sharded_engine.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "shard_sources.hpp"
#include "with_publisher.hpp"

namespace rollring::weights {
namespace {

Result<WeightLayout> check_options(const SubscriberOptions& options) {
    if (options.rank) {
        return refused(Errc::invalid_argument,
                       "an engine with a layout attaches to all ranks: name none");
    }
    if (auto fine = check_engine(options); !fine) return std::unexpected(fine.error());
    auto layout = WeightLayout::from_bytes(options.layout);
    if (!layout) return layout;
    const auto memories = layout->memories();
    if (memories.empty() || std::ranges::any_of(memories, [&](const LayoutMemory& one) {
            return one.rank != memories.front().rank;
        })) {
        return refused(Errc::invalid_argument,
                       "the layout of an engine has the memories of one rank: its own");
    }
    return layout;
}

std::unexpected<Error> only_loads() {
    return refused(Errc::invalid_argument,
                   "an engine with a layout loads with load(), not from views of parts");
}

}  // namespace

Result<std::unique_ptr<ShardedEngine>> ShardedEngine::attach(std::string_view ring,
                                                             std::span<const WeightTensor> into,
                                                             const SubscriberOptions& options,
                                                             const device::Gpus& gpus,
                                                             Deadline deadline) {
    using Made = Result<std::unique_ptr<ShardedEngine>>;
    const auto layout = check_options(options);
    if (!layout) return std::unexpected(layout.error());
    return with_publisher(ring, options, deadline, [&](RingLink link, Patience& patience) -> Made {
        const auto ranks = manifests_of_ranks(ring, link, options.name, patience);
        if (!ranks) return std::unexpected(ranks.error());
        auto sources =
            patience.work([&] { return shard_sources(*ranks, *layout, into, options, gpus); });
        if (!sources) return std::unexpected(sources.error());
        auto writable = RingLink::attach(ring, patience.piece(), true);
        if (!writable) return std::unexpected(writable.error());
        std::unique_ptr<ShardedEngine> made(new ShardedEngine(std::move(*writable), options));
        made->tensors_ = std::move(sources->tensors);
        auto joined = made->join(ring, *ranks, sources->into, {options, gpus}, patience);
        if (joined) return made;
        made->shut_down();
        return std::unexpected(joined.error());
    });
}

Result<WeightLayout> ShardedEngine::published_layout(std::string_view ring,
                                                     const SubscriberOptions& options,
                                                     Deadline deadline) {
    using Found = Result<WeightLayout>;
    return with_publisher(ring, options, deadline, [&](RingLink link, Patience& patience) -> Found {
        const auto ranks = manifests_of_ranks(ring, link, options.name, patience);
        if (!ranks) return std::unexpected(ranks.error());
        return layout_of(*ranks);
    });
}

Result<void> ShardedEngine::join(std::string_view ring, std::span<const Manifest> ranks,
                                 std::span<const std::vector<WeightTensor>> into, const Own& own,
                                 Patience& patience) {
    SubscriberOptions one = own.options;
    one.in_place = false;
    one.partial = true;
    one.staging = Staging::copy;  // the engine's own is for the parts of all ranks
    one.stage_remote = one.stage_remote && own.options.staging == Staging::copy;
    std::vector<Session*> sessions;
    for (std::uint32_t rank = 0; rank < ranks.size(); rank++) {
        one.rank = rank;
        auto link = attach_ring(ring, patience);
        if (!link) return std::unexpected(link.error());
        auto end = std::make_unique<SubscriberImpl>(one, std::move(*link));
        if (auto met = end->meet(ring, into[rank], own.gpus, patience); !met) return met;
        sessions.push_back(&end->session());
        ends_.push_back(std::move(end));
        if (ends_.back()->manifest().hash != ranks[rank].hash) {
            return refused(Errc::peer_gone,
                           fmt::format("rank {} of the trainer was started again", rank));
        }
    }
    if (auto alike = check_alike(); !alike) return alike;
    if (own.options.staging == Staging::delta) {
        auto compiled = patience.work([&] { return compile_delta(into, own.options); });
        if (!compiled) {
            for (const Session* met : sessions) met->tell_refusal(link_, compiled.error().message);
            return compiled;
        }
    }
    return Session::enter(sessions, patience);
}

// Memory that the device still uses is leaked.
bool ShardedEngine::shut_down() {
    bool quiet =
        !delta_ || !check_process() || delta_->end_exchange(Deadline::after_ms(10'000)).has_value();
    for (const auto& end : ends_) quiet = end->shut_down() && quiet;
    return quiet;
}

void ShardedEngine::interrupt() {
    interrupted_ = true;
    if (SubscriberImpl* const end = waits_at_) end->interrupt();
}

// The version that all ranks offer, or the end at a rank that offers none yet, or an earlier one
// than another rank.
std::expected<std::int64_t, SubscriberImpl*> ShardedEngine::offered() const {
    SubscriberImpl* const front = ends_.front().get();
    const auto first = front->offered();
    if (!first) return std::unexpected(front);
    for (const auto& end : ends_) {
        if (end.get() == front) continue;
        const auto offer = end->offered();
        if (!offer || *offer < *first) return std::unexpected(end.get());
        if (*offer > *first) return std::unexpected(front);
    }
    return *first;
}

// Until all ranks offer one version, or a request wants one to be left.
Result<std::int64_t> ShardedEngine::wait_offers(Deadline deadline) {
    for (bool asked = is_asked_back(); !asked;) {
        const auto offer = offered();
        if (offer) return *offer;
        SubscriberImpl* const late = offer.error();
        const auto before = late->offered();
        auto waited = in_slices(*late, true, deadline, [&](Deadline slice) {
            return late->session().wait("the next version", slice, [&] {
                const auto now = offered();
                asked = asked || is_asked_back();
                return asked || late->offered() != before || now || now.error() != late;
            });
        });
        if (!waited) return std::unexpected(waited.error());
    }
    return refused(Errc::rollback_asked,
                   fmt::format("'{}' is asked to leave version {}: call rollback, and then next "
                               "again",
                               name_, holding_.live_version()));
}

// False: ranks have gone on to another version meanwhile; or it is one that this engine has had.
bool ShardedEngine::take_offers(std::int64_t version) {
    bool same = version != holding_.received_version() || holding_.is_mixed();
    for (const auto& end : ends_) {
        if (!same) break;
        same = end->next(Deadline::now()) && end->update().version == version;
    }
    if (same) return true;
    for (const auto& end : ends_) {
        // A newer version is still to come from the other ranks.
        if (end->update().open && end->update().version > version) {
            end->unread();
        } else if (end->update().open || end->offered() == version) {
            end->pass();
        }
    }
    return false;
}

Result<void> ShardedEngine::next(Deadline deadline) {
    if (update_.open) {
        return refused(Errc::busy, fmt::format("version {} is not finished yet", update_.version));
    }
    if (auto quiet = wait_quiet(deadline); !quiet) return quiet;
    for (;;) {
        const auto version = wait_offers(deadline);
        if (!version) return std::unexpected(version.error());
        if (take_offers(*version)) break;
    }
    update_ = {.open = true,
               .publication = update_.publication + 1,
               .version = ends_.front()->update().version};
    again_ = ends_.front()->is_in_ring() ||
             ends_.front()->session().decision(update_.version) == Outcome::committed ||
             std::ranges::any_of(ends_, [&](const auto& end) {
                 return end->update().came_late ||
                        observe(end->session().publisher().committed) >= update_.version;
             });
    held_ = false;
    copies_ = false;
    if (holding_.state() != SubscriberState::poisoned) holding_.set(SubscriberState::reading);
    return {};
}

Result<std::span<const TensorPiece>> ShardedEngine::part(std::uint32_t, Deadline) {
    return only_loads();
}

Result<void> ShardedEngine::done_reading(std::uint32_t, Stream) {
    return only_loads();
}

Result<void> ShardedEngine::load(Deadline deadline, Stream stream) {
    stream_ = stream;
    Result<void> held;
    if (delta_ && !update_.listing) {
        held = delta_->start(update_.version, holding_, deadline);
        update_.listing = held.has_value();
        compared_ = 0;
    }
    std::size_t first = 0;
    for (const auto& end : ends_) {
        if (!held || !delta_) break;
        held = list(*end, first, deadline);
        first += end->parts();
    }
    if (held && !delta_) held = hold_all(deadline);
    if (!held && held.error().code == Errc::timed_out) return held;
    if (!held) return give_up(std::move(held.error()));
    held_ = true;
    return {};
}

Result<void> ShardedEngine::hold_all(Deadline deadline) {
    for (const auto& end : ends_) {
        auto held = in_slices(*end, true, deadline,
                              [&](Deadline slice) { return end->hold(slice, deadline); });
        if (!held) return held;
    }
    for (const auto& end : ends_) {  // while links are busy
        if (auto there = end->check_own_memory(); !there) return there;
    }
    for (const auto& end : ends_) {
        auto fetched = in_slices(*end, true, deadline,
                                 [&](Deadline slice) { return end->wait_fetched(slice); });
        if (!fetched) return fetched;
    }
    return {};
}

Result<void> ShardedEngine::stage(Deadline) {
    if (!held_) {
        return refused(Errc::invalid_argument,
                       fmt::format("version {} was not loaded", update_.version));
    }
    if (is_direct()) {
        if (auto read = end_reads(); !read) return give_up(std::move(read.error()));
    }
    show_report();
    for (const auto& end : ends_) {
        end->vote();
    }
    update_.staged = true;
    holding_.set(SubscriberState::staged);
    return {};
}

// Of a version that was committed before this engine began it: ranks that were started again offer
// it on their own, and may give that up, which frees their slots.
Outcome ShardedEngine::outcome_again() const {
    bool is_open = false;
    for (const auto& end : ends_) {
        const Outcome one = end->outcome();
        if (one == Outcome::aborted || end->session().is_expelled()) return Outcome::aborted;
        // One that is gone fills no slot any more.
        is_open = is_open || (one == Outcome::open && end->session().check_publisher());
    }
    return is_open ? Outcome::open : Outcome::committed;
}

Outcome ShardedEngine::outcome() const {
    if (again_) return outcome_again();
    if (ends_.size() == 1) {
        return ends_.front()->is_in_ring() ? Outcome::committed : ends_.front()->outcome();
    }
    // In this order: the line of a rank may be used again by now.
    bool aborted = false;  // by a rank that never votes for it
    for (const auto& end : ends_) {
        const Outcome one = end->outcome();
        if (one == Outcome::committed) return one;
        aborted = aborted || one == Outcome::aborted;
    }
    if (const auto decision = ends_.front()->session().decision(update_.version)) return *decision;
    return aborted ? Outcome::aborted : Outcome::open;
}

Error ShardedEngine::aborted() const {
    return {Errc::aborted, 0,
            fmt::format("version {} was abandoned by the trainer; {}", update_.version,
                        holding_.text())};
}

Result<void> ShardedEngine::wait_committed(Deadline deadline) {
    if (!update_.staged) {
        return refused(Errc::invalid_argument, "stage the version before adopting it");
    }
    if (update_.committed) return {};
    Outcome now = Outcome::open;
    SubscriberImpl& first = *ends_.front();
    auto waited = in_slices(first, false, deadline, [&](Deadline slice) {
        return first.session().wait(fmt::format("the commit of version {}", update_.version), slice,
                                    [&] { return (now = outcome()) != Outcome::open; });
    });
    if (!waited && waited.error().code == Errc::timed_out) return waited;
    // A rank 0 that is gone may have decided before.
    if (!waited) now = outcome();
    if (!waited && now != Outcome::committed) return give_up(std::move(waited.error()));
    if (now == Outcome::aborted) return give_up(aborted());
    // Every rank of the trainer may have died between the decision and this line.
    link_.commit(update_.version, publisher_id());
    if (link_.version() == update_.version && !link_.committed(update_.version, publisher_id())) {
        return give_up({Errc::aborted, 0,
                        fmt::format("version {} is another trainer's by now; {}", update_.version,
                                    holding_.text())});
    }
    update_.committed = true;
    for (const auto& end : ends_) end->note_commit();
    return {};
}

Result<void> ShardedEngine::adopt(Deadline deadline) {
    if (auto waited = wait_committed(deadline); !waited) return waited;
    if (!copies_) {  // while there is a way back: all tensors, before the first copy
        for (const auto& end : ends_) {
            auto there = end->check_own_memory();
            if (!there) return give_up(std::move(there.error()));
        }
        auto kept = is_direct() ? check_kept() : Result<void>();
        if (!kept) return give_up(std::move(kept.error()));
    }
    copies_ = true;
    auto written = write(deadline);
    if (!written && written.error().code == Errc::timed_out) return written;
    if (!written) return poison(std::move(written.error()));
    for (const auto& end : ends_) {
        if (auto adopted = end->adopt(deadline); !adopted)
            return poison(std::move(adopted.error()));
    }
    update_.open = false;
    holding_.adopt(update_.version);
    return {};
}

std::unexpected<Error> ShardedEngine::give_up(Error why) {
    if (!held_) leave_slots();
    if (holding_.is_mixed()) return poison(std::move(why));
    const bool is_committed = update_.staged && outcome() == Outcome::committed;
    const bool is_left = again_ && why.code == Errc::aborted;  // by a rank that offers it again
    update_.open = false;
    holding_.give_up(fmt::format("version {}: {}", update_.version, why.message));
    // The ranks have decided it, and know: it is not this engine that refuses it.
    const bool is_over = ends_.front()->session().decision(update_.version) == Outcome::aborted;
    for (const auto& end : ends_) {
        const bool stays = is_committed || (is_left && end->outcome() != Outcome::aborted);
        if (stays && !is_direct()) {
            end->unread();  // its slots are still ours: next() finds it again
        } else if (is_committed || is_over || (is_left && end->outcome() != Outcome::open)) {
            end->abandon(why.message);
        } else {
            end->reject(why.message, {});
        }
    }
    return std::unexpected(std::move(why));
}

std::unexpected<Error> ShardedEngine::poison(Error why) {
    update_.open = false;
    holding_.touch();
    holding_.give_up(fmt::format("version {}: {}", update_.version, why.message));
    for (const auto& end : ends_) end->poison(why);
    return std::unexpected(std::move(why));
}

void ShardedEngine::reject(std::string_view why, std::string_view tensor) {
    if (!update_.open || !check_process()) return;
    const std::string message =
        tensor.empty() ? std::string(why) : fmt::format("tensor '{}': {}", tensor, why);
    static_cast<void>(give_up({Errc::rejected, 0, message}));
}

void ShardedEngine::refuse(std::string_view why) {
    if (!check_process()) return;
    if (update_.open) return reject(why, {});
    for (const auto& end : ends_) end->refuse(why);
}

Result<void> ShardedEngine::check_memory(std::span<const WeightTensor> tensors) {
    return ends_.front()->check_memory(tensors);
}

std::uint64_t ShardedEngine::staging_bytes() const {
    std::uint64_t sum = 0;
    for (const auto& end : ends_) sum += end->staging_bytes();
    return sum;
}

std::string_view ShardedEngine::why_not_staged() const {
    for (const auto& end : ends_) {
        if (const auto why = end->why_not_staged(); !why.empty()) return why;
    }
    return {};
}

std::uint64_t ShardedEngine::imports() const {
    std::uint64_t sum = 0;
    for (const auto& end : ends_) sum += end->imports();
    return sum;
}

}  // namespace rollring::weights
