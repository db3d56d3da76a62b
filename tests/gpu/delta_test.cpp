// Differences that the GPU finds and exchanges, against those of the host: the same views, and the
// whole memory around them.

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "../weights/view_model.hpp"
#include "device.hpp"
#include "gpu_difference.hpp"
#include "host_mover.hpp"
#include "reference.hpp"
#include "subscriber_tensors.hpp"

namespace rollring::test {
namespace {

using cuda::DeltaTuning;
using device::CopyJob;
using device::Difference;
using device::Fit;

constexpr std::uint64_t boundless = ~std::uint64_t{0};

// Differences by the GPU.
class ComparingMover : public device::HostMover {
  public:
    explicit ComparingMover(const DeltaTuning& tuning) : tuning_(tuning) {}
    Result<std::unique_ptr<Difference>> difference(
        std::vector<std::vector<CopyJob>> parts) override {
        return cuda::make_difference(test::gpu(), parts, tuning_);
    }

  private:
    DeltaTuning tuning_;
};

// The differences of the same tensors that the CPU finds.
Difference::Size found_by_host(const ViewCase& given, Bytes arena) {
    device::HostMover mover;
    const auto made = need(weights::compile_difference(given.manifest.packing,
                                                       given.placed(arena.data()), true, mover));
    made->clear(boundless, 0);
    for (std::uint32_t part = 0; part < given.slots.size(); part++) {
        REQUIRE(need(compare_part(*made, part, given.slots[part].data(), {}, gpu_patience())) ==
                Fit::fits);
    }
    return made->size();
}

void check_difference(const ViewCase& given, const Bytes& before, const DeltaTuning& tuning) {
    ComparingMover mover(tuning);
    const DeviceBytes arena(before);
    const auto made = need(weights::compile_difference(given.manifest.packing,
                                                       given.placed(arena.data()), true, mover));
    const Difference::Size wanted = found_by_host(given, before);
    std::vector<DeviceBytes> memory;
    std::vector<const std::byte*> slots;
    memory.reserve(given.slots.size());
    slots.reserve(given.slots.size());
    for (const Bytes& slot : given.slots) memory.emplace_back(slot);
    for (const DeviceBytes& slot : memory) slots.push_back(slot.data());
    for (const std::size_t at_once : {std::size_t{1}, std::size_t{3}, slots.size()}) {
        made->clear(boundless, at_once == 1 ? 0 : boundless);
        for (std::size_t part = 0; part < slots.size(); part += at_once) {
            const auto some =
                std::span(slots).subspan(part).first(std::min(at_once, slots.size() - part));
            REQUIRE(need(made->compare(part, some, {}, gpu_patience())) == Fit::fits);
        }
        CHECK(made->size().changed == wanted.changed);
        CHECK(made->size().elements == wanted.elements);
        CHECK((made->size().bytes == 0) == (wanted.changed == 0));
        CHECK(first_difference(arena.get(), before) == -1);
        need(made->swap(given.slots.size(), {}));
        CHECK(first_difference(arena.get(), given.wanted) == -1);
        need(made->swap(given.slots.size(), {}));
        CHECK(first_difference(arena.get(), before) == -1);
    }
}

// The arena with a share of the version's bytes in it already.
Bytes partly(const ViewCase& given, unsigned percent, Random& random) {
    Bytes arena = given.arena;
    for (std::size_t i = 0; i < arena.size(); i++) {
        if (random() % 100 < percent) arena[i] = given.wanted[i];
    }
    return arena;
}

// Tensors of one part that lie as they do in the slot, one of each size of elements.
struct Adjacent {
    Bytes slot;
    Bytes arena;
    std::vector<CopyJob> jobs;  // offsets in the arena at first
    std::uint64_t elements = 0;
    std::uint64_t changed = 0;

