#include "weights/weights_session.hpp"

#include <fmt/core.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>

#include "bench.hpp"
#include "rollring/ring.hpp"
#include "rounding.hpp"
#include "weights/weights_memory.hpp"

namespace bench {
namespace {

// The descriptors and mappings that this process has now, and the objects in /dev/shm.
Holdings holdings(std::uint64_t device_free_bytes) {
    namespace fs = std::filesystem;
    Holdings now{};
    now.device_free_bytes = static_cast<std::int64_t>(device_free_bytes);
    std::error_code error;
    for (const auto& fd : fs::directory_iterator("/proc/self/fd", error)) {
        static_cast<void>(fd);
        now.fds++;
    }
    now.fds--;  // the listing's own
    std::ifstream statm("/proc/self/statm");
    std::int64_t mapped_pages = 0;
    std::int64_t resident_pages = 0;
    statm >> mapped_pages >> resident_pages;
    now.rss_bytes = resident_pages * sysconf(_SC_PAGESIZE);
    constexpr auto quietly = fs::directory_options::skip_permission_denied;
    fs::recursive_directory_iterator object("/dev/shm", quietly, error);
    while (!error && object != fs::recursive_directory_iterator()) {
        struct stat facts{};
        if (::stat(object->path().c_str(), &facts) == 0) {
            constexpr std::int64_t block_bytes = 512;
            now.shm_objects++;
            now.shm_bytes += facts.st_blocks * block_bytes;
        }
        object.increment(error);
    }
    return now;
}

struct Facts {
    std::uint64_t payload_bytes;
    std::uint32_t parts;
    std::uint32_t slots;
    rollring::PayloadMemory memory;
    SideReport trainer;
    SideReport engine;
};

// The memory that the two processes and their parent share.
class Desk {
  public:
    explicit Desk(const SessionPlan& plan)
        : versions_(plan.total()),
          memory_(samples_at + versions_ * (sizeof(Sample) + sizeof(EngineSample))) {}
    [[nodiscard]] Board& board() const { return *memory_.at<Board>(); }
    [[nodiscard]] Facts& facts() const { return *memory_.at<Facts>(facts_at); }
    [[nodiscard]] Sample* samples() const { return memory_.at<Sample>(samples_at); }
    [[nodiscard]] EngineSample* engine_samples() const {
        return memory_.at<EngineSample>(samples_at + versions_ * sizeof(Sample));
    }

  private:
    static constexpr std::size_t facts_at = round_up(sizeof(Board), 64);
    static constexpr std::size_t samples_at = facts_at + round_up(sizeof(Facts), 64);
    std::uint64_t versions_;
    SharedBytes memory_;
};

class Party {
  public:
    Party(const SessionPlan& plan, std::string ring, const Desk& desk)
        : plan_(&plan), ring_(std::move(ring)), desk_(&desk) {}

    void train();
    void serve();

  private:
    [[nodiscard]] std::uint64_t total() const { return plan_->total(); }
    [[nodiscard]] rollring::Deadline patience() const {
        return rollring::Deadline::after_ms(plan_->limit_s * 1000);
    }
    template <class T>
    T must(rollring::Result<T> result) const {
        if (!result) desk_->board().give_up(result.error().to_string());
        if constexpr (!std::is_void_v<T>) return std::move(*result);
    }
    Sample sync(rollring::Publisher& publisher, std::int64_t version) const;
    void note(SideReport& report, const Arena& arena, std::uint64_t version,
              std::uint64_t passed) const;
    void wait_for_a_line(std::int64_t version) const;
    std::int64_t receive(rollring::Subscriber& subscriber, Arena& serving, Arena* beside,
                         std::uint64_t bytes) const;

