#include "subscriber_impl.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "fault_point.hpp"
#include "find_publisher.hpp"
#include "gpu_turns.hpp"
#include "greeting.hpp"
#include "packing.hpp"
#include "rollback_request.hpp"
#include "tensor_memory.hpp"
#include "with_publisher.hpp"

namespace rollring::weights {
// Memory that the device still uses is leaked.
bool SubscriberImpl::shut_down() {
    const bool idle = !delta_ || !session_->is_ours() ||
                      delta_->end_exchange(Deadline::after_ms(10'000)).has_value();
    return session_->close() && idle;
}

Result<std::unique_ptr<SubscriberImpl>> SubscriberImpl::attach(std::string_view ring,
                                                               std::span<const WeightTensor> into,
                                                               const SubscriberOptions& options,
                                                               const device::Gpus& gpus,
                                                               Deadline deadline) {
    using Made = Result<std::unique_ptr<SubscriberImpl>>;
    if (auto fine = check_engine(options); !fine) return std::unexpected(fine.error());
    return with_publisher(ring, options, deadline, [&](RingLink link, Patience& patience) -> Made {
        auto made = std::make_unique<SubscriberImpl>(options, std::move(link));
        const auto met = made->meet(ring, into, gpus, patience);
        if (!met) return std::unexpected(met.error());
        Session* const session = made->session_.get();
        const auto entered = Session::enter({&session, 1}, patience);
        if (!entered) return std::unexpected(entered.error());
        return made;
    });
}

Result<std::vector<TensorInfo>> SubscriberImpl::published(std::string_view ring,
                                                          const SubscriberOptions& options,
                                                          const device::Gpus& gpus,
                                                          Deadline deadline) {
    using Found = Result<std::vector<TensorInfo>>;
    return with_publisher(ring, options, deadline, [&](RingLink link, Patience& patience) -> Found {
        const auto rank = find_publisher(ring, options, link, gpus, patience);
        if (!rank) return std::unexpected(rank.error());
        const auto socket = connect_to(ring, *rank);
        if (!socket) return std::unexpected(socket.error());
        auto welcome =
            greet(socket->get(), MessageKind::hello_observer, link, options.name, patience);
        if (!welcome) return std::unexpected(welcome.error());
        const auto manifest = manifest_of(*welcome);
        if (!manifest) return std::unexpected(manifest.error());
        if (!manifest->layout.empty()) {
            return refused(Errc::unsupported,
                           fmt::format("rank {} of the trainer publishes shards, not whole "
                                       "tensors: ask for their layout, and attach with one",
                                       *rank));
        }
        return infos_of(manifest->packing);
    });
}

Result<void> SubscriberImpl::meet(std::string_view ring, std::span<const WeightTensor> into,
                                  const device::Gpus& gpus, Patience& patience) {
    const auto rank = find_publisher(ring, options_, link_, gpus, patience);
    if (!rank) return std::unexpected(rank.error());
    auto session = Session::meet(ring, *rank, {options_, link_, gpus, holding_}, patience);
    if (!session) return std::unexpected(session.error());
    session_ = std::move(*session);
    auto fitting = patience.work([&] { return fit(ring, into); });
    if (fitting) return {};
    session_->tell_refusal(link_, fitting.error().message);
    return fitting;
}

// Whether the engine's tensors and its version agree with the publisher's.
Result<void> SubscriberImpl::fit(std::string_view ring, std::span<const WeightTensor> into) {
    const std::int64_t had = std::max(link_.version(), observe(session_->publisher().committed));
    if (options_.held_version < -1 || options_.held_version > had) {
        return refused(Errc::invalid_argument,
                       fmt::format("held_version is {}, but ring {} has had no version above {}: "
                                   "name the version that the engine serves, or -1",
                                   options_.held_version, ring, had));
    }
    // The ranks of a sharded trainer are on several devices, and copied from at once.
    const bool from_afar = !options_.layout.empty() && is_over_link();
    session_->mover().copy_over_link(from_afar);
    auto compiled =
        SubscriberTensors::compile(manifest(), into, options_.partial, session_->mover());
    if (!compiled) return std::unexpected(compiled.error());
    tensors_ = std::move(*compiled);
    if (from_afar && options_.stage_remote) {
        if (auto staging = make_remote_staging(into); !staging) return staging;
    }
    if (options_.staging != Staging::delta) return {};
    auto difference =
        compile_difference(manifest().packing, into, options_.partial, session_->mover());
    if (!difference) return std::unexpected(difference.error());
    delta_.emplace(std::move(*difference), options_, tensors_.target_bytes());
    return {};
}

// Where there is no memory for it, versions are copied over the link once they are decided.
Result<void> SubscriberImpl::make_remote_staging(std::span<const WeightTensor> into) {
    const auto parts = compile_planned(manifest().packing, into, session_->mover());
    if (!parts) return std::unexpected(parts.error());
    auto staging = RemoteStaging::make(*parts, session_->memory(), session_->mover());
    if (!staging && staging.error().code != Errc::out_of_device_memory) {
        return std::unexpected(staging.error());
    }
    if (staging) {
        remote_ = std::move(*staging);
    } else {
        why_not_staged_ = staging.error().message;
    }
    return {};
}

void SubscriberImpl::set_state(SubscriberState state) {
    holding_.set(state);
    session_->say(state);
}

// Memory that the device still reads for an abandoned version must not be refilled.
Result<void> SubscriberImpl::wait_quiet(Deadline deadline) {
    if (session_->reading().drain(deadline)) return {};
    if (auto healthy = session_->mover().health(); !healthy) return healthy;
    return refused(Errc::timed_out,
                   fmt::format("'{}' waited for its device to finish reading version {}; {}",
                               options_.name, update_.version, holding_.text()));
}

Result<void> SubscriberImpl::next(Deadline deadline) {
    if (update_.open) {
        return refused(Errc::busy, fmt::format("version {} is not finished yet", update_.version));
    }
    if (auto quiet = wait_quiet(deadline); !quiet) return quiet;
    PublicationView view{};
    bool asked = false;
    const auto there = [&] {
        asked = is_asked_back();
        if (asked) return true;
        const std::uint64_t reads = session_->reads();
        if (reads <= update_.publication) return false;
        const auto seen = session_->look_up(reads);
        if (!seen) return false;
        if (reads - 1 > update_.publication) {
            // Earlier publications are over. Their slots are wanted for this one, even if none was
            // read.
            update_.publication = reads - 1;
            session_->reading().leave(reads - 1);
        }
        if (seen->outcome == Outcome::aborted) {
            update_.publication = reads;
            session_->reading().leave(reads);
            return false;
        }
        const bool begun = seen->put || seen->outcome == Outcome::committed ||
                           session_->is_filled(seen->first_part_number);
        if (!begun) return false;
        view = *seen;
        update_.publication = reads;
        return true;
    };
    if (auto waited = session_->wait("the next version", deadline, there); !waited) return waited;
    if (asked) {
        return refused(Errc::rollback_asked,
                       fmt::format("'{}' is asked to leave version {}: call rollback, and then "
                                   "next again",
                                   options_.name, holding_.live_version()));
    }
    start(update_.publication, view);
    if (holding_.state() != SubscriberState::poisoned) set_state(SubscriberState::reading);
    FAULT_POINT("weights.seen");
    return {};
}

void SubscriberImpl::start(std::uint64_t publication, const PublicationView& view) {
    update_ = {.open = true,
               .came_late = view.outcome == Outcome::committed,
               .publication = publication,
               .version = view.version,
               .first_part_number = view.first_part_number};
    session_->reading().start(view.first_part_number);
}

Outcome SubscriberImpl::outcome() const {
    if (const auto view = session_->look_up(update_.publication)) return view->outcome;
    if (update_.came_late) return Outcome::committed;  // it was so when we came
    // Its line is used again. It was aborted, because it could not be committed without us, unless
    // we no longer count.
    return session_->is_expelled() ? Outcome::open : Outcome::aborted;
}

std::unexpected<Error> SubscriberImpl::give_up(Error why) {
    update_.open = false;
    const std::string problem = fmt::format("version {}: {}", update_.version, why.message);
    holding_.give_up(problem);
    if (!session_->is_ours()) return std::unexpected(std::move(why));  // the page is our parent's
    const bool poisoned = holding_.is_mixed();
    SubscriberPage& page = session_->own();
    store_release(page.staged_version, poisoned ? std::int64_t{-1} : holding_.received_version());
    page.problem.store(problem);
    session_->say(holding_.state());
    // The publisher waits for us, so it must know, unless it caused the error.
    if (why.code != Errc::aborted && why.code != Errc::peer_gone && why.code != Errc::expelled) {
        store_release(page.rejected, update_.publication);
    }
    const auto comparing = delta_ ? delta_->leave() : std::nullopt;
    if (comparing) static_cast<void>(finish_oldest_part(*comparing));
    session_->reading().leave(update_.publication);
    return std::unexpected(std::move(why));
}

std::unexpected<Error> SubscriberImpl::give_up_unless_late(Error why) {
    if (why.code == Errc::timed_out) return std::unexpected(std::move(why));
    return give_up(std::move(why));
}

Error SubscriberImpl::aborted() const {
    return {Errc::aborted, 0,
            fmt::format("version {} was abandoned ({}); {}", update_.version,
                        session_->why_aborted(update_.publication), holding_.text())};
}

Result<void> SubscriberImpl::wait_filled(std::uint32_t part, Deadline deadline) {
    Outcome now = Outcome::open;
    const auto filled = [&] {
        // In this order: a part that is filled after its version was aborted is incomplete.
        const bool there = session_->is_filled(update_.first_part_number + part);
        now = outcome();
        return there || now == Outcome::aborted;
    };
    auto waited = session_->wait(fmt::format("part {} of version {}", part, update_.version),
                                 deadline, filled, shares_gpu() ? turn_spin : turn_spin.zero());
    if (!waited) return waited;
    // After `filled`: slots that were filled after our expulsion do not wait for us.
    if (auto admitted = session_->check_admitted(); !admitted) return admitted;
    if (now == Outcome::aborted) return std::unexpected(aborted());
    return {};
}

Result<std::span<const TensorPiece>> SubscriberImpl::part(std::uint32_t part, Deadline deadline) {
    return lend(part, deadline, deadline);
}

Result<std::span<const TensorPiece>> SubscriberImpl::lend(std::uint32_t part, Deadline filled,
                                                          Deadline verified) {
    if (part != update_.parts_lent || part >= parts()) {
        return refused(Errc::invalid_argument,
                       fmt::format("part {} is out of order: {} is next of {}", part,
                                   update_.parts_lent, parts()));
    }
    if (auto waited = wait_filled(part, filled); !waited) {
        return give_up_unless_late(std::move(waited.error()));
    }
    const auto slot = session_->slot_of(part, update_.first_part_number + part);
    if (!slot) return give_up(slot.error());
    auto mapped = session_->map_slot(*slot, filled);
    if (!mapped) return give_up_unless_late(std::move(mapped.error()));
    if (auto fine = verify(part, *mapped, verified); !fine) {
        // A sharded trainer fills the slots of an aborted version without waiting for us.
        if (outcome() == Outcome::aborted) return give_up(aborted());
        return give_up_unless_late(std::move(fine.error()));
    }
    update_.lent_slots.push_back({*slot, *mapped});
    update_.parts_lent++;
    if (options_.in_place) holding_.touch();
    const auto pieces = show(part, *mapped);
    FAULT_POINT("weights.part_seen");
    return pieces;
}

Result<void> SubscriberImpl::verify(std::uint32_t part, const std::byte* memory,
                                    Deadline deadline) {
    const auto differs = tensors_.verify(part, memory, deadline);
    if (!differs) return std::unexpected(differs.error());
    if (!*differs) return {};
    const Packing& packing = manifest().packing;
    const Piece& piece = packing.pieces[packing.parts[part].first_piece + **differs];
    return refused(Errc::checksum_mismatch,
                   fmt::format("tensor '{}' of version {} did not arrive as it was sent",
                               packing.tensors[piece.tensor].name, update_.version));
}

std::span<const TensorPiece> SubscriberImpl::show(std::uint32_t part, const std::byte* memory) {
    const Packing& packing = manifest().packing;
    const Part& at = packing.parts[part];
    pieces_.clear();
    for (const Piece& piece : std::span(packing.pieces).subspan(at.first_piece, at.pieces)) {
        pieces_.push_back({.tensor = piece.tensor,
                           .first_element = piece.first_element,
                           .elements = piece.elements,
                           .data = memory + piece.slot_offset});
    }
    return pieces_;
}

Result<void> SubscriberImpl::done_reading(std::uint32_t part, Stream stream) {
    if (!update_.open || part != update_.parts_done || update_.lent_slots.empty()) {
        return refused(Errc::invalid_argument,
                       fmt::format("part {} is not the oldest part being read", part));
    }
    FAULT_POINT("weights.reading");
    auto queued = finish_oldest_part(stream);
    if (!queued) return give_up(std::move(queued.error()));
    update_.lent_slots.pop_front();
    update_.parts_done++;
    FAULT_POINT("weights.read_done");
    return {};
}

Result<void> SubscriberImpl::stage(Deadline deadline) {
    if (update_.parts_done != parts()) {
        return refused(Errc::invalid_argument,
                       fmt::format("{} of {} parts were read", update_.parts_done, parts()));
    }
    const std::uint64_t end = update_.first_part_number + parts();
    auto waited = session_->wait("its device to finish reading", deadline,
                                 [&] { return session_->reading().is_read(end); });
    // The trainer keeps its own memory unchanged only for the engines that it waits for.
    if (waited && manifest().memory == PayloadMemory::direct) waited = session_->check_admitted();
    if (!waited) return give_up_unless_late(std::move(waited.error()));
    if (delta_) show_delta(delta_->report(), session_->own());
    vote();
    return {};
}

void SubscriberImpl::vote() {
    update_.staged = true;
    set_state(SubscriberState::staged);
    store_release(session_->own().staged_version, update_.version);
    store_release(session_->own().staged, update_.publication);
    FAULT_POINT("weights.staged");
    session_->ring_publisher();
}

Result<void> SubscriberImpl::wait_committed(Deadline deadline) {
    if (!update_.staged) {
        return refused(Errc::invalid_argument, "stage the version before adopting it");
    }
    if (update_.committed) return {};
    Outcome now = Outcome::open;
    auto waited = session_->wait(fmt::format("the commit of version {}", update_.version), deadline,
                                 [&] { return (now = outcome()) != Outcome::open; });
    if (!waited) {
        if (waited.error().code == Errc::timed_out) return waited;
        // It may have died after its commit, before it told us.
        if (!link_.committed(update_.version, observe(session_->publisher().ranks_id))) {
            return give_up(std::move(waited.error()));
        }
        now = Outcome::committed;
    }
    FAULT_POINT("weights.commit_seen");
    // Aborted; or the publication's line was reused, which takes an expulsion.
    if (now == Outcome::aborted) return give_up(aborted());
    update_.committed = true;
    return {};
}

Result<void> SubscriberImpl::adopt(Deadline deadline) {
    if (auto waited = wait_committed(deadline); !waited) return waited;
    if (delta_) {
        auto there = tensors_.check_memory(session_->mover());
        if (there) there = delta_->swap_in(holding_);
        if (!there) return give_up(std::move(there.error()));
        show_delta(delta_->report(), session_->own());
    }
    update_.open = false;
    holding_.adopt(update_.version);
    SubscriberPage& page = session_->own();
    page.problem.store("");
    store_release(page.live_version, update_.version);
    store_release(page.publications_read, update_.publication);
    session_->say(holding_.state());
    FAULT_POINT("weights.live");
    session_->ring_publisher();
    return {};
}

void SubscriberImpl::reject(std::string_view why, std::string_view tensor) {
    if (!update_.open || !session_->is_ours()) return;
    const std::string message =
        tensor.empty() ? std::string(why) : fmt::format("tensor '{}': {}", tensor, why);
    static_cast<void>(give_up({Errc::rejected, 0, message}));
}

Result<void> SubscriberImpl::check_memory(std::span<const WeightTensor> tensors) {
    MemoryPlaces places;
    for (std::uint32_t i = 0; i < tensors.size(); i++) {
        const auto elements = count_elements(tensors[i]);
        if (!elements) return std::unexpected(elements.error());
        places.add(tensors[i].data, reach_bytes(tensors[i], *elements), i);
    }
    places.sort();
    return places.check(session_->mover(),
                        [&](std::uint32_t i) -> std::string_view { return tensors[i].name; });
}

void SubscriberImpl::refuse(std::string_view why) {
    if (!session_->is_ours()) return;
    const std::uint64_t reads = session_->reads();
    const auto view = session_->look_up(reads);
    if (!update_.open && reads > update_.publication && view && view->outcome == Outcome::open) {
        start(reads, *view);
    }
    if (update_.open) return reject(why, {});
    session_->own().problem.store(why);
    answer_heard(RollbackOutcome::refused, why);
}

}  // namespace rollring::weights
