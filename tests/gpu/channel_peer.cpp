// One end of a weight channel on a GPU, as a process: a trainer that sends versions of a small
// model, or an engine that takes them and checks every byte. channel.py runs several together.

#include <fmt/core.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "device.hpp"
#include "driver.hpp"
#include "rollring/weights.hpp"

namespace rollring::test {
namespace {

struct Options {
    std::string role;
    std::string ring;
    std::string name = "engine";
    int gpu = 0;
    std::int32_t rank = -1;
    std::uint32_t ranks = 1;
    std::uint32_t subscribers = 1;
    std::int64_t versions = 5;
    std::string memory = "vmm";
    std::uint64_t slot_bytes = 1 << 20;
    bool delta = false;
    bool beside = false;
};

Deadline patience() {
    return Deadline::after_ms(60'000);
}

// Tensors in the memory of one GPU, their bytes following from version and place.
class GpuTensors {
  public:
    // With `together` bytes: tensors lie together in allocations of as many, as torch has them.
    explicit GpuTensors(int ordinal, std::uint64_t together = 0)
        : context_(need(cuda::Context::open(Device::cuda(ordinal)))), together_(together) {
        add("embed", dtype_f32, {3001, 300});
        for (int i = 0; i < 40; i++) add(fmt::format("layer.{}.w", i), dtype_bf16, {129, 77});
        add("empty", dtype_f32, {0, 3});
        add("odd", dtype_f8_e4m3, {4099});
    }
    void fill(std::int64_t version) const {
        const cuda::Context::Scope scope(context_);
        for (std::size_t i = 0; i < list.size(); i++) {
            const auto bytes = wanted(version, i);
            if (bytes.empty()) continue;
            need(context_.api().cuMemcpyHtoDAsync(address(i), bytes.data(), bytes.size(), nullptr),
                 "upload");
        }
        need(context_.api().cuCtxSynchronize(), "synchronize");
    }
    void check(std::int64_t version) const {
        const cuda::Context::Scope scope(context_);
        for (std::size_t i = 0; i < list.size(); i++) {
            const auto bytes = wanted(version, i);
            std::vector<std::byte> got(bytes.size());
            if (bytes.empty()) continue;
            need(context_.api().cuMemcpyDtoHAsync(got.data(), address(i), got.size(), nullptr),
                 "download");
            need(context_.api().cuCtxSynchronize(), "synchronize");
            if (got != bytes) {
                throw Failure(fmt::format("{} is not as version {}", list[i].name, version));
            }
        }
    }
    std::vector<WeightTensor> list;

  private:
    void add(const std::string& name, DType dtype, std::vector<std::int64_t> shape) {
        std::size_t bytes = dtype.bytes();
        for (const std::int64_t extent : shape) bytes *= static_cast<std::size_t>(extent);
        const CUdeviceptr at = bytes == 0 ? 0 : place(bytes);
        list.push_back({.name = name,
                        .dtype = dtype,
                        .shape = std::move(shape),
                        .data = reinterpret_cast<void*>(at)});  // NOLINT: device addresses
        bytes_.push_back(bytes);
    }
    CUdeviceptr place(std::uint64_t bytes) {
        constexpr std::uint64_t apart = 512;
        if (left_ < bytes) {
            const cuda::Context::Scope scope(context_);
            left_ = std::max(bytes, together_);
            need(context_.api().cuMemAlloc(&free_, left_), "allocate");
        }
        const CUdeviceptr at = free_;
        const std::uint64_t used =
            together_ == 0 ? left_ : std::min(left_, (bytes + apart - 1) / apart * apart);
        free_ += used;
        left_ -= used;
        return at;
    }
    [[nodiscard]] CUdeviceptr address(std::size_t i) const {
        return reinterpret_cast<CUdeviceptr>(list[i].data);
    }
    [[nodiscard]] std::vector<std::byte> wanted(std::int64_t version, std::size_t tensor) const {
        std::vector<std::byte> bytes(bytes_[tensor]);
        for (std::size_t i = 0; i < bytes.size(); i++) {
            bytes[i] = static_cast<std::byte>(static_cast<std::size_t>(version) * 131 +
                                              tensor * 31 + i * 7 + i / 251);
        }
        return bytes;
    }

    cuda::Context context_;
    std::uint64_t together_;
    CUdeviceptr free_ = 0;  // of the last allocation
    std::uint64_t left_ = 0;
    std::vector<std::size_t> bytes_;
};

PayloadMemory memory_of(const std::string& text) {
    for (const auto memory : {PayloadMemory::vmm, PayloadMemory::legacy_ipc, PayloadMemory::host,
                              PayloadMemory::direct}) {
        if (text == name(memory)) return memory;
    }
    throw Failure("no such memory: " + text);
}

void train(const Options& options) {
    constexpr std::uint64_t torch_bytes = 2 << 20;
    const PayloadMemory memory = memory_of(options.memory);
    const bool direct = memory == PayloadMemory::direct;
    GpuTensors tensors(options.gpu, direct ? torch_bytes : 0);
    auto publisher = need(
        Publisher::create(options.ring, tensors.list,
                          {.rank = options.rank < 0 ? 0 : static_cast<std::uint32_t>(options.rank),
                           .ranks = options.ranks,
                           .device = Device::cuda(options.gpu),
                           .memory = memory,
                           .slot_bytes = options.slot_bytes,
                           .checksums = !direct}));
    need(publisher.wait_subscribers(options.subscribers, patience()));
    const std::uint64_t passed = publisher.handles_passed();
    for (std::int64_t version = 1; version <= options.versions; version++) {
        tensors.fill(version);
        auto transaction = need(publisher.begin(version));
        need(transaction.put_all(patience()));
        need(transaction.publish());
        const auto report = need(transaction.commit(patience()));
        if (report.subscribers != options.subscribers) throw Failure("a subscriber was lost");
        if (direct) tensors.fill(1000 + version);  // engines have read them
    }
    need(publisher.wait_live(options.subscribers, patience()));
    if (publisher.handles_passed() != passed) throw Failure("handles were passed in a sync");
    fmt::print("trainer on {}: {} versions of {} parts\n",
               visible_gpus().at(static_cast<std::size_t>(options.gpu)).to_string(),
               options.versions, publisher.parts());
}

void serve(const Options& options) {
    GpuTensors tensors(options.gpu);
    SubscriberOptions subscribe{.name = options.name,
                                .device = Device::cuda(options.gpu),
                                .in_place = !options.beside,
                                .staging = options.delta ? Staging::delta : Staging::copy,
                                .delta_fallback = DeltaFallback::beside};
    if (options.rank >= 0) subscribe.rank = static_cast<std::uint32_t>(options.rank);
    auto subscriber = need(Subscriber::attach(options.ring, tensors.list, subscribe, patience()));
    const std::uint64_t imports = subscriber.imports();
    for (std::int64_t version = 1; version <= options.versions; version++) {
        auto update = need(subscriber.next(patience()));
        if (update.version() != version) throw Failure("not the next version");
        need(update.load(patience()));
        need(update.stage(patience()));
        need(update.adopt(patience()));
        tensors.check(version);
        if (!options.delta || version != 3) continue;
        need(subscriber.rollback());
        tensors.check(2);
    }
    if (subscriber.imports() != imports) throw Failure("memory was mapped in a sync");
    fmt::print("{} on {}: {} versions, each byte checked\n", options.name,
               visible_gpus().at(static_cast<std::size_t>(options.gpu)).to_string(),
               options.versions);
}

int run(const Options& options) {
    try {
        if (options.role == "gpus") {
            for (const GpuUuid& gpu : visible_gpus()) fmt::print("{}\n", gpu.to_string());
            if (visible_gpus().empty()) fmt::print(stderr, "{}\n", why_no_gpu());
        } else if (options.role == "trainer") {
            train(options);
        } else {
            serve(options);
        }
    } catch (const Failure& failure) {
        fmt::print(stderr, "{} {}: {}\n", options.role, options.name, failure.what());
        return 1;
    }
    return 0;
}

}  // namespace
}  // namespace rollring::test

int main(int argc, char** argv) {
    rollring::test::Options options;
    CLI::App app("One end of a weight channel on a GPU");
    app.add_option("role", options.role)
        ->required()
        ->check(CLI::IsMember({"gpus", "trainer", "engine"}));
    app.add_option("--ring", options.ring);
    app.add_option("--name", options.name);
    app.add_option("--gpu", options.gpu);
    app.add_option("--rank", options.rank);
    app.add_option("--ranks", options.ranks);
    app.add_option("--subscribers", options.subscribers);
    app.add_option("--versions", options.versions);
    app.add_option("--memory", options.memory);
    app.add_option("--slot-bytes", options.slot_bytes);
    app.add_flag("--beside", options.beside);  // one that loads into other memory than it serves
    app.add_flag("--delta", options.delta);    // an engine that stages by difference
    CLI11_PARSE(app, argc, argv);
    return rollring::test::run(options);
}
