// Question: what does a run notice of five viewers that show its ring on their pages?
//
// One run, in which the viewers look and are stopped in turns: a run of its own for each would
// differ by more than the viewers cost.

#include <fmt/core.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <csignal>
#include <string>
#include <vector>

#include "questions.hpp"
#include "ring/records.hpp"
#include "rollring/consumer.hpp"
#include "rounding.hpp"

namespace bench {
namespace {

constexpr std::uint64_t viewed_group = 16;
constexpr std::size_t viewed_rounds_max = 1000;

struct ViewedRound {
    double before;  // tokens a second, without viewers
    double viewed;
    double after;  // without them again
};

struct ViewedRun {
    alignas(128) std::atomic<std::uint64_t> records;  // that were read
    alignas(128) std::atomic<bool> ends;
    alignas(128) std::atomic<bool> sent;  // all records
    std::array<ViewedRound, viewed_rounds_max> rounds;
};

void send_viewed(const std::string& ring, Board& board, ViewedRun& shared, std::uint32_t n_tokens) {
    Sender sender(board, ring);
    const Source source(n_tokens);
    board.meet(3);
    for (std::uint64_t i = 0; !shared.ends.load(std::memory_order_relaxed); i++) {
        const std::string name = std::to_string(i / viewed_group);
        rollring::Draft draft(name);
        draft.meta.repetition_id = static_cast<std::uint32_t>(i % viewed_group);
        draft.meta.group_size = static_cast<std::uint32_t>(viewed_group);
        draft.meta.reward = static_cast<double>(i % viewed_group);
        fill(draft, source[i]);
        sender.push(draft);
    }
    sender.producer().flush();
    shared.sent = true;
}

void read_viewed(const std::string& ring, Board& board, ViewedRun& shared) {
    auto consumer = must(board, rollring::Consumer::open(ring));
    board.meet(3);
    rollring::Record record;
    std::uint64_t count = 0;
    while (true) {
        const bool sent = shared.sent;
        const rollring::Poll got = consumer.poll(record);
        if (got == rollring::Poll::record) {
            check(board, record.view);
            consumer.release(record.ref);
            shared.records.store(++count, std::memory_order_relaxed);
        } else if (got != rollring::Poll::empty) {
            board.give_up("the ring has ended");
        } else if (sent) {
            return;
        } else {
            relax();
        }
    }
}

// Programs with a page that asks them, until this object ends.
class Viewers {
  public:
    Viewers(const ViewersQuestion& options, const std::string& ring, Board& board)
        : board_(&board) {
        std::vector<int> ready;
        ready.reserve(options.viewers);
        for (std::uint32_t i = 0; i < options.viewers; i++) ready.push_back(start(options, ring));
        for (const int fd : ready) {
            char word = 0;
            if (::read(fd, &word, 1) != 1) board.give_up("a viewer has ended; see its message");
            close(fd);
        }
    }
    Viewers(const Viewers&) = delete;
    Viewers& operator=(const Viewers&) = delete;
    ~Viewers() {
        tell(SIGKILL);
        for (const pid_t pid : pids_) waitpid(pid, nullptr, 0);
    }
    // To the programs and their pages.
    void tell(int signal) const {
        for (const pid_t pid : pids_) {
            if (kill(-pid, signal) != 0) board_->give_up("a viewer has ended");
        }
    }

