// Memory domains on a real GPU.

#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include <array>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <random>
#include <vector>

#include "gives_back.hpp"
#include "raw_gpu.hpp"
#include "rollring/extras/memory_domain.hpp"

namespace rollring::test {
namespace {

constexpr std::uint64_t mib = std::uint64_t{1} << 20;
constexpr std::uint64_t slack = 16 * mib;  // of free memory: the driver's own needs, page tables
constexpr std::array<std::string_view, 1> weights = {"weights"};
constexpr std::array<std::string_view, 1> cache = {"kv_cache"};
constexpr std::array<std::string_view, 2> both = {"weights", "kv_cache"};

// Alive until after main: the driver may be gone before it.
std::optional<MemoryDomain> outlives_main;

MemoryDomain open_domain(std::uint64_t chunk_bytes) {
    return RawGpu::must(MemoryDomain::open(Device::cuda(0), {.chunk_bytes = chunk_bytes}));
}

std::vector<std::uint64_t> random_words(std::uint64_t bytes, std::uint64_t seed) {
    std::mt19937_64 random(seed);
    std::vector<std::uint64_t> words((bytes + 7) / 8);
    for (std::uint64_t& word : words) word = random();
    return words;
}

bool holds(const RawGpu& gpu, const void* address, std::uint64_t bytes,
           const std::vector<std::uint64_t>& words) {
    std::vector<std::uint64_t> found(words.size());
    gpu.to_host(found.data(), address, bytes);
    return std::memcmp(found.data(), words.data(), bytes) == 0;
}

// Takes as much memory as is free, writes to it and gives it back, so that nothing returns by luck.
void scribble(const RawGpu& gpu) {
    const std::uint64_t bytes = gpu.free_bytes() - 1024 * mib;
    const CUdeviceptr taken = gpu.allocate(bytes);
    gpu.set(taken, 0xee, bytes);
    gpu.synchronize();
    gpu.must(gpu.api().cuMemFree(taken), "cuMemFree");
}

template <class Work>
bool gives_all_back(const RawGpu& gpu, const Work& work) {
    return gives_back([&] { return gpu.free_bytes(); }, work);
}

TEST_CASE("contents come back to the same addresses, and the memory is free in between") {
    const RawGpu gpu;
    MemoryDomain domain = open_domain(32 * mib);
    const std::uint64_t at_first = gpu.free_bytes();
    const std::uint64_t bytes = 200 * mib + 12345;
    void* const one = RawGpu::must(domain.allocate("weights", bytes));
    void* const two = RawGpu::must(domain.allocate("weights", 5));
    CHECK(reinterpret_cast<std::uintptr_t>(one) % (2 * mib) == 0);
    CHECK(gpu.free_bytes() <= at_first - 204 * mib + slack);
    const auto words = random_words(bytes, 1);
    gpu.to_device(one, words.data(), bytes);
    gpu.to_device(two, words.data(), 5);
    for (int i = 0; i < 3; i++) {
        const std::uint64_t resident = gpu.free_bytes();
        const auto released = domain.release(weights, Contents::keep);
        REQUIRE(released);
        CHECK(released->device_bytes == 204 * mib);
        CHECK(gpu.free_bytes() + slack >= resident + 204 * mib);
        scribble(gpu);
        const auto resumed = domain.resume(weights);
        REQUIRE(resumed);
        CHECK(resumed->copied_bytes == bytes + 5);
        CHECK(holds(gpu, one, bytes, words));
        CHECK(holds(gpu, two, 5, words));
    }
    REQUIRE(domain.free(one));
    REQUIRE(domain.free(two));
    CHECK(gpu.free_bytes() + slack >= at_first);
    CHECK(domain.tags().empty());
}

TEST_CASE("tags come and go by themselves; dropped memory can be written again") {
    const RawGpu gpu;
    MemoryDomain domain = open_domain(32 * mib);
    const std::uint64_t bytes = 100 * mib;
    void* const kept = RawGpu::must(domain.allocate("weights", bytes));
    void* const dropped = RawGpu::must(domain.allocate("kv_cache", bytes));
    const auto words = random_words(bytes, 2);
    const auto others = random_words(bytes, 3);
    gpu.to_device(kept, words.data(), bytes);
    const auto released = domain.release(cache, Contents::drop);
    REQUIRE(released);
    CHECK(released->copied_bytes == 0);
    CHECK(holds(gpu, kept, bytes, words));  // with the other one away
    REQUIRE(domain.release(weights, Contents::keep));
    CHECK(domain.release(both, Contents::keep).error().code == Errc::already_released);
    REQUIRE(domain.resume(cache));
    gpu.to_device(dropped, others.data(), bytes);
    CHECK(domain.resume(both).error().code == Errc::not_released);
    REQUIRE(domain.resume(weights));
    CHECK(holds(gpu, kept, bytes, words));
    CHECK(holds(gpu, dropped, bytes, others));
    REQUIRE(domain.release(both, Contents::keep));
    scribble(gpu);
    REQUIRE(domain.resume(both));
    CHECK(holds(gpu, kept, bytes, words));
    CHECK(holds(gpu, dropped, bytes, others));
    CHECK(domain.trim_host() == 2 * bytes);
}

TEST_CASE("a full GPU fails the resume, which works once there is room") {
    const RawGpu gpu;
    MemoryDomain domain = open_domain(512 * mib);
    const std::uint64_t bytes = 3072 * mib;
    void* const address = RawGpu::must(domain.allocate("weights", bytes));
    const auto words = random_words(bytes, 4);
    gpu.to_device(address, words.data(), bytes);
    REQUIRE(domain.release(weights, Contents::keep));
    const CUdeviceptr hog = gpu.allocate(gpu.free_bytes() - 1536 * mib);
    CHECK(gives_all_back(gpu, [&] {
        for (int i = 0; i < 2; i++) {
            const auto refused = domain.resume(weights);
            REQUIRE(!refused);
            CHECK(refused.error().code == Errc::out_of_device_memory);
            CHECK(refused.error().message.contains("needed"));
        }
    }));
    const auto too_much = domain.allocate("kv_cache", bytes);
    REQUIRE(!too_much);
    CHECK(too_much.error().code == Errc::out_of_device_memory);
    gpu.must(gpu.api().cuMemFree(hog), "cuMemFree");
    REQUIRE(domain.resume(weights));
    CHECK(holds(gpu, address, bytes, words));
}

// Queues some 100 ms of work on the region, which ends with all its bytes at 7.
void keep_busy(const RawGpu& gpu, void* address, std::uint64_t bytes, CUstream stream) {
    for (int i = 400; i >= 0; i--) gpu.set(address, 7 + i % 2, bytes, stream);
}

TEST_CASE("release waits for work in flight: of the streams given, or of the device") {
    const RawGpu gpu;
    MemoryDomain domain = open_domain(512 * mib);
    const std::uint64_t bytes = 1024 * mib;
    void* const address = RawGpu::must(domain.allocate("weights", bytes));
    CUstream stream = gpu.stream();
    CUevent end = nullptr;
    gpu.must(gpu.api().cuEventCreate(&end, CU_EVENT_DISABLE_TIMING), "cuEventCreate");
    const std::vector<std::uint64_t> words(bytes / 8, 0x0707070707070707);
    const Stream ours{stream};
    // The second time there are slabs already, whose allocation could have waited by itself.
    for (const bool named : {true, true, false, false}) {
        CAPTURE(named);
        keep_busy(gpu, address, bytes, stream);
        gpu.must(gpu.api().cuEventRecord(end, stream), "cuEventRecord");
        CHECK(gpu.api().cuEventQuery(end) == CUDA_ERROR_NOT_READY);  // else this tests nothing
        const auto streams = named ? std::span<const Stream>(&ours, 1) : std::span<const Stream>();
        REQUIRE(domain.release(weights, Contents::keep, streams));
        CHECK(gpu.api().cuEventQuery(end) == CUDA_SUCCESS);
        REQUIRE(domain.resume(weights));
        CHECK(holds(gpu, address, bytes, words));
        gpu.set(address, 0, bytes);
        gpu.synchronize();
    }
    gpu.must(gpu.api().cuEventDestroy(end), "cuEventDestroy");
    gpu.must(gpu.api().cuStreamDestroy(stream), "cuStreamDestroy");
}

std::uint64_t resident_pages() {
    std::ifstream statm("/proc/self/statm");
    std::uint64_t size = 0;
    std::uint64_t pages = 0;
    statm >> size >> pages;
    return pages;
}

std::ptrdiff_t descriptors() {
    return std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {});
}

TEST_CASE("memory of another allocator comes back to its addresses, with a chunk of its owner's") {
    const RawGpu gpu;
    const auto& api = gpu.api();
    constexpr std::uint64_t bytes = 96 * mib;  // more than a chunk of the domain
    MemoryDomain domain = open_domain(32 * mib);
    const std::uint64_t at_first = gpu.free_bytes();
    CUmemAllocationProp kind{};
    kind.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    kind.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    kind.location.id = 0;
    CUmemAccessDesc access{kind.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUdeviceptr address = 0;
    CUmemGenericAllocationHandle handle = 0;
    gpu.must(api.cuMemAddressReserve(&address, bytes, 0, 0, 0), "cuMemAddressReserve");
    gpu.must(api.cuMemCreate(&handle, bytes, &kind, 0), "cuMemCreate");
    gpu.must(api.cuMemMap(address, bytes, 0, handle, 0), "cuMemMap");
    gpu.must(api.cuMemSetAccess(address, bytes, &access, 1), "cuMemSetAccess");
    auto* const memory = reinterpret_cast<void*>(address);
    const auto words = random_words(bytes, 3);
    gpu.to_device(memory, words.data(), bytes);

    std::uint64_t word = handle;
    RawGpu::must(domain.adopt("weights", memory, bytes, &word));
    for (int i = 0; i < 3; i++) {
        const std::uint64_t resident = gpu.free_bytes();
        REQUIRE(domain.release(weights, Contents::keep));
        CHECK(word == 0);
        CHECK(gpu.free_bytes() >= resident + bytes - slack);
        scribble(gpu);
        REQUIRE(domain.resume(weights));
        CHECK(word != 0);
        CHECK(holds(gpu, memory, bytes, words));
    }
    RawGpu::must(domain.free(memory));
    CHECK(holds(gpu, memory, bytes, words));
    // By the owner, as vLLM does it.
    gpu.must(api.cuMemUnmap(address, bytes), "cuMemUnmap");
    gpu.must(api.cuMemRelease(word), "cuMemRelease");
    gpu.must(api.cuMemAddressFree(address, bytes), "cuMemAddressFree");
    CHECK(gpu.free_bytes() + slack >= at_first);
}

TEST_CASE("200 cycles take nothing with them") {
    const RawGpu gpu;
    MemoryDomain domain = open_domain(16 * mib);
    const std::uint64_t bytes = 128 * mib;
    void* const one = RawGpu::must(domain.allocate("weights", bytes));
    void* const two = RawGpu::must(domain.allocate("kv_cache", bytes));
    const auto words = random_words(bytes, 5);
    gpu.to_device(one, words.data(), bytes);
    const auto cycles = [&](int count) {
        for (int i = 0; i < count; i++) {
            REQUIRE(domain.release(weights, Contents::keep));
            REQUIRE(domain.release(cache, i % 3 == 0 ? Contents::keep : Contents::drop));
            REQUIRE(domain.resume(i % 2 == 0 ? weights : cache));
            REQUIRE(domain.resume(i % 2 == 0 ? cache : weights));
        }
    };
    cycles(10);
    CHECK(holds(gpu, one, bytes, words));
    const std::uint64_t pages = resident_pages();
    const std::ptrdiff_t files = descriptors();
    CHECK(gives_all_back(gpu, [&] { cycles(200); }));
    CHECK(resident_pages() < pages + 1024);  // 4 MiB
    CHECK(descriptors() == files);
    CHECK(holds(gpu, one, bytes, words));
    gpu.set(two, 1, bytes);
    gpu.synchronize();
}

TEST_CASE("a domain gives everything back, with tags in whatever state") {
    const RawGpu gpu;
    static_cast<void>(open_domain(32 * mib));
    // The driver may take some for itself in the first round.
    CHECK(gives_all_back(gpu, [&] {
        for (const auto contents : {Contents::keep, Contents::drop}) {
            MemoryDomain domain = open_domain(32 * mib);
            REQUIRE(domain.allocate("weights", 300 * mib));
            REQUIRE(domain.allocate("kv_cache", 300 * mib));
            REQUIRE(domain.release(weights, contents));
            MemoryDomain moved = std::move(domain);
            CHECK(moved.tags().size() == 2);
        }
    }));
}

TEST_CASE("a domain may live until the process ends") {
    const RawGpu gpu;
    outlives_main.emplace(open_domain(32 * mib));
    REQUIRE(outlives_main->allocate("weights", 64 * mib));
    REQUIRE(outlives_main->allocate("kv_cache", 64 * mib));
    REQUIRE(outlives_main->release(weights, Contents::keep));
}

}  // namespace
}  // namespace rollring::test

int main(int argc, char** argv) {
    if (const std::string why = rollring::why_no_gpu(); !why.empty()) {
        fmt::print("skipped: {}\n", why);
        return 77;
    }
    return doctest::Context(argc, argv).run();
}
