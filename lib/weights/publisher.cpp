#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "publisher_impl.hpp"
#include "publisher_wait.hpp"
#include "refuse.hpp"

namespace rollring {
namespace weights {
namespace {

Result<void> check(const PublisherOptions& options) {
    if (options.name.empty() || options.name.size() > 31) {
        return refused(Errc::invalid_argument, "PublisherOptions::name is 1 to 31 bytes");
    }
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
    const bool gpu = options.device.is_gpu();
    if (!gpu &&
        (options.memory == PayloadMemory::vmm || options.memory == PayloadMemory::legacy_ipc)) {
        return refused(
            Errc::invalid_argument,
            fmt::format("PublisherOptions::memory {} needs a GPU as device", name(options.memory)));
    }
    return {};
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

PublisherImpl::PublisherImpl(std::string_view ring, const PublisherOptions& options, RingLink link,
                             OwnControl control)
    : ring_name_(ring),
      options_(options),
      link_(std::move(link)),
      control_(std::move(control)),
      seats_(control_) {}

Result<std::unique_ptr<PublisherImpl>> PublisherImpl::create(std::string_view ring,
                                                             std::span<const WeightTensor> tensors,
                                                             const PublisherOptions& options) {
    if (auto checked = check(options); !checked) return std::unexpected(checked.error());
    auto link = RingLink::attach(ring, Deadline::after_ms(1000), true);
    if (!link) return std::unexpected(link.error());
    const auto token = link->make_token();
    if (!token) return std::unexpected(token.error());
    auto control = OwnControl::make(facts_of(options, link->ring_id()));
    if (!control) return std::unexpected(control.error());
    std::unique_ptr<PublisherImpl> made(
        new PublisherImpl(ring, options, std::move(*link), std::move(*control)));
    made->token_ = *token;
    if (auto done = made->set_up(tensors); !done) return std::unexpected(done.error());
    return made;
}

Result<void> PublisherImpl::make_backend(std::span<const WeightTensor> tensors) {
    PayloadMemory kind = options_.memory;
    if (kind == PayloadMemory::automatic) {
        kind = options_.device.is_gpu() ? PayloadMemory::vmm : PayloadMemory::host;
    }
    const auto make_slots = [&]() -> Result<void> {
        Backend backend = make_host_backend();
        if (options_.device.is_gpu()) {
            auto made = make_gpu_backend(options_.device, kind);
            if (!made) return std::unexpected(made.error());
            backend = std::move(*made);
        }
        std::vector<std::unique_ptr<Chunk>> chunks;
        const bool empty = manifest_.packing.parts.empty();
        for (std::uint32_t i = 0; i < options_.slots && !empty; i++) {
            auto chunk = backend.memory->make(manifest_.packing.slot_bytes);
            if (!chunk) return std::unexpected(chunk.error());
            chunks.push_back(std::move(*chunk));
        }
        for (auto& chunk : chunks) seats_.add_slot(std::move(chunk));
        backend_ = std::move(backend);
        return {};
    };
    auto done = make_slots();
    const bool retry = !done && done.error().code == Errc::unsupported &&
                       options_.memory == PayloadMemory::automatic && options_.allow_legacy_ipc;
    if (retry) {
        kind = PayloadMemory::legacy_ipc;
        done = make_slots();
    }
    if (!done) return done;
    manifest_.memory = kind;
    manifest_.gpu = backend_.mover->gpu();
    for (const WeightTensor& tensor : tensors) {
        if (tensor.data == nullptr) continue;
        const std::uint64_t bytes = reach_bytes(tensor, *count_elements(tensor));
        auto fine = backend_.mover->check_address(tensor.data, bytes);
        if (!fine) {
            return std::unexpected(
                Error{fine.error().code, 0,
                      fmt::format("tensor '{}': {}", tensor.name, fine.error().message)});
        }
    }
    return {};
}

Result<void> PublisherImpl::set_up(std::span<const WeightTensor> tensors) {
    auto packing = pack_tensors(tensors, options_.slot_bytes);
    if (!packing) return std::unexpected(packing.error());
    manifest_.packing = std::move(*packing);
    if (options_.slots == 0) options_.slots = manifest_.packing.parts.size() > 1 ? 4 : 2;
    manifest_.slots = options_.slots;
    manifest_.checksums = options_.checksums;
    // The name first: of two publishers of a rank, one makes slots.
    auto listener = Listener::open(ring_name_, options_.rank);
    if (!listener) return std::unexpected(listener.error());
    if (auto done = make_backend(tensors); !done) return done;
    tensors_.assign(tensors.begin(), tensors.end());
    for (std::uint32_t i = 0; i < tensors_.size(); i++) {
        index_[tensors_[i].name] = i;
        const bool has_bytes = manifest_.packing.tensors[i].pieces > 0;
        if (has_bytes && tensors_[i].data == nullptr) unaddressed_ = tensors_[i].name;
    }
    for (const Part& part : manifest_.packing.parts) {
        auto plan = backend_.mover->plan(pack_jobs(manifest_.packing, part, tensors_));
        if (!plan) return std::unexpected(plan.error());
        plans_.push_back(std::move(*plan));
    }

    const std::vector<std::byte> bytes = write_manifest(manifest_);
    auto memory = Sealed::make("manifest", bytes.size());
    if (!memory) return std::unexpected(memory.error());
    {
        auto mapping = memory->map(0, bytes.size(), true);
        if (!mapping) return std::unexpected(mapping.error());
        std::memcpy(mapping->data(), bytes.data(), bytes.size());
    }
    if (auto sealed = memory->seal_contents(); !sealed) return sealed;
    manifest_memory_ = std::move(*memory);

    auto life = LifeLock::take(control_.memory().fd(), LifeByte::publisher());
    if (!life) return std::unexpected(life.error());
    if (!*life) {  // memory that nobody else has: the system's doing
        return std::unexpected(
            Error{Errc::busy, 0, "the publisher's own byte is locked by somebody else"});
    }
    life_ = std::move(**life);
    if (options_.ranks > 1 && options_.rank == 0) group_.emplace(control_);
    version_ = link_.version();
    const Reception::Facts facts{.ring_id = link_.ring_id(),
                                 .token = token_,
                                 .manifest_bytes = bytes.size(),
                                 .manifest_fd = manifest_memory_.fd(),
                                 .gpu = manifest_.gpu};
    auto reception = Reception::open(std::move(*listener), facts, control_, seats_);
    if (!reception) return std::unexpected(reception.error());
    reception_ = std::move(*reception);
    return {};
}

// True: nothing will call into this object any more, and nobody reads its memory.
bool PublisherImpl::shut_down() {
    if (life_ && !life_->held()) {
        // In a forked child the channel is the parent's: its thread is not here, its name stays.
        return false;
    }
    if (open_) abort("the publisher was closed");
    publish(page().closed, 1U);
    reception_.reset();
    seats_.ring_all();
    // A callback of a stream may still be on its way into this object; and a block that others
    // opened by its legacy handle must not be freed before they have closed it.
    const auto quiet = [this] {
        if (!seats_.all_arrived()) return false;
        if (manifest_.memory != PayloadMemory::legacy_ipc) return true;
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
    std::uint32_t now = 0;
    const auto enough = [&] { return (now = count()) >= wanted; };
    if (wait(control_.bell(ControlPlaces::publisher_bell()), deadline, enough)) return {};
    return std::unexpected(
        Error{Errc::timed_out, 0,
              fmt::format("{} of {} subscribers {} by the deadline", now, wanted, what)});
}

Result<void> PublisherImpl::expel(const std::string& name) {
    if (!life_->held()) return check_open();
    seats_.drop_dead();
    const std::size_t usable = seats_.usable_slots(name);
    std::vector<std::unique_ptr<Chunk>> fresh;
    const bool needs_slots = !manifest_.packing.parts.empty();
    for (std::size_t i = usable; i < options_.slots && needs_slots; i++) {
        if (seats_.slot_count() + fresh.size() == slots_limit) {
            return std::unexpected(
                Error{Errc::busy, 0,
                      fmt::format("all {} slots are held by expelled subscribers ({}): end their "
                                  "processes",
                                  slots_limit, seats_.slot_holders())});
        }
        auto chunk = backend_.memory->make(manifest_.packing.slot_bytes);
        if (!chunk) return std::unexpected(chunk.error());
        fresh.push_back(std::move(*chunk));
    }
    if (!seats_.expel(name)) {
        return std::unexpected(
            Error{Errc::not_found, 0, fmt::format("no subscriber '{}' is attached", name)});
    }
    for (auto& chunk : fresh) {
        seats_.add_slot(std::move(chunk));
    }
    return {};
}

}  // namespace weights

std::string_view name(PayloadMemory memory) {
    switch (memory) {
        case PayloadMemory::automatic:
            return "automatic";
        case PayloadMemory::vmm:
            return "vmm";
        case PayloadMemory::legacy_ipc:
            return "legacy_ipc";
        case PayloadMemory::host:
            return "host";
    }
    return "unknown";
}

Publisher::Publisher(std::unique_ptr<weights::PublisherImpl> impl) : impl_(std::move(impl)) {}
Publisher::Publisher(Publisher&&) noexcept = default;
Publisher& Publisher::operator=(Publisher&& other) noexcept {
    std::swap(impl_, other.impl_);
    return *this;
}
Publisher::~Publisher() {
    // What the device or others may still touch is better leaked than freed under them.
    if (impl_ && !impl_->shut_down()) [[maybe_unused]]
        auto* leaked = impl_.release();
}

Result<Publisher> Publisher::create(std::string_view ring, std::span<const WeightTensor> tensors,
                                    const PublisherOptions& options) {
    auto impl = weights::PublisherImpl::create(ring, tensors, options);
    if (!impl) return std::unexpected(impl.error());
    return Publisher(std::move(*impl));
}

Result<void> Publisher::wait_subscribers(std::uint32_t count, Deadline deadline) {
    return impl_->wait_for(count, "had come", deadline, [&] { return impl_->seats().joined(); });
}

Result<void> Publisher::wait_live(std::uint32_t count, Deadline deadline) {
    return impl_->wait_for(count, fmt::format("served version {}", impl_->committed()), deadline,
                           [&] { return impl_->seats().live(impl_->committed()); });
}

Result<Transaction> Publisher::begin(std::int64_t version) {
    if (auto begun = impl_->begin(version); !begun) return std::unexpected(begun.error());
    return Transaction(impl_.get());
}

std::uint32_t Publisher::behind() const {
    return impl_->committed() < 0 ? 0 : impl_->seats().behind(impl_->committed());
}

Result<CommitReport> Publisher::resend(Deadline deadline, Stream stream) {
    return impl_->resend(deadline, stream);
}

Result<void> Publisher::expel(std::string_view subscriber) {
    return impl_->expel(std::string(subscriber));
}

std::int64_t Publisher::committed_version() const {
    return impl_->committed();
}
std::uint64_t Publisher::payload_bytes() const {
    return impl_->packing().payload_bytes;
}
std::uint32_t Publisher::parts() const {
    return static_cast<std::uint32_t>(impl_->packing().parts.size());
}
std::uint32_t Publisher::slots() const {
    return impl_->slots();
}
std::uint64_t Publisher::handles_passed() const {
    return observe(impl_->page().handles_passed);
}

}  // namespace rollring
