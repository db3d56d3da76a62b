// A publisher that lies about the allocations of its tensors: no engine reads outside of them, and
// none stays open.

#include <algorithm>
#include <cstring>
#include <random>

#include "direct_pair.hpp"
#include "manifest.hpp"
#include "sealed.hpp"
#include "xxh3.hpp"

namespace rollring::test {
namespace {

using namespace device;

Fd table_of(std::span<const AllocationLine> lines, bool sealed = true) {
    const std::span<const std::byte> bytes = std::as_bytes(lines);
    auto memory = Sealed::make("table", std::max<std::size_t>(1, bytes.size()));
    REQUIRE(memory);
    if (!bytes.empty()) {
        auto mapping = memory->map(0, bytes.size(), true);
        REQUIRE(mapping);
        std::memcpy(mapping->data(), bytes.data(), bytes.size());
    }
    if (sealed) REQUIRE(memory->seal_contents());
    return Fd(dup(memory->fd()));
}

// Two allocations behind each other, as a publisher describes them.
struct Truth {
    Truth() {
        const auto memory = make_direct_memory(fake_allocations(), nullptr);
        const std::vector<MemoryPlace> places{{one.data() + 100, 200, 0}, {two.data(), 700, 1}};
        auto exposed =
            memory->expose(places, [](std::uint32_t) -> std::string_view { return "tensor"; });
        REQUIRE_OK(exposed);
        ticket = (*exposed)->ticket();
        offsets.assign((*exposed)->offsets().begin(), (*exposed)->offsets().end());
        const auto sealed = Sealed::accept(Fd(dup((*exposed)->fd())), 160, true);
        REQUIRE(sealed);
        const auto mapping = sealed->map(0, 160, false);
        REQUIRE(mapping);
        lines.resize(2);
        std::memcpy(lines.data(), mapping->data(), 160);
    }
    // The import of these lines.
    [[nodiscard]] Result<std::unique_ptr<SharedBlock>> read(bool sealed = true) const {
        return make_direct_memory(fake_allocations(), nullptr)
            ->import(ticket, table_of(lines, sealed));
    }
    void count(std::uint64_t number) { std::memcpy(ticket.handle.data(), &number, sizeof number); }