    // `skew`: bytes that it begins beside a multiple of 16.
    void add(std::uint32_t element_bytes, std::uint64_t count, std::uint64_t skew, double density,
             Random& random) {
        const std::uint64_t bytes = count * element_bytes;
        CopyJob job{.elements = count,
                    .slot_offset = (slot.size() + 511) / 512 * 512,
                    .element_bytes = element_bytes,
                    .view = true};
        const Bytes values = random_bytes(bytes, random);
        slot.resize(job.slot_offset);
        slot.insert(slot.end(), values.begin(), values.end());
        const std::uint64_t at = (arena.size() + 63) / 16 * 16 + skew;
        arena.resize(at, std::byte{0xa5});
        arena.insert(arena.end(), values.begin(), values.end());
        std::bernoulli_distribution changes(density);
        for (std::uint64_t i = 0; i < count; i++) {
            if (!changes(random)) continue;
            arena[at + i * element_bytes + random() % element_bytes] ^= std::byte{0x40};
            changed++;
        }
        job.tensor = std::bit_cast<std::byte*>(at);
        jobs.push_back(job);
        elements += count;
    }
    [[nodiscard]] std::vector<CopyJob> placed(std::byte* at) const {
        std::vector<CopyJob> made = jobs;
        for (CopyJob& job : made) job.tensor = at + std::bit_cast<std::uint64_t>(job.tensor);
        return made;
    }
    [[nodiscard]] Bytes wanted() const {
        Bytes made = arena;
        for (const CopyJob& job : jobs) {
            std::memcpy(made.data() + std::bit_cast<std::uint64_t>(job.tensor),
                        slot.data() + job.slot_offset, job.elements * job.element_bytes);
        }
        return made;
    }
};

// A stream that gets no further until it is let go, which the end of the test does, too.
class HeldStream {
  public:
    explicit HeldStream(CUstream stream) {
        const auto hold = [](void* flag) {
            while (!*static_cast<std::atomic<bool>*>(flag)) {
            }
        };
        need(api().cuLaunchHostFunc(stream, hold, &go_), "hold a stream");
    }
    HeldStream(const HeldStream&) = delete;
    HeldStream& operator=(const HeldStream&) = delete;
    ~HeldStream() {
        go_on();
        api().cuCtxSynchronize();
    }
    void go_on() { go_ = true; }

