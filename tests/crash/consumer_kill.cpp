// Consumers killed at random moments: their successor gets every record that was not released, and
// none that was; a release of many is all or nothing.
//
// The consumer writes down its next step, does it, and writes down that it is done. Its successor,
// and at the end the parent, compares redelivered records with that journal.

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <utility>
#include <vector>

#include "ledger.hpp"
#include "random_kill.hpp"
#include "support/load.hpp"

namespace rollring::test {
namespace {

constexpr std::size_t held_max = 12;

struct Held {
    RecordRef ref;
    std::uint64_t sender;
    std::uint64_t number;
};

class Consumption {
  public:
    Consumption(Paper& paper, Consumer& consumer, std::uint64_t seed)
        : paper_(paper), consumer_(consumer), dice_{seed} {}

    // The records that a predecessor left, before anything is polled.
    void resume() {
        const std::int64_t step = consumer_.last_acked_step();
        const std::uint64_t count = paper_.set_count.load();
        if (count != 0) {
            const bool whole = step == paper_.set_step.load();
            require(whole || step == paper_.step_done.load(), "step {}: neither {} nor {}", step,
                    paper_.set_step.load(), paper_.step_done.load());
            (whole ? paper_.counts.cut_ack_done : paper_.counts.cut_ack_undone)++;
            // From here on, all of them are gone or all of them must come back.
            for (std::uint64_t i = 0; i < count; i++) {
                const std::uint64_t one = paper_.set[i].load();
                state(one >> 32, one & 0xffffffff) = whole ? released : delivered;
            }
            if (whole) paper_.step_done = step;
            paper_.set_count = 0;
        }
        require(step == paper_.step_done.load(), "last acknowledged step is {}, not {}", step,
                paper_.step_done.load());
        for (std::uint64_t sender = 0; sender < senders; sender++) {
            std::uint64_t base = paper_.base[sender].load();
            while (base < records_max && state(sender, base) == released) base++;
            paper_.base[sender] = base;
            next_[sender] = base;
        }
    }

    void take(const Record& record) {
        Load::verify(record);
        const std::uint64_t sender = Load::stream_of(record);
        const std::uint64_t number = Load::number_of(record);
        require(sender < senders && number < records_max, "a record of nobody's");
        pass(sender, number);
        auto& now = state(sender, number);
        require(now != released, "sender {}: record {} was released and came back", sender, number);
        require(now == unseen || record.redelivered,
                "sender {}: record {} is not marked redelivered", sender, number);
        if (now == releasing) paper_.counts.cut_undone++;
        now = delivered;
        next_[sender] = number + 1;
        held_.push_back({record.ref, sender, number});
        paper_.counts.records++;
        if (record.redelivered) paper_.counts.redelivered++;
    }

    // Records below `number` that did not come must have been released, or at least on their way.
    void pass(std::uint64_t sender, std::uint64_t number) {
        require(number >= next_[sender], "sender {}: record {} came after {}", sender, number,
                next_[sender]);
        for (std::uint64_t i = next_[sender]; i < number; i++) {
            auto& now = state(sender, i);
            require(now == releasing || now == released, "sender {}: record {} is lost (state {})",
                    sender, i, static_cast<int>(now));
            if (now == releasing) paper_.counts.cut_done++;
            now = released;
        }
    }

    void give_back_some(bool all) {
        while (held_.size() > (all ? 0 : held_max)) {
            switch (dice_.below(3)) {
                case 0:
                    release(0);  // in order
                    break;
                case 1:
                    release(dice_.below(held_.size()));
                    break;
                default:
                    acknowledge(1 + dice_.below(set_max));
                    break;
            }
        }
    }

    // All that was sent has come or had gone before.
    void finish() {
        for (std::uint64_t sender = 0; sender < senders; sender++) {
            pass(sender, paper_.pushed[sender].load());
        }
    }

  private:
    std::atomic<std::uint8_t>& state(std::uint64_t sender, std::uint64_t number) {
        return paper_.states[sender][number];
    }

    void release(std::size_t index) {
        const Held one = held_[index];
        state(one.sender, one.number) = releasing;
        consumer_.release(one.ref);
        state(one.sender, one.number) = released;
        paper_.counts.releases++;
        held_.erase(held_.begin() + static_cast<std::ptrdiff_t>(index));
    }

    void acknowledge(std::uint64_t count) {
        count = std::min<std::uint64_t>(count, held_.size());
        std::vector<RecordRef> refs;
        for (std::uint64_t i = 0; i < count; i++) {
            std::swap(held_[dice_.below(held_.size() - i)], held_[held_.size() - 1 - i]);
            const Held& one = held_[held_.size() - 1 - i];
            refs.push_back(one.ref);
            paper_.set[i] = one.sender << 32 | one.number;
        }
        const std::int64_t step = paper_.step_done.load() + 1;
        paper_.set_step = step;
        paper_.set_count = count;
        const auto done = consumer_.release_all(refs, step);
        require(done.has_value(), "{}", done ? "" : done.error().to_string());
        for (std::uint64_t i = 0; i < count; i++) {
            const Held& one = held_[held_.size() - 1 - i];
            state(one.sender, one.number) = released;
        }
        paper_.step_done = step;
        paper_.set_count = 0;
        paper_.counts.acks++;
        held_.resize(held_.size() - count);
        std::ranges::sort(held_, {}, [](const Held& one) { return one.ref.position; });
    }

