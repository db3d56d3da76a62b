// A rollout worker: a few groups at a time, their members interleaved, some of them sent twice,
// tried again, or failed; now and then a group that stays open for long. Where the load is heavy,
// some records are nearly as long as a lane, and some groups nearly as large as all the room.

#include <algorithm>
#include <optional>
#include <utility>

#include "journal.hpp"
#include "support/load.hpp"

namespace rollring::test {
namespace {

constexpr std::size_t open_at_once = 5;
constexpr std::int64_t step_ms = 50;  // of a wait, after which we say that we are alive
constexpr std::uint64_t frame_bytes = 64;
constexpr std::uint64_t header_bytes = (1 << 10) - frame_bytes;  // and its other parts, at most

struct Item {
    std::uint32_t repetition;
    std::uint32_t attempt;
    std::uint16_t subsequence;
    bool failed;
};

struct Group {
    std::uint64_t visit;
    std::uint16_t size;
    std::uint16_t subsequences;
    bool slow;
    bool heavy;               // some of its records are long
    std::uint64_t tokens;     // of each record; 0: by the dice
    std::vector<Item> items;  // the next one is the last
};

// Of a record that takes so many bytes of its lane.
std::uint64_t tokens_of(std::uint64_t bytes) {
    return (bytes - frame_bytes - header_bytes) / token_bytes;
}

// Its records take between four fifths and all of a lane, and together most of the spill's
// capacity: a quarter of it stays free, or room for four of the longest.
Group make_large_group(Dice& dice, std::uint64_t visit) {
    constexpr std::uint64_t room_bytes = stress_spill_bytes / 4 * 3;
    const std::uint64_t record_bytes = stress_lane_bytes * (80 + dice.below(21)) / 100;
    const std::uint64_t group_bytes = room_bytes * (40 + dice.below(56)) / 100;
    Group group{.visit = visit,
                .size = static_cast<std::uint16_t>(group_bytes / record_bytes),
                .subsequences = 1,
                .slow = false,
                .heavy = false,
                .tokens = tokens_of(record_bytes),
                .items = {}};
    for (std::uint32_t i = 0; i < group.size; i++) group.items.push_back({i, 0, 0, false});
    return group;
}

Group make_group(Dice& dice, std::uint64_t visit, bool heavy) {
    Group group{.visit = visit,
                .size = static_cast<std::uint16_t>(2 + dice.below(3)),
                .subsequences = static_cast<std::uint16_t>(dice.below(4) == 0 ? 2 : 1),
                .slow = dice.below(20) == 0,
                .heavy = heavy,
                .tokens = 0,
                .items = {}};
    std::vector<std::uint32_t> order(group.size);
    for (std::uint32_t i = 0; i < group.size; i++) order[i] = i;
    for (std::size_t i = order.size(); i > 1; i--) std::swap(order[i - 1], order[dice.below(i)]);
    const std::uint64_t fails = dice.below(16) == 0 ? dice.below(group.size) : group.size;
    for (const std::uint32_t repetition : order) {
        if (repetition == fails) {
            group.items.push_back({repetition, 0, 0, true});
            continue;
        }
        // A retry comes before the group can be complete: it must be the one that is shipped.
        const bool again = repetition != order.back() && dice.below(8) == 0;
        for (std::uint32_t attempt = 0; attempt <= (again ? 1 : 0); attempt++) {
            for (std::uint16_t subsequence = 0; subsequence < group.subsequences; subsequence++) {
                group.items.push_back({repetition, attempt, subsequence, false});
            }
        }
    }
    if (dice.below(6) == 0) {  // twice, the second time at any moment
        const std::size_t which = dice.below(group.items.size());
        const std::size_t at = which + 1 + dice.below(group.items.size() - which);
        group.items.insert(group.items.begin() + static_cast<std::ptrdiff_t>(at),
                           group.items[which]);
    }
    if (fails == group.size && dice.below(16) == 0) {  // a retry that may come too late
        for (std::uint16_t subsequence = 0; subsequence < group.subsequences; subsequence++) {
            group.items.push_back({order[0], 2, subsequence, false});
        }
    }
    std::ranges::reverse(group.items);
    return group;
}

class Rollouts {
  public:
    Rollouts(const Part& part, Journal& journal)
        : part_(part), journal_(journal), dice_{part.seed}, prompt_(prompt_of(journal.life())) {}

