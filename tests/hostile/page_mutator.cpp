// A hostile process overwrites every page that any process writes - policy, bells, the consumer's
// control, account, entries and journal, the owners' pages, released-bits, lanes, spill, board,
// keys, tombstones - while producers send, and a trainer opens, leases, acknowledges, moves
// stragglers, dies and comes back. Records may be lost so, and are told as damage; but never a
// signal, a hang or an abort, and once the scribbling has ended, the ring works again.
//
//   page_mutator [--rounds N] [--seed N] [--ring N]      (only that ring of the seed)

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <memory>
#include <optional>

#include "ring_map.hpp"
#include "rollring/stash.hpp"
#include "rollring/stat.hpp"
#include "support/load.hpp"

using namespace rollring;
using namespace rollring::test;

namespace {

constexpr std::uint64_t lane_bytes = 64 << 10;
constexpr std::uint64_t rounds_each = 200;  // of one ring
constexpr unsigned round_seconds_max = 60;  // a round takes a millisecond
constexpr std::uint64_t tries_max = 2'000;  // each waits for a millisecond at least

// The step of the process when a signal ended it.
std::array<char, 128> place{};
std::uint64_t seed_of_run = 0;
void note_place(std::uint64_t ring, std::uint64_t round, const char* what) {
    static_cast<void>(std::snprintf(
        place.data(), place.size(), "--seed %llu --ring %llu: round %llu, %s\n",
        static_cast<unsigned long long>(seed_of_run), static_cast<unsigned long long>(ring),
        static_cast<unsigned long long>(round), what));
}
void tell_place(int signal) {
    const char* const what = signal == SIGALRM ? "HANGS in " : "ENDED BY A SIGNAL in ";
    static_cast<void>(!write(STDERR_FILENO, what, std::strlen(what)));
    static_cast<void>(!write(STDERR_FILENO, place.data(), std::strlen(place.data())));
    static_cast<void>(std::signal(signal, SIG_DFL));
    static_cast<void>(raise(signal == SIGALRM ? SIGABRT : signal));
}

class Scribbler {
  public:
    Scribbler(const std::string& ring, std::uint64_t seed)
        : segment_(*Segment::attach(ring, patience())),
          all_(*segment_.map(0, segment_.geometry().segment_bytes(), true)),
          dice_{seed} {
        const Geometry& geometry = segment_.geometry();
        const auto add = [&](std::uint64_t from, std::uint64_t to) {
            areas_.push_back({from, to - from});
        };
        add(geometry.policy_offset(), geometry.policy_offset() + sizeof(PolicyPage));
        add(geometry.bells_offset(), geometry.bells_offset() + 5 * sizeof(Bell));
        add(geometry.reader_offset(), geometry.stash_offset());
        add(geometry.stash_offset(), geometry.entries_offset());
        add(geometry.entries_offset(), geometry.journal_offset());
        add(geometry.journal_offset(), geometry.owners_offset());
        for (std::uint32_t lane = 0; lane <= geometry.spill_lane(); lane++) {
            add(geometry.owner_offset(lane), geometry.owner_offset(lane) + sizeof(LaneOwner));
            add(geometry.bits_offset(lane),
                geometry.bits_offset(lane) + geometry.capacity(lane) / line_bytes / 8);
            add(geometry.data_offset(lane), geometry.data_offset(lane) + geometry.capacity(lane));
        }
        add(geometry.board_offset(), geometry.keys_offset());
        add(geometry.keys_offset(), geometry.tombstones_offset());
        add(geometry.tombstones_offset(), geometry.share_seats_offset());
    }

    void scribble() {
        const auto [from, bytes] = areas_[dice_.below(areas_.size())];
        std::byte* const at = all_.data() + from + dice_.below(bytes / 8) * 8;
        std::uint64_t word = 0;
        std::memcpy(&word, at, sizeof word);
        switch (dice_.below(8)) {
            case 0:
                word = dice_.next();
                break;
            case 1:
                word = dice_.below(1 << 10);
                break;
            case 2:
                word = ~std::uint64_t{0} - dice_.below(3);
                break;
            case 3:
                word = 0;
                break;
            case 4:
                word ^= std::uint64_t{1} << dice_.below(64);
                break;
            case 5:  // half of it
                word = (word & ~std::uint64_t{0xffffffff}) | dice_.below(1 << 20);
                break;
            default:  // a plausible position
                word += (dice_.below(65) - 32) * 64;
                break;
        }
        std::memcpy(at, &word, sizeof word);
    }

