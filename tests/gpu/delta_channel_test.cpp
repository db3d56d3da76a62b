// Goal: an engine on a GPU that stages by difference behaves as one in host memory does: every
// value after each version, the old ones until the commit and after a rollback, and the same ways
// of a version that changes too much.
#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>
#include <fmt/core.h>

#include <random>
#include <string>
#include <thread>
#include <vector>

#include "../weights/channel.hpp"
#include "raw_gpu.hpp"

namespace rollring::test {
namespace {

using Dice = std::mt19937_64;
using Memory = std::vector<std::vector<std::byte>>;

// Tensors on the GPU, and their contents.
class GpuTensors {
  public:
    explicit GpuTensors(const RawGpu& gpu) : gpu_(&gpu), on_host_(small_model()) {
        on_host_.add("long", dtype_bf16, {70'000});
        on_host_.add("wide", dtype_bf16, {300, 1000});
        on_host_.add("bytes", dtype_u8, {9'001});
        on_host_.add("doubles", dtype_f64, {1'100});
        list_ = on_host_.list();
        for (std::size_t i = 0; i < list_.size(); i++) {
            list_[i].data = std::bit_cast<void*>(gpu_->allocate(on_host_.memory()[i].size() + 1));
        }
        upload();
    }
    GpuTensors(const GpuTensors&) = delete;
    GpuTensors& operator=(const GpuTensors&) = delete;
    ~GpuTensors() {
        for (const WeightTensor& tensor : list_) {
            gpu_->api().cuMemFree(std::bit_cast<CUdeviceptr>(tensor.data));
        }
    }
    // Changes each element with this probability.
    void change(double density, Dice& dice) {
        std::bernoulli_distribution changes(density);
        for (std::size_t i = 0; i < list_.size(); i++) {
            auto& bytes = on_host_.memory()[i];
            const std::size_t each = list_[i].dtype.bytes();
            for (std::size_t at = 0; at < bytes.size(); at += each) {
                if (changes(dice))
                    bytes[at + dice() % each] ^= static_cast<std::byte>(1 + dice() % 255);
            }
        }
        upload();
    }
    [[nodiscard]] Memory get() const {
        Memory read;
        for (std::size_t i = 0; i < list_.size(); i++) {
            auto& bytes = read.emplace_back(on_host_sizes(i));
            if (!bytes.empty()) gpu_->to_host(bytes.data(), list_[i].data, bytes.size());
        }
        return read;
    }
    [[nodiscard]] std::vector<WeightTensor>& list() { return list_; }

  private:
    [[nodiscard]] std::size_t on_host_sizes(std::size_t i) const {
        return const_cast<Tensors&>(on_host_).memory()[i].size();
    }
    void upload() {
        for (std::size_t i = 0; i < list_.size(); i++) {
            const auto& bytes = on_host_.memory()[i];
            if (!bytes.empty()) gpu_->to_device(list_[i].data, bytes.data(), bytes.size());
        }
    }

    const RawGpu* gpu_;
    Tensors on_host_;
    std::vector<WeightTensor> list_;
};

// A trainer and an engine on one GPU.
struct Pair {
    explicit Pair(DeltaFallback fallback, std::uint64_t list_bytes = 0,
                  PayloadMemory memory = PayloadMemory::automatic)
        : publisher(RawGpu::must(Publisher::create(
              ring.name(), trainer.list(),
              {.device = Device::cuda(0), .memory = memory, .slot_bytes = 128 << 10}))),
          subscriber(RawGpu::must(Subscriber::attach(ring.name(), engine.list(),
                                                     {.device = Device::cuda(0),
                                                      .staging = Staging::delta,
                                                      .delta_fallback = fallback,
                                                      .delta_list_bytes = list_bytes},
                                                     patience()))) {}

    // The whole passage of the trainer's present values.
    void pass(std::int64_t version) {
        std::thread taking([&] { CHECK(take(subscriber).value_or(-1) == version); });
        auto open = publisher.begin(version);
        REQUIRE_OK(open);
        REQUIRE_OK(open->put_all(patience()));
        REQUIRE_OK(open->publish());
        const auto committed = open->commit(patience());
        taking.join();
        REQUIRE_OK(committed);
        REQUIRE((engine.get() == trainer.get()));
    }

    RawGpu gpu{};
    TestRing ring{};
    GpuTensors trainer{gpu};
    GpuTensors engine{gpu};
    Publisher publisher;
    Subscriber subscriber;
};

}  // namespace

TEST_CASE("versions of every density arrive on a GPU bit by bit, and go back") {
    for (const PayloadMemory memory : {PayloadMemory::vmm, PayloadMemory::host}) {
        CAPTURE(name(memory));
        Dice dice(42);
        Pair pair(DeltaFallback::beside, 0, memory);
        for (std::int64_t version = 1; version <= 24; version++) {
            CAPTURE(version);
            const double density = version % 7 == 0 ? 0 : static_cast<double>(dice() % 601) / 1000;
            const Memory before = pair.engine.get();
            pair.trainer.change(version == 1 ? 1 : density, dice);
            pair.pass(version);
            const DeltaReport report = pair.subscriber.delta();
            CHECK(report.version == version);
            if (version % 3 != 1 && density == 0)
                CHECK((report.changed == 0 && report.list_bytes == 0));
            if (version % 3 != 0) continue;
            REQUIRE_OK(pair.subscriber.rollback());
            REQUIRE((pair.engine.get() == before));
            CHECK(pair.subscriber.live_version() == version - 1);
            CHECK(pair.subscriber.state() == SubscriberState::ready);
            CHECK(pair.subscriber.rollback().error().code == Errc::invalid_argument);
            CHECK((pair.engine.get() == before));
        }
    }
}

TEST_CASE("the tensors on a GPU are only read until the commit, whatever ends the version") {
    Dice dice(7);
    Pair pair(DeltaFallback::beside);
    pair.trainer.change(1, dice);
    pair.pass(1);
    const Memory held = pair.engine.get();
    pair.trainer.change(0.3, dice);
    std::int64_t version = 2;
    for (const bool staged : {false, true}) {
        CAPTURE(staged);
        auto open = pair.publisher.begin(version++);
        REQUIRE_OK(open);
        std::thread putting([&] { REQUIRE_OK(open->put_all(patience())); });
        auto update = pair.subscriber.next(patience());
        REQUIRE_OK(update);
        REQUIRE_OK(update->load(patience()));
        putting.join();
        CHECK((pair.engine.get() == held));
        REQUIRE_OK(open->publish());
        if (staged) REQUIRE_OK(update->stage(patience()));
        open->abort("the loss is not a number");
        if (staged) {
            CHECK(update->wait_committed(patience()).error().code == Errc::aborted);
        } else {
            update->reject("the engine sleeps");
        }
        CHECK(pair.subscriber.state() == SubscriberState::ready);
        CHECK(pair.subscriber.live_version() == 1);
        CHECK((pair.engine.get() == held));
    }
    pair.pass(version);
}

TEST_CASE("a version that does not fit into a list on a GPU is refused, goes beside, or in place") {
    using enum DeltaFallback;
    for (const DeltaFallback fallback : {refuse, beside, in_place}) {
        CAPTURE(name(fallback));
        Dice dice(10);
        Pair pair(fallback, 64 << 10);
        pair.trainer.change(1, dice);
        pair.pass(1);
        const DeltaWay other = fallback == beside ? DeltaWay::beside : DeltaWay::in_place;
        CHECK(pair.subscriber.delta().way == other);
        for (std::int64_t version = 2; version <= 7; version++) {
            const bool much = version % 2 == 0;
            const Memory before = pair.engine.get();
            pair.trainer.change(much ? 0.6 : 0.005, dice);
            if (much && fallback == refuse) {
                auto open = pair.publisher.begin(version);
                REQUIRE_OK(open);
                std::thread taking(
                    [&] { CHECK(take(pair.subscriber).error().code == Errc::too_large); });
                REQUIRE_OK(open->put_all(patience()));
                REQUIRE_OK(open->publish());
                CHECK(open->commit(patience()).error().code == Errc::rejected);
                taking.join();
                CHECK((pair.engine.get() == before));
                CHECK(pair.subscriber.state() == SubscriberState::ready);
                break;  // the rest of the change is in every later version
            }
            pair.pass(version);
            CHECK(pair.subscriber.delta().way == (much ? other : DeltaWay::list));
            if (much && fallback == beside && version < 6) continue;  // the change stays
            const auto back = pair.subscriber.rollback();
            CHECK(back.has_value() == (!much || fallback == beside));
            CHECK((pair.engine.get() == before) == back.has_value());
            if (version == 6) break;
        }
    }
}

}  // namespace rollring::test

int main(int argc, char** argv) {
    if (const std::string why = rollring::why_no_gpu(); !why.empty()) {
        fmt::print("skipped: {}\n", why);
        return 77;
    }
    return doctest::Context(argc, argv).run();
}