  private:
    // Returns a descriptor from which a byte comes once the page has its first answer.
    int start(const ViewersQuestion& options, const std::string& ring) {
        int ends[2];
        if (pipe(ends) != 0) board_->give_up("no pipe");
        const pid_t parent = getpid();
        const pid_t pid = fork();
        if (pid < 0) board_->give_up("cannot fork a viewer");
        if (pid == 0) {
            setpgid(0, 0);
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            if (getppid() != parent) _exit(1);
            dup2(ends[1], STDOUT_FILENO);
            close(ends[0]);
            close(ends[1]);
            execlp(options.python.c_str(), options.python.c_str(), options.script.c_str(),
                   ring.c_str(), static_cast<char*>(nullptr));
            _exit(127);
        }
        setpgid(pid, pid);
        close(ends[1]);
        pids_.push_back(pid);
        return ends[0];
    }
    Board* board_;
    std::vector<pid_t> pids_;
};

// Tokens a second from now on.
double viewed_rate(const ViewedRun& shared, double seconds, std::uint32_t n_tokens) {
    const std::uint64_t before = shared.records.load(std::memory_order_relaxed);
    const std::int64_t began_ns = now_ns();
    usleep(static_cast<useconds_t>(seconds * 1e6));
    const std::uint64_t count = shared.records.load(std::memory_order_relaxed) - before;
    return static_cast<double>(count) * n_tokens * 1e9 / static_cast<double>(now_ns() - began_ns);
}

void view_in_turns(const ViewersQuestion& options, const std::string& ring, Board& board,
                   ViewedRun& shared, std::uint32_t n_tokens) {
    const Viewers viewers(options, ring, board);
    board.meet(3);
    const double seconds = options.common.seconds;
    static_cast<void>(
        viewed_rate(shared, seconds, n_tokens));  // a lap, and the first groups of a page
    for (int i = 0; i < options.common.repeat; i++) {
        ViewedRound& round = shared.rounds[static_cast<std::size_t>(i)];
        viewers.tell(SIGSTOP);
        round.before = viewed_rate(shared, seconds, n_tokens);
        viewers.tell(SIGCONT);
        round.viewed = viewed_rate(shared, seconds, n_tokens);
        viewers.tell(SIGSTOP);
        round.after = viewed_rate(shared, seconds, n_tokens);
        viewers.tell(SIGCONT);
    }
    shared.ends = true;
}

Json measure_viewed(const ViewersQuestion& options, std::uint32_t n_tokens, const Cpus& cpus) {
    const ScratchRing ring({.lanes = 1,
                            .lane_bytes = parse_bytes(options.lane_bytes),
                            .soft_bytes = parse_bytes(options.soft_bytes)});
    const SharedBytes memory(sizeof(Board) + 128 + sizeof(ViewedRun));
    Board& board = *memory.at<Board>();
    auto& shared = *new (memory.at<ViewedRun>(round_up(sizeof(Board), 128))) ViewedRun{};
    const std::string& name = ring.name();
    const std::string problem = run_all(
        {{cpus.consumer, [&](Board& all) { read_viewed(name, all, shared); }},
         {cpus.producer, [&](Board& all) { send_viewed(name, all, shared, n_tokens); }},
         {any_cpu, [&](Board& all) { view_in_turns(options, name, all, shared, n_tokens); }}},
        cpus.realtime, board);
    if (!problem.empty() && problem != "interrupted") fail("viewers: " + problem);
    Figures figures;
    for (const ViewedRound& round : shared.rounds) {
        if (round.after == 0) break;
        figures.add("tokens_per_s", round.before);
        figures.add("viewed_tokens_per_s", round.viewed);
        figures.add("ratio", 2 * round.viewed / (round.before + round.after));
        figures.add("ratio_without", round.after / round.before);
    }
    Json row = {{"tokens", n_tokens}, {"viewers", options.viewers}};
    figures.append_to(row);
    return row;
}

}  // namespace

void run(const ViewersQuestion& options) {
    if (options.common.repeat > static_cast<int>(viewed_rounds_max))
        fail("--repeat: too many rounds");
    const Cpus cpus = options.common.choose_cpus();
    Json out = {{"question", "viewers"},
                {"machine", machine(cpus)},
                {"lane_bytes", options.lane_bytes},
                {"soft_bytes", options.soft_bytes}};
    {
        Progress progress(options.tokens.size());
        for (const std::uint32_t n_tokens : options.tokens) {
            progress.step(fmt::format("{} viewers, {} tokens", options.viewers, n_tokens));
            out["rows"].push_back(measure_viewed(options, n_tokens, cpus));
        }
    }
    print_report(out, options.common.json);
}

}  // namespace bench
