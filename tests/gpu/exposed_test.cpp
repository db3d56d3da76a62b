// Tensors that another process reads where they lie: the allocations that it can open, those that
// are refused, and those that are not the same any more.

#include <doctest/doctest.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "backends.hpp"
#include "device.hpp"
#include "direct_memory.hpp"
#include "peer.hpp"
#include "reference.hpp"
#include "sealed.hpp"

namespace rollring::test {
namespace {

using device::MemoryPlace;

std::unique_ptr<device::Memory> direct_memory() {
    return need(cuda::make_backend(Device::cuda(0), PayloadMemory::direct)).memory;
}

std::string_view name_of(std::uint32_t tensor) {
    static constexpr std::array names{"zero", "one", "two", "three"};
    return names.at(tensor);
}

MemoryPlace place(const std::byte* address, std::uint64_t bytes, std::uint32_t tensor) {
    return {address, bytes, tensor};
}

// Whether the peer has block_bytes of this seed there.
bool reads(const Peer& peer, std::uint64_t offset, std::uint64_t bytes, std::uint8_t seed) {
    Message look{.what = 'l', .value = offset};
    look.ticket.bytes = bytes;
    look.ticket.handle[0] = std::byte{seed};
    return peer.ask(look).message.value == 1;
}

Error refusal_of(const MemoryPlace& one) {
    const std::vector<MemoryPlace> places{one};
    const auto exposed = direct_memory()->expose(places, name_of);
    REQUIRE(!exposed);
    MESSAGE("refused as wanted: ", exposed.error().to_string());
    CHECK(exposed.error().code == Errc::unsupported);
    CHECK(exposed.error().message.contains(name_of(one.tensor)));
    return exposed.error();
}

TEST_SUITE_BEGIN("gpu");

TEST_CASE("another process reads tensors where they lie, and what is written to them later") {
    const DeviceBytes first(4 * mib);
    const DeviceBytes second(std::size_t{6 * mib});
    const std::vector<MemoryPlace> places{
        place(second.data() + 3 * mib + 2, 100'001, 0), place(first.data() + 512, 3000, 1),
        place(first.data() + 4 * mib - 1, 1, 2), place(second.data(), 2 * mib, 3)};
    const auto write = [&](std::uint8_t seed) {
        for (const MemoryPlace& one : places) {
            to_device(one.address, block_bytes(one.bytes, seed + one.tensor));
        }
    };
    write(1);
    const auto exposed = need(direct_memory()->expose(places, name_of));
    CHECK(exposed->ticket().memory == PayloadMemory::direct);
    CHECK(exposed->ticket().bytes == 10 * mib);
    const Peer peer("holder");
    peer.ask({.what = 'i', .ticket = exposed->ticket()}, exposed->fd());
    for (const std::uint8_t seed : {std::uint8_t{1}, std::uint8_t{50}}) {
        write(seed);
        for (std::size_t i = 0; i < places.size(); i++) {
            CAPTURE(i);
            CHECK(reads(peer, exposed->offsets()[i], places[i].bytes,
                        static_cast<std::uint8_t>(seed + i)));
        }
    }
    CHECK(!exposed->find_replaced());
}

TEST_CASE("an allocation that is freed, or made anew at its address, is noticed") {
    auto freed = std::make_unique<DeviceBytes>(std::size_t{8 * mib});
    const DeviceBytes kept(std::size_t{2 * mib});
    const std::vector<MemoryPlace> places{place(kept.data(), 100, 0),
                                          place(freed->data() + 1024, 100, 1)};
    const auto exposed = need(direct_memory()->expose(places, name_of));
    CHECK(!exposed->find_replaced());
    const CUdeviceptr at = freed->address();
    freed.reset();
    CHECK(exposed->find_replaced() == std::size_t{1});
    // The driver gives the same addresses again, as a rule.
    const DeviceBytes again(std::size_t{8 * mib});
    MESSAGE("allocated again at the same address: ", again.address() == at);
    CHECK(exposed->find_replaced() == std::size_t{1});
}

TEST_CASE("memory that has no handle of its own is refused by name") {
    // Of these only one can begin a block.
    const DeviceBytes small_ones[3]{DeviceBytes(1000), DeviceBytes(1000), DeviceBytes(1000)};
    int shared = 0;
    for (const DeviceBytes& one : small_ones) {
        if (one.address() % (2 * mib) == 0) continue;
        CHECK(refusal_of(place(one.data(), 1000, 1)).message.contains("2 MiB"));
        shared++;
    }
    CHECK(shared >= 2);
    const auto mapped = need(cuda::make_backend(Device::cuda(0), PayloadMemory::vmm)).memory;
    const auto block = need(mapped->make(2 * mib));
    CHECK(refusal_of(place(block->data(), 1000, 2)).message.contains("cudaMalloc"));
    const cuda::Context::Scope scope(gpu()->context());
    void* pinned = nullptr;
    need(api().cuMemAllocHost(&pinned, 4096), "cuMemAllocHost");
    CHECK(refusal_of(place(static_cast<std::byte*>(pinned), 4096, 3)).message.contains("pinned"));
    need(api().cuMemFreeHost(pinned), "cuMemFreeHost");
}

TEST_CASE("a process cannot open what it exposes itself, and is told so") {
    const DeviceBytes bytes(std::size_t{2 * mib});
    const std::vector<MemoryPlace> places{place(bytes.data(), 100, 0)};
    const auto memory = direct_memory();
    const auto exposed = need(memory->expose(places, name_of));
    const auto opened = memory->import(exposed->ticket(), Fd(dup(exposed->fd())));
    REQUIRE(!opened);
    MESSAGE("refused as wanted: ", opened.error().to_string());
    CHECK(opened.error().code == Errc::unsupported);
    CHECK(opened.error().message.contains("two processes"));
}

TEST_CASE("a table of allocations that lies is refused, and takes no memory") {
    const DeviceBytes bytes(std::size_t{4 * mib});
    const std::vector<MemoryPlace> places{place(bytes.data(), 100, 0)};
    const auto exposed = need(direct_memory()->expose(places, name_of));
    const auto table =
        need(Sealed::accept(Fd(dup(exposed->fd())), sizeof(device::AllocationLine), true));
    device::AllocationLine truth{};
    {
        const auto mapping = need(table.map(0, sizeof truth, false));
        std::memcpy(&truth, mapping.data(), sizeof truth);
    }
    const auto refused =
        [&](const std::function<void(device::AllocationLine&, device::BlockTicket&)>& lie) {
            device::AllocationLine line = truth;
            device::BlockTicket ticket = exposed->ticket();
            lie(line, ticket);
            const auto memory = need(Sealed::make("table", sizeof line));
            {
                const auto mapping = need(memory.map(0, sizeof line, true));
                std::memcpy(mapping.data(), &line, sizeof line);
            }
            need(memory.seal_contents());
            const Peer peer("holder");
            try {
                peer.ask({.what = 'i', .ticket = ticket}, memory.fd());
            } catch (const Failure& failure) {
                MESSAGE("refused as wanted: ", failure.what());
                return true;
            }
            return false;
        };
    CHECK(!refused([](device::AllocationLine&, device::BlockTicket&) {}));
    CHECK(refused([](device::AllocationLine& line, device::BlockTicket& ticket) {
        line.bytes = ticket.bytes = 64 * mib;
    }));
    CHECK(refused([](device::AllocationLine& line, device::BlockTicket& ticket) {
        line.bytes = ticket.bytes = std::uint64_t{1} << 60;
    }));
    CHECK(refused([](device::AllocationLine& line, device::BlockTicket&) {
        line.handle.fill(std::byte{0x5a});
    }));
}

TEST_SUITE_END();

}  // namespace
}  // namespace rollring::test