    FakeAllocation one{1000};
    FakeAllocation two{700};
    BlockTicket ticket;
    std::vector<AllocationLine> lines;
    std::vector<std::uint64_t> offsets;
};

void refuses(const Truth& lie, bool sealed = true) {
    const auto read = lie.read(sealed);
    REQUIRE(!read);
    CHECK(read.error().code == Errc::bad_manifest);
    CHECK(open_allocations() == 0);
}

}  // namespace

TEST_CASE("a table of allocations says where each byte is, and where none is") {
    Truth truth;
    std::ranges::fill_n(truth.one.data(), 1000, std::byte{1});
    std::ranges::fill_n(truth.two.data(), 700, std::byte{2});
    auto block = truth.read();
    REQUIRE_OK(block);
    CHECK(open_allocations() == 2);
    const bool one_first = truth.one.data() < truth.two.data();
    const std::uint64_t first_bytes = one_first ? 1000 : 700;
    REQUIRE(truth.lines[1].offset == 1024);
    CHECK(truth.ticket.bytes == 2048);
    for (std::uint64_t at = 0; at < truth.ticket.bytes; at++) {
        const bool inside = at < first_bytes || (at >= 1024 && at < 1024 + (1700 - first_bytes));
        const auto distance = (*block)->distance(at, 1);
        REQUIRE(distance.has_value() == inside);
        if (!inside) continue;
        const bool in_one = (at < 1024) == one_first;
        CHECK((*block)->data()[*distance] == std::byte{in_one ? std::uint8_t{1} : std::uint8_t{2}});
    }
    CHECK((*block)->distance(0, first_bytes).has_value());
    CHECK(!(*block)->distance(0, first_bytes + 1));
    CHECK(!(*block)->distance(1, ~std::uint64_t{0}));
    CHECK(!(*block)->distance(~std::uint64_t{0}, 1));
    CHECK(!(*block)->distance(~std::uint64_t{0}, 2));
    block->reset();
    CHECK(open_allocations() == 0);
}

TEST_CASE("a table that lies is refused, whatever field it is") {
    using Lie = std::function<void(Truth&)>;
    const std::vector<Lie> lies{
        [](Truth& lie) { lie.count(0); },
        [](Truth& lie) { lie.count(1); },
        [](Truth& lie) { lie.count(3); },
        [](Truth& lie) { lie.count(allocations_most + 1); },
        [](Truth& lie) { lie.count(~std::uint64_t{0}); },
        [](Truth& lie) { lie.ticket.memory = PayloadMemory::vmm; },
        [](Truth& lie) { lie.ticket.bytes = 0; },
        [](Truth& lie) { lie.ticket.bytes -= 512; },
        [](Truth& lie) { lie.ticket.bytes += 512; },
        [](Truth& lie) { lie.ticket.bytes++; },
        [](Truth& lie) { lie.ticket.bytes = ~std::uint64_t{0}; },
        [](Truth& lie) { lie.lines[0].bytes = 0; },
        [](Truth& lie) { lie.lines[0].bytes = ~std::uint64_t{0}; },
        [](Truth& lie) { lie.lines[1].bytes = ~std::uint64_t{0} - 1024; },
        [](Truth& lie) { lie.lines[1].bytes = std::uint64_t{2} << 30; },
        [](Truth& lie) { lie.lines[0].offset = 512; },
        [](Truth& lie) { lie.lines[1].offset = 0; },
        [](Truth& lie) { lie.lines[1].offset = lie.lines[0].bytes; },
        [](Truth& lie) { lie.lines[1].offset = 1536; },
        [](Truth& lie) { std::swap(lie.lines[0], lie.lines[1]); },
        // More than the allocation of this handle has.
        [](Truth& lie) {
            lie.lines[1].bytes += 100'000;
            lie.ticket.bytes += 100'352;
        },
    };
    for (std::size_t i = 0; i < lies.size(); i++) {
        CAPTURE(i);
        Truth lie;
        lies[i](lie);
        refuses(lie);
    }
    Truth unsealed;
    refuses(unsealed, false);
    Truth gone;
    gone.lines[1].handle.fill(std::byte{0x5a});
    const auto read = gone.read();
    REQUIRE(!read);
    CHECK(read.error().code == Errc::device_error);
    CHECK(open_allocations() == 0);
    const auto none = make_direct_memory(fake_allocations(), nullptr)->import(gone.ticket, Fd());
    REQUIRE(!none);
    CHECK(none.error().code == Errc::bad_manifest);
}

TEST_CASE("random damage to a table leaves every distance within what was opened") {
    std::mt19937_64 dice(5);
    const Truth truth;
    int taken = 0;
    for (int round = 0; round < 20'000; round++) {
        Truth const& from = truth;
        std::vector<AllocationLine> lines = from.lines;
        BlockTicket ticket = from.ticket;
        for (std::uint64_t flips = dice() % 3; flips > 0; flips--) {
            // Handles are the device's to check.
            const std::uint64_t place = 64 + dice() % 16;
            reinterpret_cast<std::byte*>(&lines[dice() % 2])[place] ^=
                static_cast<std::byte>(1 << dice() % 8);
        }
        if (dice() % 4 == 0) ticket.bytes ^= std::uint64_t{1} << dice() % 64;
        auto block =
            make_direct_memory(fake_allocations(), nullptr)->import(ticket, table_of(lines));
        if (!block) {
            CHECK(block.error().code == Errc::bad_manifest);
            continue;
        }
        taken++;
        for (int looks = 0; looks < 20; looks++) {
            const std::uint64_t at = dice() % 3000;
            const std::uint64_t bytes = dice() % 1100;
            const auto distance = (*block)->distance(at, bytes);
            const bool first = at + bytes <= lines[0].bytes;
            const bool second = at >= 1024 && at - 1024 + bytes <= lines[1].bytes;
            REQUIRE(distance.has_value() == (first || second));
        }
    }
    CHECK(taken > 1000);
    CHECK(open_allocations() == 0);
}

namespace {

using namespace weights;

void seal_again(std::vector<std::byte>& bytes) {
    ManifestHeader header;
    std::memcpy(&header, bytes.data(), sizeof header);
    header.hash[0] = header.hash[1] = 0;
    std::memcpy(bytes.data(), &header, sizeof header);
    const XXH128_hash_t hash = XXH3_128bits(bytes.data(), bytes.size());
    header.hash[0] = hash.low64;
    header.hash[1] = hash.high64;
    std::memcpy(bytes.data(), &header, sizeof header);
}

}  // namespace

TEST_CASE("a manifest of tensors that are read where they lie says so, and every byte counts") {
    PlacedTensors tensors = placed_model();
    auto packed = pack_tensors(tensors.list, 0);
    REQUIRE_OK(packed);
    const std::vector<std::uint64_t> offsets{8, 14'336, 13'312, 0, 15'000, 13'320};
    Manifest manifest{.packing = in_one_part(*packed, offsets, 16'384),
                      .slots = 1,
                      .memory = PayloadMemory::direct};
    const auto bytes = write_manifest(manifest);
    const auto whole = read_manifest(bytes);
    REQUIRE_OK(whole);
    CHECK(whole->memory == PayloadMemory::direct);
    CHECK(whole->packing.payload_bytes == packed->payload_bytes);
    std::uint64_t refused = 0;
    std::uint64_t taken = 0;
    for (std::size_t at = 0; at < bytes.size(); at++) {
        for (int bit = 1; bit < 256; bit++) {
            auto damaged = bytes;
            damaged[at] ^= static_cast<std::byte>(bit);
            seal_again(damaged);
            const auto read = read_manifest(damaged);
            if (!read) {
                refused++;
                continue;
            }
            taken++;
            if (read->memory != PayloadMemory::direct) continue;
            REQUIRE((read->packing.parts.size() == 1 && read->slots == 1 && !read->checksums));
            for (const Piece& piece : read->packing.pieces) {
                const std::uint64_t each = read->packing.tensors[piece.tensor].dtype.bytes();
                REQUIRE(piece.slot_offset % each == 0);
                REQUIRE(piece.slot_offset <= read->packing.sums_offset);
                REQUIRE(piece.elements * each <= read->packing.sums_offset - piece.slot_offset);
            }
        }
    }
    MESSAGE("refused ", refused, " taken ", taken);
    CHECK((refused > taken && taken > 100));
}

}  // namespace rollring::test
