#pragma once
// A trainer that shares its batches with two readers, all of which die or stop at any moment, and a
// ledger of the records that were read, and of those that were acknowledged.

#include <array>
#include <atomic>
#include <string>
#include <utility>
#include <vector>

#include "support/load.hpp"

namespace rollring::test {

inline constexpr std::uint32_t share_readers = 2;
inline constexpr std::uint32_t share_groups_most = 1 << 20;

// A ticket on its way to a reader.
struct Mailbox {
    std::atomic<std::uint64_t> serial;  // odd while it is written
    std::atomic<std::uint64_t> taken;   // the serial that its reader is done with
    std::atomic<std::uint32_t> reading;
    std::atomic<std::uint64_t> hold;   // not 0: its reader reads on
    std::atomic<std::uint64_t> held;   // the last such word that it has seen
    std::atomic<std::uint64_t> whole;  // read, and still unchanged at the end
    std::atomic<std::uint64_t> stale;
    std::uint64_t bytes;
    std::array<char, 8192> ticket;
};

struct ShareLedger {
    std::atomic<std::uint32_t> end;   // 1: of the sender, 2: of all, once all is acknowledged
    std::atomic<std::uint32_t> sent;  // groups
    std::atomic<std::uint32_t> acked[share_groups_most];
    std::atomic<std::uint64_t> groups;  // acknowledged
    std::atomic<std::uint64_t> busy;    // acks that a reader was in the way of
    std::atomic<std::uint64_t> nacks;
    std::atomic<std::int64_t> longest_ack_ns;
    // The step that ack() is at work on.
    std::atomic<std::int64_t> set_step;
    std::atomic<std::uint32_t> set_count;
    std::atomic<std::uint32_t> set[8];
    Mailbox mail[share_readers];
};

// A run: a ring, a sender that lives, and a trainer and readers that are started anew.
class ShareRun {
  public:
    ShareRun();
    ShareRun(const ShareRun&) = delete;
    ShareRun& operator=(const ShareRun&) = delete;
    ~ShareRun();

    struct Role {
        std::vector<std::string> words;
        pid_t pid = 0;
    };
    Role& trainer() { return roles_[0]; }
    Role& reader(std::size_t index) { return roles_[1 + index]; }
    ShareLedger& ledger() { return *ledger_.operator->(); }

    void start(Role& role, const std::string& fault = {});
    void start_all();
    void kill_one(Role& role) { kill_and_collect(std::exchange(role.pid, 0)); }
    // Waits until something is so, while all of ours live.
    template <class Condition>
    void until(Condition condition) {
        for (const Deadline deadline = patience(); !condition();) {
            require(!deadline.passed(), "what was waited for never came");
            check_alive();
            ended_within(roles_[0].pid, 20'000);
        }
    }
    void finish();

  private:
    void check_alive();
    void clear_mail(std::size_t index);
    ScratchRing ring_;
    Shared<ShareLedger> ledger_;
    pid_t sender_ = 0;
    std::array<Role, 1 + share_readers> roles_;
};

int share_sender_role(const std::vector<std::string>& arguments);
int share_trainer_role(const std::vector<std::string>& arguments);
int share_reader_role(const std::vector<std::string>& arguments);

// So many deaths, most of them of readers in the middle of a read.
void share_kills(std::uint64_t kills, Dice& dice);

}  // namespace rollring::test
