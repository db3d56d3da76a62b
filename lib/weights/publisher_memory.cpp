// The memory through which a publisher's versions go: slots, or the tensors themselves.

#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "publisher_impl.hpp"

namespace rollring::weights {
namespace {

Result<std::vector<std::unique_ptr<SharedBlock>>> make_blocks(device::Memory& memory,
                                                              std::size_t count,
                                                              std::uint64_t bytes) {
    std::vector<std::unique_ptr<SharedBlock>> blocks;
    while (blocks.size() < count) {
        auto block = memory.make(bytes);
        if (!block) return std::unexpected(block.error());
        blocks.push_back(std::move(*block));
    }
    return blocks;
}

}  // namespace

Result<void> PublisherImpl::make_slots(PayloadMemory memory, const Gpus& gpus) {
    Backend backend = device::make_host_backend();
    if (options_.device.is_gpu()) {
        auto made = gpus.open(options_.device, memory);
        if (!made) return std::unexpected(made.error());
        backend = std::move(*made);
    }
    const std::size_t slots = tensors_.has_payload() ? options_.slots : 0;
    auto blocks = make_blocks(*backend.memory, slots, packing().slot_bytes);
    if (!blocks) return std::unexpected(blocks.error());
    for (auto& block : *blocks) seats_.add_slot(std::move(block));
    backend_ = std::move(backend);
    return {};
}

Result<void> PublisherImpl::expose_tensors(const Gpus& gpus) {
    const auto cannot = [](std::string_view why) {
        return refused(Errc::unsupported, std::string(why));
    };
    if (!options_.device.is_gpu()) return cannot("the tensors are in host memory");
    if (options_.handed_on) return cannot("parts that are handed on lie in slots");
    if (options_.checksums) return cannot("checksums lie in slots");
    auto backend = gpus.open(options_.device, PayloadMemory::direct);
    if (!backend) return std::unexpected(backend.error());
    auto block = tensors_.expose(*backend->memory, *backend->mover);
    if (!block) return std::unexpected(block.error());
    options_.slots = 1;
    seats_.read_in_place();
    seats_.add_slot(std::move(*block));
    backend_ = std::move(*backend);
    return {};
}

Result<PayloadMemory> PublisherImpl::choose_memory(const Gpus& gpus) {
    const bool automatic = options_.memory == PayloadMemory::automatic;
    PayloadMemory memory = options_.memory;
    if (memory == PayloadMemory::direct || (automatic && options_.allow_direct)) {
        const auto exposed = expose_tensors(gpus);
        if (exposed) return PayloadMemory::direct;
        if (!automatic || exposed.error().code != Errc::unsupported) {
            return refused(exposed.error().code,
                           "PayloadMemory::direct: " + exposed.error().message);
        }
        why_not_direct_ = exposed.error().message;
        publication_.show_why_not_direct(why_not_direct_);
    }
    if (automatic) memory = options_.device.is_gpu() ? PayloadMemory::vmm : PayloadMemory::host;
    auto done = make_slots(memory, gpus);
    if (!done && done.error().code == Errc::unsupported && automatic && options_.allow_legacy_ipc) {
        memory = PayloadMemory::legacy_ipc;
        done = make_slots(memory, gpus);
    }
    if (!done) return std::unexpected(done.error());
    return memory;
}

Result<void> PublisherImpl::wait_read(Deadline deadline) {
    std::string readers;
    if (tensors_.is_exposed()) {
        seats_.wait(deadline, [&] { return seats_.is_read(); });
        readers = seats_.slot_holders();
    }
    is_decided_ = !readers.empty();
    if (!is_decided_) return {};
    return refused(Errc::timed_out,
                   fmt::format("version {} is committed, but by the deadline {} had not copied it "
                               "from the tensors, which must not change before: commit again, or "
                               "expel them",
                               publication_.version(), readers));
}

void PublisherImpl::stop_readers() {
    if (tensors_.is_exposed()) seats_.expel_holders();
    is_decided_ = false;
}

Result<void> PublisherImpl::expel(const std::string& name) {
    if (auto ours = check_process(); !ours) return ours;
    seats_.drop_dead();
    // An engine that reads the tensors where they lie only reads, and can be left alone.
    const bool in_slots = tensors_.has_payload() && !tensors_.is_exposed();
    const std::size_t wanted = in_slots ? options_.slots : 0;
    const std::size_t usable = std::min(wanted, seats_.usable_slots(name));
    if (seats_.slot_count() + wanted - usable > slots_limit) {
        return refused(Errc::busy, fmt::format("all {} slots are held by expelled subscribers "
                                               "({}): end their processes",
                                               slots_limit, seats_.slot_holders()));
    }
    auto fresh = make_blocks(*backend_.memory, wanted - usable, packing().slot_bytes);
    if (!fresh) return std::unexpected(fresh.error());
    if (!seats_.expel(name)) {
        return refused(Errc::not_found, fmt::format("no subscriber '{}' is attached", name));
    }
    for (auto& block : *fresh) seats_.add_slot(std::move(block));
    return {};
}

}  // namespace rollring::weights