    const SessionPlan* plan_;
    std::string ring_;
    const Desk* desk_;
};

Sample Party::sync(rollring::Publisher& publisher, std::int64_t version) const {
    Sample sample{};
    const auto deadline = patience();
    const std::int64_t began_ns = now_ns();
    auto transaction = must(publisher.begin(version));
    must(transaction.put_all(deadline));
    const std::int64_t put_ns = now_ns();
    must(transaction.publish());
    const auto report = must(transaction.commit(deadline));
    const std::int64_t ended_ns = now_ns();
    sample.whole_ns = ended_ns - began_ns;
    sample.control_ns = ended_ns - put_ns;
    sample.times = report.times;
    if (report.subscribers != 1) desk_->board().give_up("the engine went away");
    return sample;
}

void Party::note(SideReport& report, const Arena& arena, std::uint64_t version,
                 std::uint64_t passed) const {
    if (version == std::min(early_versions, total())) {
        report.early = holdings(arena.free_bytes());
        report.passed_early = passed;
    }
    if (version == total()) {
        report.last = holdings(arena.free_bytes());
        report.passed_last = passed;
    }
}

void Party::wait_for_a_line(std::int64_t version) const {
    fmt::print("{}\n", Json{{"ring", ring_}, {"version", version}}.dump());
    static_cast<void>(std::fflush(stdout));
    char letter = 0;
    while (read(STDIN_FILENO, &letter, 1) == 1 && letter != '\n') {
    }
}

void Party::train() {
    const Placement placement(plan_->list, plan_->cast);
    const auto arena = Arena::make(plan_->device, placement.bytes());
    placement.fill(*arena, 1);
    const auto tensors = placement.tensors(arena->data());
    auto publisher = must(rollring::Publisher::create(ring_, tensors,
                                                      {.device = plan_->device,
                                                       .memory = plan_->memory,
                                                       .slots = plan_->slots,
                                                       .slot_bytes = plan_->slot_bytes,
                                                       .checksums = plan_->checksums,
                                                       .spin = plan_->spin}));
    Facts& facts = desk_->facts();
    facts.payload_bytes = publisher.payload_bytes();
    facts.parts = publisher.parts();
    facts.slots = publisher.slots();
    must(publisher.wait_subscribers(1, patience()));
    const bool by_difference = plan_->way == SyncWay::difference;
    const auto other = by_difference ? Arena::make(plan_->device, placement.bytes()) : nullptr;
    const std::uint64_t refilled = by_difference ? 0
                                   : plan_->soak ? std::min(total(), early_versions / 2)
                                                 : total();
    for (std::uint64_t version = 1; version <= total(); version++) {
        if (interrupted()) desk_->board().give_up("interrupted");
        // Every version differs; one of them, the last or in a soak an early one, in every element.
        if (version == refilled) placement.fill(*arena, 2);
        if (by_difference) {
            const std::uint64_t passed = version - 1;
            if (passed % plan_->round() == 0) {
                other->copy_from(*arena, placement.bytes());
                placement.change(*other, plan_->changed[passed / plan_->round()], version);
            }
            arena->exchange(*other, placement.bytes());
        }
        if (!plan_->cast && !by_difference && placement.bytes() >= sizeof version) {
            arena->write(0, reinterpret_cast<const std::byte*>(&version), sizeof version);
        }
        const std::int64_t copies_ns = plan_->counts(version) && plan_->copies
                                           ? arena->two_copies_ns(publisher.payload_bytes())
                                           : 0;
        Sample& sample = desk_->samples()[version - 1];
        const std::int64_t began_ns = now_ns();
        sample = sync(publisher, static_cast<std::int64_t>(version));
        sample.copies_ns = copies_ns;
        must(publisher.wait_live(1, patience()));
        sample.live_ns = now_ns() - began_ns;
        note(facts.trainer, *arena, version, publisher.handles_passed());
        if (plan_->pause && version == 1) wait_for_a_line(1);
    }
    facts.trainer.digest = placement.digest(*arena);
    desk_->board().meet();  // the engine still reads its tensors
}

// Returns the time for which the engine cannot serve.
std::int64_t Party::receive(rollring::Subscriber& subscriber, Arena& serving, Arena* beside,
                            std::uint64_t bytes) const {
    auto update = must(subscriber.next(patience()));
    std::int64_t began_ns = now_ns();
    must(update.load(patience()));
    must(update.stage(patience()));
    if (plan_->way != SyncWay::in_place) {
        must(update.wait_committed(patience()));
        began_ns = now_ns();
    }
    must(update.adopt(patience()));
    if (beside != nullptr) serving.copy_from(*beside, bytes);
    return now_ns() - began_ns;
}

void Party::serve() {
    const Placement placement(plan_->list, false);
    const auto arena = Arena::make(plan_->device, placement.bytes());
    const auto beside =
        plan_->way == SyncWay::beside ? Arena::make(plan_->device, placement.bytes()) : nullptr;
    const auto tensors = placement.tensors((beside ? beside : arena)->data());
    rollring::SubscriberOptions options{
        .device = plan_->device, .in_place = !beside, .spin = plan_->spin};
    if (plan_->way == SyncWay::difference) {
        placement.fill(*arena, 1);
        options.staging = rollring::Staging::delta;
        options.delta_fallback = rollring::DeltaFallback::beside;
    }
    auto subscriber = must(rollring::Subscriber::attach(ring_, tensors, options, patience()));
    Facts& facts = desk_->facts();
    facts.memory = subscriber.memory();
    for (std::uint64_t version = 1; version <= total(); version++) {
        EngineSample& sample = desk_->engine_samples()[version - 1];
        sample.pause_ns = receive(subscriber, *arena, beside.get(), placement.bytes());
        sample.delta = subscriber.delta();
        note(facts.engine, *arena, version, subscriber.imports());
    }
    facts.engine.digest = placement.digest(*arena);
    desk_->board().meet();
}

}  // namespace

std::string_view name(SyncWay way) {
    switch (way) {
        case SyncWay::in_place:
            return "in_place";
        case SyncWay::beside:
            return "beside";
        case SyncWay::difference:
            break;
    }
    return "difference";
}

SessionReport run_session(const SessionPlan& plan) {
    const Desk desk(plan);
    const std::string ring = fmt::format("bench-weights-{}", getpid());
    const auto made = rollring::create_ring(ring, {.lanes = 1, .lane_bytes = 1 << 20});
    if (!made) fail(made.error().to_string());
    Party party(plan, ring, desk);
    // Not pinned: with CUDA each side has threads of the driver beside its own.
    const std::string problem = run_all(
        {{any_cpu, [&](Board&) { party.serve(); }}, {any_cpu, [&](Board&) { party.train(); }}},
        false, desk.board(), plan.limit_s);
    static_cast<void>(rollring::remove_ring(ring, true));
    rollring::remove_dead_channels(ring);  // of a trainer that had to be killed
    if (!problem.empty()) fail("weights: " + problem);
    const Facts& facts = desk.facts();
    std::vector<Sample> samples;
    std::vector<EngineSample> engine_samples;
    for (std::uint64_t version = 1; version <= plan.total(); version++) {
        if (!plan.counts(version)) continue;
        samples.push_back(desk.samples()[version - 1]);
        engine_samples.push_back(desk.engine_samples()[version - 1]);
    }
    return {.way = plan.way,
            .samples = std::move(samples),
            .engine_samples = std::move(engine_samples),
            .trainer = facts.trainer,
            .engine = facts.engine,
            .payload_bytes = facts.payload_bytes,
            .parts = facts.parts,
            .slots = facts.slots,
            .memory = facts.memory};
}

}  // namespace bench