  private:
    struct Area {
        std::uint64_t from;
        std::uint64_t bytes;
    };
    Segment segment_;
    Mapping all_;
    std::vector<Area> areas_;
    Dice dice_;
};

// RING SEED: scribbles until killed.
int scribbler_role(const std::vector<std::string>& arguments) {
    Scribbler scribbler(arguments.at(0), std::stoull(arguments.at(1)));
    for (;;) {
        for (int i = 0; i < 8; i++) scribbler.scribble();
        usleep(50);  // tidy-ok: the others are to get on, too
    }
}

struct Counts {
    std::uint64_t rounds = 0;
    std::uint64_t pushed = 0;
    std::uint64_t refused = 0;  // pushes and openings
    std::uint64_t batches = 0;
    std::uint64_t trainers = 0;
    std::uint64_t torn = 0;
    std::uint64_t quarantines = 0;
    std::uint64_t moved = 0;
    std::uint64_t bytes_read = 0;  // keeps the reading from being left out
};

class Run {
  public:
    Run(std::uint64_t number, std::uint64_t seed, Counts& counts)
        : number_(number),
          dice_{mix(seed ^ number * 0x9e3779b9)},
          counts_(counts),
          ring_("pages", {.lanes = 2,
                          .lane_bytes = lane_bytes,
                          .soft_bytes = 16 << 10,
                          .journal_records = 64,
                          .spill_bytes = lane_bytes,
                          .group_rows = 64,
                          .requests = 0}),
          scribbler_(ring_.name(), dice_.next()) {}

    void rounds(std::uint64_t count) {
        const pid_t wild =
            start_self({"--scribble", ring_.name(), std::to_string(dice_.next() >> 1)});
        for (std::uint64_t i = 0; i < count; i++) round(i);
        require(kill_and_collect(wild), "the scribbler ended by itself");
        note_place(number_, count, "the end of the trainer");
        batch_.nack();
        end_trainer();
        for (auto& producer : producers_) producer.reset();
    }

