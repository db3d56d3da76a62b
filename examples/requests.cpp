#include <rollring/extras/requests.hpp>

#include <iostream>
#include <string_view>

// Both ends in one program; in a run they are separate processes.
int main() {
    using rollring::Deadline;
    auto board = rollring::RequestBoard::open("quickstart");    // the trainer's
    auto worker = rollring::RequestWorker::open("quickstart");  // one of many
    if (!board || !worker) {
        std::cerr << (board ? worker.error() : board.error()).to_string() << '\n';
        return 1;
    }
    const std::string_view prompt = "2 + 2?";
    const auto number = board->post(std::as_bytes(std::span(prompt)), Deadline::after_ms(1'000));
    const auto taken = worker->take(Deadline::after_ms(1'000));
    if (!number || !taken || !*taken) return 1;
    const rollring::TakenRequest& request = **taken;
    // The records of its completions are pushed here.
    std::cout << "attempt " << request.attempt << ", " << request.body.size() << " bytes\n";
    return worker->finish(request) ? 0 : 1;
}
