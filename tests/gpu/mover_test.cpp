// The mover's answers about addresses, and its streams.

#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "backends.hpp"
#include "device.hpp"
#include "reference.hpp"

namespace rollring::test {
namespace {

device::Backend backend() {
    return need(cuda::make_backend(Device::cuda(0), PayloadMemory::vmm));
}

// Pinned host memory.
class Pinned {
  public:
    explicit Pinned(std::size_t bytes) {
        const cuda::Context::Scope scope(gpu()->context());
        need(api().cuMemAllocHost(&data_, bytes), "allocate pinned memory");
    }
    Pinned(const Pinned&) = delete;
    Pinned& operator=(const Pinned&) = delete;
    ~Pinned() {
        const cuda::Context::Scope scope(gpu()->context());
        api().cuMemFreeHost(data_);
    }
    [[nodiscard]] std::byte* data() const { return static_cast<std::byte*>(data_); }

  private:
    void* data_ = nullptr;
};

bool refused(const Result<void>& checked) {
    if (!checked) MESSAGE("refused as wanted: ", checked.error().to_string());
    return !checked && checked.error().code == Errc::invalid_argument;
}

TEST_SUITE_BEGIN("gpu");

TEST_CASE("addresses that copies can reach, and others") {
    const device::Backend own = backend();
    device::Mover& mover = *own.mover;
    CHECK(mover.gpu() == visible_gpus().at(0));

    const DeviceBytes device(5 * mib);
    CHECK(mover.check_address(device.data(), device.size()));
    CHECK(mover.check_address(device.data() + 17, device.size() - 17));
    CHECK(mover.check_address(nullptr, 0));
    CHECK(refused(mover.check_address(device.data() + 17, device.size())));
    CHECK(refused(mover.check_address(device.data(), ~std::uint64_t{0})));
    CHECK(refused(mover.check_address(nullptr, 1)));

    const Pinned pinned(mib);
    CHECK(mover.check_address(pinned.data(), mib));
    CHECK(refused(mover.check_address(pinned.data() + 1, 64 * mib)));

    const auto pageable = std::make_unique<std::byte[]>(mib);
    CHECK(refused(mover.check_address(pageable.get(), mib)));

    const auto block = need(own.memory->make(3 * mib));  // rounded up to 4 MiB
    CHECK(mover.check_address(block->data(), block->ticket().bytes));
    CHECK(refused(mover.check_address(block->data(), std::uint64_t{1} << 46)));
}

TEST_CASE("memory that was there and is not any more is found by its place") {
    const device::Backend own = backend();
    device::Mover& mover = *own.mover;
    const DeviceBytes device(5 * mib);
    const Pinned pinned(mib);
    auto block = need(own.memory->make(3 * mib));
    const std::byte* const mapped = block->data();
    using Places = std::vector<device::MemoryPlace>;
    const auto absent = [&](Places places) {
        std::ranges::sort(places, std::less(), &device::MemoryPlace::address);
        const auto found = mover.find_absent(places);
        return found ? std::optional(places[*found].tensor) : std::nullopt;
    };
    const Places there{{device.data() + 17, device.size() - 17, 0},
                       {pinned.data() + 1, mib - 1, 1},
                       {mapped, 3 * mib, 2}};
    CHECK(!absent(there));
    block.reset();
    CHECK(absent(there) == 2U);
    // Its end is looked at, too.
    CHECK(absent({{device.data(), std::uint64_t{1} << 46, 7}}) == 7U);
}

TEST_CASE("a host function is called when its stream has got there") {
    const device::Backend own = backend();
    const DeviceBytes device(64 * mib);
    std::atomic<int> calls = 0;
    const auto reached = [](void* context) { (*static_cast<std::atomic<int>*>(context))++; };
    for (int i = 0; i < 10; i++) {
        const cuda::Context::Scope scope(gpu()->context());
        CUstream stream = nullptr;
        need(api().cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), "create a stream");
        const Stream given{stream};
        need(api().cuMemsetD8Async(device.address(), 1, device.size(), stream), "set memory");
        need(own.mover->when_reached(given, reached, &calls));
        need(own.mover->wait(given, Deadline::after_ms(30'000)));
        CHECK(calls == 2 * i + 1);
        need(own.mover->when_reached({}, reached, &calls));
        need(own.mover->wait({}, Deadline::after_ms(30'000)));
        CHECK(calls == 2 * i + 2);
        need(api().cuStreamDestroy(stream), "destroy a stream");
    }
}

TEST_CASE("a stream that has nothing to do has got there at once, and one that has work has not") {
    const device::Backend own = backend();
    std::atomic<int> calls = 0;
    const auto reached = [](void* context) { (*static_cast<std::atomic<int>*>(context))++; };
    const cuda::Context::Scope scope(gpu()->context());
    need(api().cuCtxSynchronize(), "synchronize");
    need(own.mover->when_reached({}, reached, &calls));
    CHECK(calls == 1);
    // Held up by a host function, until the test lets it go.
    std::atomic<bool> go = false;
    const auto hold = [](void* context) {
        while (!*static_cast<std::atomic<bool>*>(context)) {
        }
    };
    CUstream stream = nullptr;
    need(api().cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), "create a stream");
    for (const Stream given : {Stream{stream}, Stream{}}) {
        go = false;
        CUstream held = given.handle == nullptr ? CU_STREAM_LEGACY : stream;
        need(api().cuLaunchHostFunc(held, hold, &go), "hold a stream");
        const int before = calls;
        need(own.mover->when_reached(given, reached, &calls));
        CHECK(calls == before);
        go = true;
        need(own.mover->wait(given, Deadline::after_ms(30'000)));
        CHECK(calls == before + 1);
    }
    need(api().cuStreamDestroy(stream), "destroy a stream");
}

TEST_CASE("a plan of the mover packs on the caller's stream, after what is queued there") {
    const device::Backend own = backend();
    Random random(31);
    const Bytes bytes = random_bytes(mib, random);
    const DeviceBytes source(bytes);
    const DeviceBytes tensor(Bytes(mib, std::byte{0}));
    const auto block = need(own.memory->make(mib));
    const auto plan =
        need(own.mover->plan({{.tensor = tensor.data(), .elements = mib / 2, .element_bytes = 2}}));
    const cuda::Context::Scope scope(gpu()->context());
    CUstream stream = nullptr;
    need(api().cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), "create a stream");
    need(api().cuMemcpyDtoDAsync(tensor.address(), source.address(), mib, stream), "copy");
    need(plan->pack(block->data(), std::nullopt, {stream}));
    need(own.mover->wait({stream}, Deadline::after_ms(30'000)));
    CHECK(first_difference(from_device(block->data(), mib), bytes) == -1);
    need(api().cuStreamDestroy(stream), "destroy a stream");
}

TEST_SUITE_END();

}  // namespace
}  // namespace rollring::test
