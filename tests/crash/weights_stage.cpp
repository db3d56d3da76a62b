#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>

#include "channel_names.hpp"
#include "control_socket.hpp"
#include "weights_roles.hpp"

namespace rollring::test {

std::size_t open_descriptors() {
    std::size_t count = 0;
    for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
        static_cast<void>(entry);
        count++;
    }
    return count;
}

std::uint64_t resident_bytes() {
    std::ifstream file("/proc/self/statm");
    std::uint64_t all = 0;
    std::uint64_t resident = 0;
    require(static_cast<bool>(file >> all >> resident), "cannot read /proc/self/statm");
    return resident * 4096;
}

std::size_t weights_leftovers() {
    const std::string mark = fmt::format("test-{}-", getpid());
    const std::string directory = fmt::format("/dev/shm/rollring-weights.{}", geteuid());
    std::size_t count = leftovers();
    std::error_code error;
    for (const auto& entry : std::filesystem::directory_iterator(directory, error)) {
        count += entry.path().filename().string().starts_with(mark) ? 1 : 0;
    }
    // Empty: no other process has it, and it ought to have gone with the last socket.
    return count + (std::filesystem::is_empty(directory, error) && !error ? 1 : 0);
}

namespace {

std::string gpu_word(const Crew& crew) {
    if (crew.direct) return "2";
    return crew.gpu ? "1" : "0";
}

}  // namespace

Stage::Stage(const Crew& crew)
    : crew_(crew), ring_("weights", {.lanes = 2, .lane_bytes = 64 << 10}) {
    board_->served = -1;
    board_->ranks_version = -1;
    for (EngineNote& engine : board_->engines) engine.live = -1;
    for (TrainerNote& trainer : board_->trainers) trainer.committed = -1;
}

Stage::~Stage() {
    for (const auto pids : {std::span<pid_t>(trainers_), std::span<pid_t>(engines_)}) {
        for (const pid_t pid : pids) {
            if (pid > 0) kill_and_collect(pid);
        }
    }
    remove_dead_channels(ring_.name());
}

pid_t Stage::start_trainer(std::uint32_t rank, const std::string& fault) {
    return trainers_.at(rank) =
               start_self({"--trainer", board_.fd(), ring_.name(), std::to_string(rank),
                           std::to_string(crew_.ranks), std::to_string(crew_.engines / crew_.ranks),
                           gpu_word(crew_),
                           crew_.soak    ? "2"
                           : crew_.delta ? "1"
                                         : "0"},
                          fault);
}

pid_t Stage::start_engine(std::uint32_t index, const std::string& fault) {
    return engines_.at(index) =
               start_self({"--engine", board_.fd(), ring_.name(), std::to_string(index),
                           std::to_string(index % crew_.ranks), gpu_word(crew_),
                           crew_.soak    ? "2"
                           : crew_.delta ? "1"
                                         : "0"},
                          fault);
}

std::int64_t Stage::committed() const {
    const auto stat = stat_ring(ring_.name());
    require(stat.has_value(), "{}", stat ? "" : stat.error().to_string());
    return stat->policy_version;
}

void Stage::wait(std::string_view what, const std::function<bool()>& reached, pid_t struck) {
    const Deadline deadline = patience();
    std::int64_t before = committed();
    while (!reached()) {
        require(!deadline.passed(), "in vain: {}", what);
        for (const auto pids : {std::span<pid_t>(trainers_), std::span<pid_t>(engines_)}) {
            for (pid_t& pid : pids) {
                if (pid <= 0 || pid == struck || look_at(pid) != 'e') continue;
                const pid_t ended = std::exchange(pid, 0);
                require(false, "process {} ended with status {} while waiting for: {}", ended,
                        collect(ended), what);
            }
        }
        const std::int64_t now = committed();
        require(now >= before, "the ring's version fell from {} to {}", before, now);
        before = now;
        weights::nap();
    }
}

void Stage::finish() {
    const auto collect_all = [](std::span<pid_t> pids) {
        for (pid_t& pid : pids) {
            if (pid <= 0) continue;
            const bool ended = ended_within(pid, 60'000'000'000);
            if (!ended) kill(pid, SIGKILL);
            const int status = collect(std::exchange(pid, 0));
            require(ended && status == 0, "a process {} with status {}",
                    ended ? "ended" : "never ended", status);
        }
    };
    board().trainers_stop = 1;
    collect_all(trainers_);
    board().engines_stop = 1;
    collect_all(engines_);
    require(committed() >= board().served, "version {} was served, the ring says {}",
            board().served.load(), committed());
    require(channel::ranks_of(ring_.name()).empty(), "a socket of {} is left", ring_.name());
}

}  // namespace rollring::test
