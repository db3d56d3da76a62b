// Trainers killed at random moments: no acknowledged record returns, nothing else is missing,
// groups are whole. Producers killed in the middle of groups: the policy decides those, and the run
// goes on. Each part counts its actions and fails below its floor.
//
//   stash_kill [--kills N] [--seed N]

#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <functional>
#include <map>
#include <utility>

#include "group_load.hpp"
#include "rollout_kill.hpp"

using namespace rollring;
using namespace rollring::test;

namespace {

constexpr std::uint64_t groups_a_kill = 10;  // at least, over all lives

class TrainerKill {
  public:
    TrainerKill(std::uint64_t seed, std::uint64_t kills)
        : dice_{seed}, kills_wanted_(kills), ring_("trainers", group_ring()) {
        require(pipe2(attached_, O_NONBLOCK) == 0, "pipe: {}", errno);
        paper_->step_done = -1;
        paper_->end = groups_max;
        paper_->senders = rollouts;
    }
    TrainerKill(const TrainerKill&) = delete;
    TrainerKill& operator=(const TrainerKill&) = delete;
    ~TrainerKill() {
        for (const pid_t pid : senders_) kill_and_collect(pid);
        close(attached_[0]);
        close(attached_[1]);
    }

    void run() {
        for (std::uint32_t i = 0; i < rollouts; i++) {
            senders_.push_back(
                start_self({"--rollouts", paper_.fd(), ring_.name(), std::to_string(i)}));
        }
        while (kills_ < kills_wanted_) strike();
        paper_->end = 0;
        const pid_t last = start_trainer();
        for (const pid_t pid : std::exchange(senders_, {})) {
            const int status = collect(pid);
            require(status == 0, "a sender ended with status {}", status);
        }
        const int status = collect(last);
        require(status == 0, "the last trainer ended with status {}", status);
        report();
    }

  private:
    pid_t start_trainer() {
        return start_self({"--trainer", paper_.fd(), ring_.name(), std::to_string(dice_.next()),
                           std::to_string(attached_[1])});
    }

    // One trainer's life. One in five is killed while it starts and recovers.
    void strike() {
        char byte;
        while (read(attached_[0], &byte, 1) == 1) continue;  // the word of the one before
        const pid_t pid = start_trainer();
        const bool attached = dice_.below(5) != 0;
        if (attached) {
            ended_within(pid, 60'000'000'000, attached_[0]);
            require(read(attached_[0], &byte, 1) == 1, "no word of trainer {}", pid);
        }
        bool ended = ended_within(pid, static_cast<std::int64_t>(dice_.below(4'000'000)));
        if (attached) ended = ended || keep_pace(pid);
        const bool struck = kill_and_collect(pid);
        require(struck && !ended, "the trainer ended by itself");
        kills_++;
    }

    // A busy machine gives some lives no CPU at all, and the floors of report() count work: a
    // trainer lives on until the run is at its pace, and then until some moment after.
    bool keep_pace(pid_t pid) {
        const Deadline deadline = patience();
        while (paper_->groups.load() < kills_ * groups_a_kill + 100) {
            require(!deadline.passed(), "only {} groups in {} lives", paper_->groups.load(),
                    kills_);
            if (ended_within(pid, static_cast<std::int64_t>(dice_.below(400'000)))) return true;
        }
        return false;
    }

    void report() {
        const GroupPaper& paper = *paper_.operator->();
        check_all_shipped(paper, ring_.name());
        fmt::print(
            "trainers: kills={} groups={} members={} nacks={} forsaken={} evacuated={} copied={} "
            "cut_ack_done={} cut_ack_undone={}\n",
            kills_, paper.groups.load(), paper.members.load(), paper.nacks.load(),
            paper.forsaken.load(), paper.evacuated.load(), paper.copied_bytes.load(),
            paper.cut_done.load(), paper.cut_undone.load());
        require(paper.groups.load() >= kills_ * groups_a_kill, "only {} groups",
                paper.groups.load());
        require(paper.nacks.load() >= kills_ / 8, "only {} nacks", paper.nacks.load());
        require(paper.forsaken.load() >= kills_ / 8, "only {} forsaken", paper.forsaken.load());
        require(paper.evacuated.load() >= kills_, "only {} records evacuated",
                paper.evacuated.load());
    }

    Dice dice_;
    std::uint64_t kills_wanted_;
    Shared<GroupPaper> paper_;
    ScratchRing ring_;
    std::vector<pid_t> senders_;
    int attached_[2]{};
    std::uint64_t kills_ = 0;
};

const SelfRoles roles = {
    {"--rollouts", rollouts_role},
    {"--trainer", trainer_role},
    {"--mortal", mortal_role},
};

int run_all(const std::vector<std::string>& arguments) {
    const std::uint64_t kills = option(arguments, "--kills", 2000);
    const std::uint64_t seed =
        option(arguments, "--seed", static_cast<std::uint64_t>(monotonic_ns()));
    fmt::print("stash_kill --seed {} --kills {}\n", seed, kills);
    static_cast<void>(std::fflush(stdout));
    TrainerKill(seed, kills).run();
    static_cast<void>(std::fflush(stdout));
    kill_rollouts(seed + 1, kills / 2, AtDeadline::ship);
    kill_rollouts(seed + 2, kills / 2, AtDeadline::drop);
    const std::size_t left = leftovers();
    fmt::print("leftovers in /dev/shm: {}\n", left);
    return left == 0 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
    return run_self(argc, argv, roles, run_all);
}
