#include "fake_device.hpp"

#include <algorithm>
#include <array>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "direct_memory.hpp"
#include "fake_allocations.hpp"
#include "gpus.hpp"
#include "host_mover.hpp"

namespace rollring {
namespace test {
namespace {

using namespace device;

struct Queued {
    Reached reached;
    void* context;
    Stream stream;
};

struct Queue {
    std::mutex mutex;
    std::vector<Queued> all;
};
std::array<Queue, 2> queues;
std::array<FakeDevice, 2> devices;

std::size_t index_of(const FakeDevice& device) {
    return static_cast<std::size_t>(&device - devices.data());
}

std::vector<Queued> take_all(const FakeDevice& device) {
    Queue& queue = queues[index_of(device)];
    const std::scoped_lock lock(queue.mutex);
    return std::exchange(queue.all, {});
}

GpuUuid uuid(std::size_t index) {
    GpuUuid made;
    made.bytes.fill(static_cast<std::uint8_t>(index + 1));
    return made;
}

std::unexpected<Error> failure() {
    return refused(Errc::device_error, "the fake device failed");
}

// The CPU's copies, where the device takes any.
class FakePlan : public CopyPlan {
  public:
    FakePlan(FakeDevice& device, std::unique_ptr<CopyPlan> plan)
        : device_(&device), plan_(std::move(plan)) {}
    Result<void> pack(std::byte* slot, std::optional<std::uint64_t> sums, Stream stream) override {
        return device_->refuses ? Result<void>(failure()) : plan_->pack(slot, sums, stream);
    }
    Result<void> pack_one(std::size_t job, const void* tensor, std::byte* slot,
                          std::optional<std::uint64_t> sums, Stream stream) override {
        return device_->refuses ? Result<void>(failure())
                                : plan_->pack_one(job, tensor, slot, sums, stream);
    }
    Result<void> unpack(const std::byte* slot, Stream stream) override {
        device_->unpacked = slot;
        return device_->refuses ? Result<void>(failure()) : plan_->unpack(slot, stream);
    }
    Result<std::optional<std::size_t>> verify(const std::byte* slot, std::uint64_t sums,
                                              Deadline deadline) override {
        device_->verifications++;
        while (device_->stopped && !deadline.passed()) std::this_thread::yield();
        if (device_->stopped) return refused(Errc::timed_out, "the device did not verify");
        return plan_->verify(slot, sums, deadline);
    }

  private:
    FakeDevice* device_;
    std::unique_ptr<CopyPlan> plan_;
};

// The CPU's comparisons and exchanges, likewise; it waits for a device that has stopped.
class FakeDifference : public Difference {
  public:
    FakeDifference(FakeDevice& device, std::unique_ptr<Difference> difference)
        : device_(&device), difference_(std::move(difference)) {}
    void clear(std::uint64_t bytes_max, std::uint64_t bytes_kept) override {
        if (exchanging_ != 0) device_->raced = true;
        device_->kept_bytes = bytes_kept;
        difference_->clear(bytes_max, bytes_kept);
    }
    Result<Fit> compare(std::size_t first, std::span<const std::byte* const> slots, Stream stream,
                        Deadline deadline) override {
        device_->compares_on = stream.handle;
        if (device_->loses) return failure();
        if (device_->is_full) return Fit::no_memory;
        if (device_->stops_at == device_->comparisons) device_->stopped = true;
        while (device_->stopped && !device_->failed && !deadline.passed()) {
        }
        if (device_->failed) return failure();
        if (device_->stopped) return refused(Errc::timed_out, "the device did not compare");
        auto compared = difference_->compare(first, slots, stream, deadline);
        device_->compare_calls++;
        device_->comparisons += static_cast<int>(slots.size());
        return compared;
    }
    Result<void> swap(std::size_t parts, Stream stream) override {
        if (device_->refuses) return failure();
        if (!device_->loses) return difference_->swap(parts, stream);
        exchanging_ = parts;
        return failure();
    }
    Result<void> end_exchange(Deadline deadline) override {
        if (exchanging_ == 0) return {};
        while (device_->stopped && !deadline.passed()) {
        }
        if (device_->stopped) return refused(Errc::timed_out, "the device did not exchange");
        return difference_->swap(std::exchange(exchanging_, 0), {});
    }
    [[nodiscard]] Size size() const override { return difference_->size(); }

