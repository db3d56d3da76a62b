#include "request_load.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <csignal>
#include <cstring>
#include <memory>
#include <optional>

#include "rollring/extras/requests.hpp"

namespace rollring::test {
namespace {

constexpr std::uint32_t attempts = 31;

}  // namespace

// Posts the requests without an end, in the ledger's order; done when nothing is under way any
// more.
int request_board_role(const std::vector<std::string>& arguments) {
    const Shared<RequestLedger> ledger(arguments.at(1));
    auto board = RequestBoard::open(arguments.at(0), {.attempts = attempts});
    require(board.has_value(), "{}", board ? "" : board.error().to_string());
    ledger->before = ledger->posts.load();
    std::vector<std::pair<std::uint64_t, std::uint32_t>> posted;
    const auto look = [&](Deadline deadline) {
        const auto numbers = board->given_up(deadline);
        require(numbers.has_value(), "{}", numbers ? "" : numbers.error().to_string());
        for (const std::uint64_t number : *numbers) {
            const auto found =
                std::ranges::find(posted, number, &decltype(posted)::value_type::first);
            require(found != posted.end(), "number {} was never posted", number);
            ledger->given_up[found->second]++;
        }
    };
    // A worker's requests from the board before may still be finished until it lets go: it will be
    // told that they were withdrawn.
    for (std::uint32_t id = 0; id < ledger->total; id++) {
        if (over(*ledger.operator->(), id)) continue;
        const RequestBody body{id, ledger->posts++};
        const auto number = board->post(std::as_bytes(std::span(&body, 1)), patience());
        require(number.has_value(), "{}", number ? "" : number.error().to_string());
        posted.emplace_back(*number, id);
        ledger->steps++;
        look(Deadline::now());
    }
    for (const Deadline deadline = patience();;) {
        const RequestCounts counts = board->counts();
        if (counts.waiting + counts.taken + counts.given_up == 0) return 0;
        require(!deadline.passed(), "{} wait, {} are taken for good", counts.waiting, counts.taken);
        look(Deadline::after_ms(5));
    }
}

int request_worker_role(const std::vector<std::string>& arguments) {
    const Shared<RequestLedger> ledger(arguments.at(1));
    auto worker = RequestWorker::open(arguments.at(0), "worker");
    require(worker.has_value(), "{}", worker ? "" : worker.error().to_string());
    while (true) {
        const auto taken = worker->take(patience());
        require(taken.has_value() && taken->has_value(), "nothing to take");
        const TakenRequest& request = **taken;
        RequestBody body{};
        require(request.body.size() == sizeof body, "{} bytes", request.body.size());
        std::memcpy(&body, request.body.data(), sizeof body);
        ledger->steps++;
        const bool stale = body.post < ledger->before;
        if (worker->finish(request)) {
            require(!stale, "request {} of a board before was finished for this one", body.id);
            ledger->finished[body.id]++;
        }
        ledger->steps++;
    }
}

void request_kills(std::uint64_t kills, Dice& dice) {
    std::uint64_t done = 0;
    while (done < kills) {
        RequestRun run(requests_of_run);
        // Some deaths a run; then it is let go on to its end.
        for (std::uint64_t i = 0; i < 12 && done < kills; i++, done++) {
            run.start_all();
            const std::uint64_t until = run.steps() + dice.below(60);
            while (run.steps() < until && !ended_within(run.board().pid, 50'000)) {
            }
            if (look_at(run.board().pid) == 'e') break;  // all is over
            run.kill_one(dice.below(6) == 0 ? run.board() : run.worker(dice.below(2)));
        }
        run.start_all();
        run.finish();
    }
}

}  // namespace rollring::test
