#include "rollring/gather.hpp"

#include <chrono>
#include <optional>
#include <thread>
#include <utility>

namespace rollring {

Result<void> ReadBatches::ack_after(Batch&& batch, std::int64_t step, Gatherer& gatherer,
                                    Stream stream) {
    const auto mark = gatherer.mark(stream);
    if (!mark) return std::unexpected(mark.error());
    return ack_after(std::move(batch), step,
                     [&gatherer, number = *mark] { return gatherer.reached(number); });
}

Result<void> ReadBatches::ack_after(Batch&& batch, std::int64_t step, Read read) {
    if (!batch.leased()) {
        return refused(Errc::not_leased, "the batch has already been acknowledged or given back");
    }
    all_.push_back({std::move(batch), step, std::move(read)});
    return {};
}

Result<std::size_t> ReadBatches::advance() {
    std::optional<Error> failed;
    while (!all_.empty()) {
        One& first = all_.front();
        const auto read = first.read();
        if (read && !*read) break;
        const auto done =
            read ? first.batch.ack(first.step, Deadline::now()) : std::unexpected(read.error());
        if (read && !done && done.error().code == Errc::busy) break;
        if (!done && !failed) failed = done.error();
        all_.pop_front();  // returns a batch that was not acknowledged
    }
    if (failed) return std::unexpected(*failed);
    return all_.size();
}

Result<void> ReadBatches::finish(Deadline deadline) {
    for (;;) {
        const auto left = advance();
        if (!left) return std::unexpected(left.error());
        if (*left == 0) return {};
        if (deadline.passed()) {
            return refused(Errc::timed_out, "the GPU had not read the batch by the deadline");
        }
        std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
}

}  // namespace rollring