    Paper& paper_;
    Consumer& consumer_;
    Dice dice_;
    std::vector<Held> held_;
    std::uint64_t next_[senders]{};
};

class ConsumerKill {
  public:
    ConsumerKill(std::uint64_t seed, std::uint64_t kills)
        : dice_{seed},
          kills_wanted_(kills),
          ring_("consumers", {.lanes = senders,
                              .lane_bytes = 256 << 10,
                              .soft_bytes = 64 << 10,
                              .journal_records = set_max}) {
        require(pipe2(attached_, O_NONBLOCK) == 0, "pipe: {}", errno);
        paper_->step_done = -1;
    }
    ~ConsumerKill() {
        for (const pid_t pid : senders_) kill_and_collect(pid);
    }

    void run() {
        for (std::uint32_t i = 0; i < senders; i++) {
            senders_.push_back(
                start_self({"--sender", paper_.fd(), ring_.name(), std::to_string(i)}));
        }
        while (kills_ < kills_wanted_) strike();
        paper_->senders_stop = 1;
        const pid_t last = start_consumer();
        for (const pid_t pid : std::exchange(senders_, {})) {
            const int status = collect(pid);
            require(status == 0, "a sender ended with status {}", status);
        }
        const int status = collect(last);
        require(status == 0, "the last consumer ended with status {}", status);
        report();
    }

  private:
    pid_t start_consumer() {
        return start_self({"--consumer", paper_.fd(), ring_.name(), std::to_string(dice_.next()),
                           std::to_string(attached_[1])});
    }

    // One consumer's consumption. One in five is killed while it starts and recovers.
    void strike() {
        char byte;
        while (read(attached_[0], &byte, 1) == 1) continue;  // the word of the one before
        const pid_t pid = start_consumer();
        if (dice_.below(5) != 0) {
            ended_within(pid, 60'000'000'000, attached_[0]);
            require(read(attached_[0], &byte, 1) == 1, "no word of consumer {}", pid);
        }
        const bool ended = ended_within(pid, static_cast<std::int64_t>(dice_.below(4'000'000)));
        const bool struck = kill_and_collect(pid);
        require(struck && !ended, "the consumer ended by itself");
        kills_++;
    }

    void report() {
        const Counts& counts = paper_->counts;
        const auto stat = stat_ring(ring_.name());
        require(stat.has_value(), "{}", stat ? "" : stat.error().to_string());
        std::uint64_t laps = 0;
        std::uint64_t jumps = 0;
        for (const LaneStat& lane : stat->lanes) {
            require(lane.lost == 0 && lane.duplicates == 0 && lane.torn == 0,
                    "lane {}: lost {} duplicates {} torn {}", lane.lane, lane.lost, lane.duplicates,
                    lane.torn);
            require(lane.depth_bytes == 0, "lane {} still holds {} bytes", lane.lane,
                    lane.depth_bytes);
            laps += lane.laps_soft + lane.laps_full;
            jumps += lane.jumps;
        }
        fmt::print(
            "consumers: kills={} records={} redelivered={} releases={} acks={} cut_release_done={} "
            "cut_release_undone={} cut_ack_done={} cut_ack_undone={} laps={} jumps={}\n",
            kills_, counts.records.load(), counts.redelivered.load(), counts.releases.load(),
            counts.acks.load(), counts.cut_done.load(), counts.cut_undone.load(),
            counts.cut_ack_done.load(), counts.cut_ack_undone.load(), laps, jumps);
        require(counts.records.load() >= kills_ * 20, "only {} records", counts.records.load());
        require(counts.redelivered.load() >= kills_ / 2, "only {} records redelivered",
                counts.redelivered.load());
        require(counts.acks.load() >= kills_, "only {} acks", counts.acks.load());
    }

    Dice dice_;
    std::uint64_t kills_wanted_;
    Shared<Paper> paper_;
    ScratchRing ring_;
    std::vector<pid_t> senders_;
    int attached_[2]{};
    std::uint64_t kills_ = 0;
};

}  // namespace

void kill_consumers(std::uint64_t seed, std::uint64_t kills) {
    ConsumerKill(seed, kills).run();
}

// FD RING INDEX: sends until told to stop, or so many, and is never kept waiting for good.
int sender_role(const std::vector<std::string>& arguments) {
    const Shared<Paper> paper(arguments.at(0));
    const std::uint64_t sender = std::stoull(arguments.at(2));
    const std::uint64_t each = paper->records_each.load();
    {
        auto producer = Producer::open(arguments.at(1), {.checksum = Checksum::xxh3});
        require(producer.has_value(), "{}", producer ? "" : producer.error().to_string());
        Load load;
        std::uint64_t number = 0;
        while (paper->senders_stop.load() == 0 && (each == 0 || number < each)) {
            require(number < records_max, "{} records are too few for so many kills", records_max);
            const Push push = load.push(*producer, sender, number);
            require(push == Push::ok, "push: {}: {}", name(push), producer->problem());
            paper->pushed[sender] = ++number;
        }
    }
    paper->senders_ended++;
    return 0;
}

// FD RING SEED PIPE: consumes until killed, or until all is said and done.
int consumer_role(const std::vector<std::string>& arguments) {
    const Shared<Paper> paper(arguments.at(0));
    auto consumer = Consumer::open(arguments.at(1));
    require(consumer.has_value(), "{}", consumer ? "" : consumer.error().to_string());
    Consumption consumption(*paper.operator->(), *consumer, std::stoull(arguments.at(2)));
    consumption.resume();
    require(write(std::stoi(arguments.at(3)), "a", 1) == 1, "pipe: {}", errno);
    for (;;) {
        const bool last_round = paper->senders_ended.load() == senders;
        Record record;
        const Poll got = consumer->wait(record, Deadline::after_ms(last_round ? 0 : 20));
        if (got == Poll::record) {
            consumption.take(record);
            consumption.give_back_some(false);
        } else {
            consumption.give_back_some(true);
            if (last_round && consumer->producers_active() == 0) break;
        }
    }
    consumption.finish();
    return 0;
}

}  // namespace rollring::test