    int run() {
        if (!open()) return 0;
        // Some lives end by themselves, in good order.
        const std::uint64_t last = dice_.below(4) == 0 ? 20 + dice_.below(400) : ~std::uint64_t{0};
        while (true) {
            const bool begins = part_.board->producers_end == 0 && next_ < last;
            while (begins && groups_.size() < open_at_once) begin_group();
            if (groups_.empty()) break;
            Group& group = choose();
            if (group.slow && begins && dice_.below(60) != 0) continue;
            send(group);
            if (group.items.empty()) {
                std::swap(group, groups_.back());
                groups_.pop_back();
            }
        }
        producer_->close();
        journal_.say(Kind::closing);
        return 0;
    }

  private:
    // False if the run ends before there is a lane.
    bool open() {
        const Deadline deadline = patience();
        while (part_.board->producers_end == 0) {
            auto opened = Producer::open(
                part_.ring, {.name = prompt_,
                             .attach_timeout = std::chrono::milliseconds(step_ms),
                             .checksum = dice_.below(2) == 0 ? Checksum::none : Checksum::xxh3});
            if (opened) {
                producer_ = std::move(*opened);
                journal_.say(Kind::opened, producer_->lane());
                return true;
            }
            const Errc code = opened.error().code;
            require((code == Errc::no_free_lane || code == Errc::not_enough_shared_memory) &&
                        !deadline.passed(),
                    "no lane: {}", opened.error().to_string());
            journal_.say(Kind::refused, static_cast<std::int64_t>(code));
        }
        return false;
    }

    void begin_group() {
        const bool heavy = part_.board->heavy != 0;
        groups_.push_back(heavy && dice_.below(60) == 0 ? make_large_group(dice_, next_++)
                                                        : make_group(dice_, next_++, heavy));
        if (dice_.below(4) != 0) return;
        static_cast<void>(open_group(groups_.back(), Deadline::now()));
    }

    static GroupPlan plan_of(const Group& group) {
        if (group.tokens == 0) return {};
        return {group.size, group.tokens * token_bytes + header_bytes};
    }

    Push open_group(const Group& group, Deadline deadline) {
        return producer_->open_group(prompt_, group.visit, deadline, plan_of(group));
    }

    // Any that may be sent. It waits only where it has no other: others may wait for a group that
    // it holds back.
    Group& choose() {
        const std::size_t first = dice_.below(groups_.size());
        for (std::size_t i = 0; i < groups_.size(); i++) {
            Group& group = groups_[(first + i) % groups_.size()];
            if (producer_->may_send(prompt_, group.visit, plan_of(group))) return group;
        }
        Group& group = groups_[first];
        until_taken(Waits::for_place, group.tokens * token_bytes * group.size,
                    [&] { return open_group(group, Deadline::after_ms(step_ms)); });
        return group;
    }

    template <class Call>
    void until_taken(Waits what, std::uint64_t bytes, const Call& call) {
        for (const Deadline deadline = patience();;) {
            const Push got = call();
            if (got == Push::ok) return;
            require(got == Push::timed_out, "push: {}: {}", name(got), producer_->problem());
            require(!deadline.passed(), "no room for a minute: {}", producer_->problem());
            journal_.say(Kind::waiting, static_cast<std::int64_t>(what),
                         static_cast<std::int64_t>(bytes));
        }
    }

