#pragma once
// One open group: its members, their subsequences, and its possible outcomes.

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "intrusive_list.hpp"
#include "rollring/stash.hpp"
#include "rollring/trajectory.hpp"

namespace rollring {

// The facts about a record that the state machine needs. The poller fills them in from a
// TrajectoryView.
struct Arrival {
    std::uint32_t record = 0;         // the caller's index of the record
    std::uint32_t producer_lane = 0;  // below 2^16; with the epoch: the producer of the member
    std::uint32_t producer_epoch = 0;
    GroupKey key;
    std::uint32_t repetition_id = 0;  // if it is numbered
    bool numbered = true;
    std::uint32_t group_size = 0;
    std::uint16_t subsequence_index = 0;
    bool last_subsequence = true;
    std::uint32_t attempt = 0;
    Status status = Status::completed;
    std::uint32_t n_tokens = 0;
    std::int64_t policy_version_min = -1;
    std::optional<double> reward = {};
    std::int64_t source_id = 0;
    // For a record that a predecessor has read, the time when it was sent (CLOCK_MONOTONIC,
    // untrusted): its group is at least that old.
    std::optional<std::int64_t> sent_ns = {};
};

struct Subsequence {
    std::uint32_t record;  // Arrival's
    std::uint32_t n_tokens;
    std::uint16_t index;
};

[[nodiscard]] inline Subsequence subsequence_of(const Arrival& arrival) {
    return {arrival.record, arrival.n_tokens, arrival.subsequence_index};
}

// The subsequences of one member. A single one, the usual case, is stored inline.
class Subsequences {
  public:
    [[nodiscard]] std::span<const Subsequence> all() const {
        if (many_ != nullptr) return *many_;
        return {&one_, has_one_ ? 1U : 0U};
    }
    [[nodiscard]] Amount amount() const {
        Amount sum;
        for (const Subsequence& subsequence : all()) sum += {1, subsequence.n_tokens};
        return sum;
    }
    [[nodiscard]] bool has(std::uint16_t index) const {
        return std::ranges::find(all(), index, &Subsequence::index) != all().end();
    }
    void add(const Subsequence& subsequence) {
        if (all().empty()) {
            one_ = subsequence;
            has_one_ = true;
            return;
        }
        if (many_ == nullptr) many_ = std::make_unique<std::vector<Subsequence>>(1, one_);
        many_->push_back(subsequence);
    }
    void clear() {
        many_.reset();
        has_one_ = false;
    }
    void sort() {
        if (many_ != nullptr) std::ranges::sort(*many_, {}, &Subsequence::index);
    }

  private:
    Subsequence one_{};  // unless many_ is set
    bool has_one_ = false;
    std::unique_ptr<std::vector<Subsequence>> many_;
};

struct Sender {
    std::uint32_t lane;
    std::uint32_t epoch;
    friend bool operator==(const Sender&, const Sender&) = default;
};

enum class MemberState : std::uint8_t {
    open,      // subsequences are missing
    complete,  // final, can be shipped
    failed,    // final, with nothing to ship
};

enum class RewardState : std::uint8_t {
    absent,
    there,
    bad,  // NaN or infinite
};

// One cache line, for the same reason as Group.
struct alignas(64) Member {
    std::uint32_t repetition_id = 0;
    std::uint32_t attempt = 0;
    std::uint32_t producer_epoch = 0;
    std::uint32_t finished = 0;    // counts the stash's finished members, modulo 2^32
    std::uint16_t lane = 0;        // its producer's
    std::uint16_t last_index = 0;  // the index of the last subsequence, if has_last
    bool has_last : 1 = false;
    bool withheld : 1 = false;  // stale: for the baseline only
    bool left : 1 = false;      // failed because its producer is gone: another one may send it
    MemberState state = MemberState::open;
    RewardState rewarded = RewardState::absent;
    std::int64_t version_min = -1;
    double reward = 0;  // if there is one
    Subsequences subsequences;

