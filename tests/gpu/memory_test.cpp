// Payload memory shared with another process: the processes that can read it and those that cannot
// write to it, the memory that is left when one goes, and the effect of a bad ticket.

#include <doctest/doctest.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <memory>
#include <string>

#include "backends.hpp"
#include "device.hpp"
#include "gives_back.hpp"
#include "peer.hpp"
#include "plan.hpp"
#include "reference.hpp"

namespace rollring::test {
namespace {

constexpr auto kinds =
    std::to_array({PayloadMemory::vmm, PayloadMemory::legacy_ipc, PayloadMemory::host});

std::unique_ptr<device::Memory> memory_of(PayloadMemory kind) {
    return need(cuda::make_backend(Device::cuda(0), kind)).memory;
}

std::string name_of(PayloadMemory kind) {
    if (kind == PayloadMemory::vmm) return "vmm";
    return kind == PayloadMemory::host ? "host" : "legacy_ipc";
}

std::size_t open_descriptors() {
    const std::filesystem::directory_iterator all("/proc/self/fd");
    return static_cast<std::size_t>(std::distance(begin(all), end(all)));
}

// Some drivers cannot register read-only host memory: cases refused for that reason are skipped.
bool can_import(PayloadMemory kind) {
    if (kind != PayloadMemory::host) return true;
    if (gpu()->attribute(CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED) != 0) return true;
    MESSAGE("skipped: this driver cannot register read-only host memory");
    return false;
}

Message about(char what, const device::SharedBlock& block) {
    return {.what = what, .ticket = block.ticket()};
}

Message read_seed(std::uint64_t seed) {
    return {.what = 'r', .value = seed};
}

TEST_SUITE_BEGIN("gpu");

TEST_CASE("a new block is zeroed and as large as asked for, or larger") {
    for (const PayloadMemory kind : kinds) {
        const std::string which = name_of(kind);
        CAPTURE(which);
        const auto block = need(memory_of(kind)->make(3 * mib + 1));
        const std::uint64_t bytes = block->ticket().bytes;
        CHECK(bytes > 3 * mib);
        CHECK(bytes <= 6 * mib);
        CHECK(block->ticket().memory == kind);
        CHECK((block->fd() >= 0) == (kind != PayloadMemory::legacy_ipc));
        CHECK(reinterpret_cast<std::uint64_t>(block->data()) % device::piece_alignment == 0);
        CHECK(from_device(block->data(), bytes) == Bytes(bytes));
    }
}

TEST_CASE("another process reads a block, and what is written to it later") {
    for (const PayloadMemory kind : kinds) {
        const std::string which = name_of(kind);
        CAPTURE(which);
        if (!can_import(kind)) continue;
        const auto block = need(memory_of(kind)->make(5 * mib));
        const std::uint64_t bytes = block->ticket().bytes;
        to_device(block->data(), block_bytes(bytes, 1));
        const Peer peer("holder");
        peer.ask(about('i', *block), block->fd());
        CHECK(peer.ask(read_seed(1)).message.value == 1);
        to_device(block->data(), block_bytes(bytes, 2));
        CHECK(peer.ask(read_seed(2)).message.value == 1);
    }
}

TEST_CASE("the CPU of another process reads host memory that our GPU packs into") {
    const auto block = need(memory_of(PayloadMemory::host)->make(mib));
    const Bytes bytes = block_bytes(mib, 7);
    const DeviceBytes tensor(bytes);
    const auto plan = need(
        cuda::make_plan(gpu(), {{.tensor = tensor.data(), .elements = mib, .element_bytes = 1}}));
    need(plan->pack(block->data(), std::nullopt, {}));
    CHECK(from_device(block->data(), mib) == bytes);  // waits for the same stream
    const Peer peer("holder");
    peer.ask(about('h', *block), block->fd());
    CHECK(peer.ask(read_seed(7)).message.value == 1);
}

TEST_CASE("an imported block is verified and unpacked") {
    constexpr std::uint64_t bytes = mib + 3;
    for (const PayloadMemory kind : {PayloadMemory::vmm, PayloadMemory::host}) {
        const std::string which = name_of(kind);
        CAPTURE(which);
        if (!can_import(kind)) continue;
        const Bytes content = block_bytes(bytes, 9);
        const DeviceBytes from(content);
        const DeviceBytes to(Bytes(bytes, std::byte{1}));
        const auto memory = memory_of(kind);
        const auto block = need(memory->make(2 * mib));
        constexpr std::uint64_t sums = mib + 512;
        const auto pack = need(cuda::make_plan(
            gpu(), {{.tensor = from.data(), .elements = bytes, .element_bytes = 1}}));
        need(pack->pack(block->data(), sums, {}));
        CHECK(need(pack->verify(block->data(), sums, gpu_patience())) == std::nullopt);
        const auto imported = need(memory->import(block->ticket(), Fd(dup(block->fd()))));
        const auto unpack = need(
            cuda::make_plan(gpu(), {{.tensor = to.data(), .elements = bytes, .element_bytes = 1}}));
        CHECK(need(unpack->verify(imported->data(), sums, gpu_patience())) == std::nullopt);
        need(unpack->unpack(imported->data(), {}));
        CHECK(to.get() == content);
        to_device(block->data() + 1000, Bytes(1));
        CHECK(need(unpack->verify(imported->data(), sums, gpu_patience())).has_value() ==
              (content[1000] != std::byte{0}));
    }
}

TEST_CASE("importers cannot write") {
    for (const PayloadMemory kind : {PayloadMemory::vmm, PayloadMemory::host}) {
        const std::string which = name_of(kind);
        CAPTURE(which);
        if (!can_import(kind)) continue;
        const auto block = need(memory_of(kind)->make(2 * mib));
        const std::uint64_t bytes = block->ticket().bytes;
        to_device(block->data(), block_bytes(bytes, 3));
        const Peer peer("holder");
        peer.ask(about('i', *block), block->fd());
        CHECK_MESSAGE(peer.ask({.what = 'w'}).message.value == 1,
                      "a kernel of the importer wrote to the block");
        CHECK(from_device(block->data(), bytes) == block_bytes(bytes, 3));
    }
}

TEST_CASE("an importer goes on reading when the exporter is killed") {
    for (const PayloadMemory kind : {PayloadMemory::vmm, PayloadMemory::host}) {
        const std::string which = name_of(kind);
        CAPTURE(which);
        if (!can_import(kind)) continue;
        Peer peer("holder");
        Message make{.what = 'm', .value = 4 * mib};
        make.ticket.memory = kind;
        Received made = peer.ask(make);
        const device::BlockTicket ticket = made.message.ticket;
        const auto block = need(memory_of(kind)->import(ticket, std::move(made.fd)));
        CHECK(from_device(block->data(), ticket.bytes) == block_bytes(ticket.bytes, 1));
        peer.kill();
        const auto other = need(memory_of(kind)->make(64 * mib));  // would reuse freed memory
        to_device(other->data(), Bytes(64 * mib, std::byte{0xff}));
        CHECK(from_device(block->data(), ticket.bytes) == block_bytes(ticket.bytes, 1));
    }
}

TEST_CASE("blocks that come and go leave nothing behind") {
    for (const PayloadMemory kind : kinds) {
        const std::string which = name_of(kind);
        CAPTURE(which);
        const auto memory = memory_of(kind);
        // Within one process CUDA IPC cannot be opened: there only making is repeated.
        const bool import = kind != PayloadMemory::legacy_ipc && can_import(kind);
        const auto cycle = [&] {
            const auto block = need(memory->make(2 * mib));
            if (import) need(memory->import(block->ticket(), Fd(dup(block->fd()))));
        };
        for (int i = 0; i < 20; i++) cycle();
        const std::size_t descriptors = open_descriptors();
        CHECK(gives_back(free_device_bytes, [&] {
            for (int i = 0; i < 1000; i++) cycle();
        }));
        CHECK(open_descriptors() == descriptors);
    }
}

TEST_CASE("more memory than the GPU has is refused, and nothing is left of the attempt") {
    for (const PayloadMemory kind : {PayloadMemory::vmm, PayloadMemory::legacy_ipc}) {
        const std::string which = name_of(kind);
        CAPTURE(which);
        const auto memory = memory_of(kind);
        need(memory->make(mib));
        const std::size_t descriptors = open_descriptors();
        CHECK(gives_back(free_device_bytes, [&] {
            const auto made = memory->make(std::uint64_t{4} << 40);
            REQUIRE(!made);
            MESSAGE("refused as wanted: ", made.error().to_string());
            CHECK(made.error().code == Errc::out_of_device_memory);
        }));
        CHECK(open_descriptors() == descriptors);
    }
}

TEST_CASE("tickets that lie are refused, and their descriptors closed") {
    for (const PayloadMemory kind : kinds) {
        const std::string which = name_of(kind);
        CAPTURE(which);
        if (!can_import(kind)) continue;
        const auto memory = memory_of(kind);
        const auto block = need(memory->make(2 * mib));
        const std::size_t descriptors = open_descriptors();
        const auto refused = [&](const device::BlockTicket& ticket, int fd) {
            const auto imported = memory->import(ticket, Fd(fd < 0 ? -1 : dup(fd)));
            if (!imported) MESSAGE("refused as wanted: ", imported.error().to_string());
            return !imported;
        };
        const auto lies = [&] {
            device::BlockTicket ticket = block->ticket();
            ticket.bytes = 0;
            CHECK(refused(ticket, block->fd()));
            ticket.bytes = std::uint64_t{1} << 60;
            CHECK(refused(ticket, block->fd()));
            ticket = block->ticket();
            ticket.memory = kind == PayloadMemory::host ? PayloadMemory::vmm : PayloadMemory::host;
            CHECK(refused(ticket, block->fd()));
            ticket = block->ticket();
            if (kind == PayloadMemory::legacy_ipc) {
                ticket.handle.fill(std::byte{0x5a});
                CHECK(refused(ticket, -1));
            } else {
                CHECK(refused(ticket, -1));
                CHECK(refused(ticket, STDIN_FILENO));
                ticket.bytes = 64 * mib;  // more than the descriptor's memory has
                CHECK(refused(ticket, block->fd()));
            }
            if (kind == PayloadMemory::vmm) {
                ticket.bytes = 2 * mib + 1;
                CHECK(refused(ticket, block->fd()));
            }
        };
        CHECK(gives_back(free_device_bytes, lies));
        CHECK(open_descriptors() == descriptors);
        CHECK(from_device(block->data(), 2 * mib) == Bytes(2 * mib));
    }
}

TEST_CASE("blocks outlive the back end that made them") {
    auto own = need(cuda::make_backend(Device::cuda(0), PayloadMemory::vmm));
    const auto block = need(own.memory->make(mib));
    own = {};
    CHECK(from_device(block->data(), mib) == Bytes(mib));
}

TEST_SUITE_END();

}  // namespace
}  // namespace rollring::test