    void fill(const Group& group, const Item& item) {
        const std::uint64_t length = dice_.below(40) == 0 ? 1500 : 150;
        const std::uint64_t first = dice_.next();
        std::uint64_t tokens = group.tokens != 0 ? group.tokens : 8 + dice_.below(length);
        if (group.heavy && dice_.below(20) == 0) {
            const std::uint64_t bytes = stress_lane_bytes * (30 + dice_.below(71)) / 100;
            tokens = tokens_of(bytes);
        }
        tokens_.resize(item.failed ? 0 : tokens);
        logprobs_.resize(tokens_.size());
        for (std::size_t i = 0; i < tokens_.size(); i++) {
            tokens_[i] = static_cast<std::int32_t>((first + i * 7919) & 0x3fffffff);
            logprobs_[i] = -static_cast<float>((first + i) % 1000) * 0.001F;
        }
        meta_ = {};
        meta_.visit = group.visit;
        meta_.repetition_id = item.repetition;
        meta_.group_size = group.size;
        meta_.subsequence_index = item.subsequence;
        meta_.last_subsequence = item.failed || item.subsequence + 1 == group.subsequences;
        meta_.attempt = item.attempt;
        meta_.reward = item.repetition + item.attempt * 0.25;
        if (item.failed) meta_.status = Status::failed;
    }

    void send(Group& group) {
        const Item item = group.items.back();
        group.items.pop_back();
        // A record that is sent twice is the same both times.
        const Dice before = dice_;
        dice_ = {mix(part_.seed ^ mix(group.visit << 16 ^ item.repetition << 8 ^ item.attempt << 4 ^
                                      item.subsequence))};
        fill(group, item);
        dice_ = before;
        const std::uint64_t roll = dice_.next();
        journal_.begin({.head = {},
                        .visit = group.visit,
                        .digest = content_digest(meta_, tokens_, logprobs_),
                        .repetition = item.repetition,
                        .attempt = item.attempt,
                        .subsequence = item.subsequence,
                        .subsequences = group.subsequences,
                        .size = group.size,
                        .failed = static_cast<std::uint16_t>(item.failed ? 1 : 0)});
        lie(roll);
        if (part_.plant != "phantom" || roll % 500 != 0) {
            until_taken(Waits::for_room, tokens_.size() * token_bytes,
                        [&] { return push(roll % 3, Deadline::after_ms(step_ms)); });
        }
        journal_.say(Kind::pushed);
    }

    void lie(std::uint64_t roll) {
        if (part_.plant == "flip" && roll % 500 == 0 && !tokens_.empty()) tokens_.back() ^= 1;
        if (part_.plant == "mixed" && roll % 500 == 0) meta_.visit++;
        if (part_.plant == "version" && roll % 500 == 0) {
            meta_.policy_version_min = meta_.policy_version_max = std::int64_t{1} << 40;
        }
    }

    // Three ways into the lane.
    Push push(std::uint64_t way, Deadline deadline) {
        Draft draft(prompt_);
        draft.meta = meta_;
        if (tokens_.empty()) return producer_->push(draft, deadline);
        draft.set(Std::token_ids, tokens_).set(Std::logprobs, logprobs_);
        if (way == 0) return producer_->push(draft, deadline);
        if (way == 1) {
            const Push got = producer_->push_later(draft, deadline);
            producer_->flush();
            return got;
        }
        const auto count = static_cast<std::uint32_t>(tokens_.size());
        draft.add({static_cast<std::uint16_t>(Std::token_ids), dtype_i32, {count + 9}, 1, nullptr});
        draft.add({static_cast<std::uint16_t>(Std::logprobs), dtype_f32, {count + 9}, 1, nullptr});
        Reservation room;
        const Push got = producer_->reserve(draft, deadline, room);
        if (got != Push::ok) return got;
        std::ranges::copy(tokens_, room.values<std::int32_t>(Std::token_ids).begin());
        std::ranges::copy(logprobs_, room.values<float>(Std::logprobs).begin());
        room.shrink(count);
        return room.commit();
    }

    const Part& part_;
    Journal& journal_;
    Dice dice_;
    std::string prompt_;
    std::optional<Producer> producer_;
    std::vector<Group> groups_;
    std::uint64_t next_ = 0;
    Meta meta_;
    std::vector<std::int32_t> tokens_;
    std::vector<float> logprobs_;
};

}  // namespace

int producer_part(const Part& part, Journal& journal) {
    return Rollouts(part, journal).run();
}

}  // namespace rollring::test