    [[nodiscard]] DropReason why_failed() const {
        return rewarded == RewardState::bad ? DropReason::bad_reward : DropReason::failed;
    }
    [[nodiscard]] bool is_from(std::uint32_t its_lane, std::uint32_t epoch) const {
        return lane == its_lane && producer_epoch == epoch;
    }
    [[nodiscard]] bool whole() const {
        return has_last && subsequences.all().size() == last_index + std::size_t{1};
    }
};
static_assert(sizeof(Member) == 64);

struct Group {
    static constexpr std::uint32_t none = Neighbours::none;

    GroupKey key;
    GroupState state = GroupState::free;
    bool expired = false;  // its deadline passed and the policy holds it
    // Producers number the members. Otherwise each record is a member of its own, numbered as it
    // arrives.
    bool numbered = true;
    // Entries beyond the first of their repetition: several producers send the same attempt of it.
    std::uint16_t rivals = 0;
    std::uint32_t size = 0;
    std::uint32_t complete = 0;
    std::uint32_t failed = 0;
    // Cached for the checks of each record, so that they need not visit all members.
    std::uint64_t seen = 0;           // bit r: repetition r, below 64, is a member
    std::uint64_t final_members = 0;  // and is final: complete or failed
    std::uint64_t lanes = 0;          // bit l: lane l mod 64 has sent to it
    std::vector<Member> members;
    Amount total;  // of all subsequences
    std::int64_t source_id = 0;
    std::int64_t opened_ns = 0;
    std::int64_t due_ns = 0;  // a retry after readiness may renew it
    Neighbours in_ready;      // in the order of becoming ready
    Neighbours in_by_age;     // the older first; nearly so after a restart

    [[nodiscard]] const Member* member(std::uint32_t repetition_id) const {
        if (repetition_id < 64 && (seen & bit(repetition_id)) == 0) return nullptr;
        for (const Member& member : members) {
            if (member.repetition_id == repetition_id) return &member;
        }
        return nullptr;
    }
    [[nodiscard]] Member* find(std::uint32_t repetition_id) {
        return const_cast<Member*>(member(repetition_id));
    }
    [[nodiscard]] std::optional<std::uint32_t> any_record() const {
        for (const Member& member : members) {
            if (!member.subsequences.all().empty()) return member.subsequences.all().front().record;
        }
        return std::nullopt;
    }
    // Repetition IDs below its size that are not final.
    [[nodiscard]] std::vector<std::uint32_t> missing() const;
    // The distinct producers of its members.
    [[nodiscard]] std::vector<Sender> senders() const;
    Member& add(std::uint32_t repetition_id) {
        seen |= bit(repetition_id);
        Member& member = members.emplace_back();
        member.repetition_id = repetition_id;
        return member;
    }
    void fail(Member& member) {
        if (member.state == MemberState::complete) complete--;
        if (member.state != MemberState::failed) failed++;
        member.state = MemberState::failed;
        final_members |= bit(member.repetition_id);
    }
    // Forgets the members that are neither complete nor failed.
    void forget_open_members() {
        const auto kept = std::ranges::remove(members, MemberState::open, &Member::state);
        members.erase(kept.begin(), kept.end());
        rivals = 0;  // final members have no rivals
        seen = 0;
        for (const Member& member : members) seen |= bit(member.repetition_id);
    }
    static std::uint64_t bit(std::uint32_t number) {
        return number < 64 ? std::uint64_t{1} << number : 0;
    }
    // The amount that counts for a batch: one record is one sequence to train on.
    [[nodiscard]] Amount complete_amount() const {
        if (complete == members.size()) return total;
        Amount sum;
        for (const Member& member : members) {
            if (member.state == MemberState::complete) sum += member.subsequences.amount();
        }
        return sum;
    }
};

using ReadyList = IntrusiveList<Group, &Group::in_ready>;  // ready for longest first
using AgeList = IntrusiveList<Group, &Group::in_by_age>;

}  // namespace rollring
