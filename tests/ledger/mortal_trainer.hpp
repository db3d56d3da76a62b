#pragma once
// A trainer with a ledger that may be killed anywhere, and the checks of what it leaves.

#include <atomic>
#include <functional>
#include <set>
#include <string>

#include "ledgers.hpp"

namespace rollring::test {

// The trainer's words, which outlive it. Pair i is trained on with step i.
struct TrainerPaper {
    std::atomic<int> sent;     // pairs below it were sent,
    std::atomic<int> acked;    // acknowledged,
    std::atomic<int> asked;    // may be settled,
    std::atomic<int> settled;  // and are
};

class MortalTrainer {
  public:
    static constexpr int open_pair = 100;  // has no second member
    static constexpr const char* producer_name = "mortal";

    static std::string prompt_of(int number) { return "prompt " + std::to_string(number); }
    static int number_of(const std::string& prompt) { return std::stoi(prompt.substr(7)); }

    // Trains on the pairs 0 and 1, each in a session of its own, so that each has a file. The lane
    // of their producer is free at the end, and has a count of durable records.
    static void prepare(const std::string& ring, TrainerPaper& paper) {
        {
            Producer producer = open_producer(ring);
            for (int i = 0; i < 2; i++) {
                const auto stash = open_stash(ring);
                send_pair(producer, prompt_of(i));
                REQUIRE(train_all(*stash).size() == 1);
            }
        }
        read_all(*open_stash(ring));
        paper.sent = paper.acked = 2;
    }

    // Sends all pairs below `end` and trains on them; behind each second one is a checkpoint of all
    // before it. 0, or the place where it went wrong.
    static int run(
        const std::string& ring, TrainerPaper& paper, int end,
        const std::function<void()>& opened = [] {}) {
        auto producer = Producer::open(ring, {.name = producer_name});
        auto stash = Stash::open(ring, freshest_pair);
        if (!producer || !stash) return 1;
        opened();
        send(*producer, prompt_of(open_pair), 0, 2);
        Batch batch;
        for (int i = paper.acked; i < end; i++) {
            send_pair(*producer, prompt_of(i));
            paper.sent = i + 1;
            if ((*stash)->next(batch, patience()) != NextBatch::batch) return 2;
            if (!batch.ack(i)) return 3;
            paper.acked = i + 1;
            if (i % 2 != 0) continue;
            paper.asked = i;
            if (!(*stash)->checkpointed(i - 1)) return 4;
            paper.settled = i;
        }
        return 0;
    }

    // Records of the killed one that are shown as durable, in the order of run().
    static std::uint64_t durable(const std::string& ring) {
        const auto stat = stat_ring(ring);
        REQUIRE(stat.has_value());
        for (const LaneStat& lane : stat->lanes) {
            if (lane.producer == producer_name) return lane.durable_records;
        }
        return 0;
    }

    // The machine died with it: only the files are left.
    static void check_dead(const std::filesystem::path& directory, const TrainerPaper& paper,
                           std::uint64_t durable) {
        const LedgerFolder dead(directory);
        const Members given = restored_members(dead.path());
        for (std::uint64_t n = 0; n < durable; n++) {
            if (n == 0) CHECK(given.contains({prompt_of(open_pair), 0}));
            const int number = 2 + (static_cast<int>(n) - 1) / 2;
            if (n == 0 || number < paper.asked) continue;
            CHECK(given.contains({prompt_of(number), static_cast<std::uint32_t>((n - 1) % 2)}));
        }
        check_given(given, paper, paper.acked);
    }

    // The ring lives: a trainer that starts again reads the rest of it.
    static void check_successor(const std::string& ring, const std::filesystem::path& directory,
                                const TrainerPaper& paper) {
        {
            const auto stash = open_stash(ring);
            const Prompts rest = train_all(*stash);
            CHECK(std::set<std::string>(rest.begin(), rest.end()).size() == rest.size());
            for (const std::string& prompt : rest) CHECK(number_of(prompt) >= paper.acked);
            // The batch of an unfinished ack is delivered again, or was acknowledged.
            CHECK(paper.acked + static_cast<int>(rest.size()) + 1 >= paper.sent);
            REQUIRE(stash->sync_ledger(patience()).has_value());
        }
        const LedgerFolder left(directory);
        const Members given = restored_members(left.path());
        check_given(given, paper, paper.sent);
        if (paper.sent > 2) CHECK(given.contains({prompt_of(open_pair), 0}));
    }

  private:
    // Nothing that is settled, and all that is not of the pairs below `end`. A settlement that was
    // cut short has taken all of its pairs, or none of them.
    static void check_given(const Members& given, const TrainerPaper& paper, int end) {
        for (const auto& [prompt, member] : given) CHECK(number_of(prompt) >= paper.settled);
        int of_asked = 0;
        for (int i = paper.settled; i < end; i++) {
            for (std::uint32_t member = 0; member < 2; member++) {
                const bool there = given.contains({prompt_of(i), member});
                if (i < paper.asked) of_asked += there ? 1 : 0;
                if (i >= paper.asked) CHECK(there);
            }
        }
        const bool all_or_none = of_asked == 0 || of_asked == 2 * (paper.asked - paper.settled);
        CHECK(all_or_none);
    }
};

}  // namespace rollring::test