  private:
    FakeDevice* device_;
    std::unique_ptr<Difference> difference_;
    std::size_t exchanging_ = 0;  // parts, by an exchange whose caller has got an error
};

class FakeMover : public HostMover {
  public:
    explicit FakeMover(FakeDevice& device) : device_(&device) {}
    [[nodiscard]] GpuUuid gpu() const override { return uuid(index_of(*device_)); }
    Result<std::unique_ptr<CopyPlan>> plan(std::vector<CopyJob> jobs) override {
        auto made = HostMover::plan(std::move(jobs));
        if (!made) return made;
        return std::make_unique<FakePlan>(*device_, std::move(*made));
    }
    Result<std::unique_ptr<Difference>> difference(
        std::vector<std::vector<CopyJob>> parts) override {
        auto made = HostMover::difference(std::move(parts));
        if (!made) return made;
        device_->share = share_;
        return std::make_unique<FakeDifference>(*device_, std::move(*made));
    }
    void take_share(double share) override { share_ = share; }
    std::optional<std::size_t> find_absent(std::span<const MemoryPlace> places) override {
        const auto found =
            std::ranges::find(places, device_->released.load(), &MemoryPlace::address);
        if (found == places.end()) return {};
        return static_cast<std::size_t>(found - places.begin());
    }
    Result<void> when_reached(Stream stream, Reached reached, void* context) override {
        if (device_->failed) return failure();
        int none = -1;
        device_->compared_by_mark.compare_exchange_strong(none, device_->comparisons);
        if (!device_->stopped) return HostMover::when_reached(stream, reached, context);
        Queue& queue = queues[index_of(*device_)];
        const std::scoped_lock lock(queue.mutex);
        queue.all.push_back({reached, context, stream});
        return {};
    }
    Result<void> wait(Stream, Deadline deadline) override {
        while (device_->stopped && !device_->failed && !deadline.passed()) {
        }
        if (device_->failed) return failure();
        if (!device_->stopped) return {};
        return refused(Errc::timed_out, "the stream did not get there");
    }
    Result<void> health() override {
        return device_->failed ? Result<void>(failure()) : Result<void>{};
    }

  private:
    FakeDevice* device_;
    double share_ = 1;
};

// A host block under another kind's name.
class FakeBlock : public SharedBlock {
  public:
    FakeBlock(std::unique_ptr<SharedBlock> block, PayloadMemory kind, FakeDevice* maker)
        : block_(std::move(block)), kind_(kind), maker_(maker) {
        if (maker_ != nullptr) maker_->blocks++;
    }
    ~FakeBlock() override {
        if (maker_ != nullptr) maker_->blocks--;
    }
    [[nodiscard]] std::byte* data() const override { return block_->data(); }
    [[nodiscard]] BlockTicket ticket() const override {
        BlockTicket ticket = block_->ticket();
        ticket.memory = kind_;
        return ticket;
    }
    [[nodiscard]] int fd() const override { return block_->fd(); }

  private:
    std::unique_ptr<SharedBlock> block_;
    PayloadMemory kind_;
    FakeDevice* maker_;
};

class FakeMemory : public Memory {
  public:
    FakeMemory(FakeDevice& device, PayloadMemory kind)
        : device_(&device), kind_(kind), host_(make_host_backend().memory) {}
    Result<std::unique_ptr<SharedBlock>> make(std::uint64_t bytes) override {
        if (device_->is_full) return refused(Errc::out_of_device_memory, "the fake device is full");
        return wrap(host_->make(bytes), device_);
    }
    Result<std::unique_ptr<SharedBlock>> import(const BlockTicket& ticket, Fd fd) override {
        BlockTicket plain = ticket;
        plain.memory = PayloadMemory::host;
        return wrap(host_->import(plain, std::move(fd)), nullptr);
    }

  private:
    Result<std::unique_ptr<SharedBlock>> wrap(Result<std::unique_ptr<SharedBlock>> block,
                                              FakeDevice* maker) {
        if (!block) return block;
        return std::make_unique<FakeBlock>(std::move(*block), kind_, maker);
    }

    FakeDevice* device_;
    PayloadMemory kind_;
    std::unique_ptr<Memory> host_;
};

}  // namespace

FakeDevice& fake_device(Device device) {
    return devices[static_cast<std::size_t>(device.gpu)];
}

void FakeDevice::go_on() {
    stopped = false;
    stops_at = -1;
    for (const Queued& one : take_all(*this)) one.reached(one.context);
}

void FakeDevice::reset() {
    stopped = failed = refuses = loses = is_full = raced = false;
    comparisons = compare_calls = 0;
    stops_at = -1;
    static_cast<void>(take_all(*this));
}

std::size_t FakeDevice::queued() const {
    Queue& queue = queues[index_of(*this)];
    const std::scoped_lock lock(queue.mutex);
    return queue.all.size();
}

std::size_t FakeDevice::queued(Stream stream) const {
    Queue& queue = queues[index_of(*this)];
    const std::scoped_lock lock(queue.mutex);
    return static_cast<std::size_t>(std::ranges::count_if(
        queue.all, [&](const Queued& one) { return one.stream.handle == stream.handle; }));
}

}  // namespace test

const device::Gpus& device::gpus() {
    static constexpr device::Gpus all{
        .visible = [] { return std::vector{test::uuid(0), test::uuid(1)}; },
        .open = [](Device gpu, PayloadMemory kind) -> Result<device::Backend> {
            test::FakeDevice& fake = test::fake_device(gpu);
            std::unique_ptr<device::Memory> memory = std::make_unique<test::FakeMemory>(fake, kind);
            if (kind == PayloadMemory::direct) {
                memory = device::make_direct_memory(test::fake_allocations(), std::move(memory));
            }
            return device::Backend{std::move(memory), std::make_unique<test::FakeMover>(fake)};
        }};
    return all;
}

}  // namespace rollring