  private:
    std::atomic<bool> go_ = false;
};

TEST_SUITE_BEGIN("gpu");

TEST_CASE("random views, by difference, exchanged and exchanged back") {
    constexpr std::array<std::uint64_t, 5> slot_bytes = {512, 3584, 16384, 100'000, 0};
    for (unsigned seed = 1; seed <= 100; seed++) {
        CAPTURE(seed);
        Random random(seed);
        const ViewSizes sizes{.row_multiple = seed % 3 == 0 ? 8U : 1U,
                              .slot_bytes = slot_bytes[seed % 5]};
        const ViewCase given = random_views(sizes, random);
        check_difference(given, partly(given, seed % 101, random), {.chunk_bytes = 4096});
    }
}

TEST_CASE("views of long rows, by difference") {
    for (unsigned seed = 1; seed <= 40; seed++) {
        CAPTURE(seed);
        Random random(1000 + seed);
        const ViewSizes sizes{.elements_max = 60'000,
                              .extent_max = 6000,
                              .row_multiple = seed % 2 == 0 ? 64U : 1U,
                              .slot_bytes = seed % 4 == 0 ? 40'000U : 0U};
        const ViewCase given = random_views(sizes, random);
        check_difference(given, partly(given, 40 + seed, random),
                         {.waves = seed % 5,
                          .launch_bytes = seed % 4 == 1 ? 40'000 : std::uint64_t{512} << 20,
                          .share = seed % 3 == 0 ? 0.5 : 1,
                          .burst_tiles = 1 + seed % 7});
    }
}

TEST_CASE("every density, size of elements and alignment, around the ends of tiles") {
    Random random(77);
    constexpr std::array<double, 9> densities = {0, 0.0001, 0.01, 0.1, 0.24, 0.26, 0.5, 0.9, 1};
    for (const double density : densities) {
        CAPTURE(density);
        Adjacent given;
        for (const std::uint32_t each : {1U, 2U, 4U, 8U}) {
            const std::uint64_t tile = 32768 / each;
            for (const std::uint64_t count :
                 {std::uint64_t{1}, std::uint64_t{7}, tile - 1, tile, tile + 1, 5 * tile + 3}) {
                given.add(each, count, 0, density, random);
                given.add(each, count, random() % 16, density, random);
            }
        }
        const DeviceBytes slot(given.slot);
        const DeviceBytes arena(given.arena);
        // Memory in one piece, and in pieces that a tile does not fill.
        for (const std::uint64_t chunk : {mib, std::uint64_t{40'000}}) {
            const auto made = need(
                cuda::make_difference(gpu(), {given.placed(arena.data())}, {.chunk_bytes = chunk}));
            made->clear(boundless, 0);
            REQUIRE(need(compare_part(*made, 0, slot.data(), {}, gpu_patience())) == Fit::fits);
            CHECK(made->size().elements == given.elements);
            CHECK(made->size().changed == given.changed);
            CHECK(first_difference(arena.get(), given.arena) == -1);
            need(made->swap(1, {}));
            CHECK(first_difference(arena.get(), given.wanted()) == -1);
            need(made->swap(1, {}));
            CHECK(first_difference(arena.get(), given.arena) == -1);
        }
    }
}

TEST_CASE("a part without room leaves the list as it was, and its memory is given back") {
    Random random(78);
    Adjacent few;
    Adjacent many;
    few.add(2, 500'000, 0, 0.01, random);
    many.add(2, 500'000, 0, 0.6, random);
    const DeviceBytes few_slot(few.slot);
    const DeviceBytes many_slot(many.slot);
    const DeviceBytes few_arena(few.arena);
    const DeviceBytes many_arena(many.arena);
    const auto made = need(cuda::make_difference(
        gpu(), {few.placed(few_arena.data()), many.placed(many_arena.data()), {}},
        {.chunk_bytes = 10'000}));
    for (int round = 0; round < 3; round++) {
        made->clear(200'000, 0);
        CHECK(need(compare_part(*made, 0, few_slot.data(), {}, gpu_patience())) == Fit::fits);
        const std::uint64_t listed = made->size().bytes;
        CHECK((listed > 0 && listed <= 200'000));
        CHECK(need(compare_part(*made, 1, many_slot.data(), {}, gpu_patience())) == Fit::full);
        CHECK(made->size().bytes == listed);
        CHECK(made->size().changed >= few.changed);
        need(made->swap(2, {}));
        CHECK(first_difference(few_arena.get(), few.wanted()) == -1);
        CHECK(first_difference(many_arena.get(), many.arena) == -1);
        need(made->swap(2, {}));
        CHECK(first_difference(few_arena.get(), few.arena) == -1);
        // It has no elements.
        CHECK(need(compare_part(*made, 2, few_slot.data(), {}, gpu_patience())) == Fit::fits);
    }
}

TEST_CASE("memory of a list is allocated as it is needed, and given back") {
    Random random(80);
    Adjacent many;
    many.add(2, 32'000'000, 0, 0.6, random);
    const DeviceBytes slot(many.slot);
    const DeviceBytes arena(many.arena);
    const auto made = need(cuda::make_difference(gpu(), {many.placed(arena.data())}, {}));
    const std::size_t free_before = free_device_bytes();
    made->clear(boundless, 0);
    CHECK(free_device_bytes() + mib >= free_before);
    CHECK(need(compare_part(*made, 0, slot.data(), {}, gpu_patience())) == Fit::fits);
    CHECK(free_device_bytes() + 60 * mib <= free_before);
    // However large the list may become: little more than all values.
    made->clear(boundless, boundless);
    CHECK(need(compare_part(*made, 0, slot.data(), {}, gpu_patience())) == Fit::fits);
    CHECK(free_device_bytes() + 70 * mib >= free_before);
    made->clear(boundless, 0);
    CHECK(free_device_bytes() + 4 * mib >= free_before);
}

TEST_CASE(
    "a GPU that is full takes a version that changes little, and says why it takes no other") {
    Random random(81);
    Adjacent few;
    Adjacent many;
    few.add(2, 8'000'000, 0, 0.0001, random);
    many.add(2, 8'000'000, 0, 0.6, random);
    const DeviceBytes few_slot(few.slot);
    const DeviceBytes many_slot(many.slot);
    const DeviceBytes few_arena(few.arena);
    const DeviceBytes many_arena(many.arena);
    const auto made = need(cuda::make_difference(
        gpu(), {few.placed(few_arena.data()), many.placed(many_arena.data())}, {}));
    {
        // All but a few MiB of the GPU's memory.
        std::vector<cuda::DeviceBuffer> rest;
        for (std::uint64_t bytes = free_device_bytes(); bytes >= mib; bytes /= 2) {
            while (bytes + 6 * mib < free_device_bytes()) {
                auto taken = cuda::DeviceBuffer::make(gpu(), bytes);
                if (!taken) break;
                rest.push_back(std::move(*taken));
            }
        }
        CHECK(free_device_bytes() < 24 * mib);
        made->clear(boundless, 0);
        CHECK(need(compare_part(*made, 0, few_slot.data(), {}, gpu_patience())) == Fit::fits);
        CHECK(made->size().changed == few.changed);
        CHECK(need(compare_part(*made, 1, many_slot.data(), {}, gpu_patience())) == Fit::no_memory);
        need(made->swap(1, {}));
        CHECK(first_difference(few_arena.get(), few.wanted()) == -1);
        need(made->swap(1, {}));
    }
    CHECK(need(compare_part(*made, 1, many_slot.data(), {}, gpu_patience())) == Fit::fits);
    CHECK(first_difference(few_arena.get(), few.arena) == -1);
    CHECK(first_difference(many_arena.get(), many.arena) == -1);
}

TEST_CASE("an exchange that is late is waited for before the list is used again") {
    Random random(82);
    Adjacent given;
    given.add(2, 1'000'000, 0, 0.05, random);
    const DeviceBytes slot(given.slot);
    const DeviceBytes arena(given.arena);
    const auto made =
        need(cuda::make_difference(gpu(), {given.placed(arena.data())}, {.exchange_ms = 10}));
    made->clear(boundless, 0);
    CHECK(need(compare_part(*made, 0, slot.data(), {}, gpu_patience())) == Fit::fits);
    const cuda::Context::Scope scope(gpu()->context());
    HeldStream held(nullptr);
    const auto late = made->swap(1, {});
    CHECK((!late && late.error().code == Errc::device_error));
    CHECK(made->end_exchange(Deadline::after_ms(10)).error().code == Errc::timed_out);
    held.go_on();
    need(made->end_exchange(gpu_patience()));
    CHECK(first_difference(arena.get(), given.wanted()) == -1);
    need(made->end_exchange(Deadline::now()));
}

TEST_CASE("a comparison that is late goes on when it is asked for again") {
    Random random(79);
    Adjacent given;
    given.add(2, 100'000, 0, 0.05, random);
    const DeviceBytes slot(given.slot);
    const DeviceBytes arena(given.arena);
    const auto made = need(cuda::make_difference(gpu(), {given.placed(arena.data())}, {}));
    made->clear(boundless, 0);
    const cuda::Context::Scope scope(gpu()->context());
    CUstream stream = nullptr;
    need(api().cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), "create a stream");
    HeldStream held(stream);
    for (int i = 0; i < 2; i++) {
        const auto late = compare_part(*made, 0, slot.data(), {stream}, Deadline::after_ms(10));
        REQUIRE(!late);
        CHECK(late.error().code == Errc::timed_out);
    }
    held.go_on();
    REQUIRE(need(compare_part(*made, 0, slot.data(), {stream}, gpu_patience())) == Fit::fits);
    CHECK(made->size().changed == given.changed);
    need(made->swap(1, {}));
    CHECK(first_difference(arena.get(), given.wanted()) == -1);
    need(api().cuStreamDestroy(stream), "destroy a stream");
}

TEST_CASE("copies that cannot be compared are refused") {
    const DeviceBytes tensor(64);
    const auto refused = [&](const CopyJob& job) {
        const auto made = cuda::make_difference(gpu(), {{job}});
        return !made && made.error().code == Errc::invalid_argument;
    };
    CHECK(refused({.tensor = tensor.data(), .elements = 4, .element_bytes = 4}));
    CHECK(refused({.tensor = tensor.data(), .elements = 4, .element_bytes = 3, .view = true}));
    CHECK(refused({.tensor = tensor.data(),
                   .elements = 4,
                   .slot_offset = 2,
                   .element_bytes = 4,
                   .view = true}));
    CHECK(!refused({.tensor = tensor.data(), .elements = 4, .element_bytes = 4, .view = true}));
}

TEST_SUITE_END();

}  // namespace
}  // namespace rollring::test
