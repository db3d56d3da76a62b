#include "fake_device.hpp"

#include <array>
#include <mutex>
#include <utility>
#include <vector>

#include "host_mover.hpp"

namespace rollring {
namespace test {
namespace {

using namespace weights;

struct Queued {
    Reached reached;
    void* context;
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
    return std::unexpected(Error{Errc::device_error, 0, "the fake device failed"});
}

class FakeMover : public HostMover {
  public:
    explicit FakeMover(FakeDevice& device) : device_(&device) {}
    [[nodiscard]] GpuUuid gpu() const override { return uuid(index_of(*device_)); }
    Result<void> when_reached(Stream stream, Reached reached, void* context) override {
        if (device_->failed) return failure();
        if (!device_->stopped) return HostMover::when_reached(stream, reached, context);
        Queue& queue = queues[index_of(*device_)];
        const std::scoped_lock lock(queue.mutex);
        queue.all.push_back({reached, context});
        return {};
    }
    Result<void> wait(Stream, Deadline deadline) override {
        while (device_->stopped && !device_->failed && !deadline.passed()) {
        }
        if (device_->failed) return failure();
        if (!device_->stopped) return {};
        return std::unexpected(Error{Errc::timed_out, 0, "the stream did not get there"});
    }
    Result<void> health() override {
        return device_->failed ? Result<void>(failure()) : Result<void>{};
    }

  private:
    FakeDevice* device_;
};

// A host chunk under another kind's name.
class FakeChunk : public Chunk {
  public:
    FakeChunk(std::unique_ptr<Chunk> chunk, PayloadMemory kind, FakeDevice* maker)
        : chunk_(std::move(chunk)), kind_(kind), maker_(maker) {
        if (maker_ != nullptr) maker_->chunks++;
    }
    ~FakeChunk() override {
        if (maker_ != nullptr) maker_->chunks--;
    }
    [[nodiscard]] std::byte* data() const override { return chunk_->data(); }
    [[nodiscard]] ChunkTicket ticket() const override {
        ChunkTicket ticket = chunk_->ticket();
        ticket.memory = kind_;
        return ticket;
    }
    [[nodiscard]] int fd() const override { return chunk_->fd(); }

  private:
    std::unique_ptr<Chunk> chunk_;
    PayloadMemory kind_;
    FakeDevice* maker_;
};

class FakeMemory : public Memory {
  public:
    FakeMemory(FakeDevice& device, PayloadMemory kind)
        : device_(&device), kind_(kind), host_(make_host_backend().memory) {}
    [[nodiscard]] PayloadMemory kind() const override { return kind_; }
    Result<std::unique_ptr<Chunk>> make(std::uint64_t bytes) override {
        return wrap(host_->make(bytes), device_);
    }
    Result<std::unique_ptr<Chunk>> import(const ChunkTicket& ticket, Fd fd) override {
        ChunkTicket plain = ticket;
        plain.memory = PayloadMemory::host;
        return wrap(host_->import(plain, std::move(fd)), nullptr);
    }

  private:
    Result<std::unique_ptr<Chunk>> wrap(Result<std::unique_ptr<Chunk>> chunk, FakeDevice* maker) {
        if (!chunk) return chunk;
        return std::make_unique<FakeChunk>(std::move(*chunk), kind_, maker);
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
    for (const Queued& one : take_all(*this)) one.reached(one.context);
}

void FakeDevice::reset() {
    stopped = failed = false;
    static_cast<void>(take_all(*this));
}

std::size_t FakeDevice::queued() const {
    Queue& queue = queues[index_of(*this)];
    const std::scoped_lock lock(queue.mutex);
    return queue.all.size();
}

}  // namespace test

std::vector<GpuUuid> visible_gpus() {
    return {test::uuid(0), test::uuid(1)};
}

std::string why_no_gpu() {
    return "";
}

Result<weights::Backend> weights::make_gpu_backend(Device device, PayloadMemory kind) {
    test::FakeDevice& fake = test::fake_device(device);
    return weights::Backend{std::make_unique<test::FakeMemory>(fake, kind),
                            std::make_unique<test::FakeMover>(fake)};
}

}  // namespace rollring