    // The overwriting has ended: a record gets through again.
    void comes_back() {
        alarm(2 * round_seconds_max);
        note_place(number_, rounds_each, "coming back");
        auto consumer =
            Consumer::open(ring_.name(), {.attach_timeout = std::chrono::milliseconds(10'000)});
        require(consumer.has_value(), "{}", consumer ? "" : consumer.error().to_string());
        const std::vector<std::int32_t> tokens(300, 5);
        Record record;
        std::string why;
        for (std::uint64_t tries = 0;; tries++) {
            require(tries < tries_max, "{}; the consumer says: {}", why, consumer->problem());
            auto producer = Producer::open(ring_.name(), {.attach_timeout = {}});
            Draft draft("back");
            draft.meta.visit = tries;
            draft.set(Std::token_ids, tokens);
            const bool sent = producer && producer->push(draft, Deadline::now()) == Push::ok;
            why = !producer ? producer.error().to_string() : sent ? "sent" : producer->problem();
            const Deadline soon = Deadline::after_ms(sent ? 50 : 1);
            while (consumer->wait(record, soon) == Poll::record) {
                const bool it = record.view.instance_id() == "back";
                consumer->release(record.ref);
                if (it) return;
            }
        }
    }

  private:
    // Calls with a deadline that has passed return at once, whatever there is to wait for.
    Deadline soon() { return dice_.below(8) == 0 ? Deadline::after_ms(1) : Deadline::now(); }

    void round(std::uint64_t round) {
        counts_.rounds++;
        alarm(round_seconds_max);
        for (std::uint64_t i = dice_.below(4); i > 0; i--) scribbler_.scribble();
        for (auto& producer : producers_) {
            note_place(number_, round, "a producer");
            produce(producer);
        }
        note_place(number_, round, "the trainer");
        train();
        if (dice_.below(16) == 0) {
            note_place(number_, round, "a look from outside");
            look();
        }
    }

    void produce(std::optional<Producer>& producer) {
        if (!producer) {
            const auto checksum = dice_.below(2) == 0 ? Checksum::xxh3 : Checksum::none;
            auto opened = Producer::open(
                ring_.name(),
                {.name = "p", .attach_timeout = {}, .spin = {}, .checksum = checksum});
            if (!opened) {
                counts_.refused++;
                return;
            }
            producer.emplace(std::move(*opened));
        }
        for (std::uint64_t i = dice_.below(6); i > 0; i--) {
            const Push pushed = send(*producer);
            pushed == Push::ok ? counts_.pushed++ : counts_.refused++;
            if (pushed == Push::closed) return producer.reset();
        }
        if (dice_.below(32) == 0) producer.reset();
    }

    Push send(Producer& producer) {
        // Some groups stay open, and are stragglers.
        const std::uint64_t group = dice_.below(4) == 0 ? groups_++ : groups_ - dice_.below(3);
        const std::string prompt = "g" + std::to_string(group);
        const auto count = static_cast<std::uint32_t>(1 + dice_.below(1500));
        Draft draft(prompt);
        draft.meta.repetition_id = static_cast<std::uint32_t>(dice_.below(2));
        draft.meta.reward = 1.0;
        tokens_.assign(count, 3);
        if (dice_.below(4) != 0) {
            draft.set(Std::token_ids, tokens_);
            return producer.push(draft, soon());
        }
        draft.add({0, dtype_i32, {count, 0, 0, 0}, 1, nullptr});
        Reservation room;
        const Push got = producer.reserve(draft, soon(), room);
        if (got != Push::ok) return got;
        scribbler_.scribble();
        for (std::int32_t& token : room.values<std::int32_t>(Std::token_ids)) token = 3;
        if (dice_.below(2) == 0) room.shrink(static_cast<std::uint32_t>(dice_.below(count + 1)));
        if (dice_.below(4) != 0) static_cast<void>(room.commit());
        return got;
    }

    void end_trainer() {
        if (stash_ == nullptr) return;
        const ConsumerStats stats = stash_->stats();
        counts_.torn += stats.torn < counts_.rounds * 1000 ? stats.torn : 0;  // a word like others
        counts_.quarantines += stats.quarantines;
        stash_.reset();
    }

    void train() {
        if (stash_ == nullptr) {
            auto opened =
                Stash::open(ring_.name(),
                            {.group_size = 2,
                             .deadline = std::chrono::nanoseconds(20'000'000),
                             .order = dice_.below(2) == 0 ? Order::freshest : Order::windowed,
                             .batch = BatchTarget::groups(1)},
                            {.attach_timeout = {}, .spin = {}});
            if (!opened) {
                counts_.refused++;
                return;
            }
            stash_ = std::move(*opened);
            counts_.trainers++;
            if (!receipt_.empty()) static_cast<void>(stash_->settle(receipt_, -1).has_value());
        }
        for (std::uint64_t i = dice_.below(4); i > 0; i--) {
            if (stash_->next(batch_, soon()) != NextBatch::batch) continue;
            counts_.batches++;
            scribbler_.scribble();
            for (const Sequence& sequence : batch_.sequences()) {
                counts_.bytes_read += sequence.view.digest(stash_->schema()) % 2;
                counts_.bytes_read += sequence.view.instance_id().size();
            }
            receipt_ = batch_.receipt();
            if (dice_.below(4) != 0) static_cast<void>(batch_.ack(step_++).has_value());
        }
        for (Event event; stash_->next_event(event);) {
        }
        static_cast<void>(stash_->explain(4));
        if (dice_.below(16) != 0) return;
        counts_.moved += stash_->copies().evacuated_records % 64;
        batch_.nack();
        end_trainer();
    }

    void look() {
        static_cast<void>(stat_ring(ring_.name()).has_value());
        static_cast<void>(stat_stash(ring_.name()).has_value());
        static_cast<void>(diagnose_ring(ring_.name()));
    }

    std::uint64_t number_;
    Dice dice_;
    Counts& counts_;
    ScratchRing ring_;
    Scribbler scribbler_;
    std::array<std::optional<Producer>, 2> producers_;
    std::unique_ptr<Stash> stash_;
    Batch batch_;
    std::vector<std::int32_t> tokens_;
    std::string receipt_;
    std::uint64_t groups_ = 10;
    std::int64_t step_ = 0;
};

int mutate(const std::vector<std::string>& arguments) {
    seed_of_run = option(arguments, "--seed", static_cast<std::uint64_t>(monotonic_ns()));
    const std::uint64_t rounds = option(arguments, "--rounds", 2'000);
    const std::uint64_t only = option(arguments, "--ring", ~std::uint64_t{0});
    fmt::print("page_mutator --seed {} --rounds {}\n", seed_of_run, rounds);
    static_cast<void>(std::fflush(stdout));
    for (const int signal : {SIGALRM, SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT}) {
        static_cast<void>(std::signal(signal, tell_place));
    }
    Counts counts;
    for (std::uint64_t ring = 0; ring * rounds_each < rounds; ring++) {
        if (only != ~std::uint64_t{0} && ring != only) continue;
        Run run(ring, seed_of_run, counts);
        run.rounds(rounds_each);
        run.comes_back();
    }
    alarm(0);
    fmt::print(
        "rounds={} pushed={} refused={} batches={} trainers={} torn={} quarantines={} moved={} "
        "leftovers={}\n",
        counts.rounds, counts.pushed, counts.refused, counts.batches, counts.trainers, counts.torn,
        counts.quarantines, counts.moved, leftovers());
    require(counts.bytes_read != 1, "nothing was read");
    if (only != ~std::uint64_t{0}) return 0;
    require(counts.rounds >= rounds, "only {} rounds", counts.rounds);
    require(counts.pushed >= rounds / 4, "only {} records pushed", counts.pushed);
    require(counts.batches >= rounds / 50, "only {} batches", counts.batches);
    require(counts.trainers >= rounds / 50, "only {} trainers", counts.trainers);
    require(counts.quarantines >= rounds / 400, "only {} quarantines", counts.quarantines);
    require(leftovers() == 0, "{} leftovers", leftovers());
    return 0;
}

}  // namespace

int main(int argc, char** argv) {
    return run_self(argc, argv, {{"--scribble", scribbler_role}}, mutate);
}
