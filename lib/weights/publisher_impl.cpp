#include "publisher_impl.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "fault_point.hpp"
#include "find_publisher.hpp"
#include "greeting.hpp"
#include "published_layout.hpp"
#include "version_range.hpp"

namespace rollring::weights {
namespace {

Result<void> check_options(const PublisherOptions& options) {
    if (auto named = check_end_name("publisher", options.name); !named) return named;
    if (options.ranks == 0 || options.ranks > ranks_limit || options.rank >= options.ranks) {
        return refused(Errc::invalid_argument,
                       fmt::format("PublisherOptions::rank {} of {} ranks (1 to {})", options.rank,
                                   options.ranks, ranks_limit));
    }
    if (options.slots > slots_max) {
        return refused(Errc::invalid_argument,
                       fmt::format("PublisherOptions::slots is 1 to {}, or 0", slots_max));
    }
    if (options.subscribers_max == 0 || options.subscribers_max > subscribers_limit) {
        return refused(
            Errc::invalid_argument,
            fmt::format("PublisherOptions::subscribers_max is 1 to {}", subscribers_limit));
    }
    const bool any_device =
        options.memory == PayloadMemory::automatic || options.memory == PayloadMemory::host;
    if (!options.device.is_gpu() && !any_device) {
        return refused(
            Errc::invalid_argument,
            fmt::format("PublisherOptions::memory {} needs a GPU as device", name(options.memory)));
    }
    return {};
}

Result<Listener> listen_at(std::string_view ring, std::uint32_t rank, const RingLink& link) {
    auto listener = Listener::open(ring, rank);
    if (listener || listener.error().code != Errc::busy) return listener;
    return refused(Errc::busy, listener.error().message + who_publishes(ring, rank, link));
}

ControlHeader facts_of(const PublisherOptions& options, std::uint64_t ring_id) {
    ControlHeader facts{};
    facts.ring_id = ring_id;
    facts.created_ns = realtime_ns();
    facts.subscribers_max = options.subscribers_max;
    facts.rank = options.rank;
    facts.ranks = options.ranks;
    facts.pid = static_cast<std::uint32_t>(getpid());
    std::memcpy(facts.name, options.name.data(), std::min<std::size_t>(options.name.size(), 31));
    return facts;
}

}  // namespace

// NOLINTNEXTLINE(readability-function-size): the parts of one object
PublisherImpl::PublisherImpl(std::string_view ring, const PublisherOptions& options, RingLink link,
                             std::uint64_t token, OwnControl control, PublishedTensors tensors)
    : ring_name_(ring),
      options_(options),
      link_(std::move(link)),
      token_(token),
      tensors_(std::move(tensors)),
      control_(std::move(control)),
      publication_(control_),
      refusals_(control_),
      seats_(control_, options.spin),
      ranks_(ring_name_, {options.rank, options.ranks, link_.ring_id(), token}, control_, seats_,
             publication_),
      begun_version_(link_.version()) {}

Result<std::unique_ptr<PublisherImpl>> PublisherImpl::create(std::string_view ring,
                                                             std::span<const WeightTensor> tensors,
                                                             const PublisherOptions& options,
                                                             const Gpus& gpus) {
    if (auto checked = check_options(options); !checked) return std::unexpected(checked.error());
    auto link = RingLink::attach(ring, Deadline::after_ms(1000), true);
    if (!link) return std::unexpected(link.error());
    const auto token = link->make_token();
    if (!token) return std::unexpected(token.error());
    auto control = OwnControl::make(facts_of(options, link->ring_id()));
    if (!control) return std::unexpected(control.error());
    const bool whole = !options.layout.empty() && options.slot_bytes == 0;
    auto packed = PublishedTensors::pack(tensors, whole ? slot_bytes_max : options.slot_bytes);
    if (!packed) return std::unexpected(packed.error());
    std::unique_ptr<PublisherImpl> made(new PublisherImpl(ring, options, std::move(*link), *token,
                                                          std::move(*control), std::move(*packed)));
    if (auto done = made->set_up(gpus); !done) return std::unexpected(done.error());
    return made;
}

Result<void> PublisherImpl::set_up(const Gpus& gpus) {
    const auto parts = static_cast<std::uint32_t>(packing().parts.size());
    if (options_.slots == 0 && is_sharded()) options_.slots = std::clamp(2 * parts, 2U, slots_max);
    if (options_.slots == 0) options_.slots = parts > 1 ? 4 : 2;
    if (is_sharded()) {
        auto fits = check_layout(options_, packing());
        if (!fits) return fits;
        seats_.keep_together();
    }
    // The name first: of two publishers of one rank, only one makes slots.
    auto listener = listen_at(ring_name_, options_.rank, link_);
    if (!listener) return std::unexpected(listener.error());
    const auto memory = choose_memory(gpus);
    if (!memory) return std::unexpected(memory.error());
    device::Mover& mover = *backend_.mover;
    auto plans = tensors_.compile(mover, options_.handed_on || tensors_.is_exposed());
    if (!plans) return std::unexpected(plans.error());
    filler_.emplace(tensors_, std::move(*plans), mover, seats_, publication_);
    auto described = tensors_.describe(*memory, mover.gpu(), options_);
    if (!described) return described;
    return open_reception(std::move(*listener));
}

Result<void> PublisherImpl::open_reception(Listener listener) {
    auto life = LifeLock::take(control_.memory().fd(), LifeByte::publisher());
    if (!life) return std::unexpected(life.error());
    if (!*life) {  // no other process has this memory: a system fault
        return refused(Errc::busy, "another process holds the publisher's life byte");
    }
    life_ = std::move(**life);
    const Reception::Facts facts{.ring_id = link_.ring_id(),
                                 .token = token_,
                                 .manifest_bytes = tensors_.manifest_memory().bytes(),
                                 .manifest_fd = tensors_.manifest_memory().fd(),
                                 .gpu = tensors_.manifest().gpu};
    auto reception =
        Reception::open(std::move(listener), facts, {control_, seats_, publication_, refusals_});
    if (!reception) return std::unexpected(reception.error());
    reception_ = std::move(*reception);
    return {};
}

// True: no callback into this object is left, and no process reads its memory.
bool PublisherImpl::shut_down() {
    if (!maker_.is_this()) {
        // In a forked child the channel is the parent's: its thread is not here, its name stays.
        return false;
    }
    if (publication_.is_open() || is_decided_) abort("the publisher was closed");
    publication_.close_channel();
    reception_.reset();
    seats_.ring_all();
    // A stream's callback may still be on its way into this object; and a block that others have
    // opened by its legacy handle must not be freed before they have closed it.
    const auto quiet = [this] {
        if (!seats_.all_filled()) return false;
        if (memory() != PayloadMemory::legacy_ipc && memory() != PayloadMemory::direct) return true;
        seats_.drop_dead();
        return seats_.empty();
    };
    for (const Deadline deadline = Deadline::after_ms(10'000); !quiet();) {
        if (deadline.passed() || !backend_.mover->health()) return false;
        nap();
    }
    return true;
}

template <class Count>
Result<void> PublisherImpl::wait_for(std::uint32_t wanted, std::string_view what, Deadline deadline,
                                     const Count& count) {
    if (auto ours = check_process(); !ours) return ours;
    std::uint32_t now = 0;
    if (seats_.wait(deadline, [&] { return (now = count()) >= wanted; })) return {};
    return refused(Errc::timed_out, fmt::format("{} of {} subscribers {} by the deadline{}", now,
                                                wanted, what, refusals_.text()));
}

Result<void> PublisherImpl::wait_joined(std::uint32_t count, Deadline deadline) {
    // Software that cleans /dev/shm may remove our names: no new engine comes then.
    Result<void> names;
    auto waited = wait_for(count, "had come", deadline, [&] {
        const std::uint32_t now = seats_.joined();
        if (now < count) {
            names = link_.check();
            if (names) names = reception_->listener().check();
        }
        return names ? now : count;
    });
    return names ? waited : names;
}

Result<void> PublisherImpl::wait_live(std::uint32_t count, Deadline deadline) {
    const std::int64_t version = publication_.committed();
    return wait_for(count, fmt::format("served version {}", version), deadline,
                    [&] { return seats_.live(version); });
}

// --- a version -----------------------------------------------------------------------------------

Result<void> PublisherImpl::begin(std::int64_t version) {
    if (auto ours = check_process(); !ours) return ours;
    if (publication_.is_open() || is_decided_) return still_open();
    if (auto fine = check_version(version); !fine) return fine;
    const std::int64_t last = std::max(begun_version_, link_.version());
    if (version <= last || version < 0) {
        return refused(Errc::stale_version,
                       fmt::format("version {} is not greater than {}, the last version of ring {}",
                                   version, last, ring_name_));
    }
    if (auto there = link_.check(); !there) return there;
    begun_version_ = version;
    refusals_.clear();
    ranks_.start(version, is_sharded());
    open_publication(version, false);
    return {};
}

std::unexpected<Error> PublisherImpl::still_open() const {
    return refused(Errc::busy, fmt::format("version {} is still open", publication_.version()));
}

void PublisherImpl::open_publication(std::int64_t version, bool only_behind) {
    seats_.drop_dead();
    report_ = CommitReport{};
    report_.version = version;
    all_staged_ = false;
    begun_ns_ = monotonic_ns();
    filler_->start();
    tied_.start();
    publication_.begin(version, packing().parts.size());
    seats_.open(publication_, only_behind);
    FAULT_POINT("weights.begun");
}

Result<void> PublisherImpl::put_all(Deadline deadline, Stream stream) {
    if (auto all = tensors_.check_has_addresses(filler_->next_piece()); !all) return all;
    const auto end = static_cast<std::uint32_t>(packing().pieces.size());
    return filler_->fill_up_to(end, nullptr, deadline, stream);
}

Result<void> PublisherImpl::put(std::string_view name, const void* source, Deadline deadline,
                                Stream stream) {
    const auto index = tensors_.find(name);
    if (!index) return std::unexpected(index.error());
    const PackedTensor& tensor = packing().tensors[*index];
    if (tensor.tied_to >= 0) return tied_.check(*index, source);
    if (tensor.pieces == 0) return {};  // without elements
    if (source == nullptr && tensors_.address(*index) == nullptr) {
        return refused(Errc::invalid_argument, fmt::format("tensor '{}' has no address", name));
    }
    const std::string_view next = next_tensor();
    if (next != tensor.name) {
        return refused(Errc::invalid_argument,
                       fmt::format("tensor '{}' is out of order: {} is next", name,
                                   next.empty() ? "nothing" : next));
    }
    tied_.note(*index, source);
    return filler_->fill_up_to(tensor.first_piece + tensor.pieces, source, deadline, stream);
}

// Empty: all tensors were put.
std::string_view PublisherImpl::next_tensor() const {
    const std::uint32_t piece = filler_->next_piece();
    if (piece == packing().pieces.size()) return {};
    return packing().tensors[packing().pieces[piece].tensor].name;
}

Result<void> PublisherImpl::publish_all() {
    if (const std::string_view next = next_tensor(); !next.empty()) {
        return refused(Errc::invalid_argument, fmt::format("tensor '{}' was not put", next));
    }
    if (publication_.is_all_put()) return {};
    put_done_ns_ = monotonic_ns();
    report_.times.put_ns = put_done_ns_ - begun_ns_;
    report_.times.wait_slot_ns = filler_->waited_ns();
    publication_.all_put();
    seats_.ring_all();
    FAULT_POINT("weights.published");
    return {};
}

Result<void> PublisherImpl::wait_staged(Deadline deadline) {
    Seats::Progress now;
    bool overtaken = false;
    const bool done = seats_.wait(deadline, [&] {
        if (!publication_.is_filled()) return false;
        now = seats_.progress(false);
        if (!now.rejected.empty() || !now.ended.empty() || now.staged == now.readers) return true;
        return overtaken = is_sharded() && ranks_.is_overtaken(is_again());
    });
    if (overtaken) {
        return refused(Errc::aborted,
                       fmt::format("version {}: another rank has aborted it, or begun a later one",
                                   publication_.version()));
    }
    if (!now.rejected.empty()) {
        return refused(Errc::rejected, fmt::format("version {} was rejected by subscriber {}",
                                                   publication_.version(), now.rejected));
    }
    if (!now.ended.empty()) {
        return refused(Errc::peer_gone,
                       fmt::format("version {}: subscriber {} ended before it had staged it",
                                   publication_.version(), now.ended));
    }
    if (!done && !publication_.is_filled()) {
        if (auto healthy = backend_.mover->health(); !healthy) return healthy;
        return publication_.still_packing();
    }
    if (!done) return publication_.silent("staged it", seats_.progress(true).waiting);
    report_.subscribers = now.staged;
    return {};
}

Result<void> PublisherImpl::wait_all_staged(Deadline deadline) {
    if (!publication_.is_all_put()) {
        return refused(Errc::invalid_argument,
                       fmt::format("version {} was not published yet", publication_.version()));
    }
    if (all_staged_) return {};
    if (auto staged = wait_staged(deadline); !staged) return staged;
    if (auto there = tensors_.check_exposed(); !there) return there;  // while they were read, too
    all_staged_ = true;
    return {};
}

Result<CommitReport> PublisherImpl::decide(Deadline deadline) {
    if (is_decided_) return report_;
    if (auto done = carry_through(deadline); !done) return std::unexpected(done.error());
    is_decided_ = true;
    return report_;
}

Result<CommitReport> PublisherImpl::commit(Deadline deadline) {
    if (auto decided = decide(deadline); !decided) return decided;
    if (auto read = wait_read(deadline); !read) return std::unexpected(read.error());
    return report_;
}

Result<void> PublisherImpl::carry_through(Deadline deadline) {
    if (auto staged = wait_all_staged(deadline); !staged) return staged;
    report_.payload_bytes = packing().payload_bytes;
    if (is_again()) {
        // Another rank of a sharded trainer may not know rank 0 yet, in whose name it would be.
        if (!is_sharded() || options_.rank == 0) {
            link_.commit(publication_.version(), publication_.ranks_id());
        }
        publication_.end_resent();
        seats_.close(true);
        return {};
    }
    const std::int64_t staged_ns = monotonic_ns();
    FAULT_POINT("weights.staged_seen");
    if (auto decided = ranks_.decide(deadline); !decided) return decided;
    const std::int64_t filled_ns = std::max(publication_.filled_ns(), put_done_ns_);
    report_.times.publish_ns = filled_ns - put_done_ns_;
    report_.times.staged_ns = staged_ns - filled_ns;
    report_.times.commit_ns = monotonic_ns() - staged_ns;
    finish_commit();
    return {};
}

void PublisherImpl::finish_commit() {
    FAULT_POINT("weights.decided");
    link_.commit(publication_.version(), publication_.ranks_id());
    FAULT_POINT("weights.stamped");
    publication_.commit();
    seats_.close(true);
    FAULT_POINT("weights.committed");
    // An engine has voted for it and given it up since.
    if (is_sharded() && seats_.behind(publication_.committed()) != 0) offer_again();
    publication_.count_sync(report_.times);
}

void PublisherImpl::abort(std::string_view why) {
    if (!maker_.is_this()) return;
    if (publication_.is_open() && (is_again() || ranks_.may_abort())) return give_up(why);
    if (publication_.is_open()) finish_commit();
    stop_readers();
}

void PublisherImpl::give_up(std::string_view why) {
    // In this order: a part that is filled after its version was aborted is incomplete.
    publication_.abort(why);
    seats_.close(false);
    filler_->give_up();
    if (!is_sharded()) return;
    seats_.free_aborted();
    offer_again();
}

}  // namespace rollring::weights
