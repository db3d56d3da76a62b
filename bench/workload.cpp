#include "workload.hpp"

#include <fmt/format.h>
#include <sys/prctl.h>

#include <algorithm>
#include <memory>
#include <random>

namespace bench {

#if defined(__x86_64__) && defined(__GNUC__)
__attribute__((target_clones("avx2", "default")))
#endif
std::uint64_t
sum_words(const void* bytes, std::uint64_t count) {
    const auto* words = static_cast<const std::uint64_t*>(bytes);
    std::uint64_t sum = 0;
    for (std::uint64_t i = 0; i < count / 8; i++) sum += words[i];
    if (count % 8 != 0) {
        std::uint64_t tail = 0;
        std::memcpy(&tail, words + count / 8, count % 8);
        sum += tail;
    }
    return sum;
}

Source::Source(std::uint32_t n_tokens) {
    const std::uint32_t slices = std::max(1U, source_tokens / n_tokens);
    const std::size_t tokens = std::size_t{slices} * n_tokens;
    token_ids_.resize(tokens);
    logprobs_.resize(tokens);
    loss_mask_.resize(tokens);
    std::minstd_rand random(n_tokens);
    for (std::size_t i = 0; i < tokens; i++) {
        const auto value = static_cast<std::uint32_t>(random());
        token_ids_[i] = static_cast<std::int32_t>(value % 151'936);
        logprobs_[i] = -static_cast<float>(value % 10'000) / 1000;
        loss_mask_[i] = value % 8 != 0 ? 1 : 0;
    }
    for (std::uint32_t i = 0; i < slices; i++) {
        const std::size_t from = std::size_t{i} * n_tokens;
        Slice slice{{token_ids_.data() + from, n_tokens},
                    {logprobs_.data() + from, n_tokens},
                    {loss_mask_.data() + from, n_tokens},
                    0};
        slice.sum = sum_words(slice.token_ids.data(), slice.token_ids.size_bytes()) +
                    sum_words(slice.logprobs.data(), slice.logprobs.size_bytes()) +
                    sum_words(slice.loss_mask.data(), slice.loss_mask.size_bytes());
        slices_.push_back(slice);
    }
}

Flat Flat::of(std::uint32_t n_tokens) {
    const auto lines = [](std::uint64_t bytes) { return (bytes + 63) / 64 * 64; };
    const std::uint64_t words = lines(std::uint64_t{n_tokens} * 4);
    return {header_bytes + words, header_bytes + 2 * words,
            header_bytes + 2 * words + lines(n_tokens)};
}

void Flat::write(std::byte* to, const Slice& from) const {
    std::memcpy(to + header_bytes, from.token_ids.data(), from.token_ids.size_bytes());
    std::memcpy(to + logprobs_at, from.logprobs.data(), from.logprobs.size_bytes());
    std::memcpy(to + loss_mask_at, from.loss_mask.data(), from.loss_mask.size_bytes());
}

std::uint64_t Flat::sum(const std::byte* from, std::uint32_t n_tokens) const {
    const std::uint64_t words = std::uint64_t{n_tokens} * 4;
    return sum_words(from + header_bytes, words) + sum_words(from + logprobs_at, words) +
           sum_words(from + loss_mask_at, n_tokens);
}

Measured measure(const Transport& transport, const Plan& plan, const Cpus& cpus) {
    const SharedBytes memory(sizeof(Board));
    Board& board = *memory.at<Board>();
    Measured measured;
    measured.line_ns = line_ns(cpus);
    const auto named = [&](const char* side, const auto& work) {
        return [&, side](Board& shared) {
            prctl(PR_SET_NAME, (transport.name.substr(0, 10) + side).c_str());  // for top and perf
            work(shared, plan);
        };
    };
    const std::string problem =
        run_pair(cpus, board, named("-prod", transport.produce), named("-cons", transport.consume));
    if (problem == "interrupted") return measured;
    if (!problem.empty()) fail(fmt::format("{}: {}", transport.name, problem));
    const double tokens = static_cast<double>(plan.records) * plan.n_tokens;
    measured.tokens_per_s = tokens / (static_cast<double>(board.figures[0]) / 1e9);
    measured.figures = board.figures;
    return measured;
}

std::uint64_t calibrate(const Transport& transport, Plan plan, const Cpus& cpus, double seconds) {
    plan.records = std::clamp<std::uint64_t>((32U << 20) / plan.record_bytes(), 8, 20'000);
    const Measured found = measure(transport, plan, cpus);
    const double records = found.tokens_per_s / plan.n_tokens * seconds;
    return std::max<std::uint64_t>(8, static_cast<std::uint64_t>(records));
}

// ---- the limit ----

namespace {

// The flag shares its line with the header: one line fewer to move than with a line of its own.
struct Buffer {
    std::atomic<std::uint64_t> flag;  // 0 free, else sequence + 1
    FlatHeader header;
};
static_assert(sizeof(Buffer) <= Flat::header_bytes);

}  // namespace

BareHandoff::BareHandoff(std::uint32_t n_tokens, std::uint64_t working_bytes)
    : flat_(Flat::of(n_tokens)),
      buffers_(std::max<std::uint64_t>(2, working_bytes / flat_.bytes)),
      memory_(std::make_shared<SharedBytes>(buffers_ * flat_.bytes)) {}

Transport BareHandoff::transport() const {
    // Every run begins with all flags down, whatever the one before left.
    const auto at = [memory = memory_, flat = flat_, count = buffers_](std::uint64_t sequence) {
        return memory->data() + sequence % count * flat.bytes;
    };
    const auto produce = [=, flat = flat_, count = buffers_](Board& board, const Plan& plan) {
        const Source source(plan.n_tokens);
        for (std::uint64_t i = 0; i < count; i++) {
            reinterpret_cast<Buffer*>(at(i))->flag.store(0, std::memory_order_relaxed);
        }
        board.meet();
        for (std::uint64_t i = 0; i < plan.total(); i++) {
            std::byte* to = at(i);
            auto& buffer = *reinterpret_cast<Buffer*>(to);
            while (buffer.flag.load(std::memory_order_acquire) != 0) relax();
            const Slice& slice = source[i];
            flat.write(to, slice);
            buffer.header = {i, slice.sum, plan.n_tokens};
            buffer.flag.store(i + 1, std::memory_order_release);
        }
    };
    const auto consume = [=, flat = flat_](Board& board, const Plan& plan) {
        Meter meter(board, plan);
        board.meet();
        for (std::uint64_t i = 0; !meter.done(); i++) {
            const std::byte* from = at(i);
            auto& buffer = *reinterpret_cast<Buffer*>(at(i));
            while (buffer.flag.load(std::memory_order_acquire) != i + 1) relax();
            const FlatHeader header = buffer.header;
            const std::uint64_t sum = flat.sum(from, static_cast<std::uint32_t>(header.n_tokens));
            buffer.flag.store(0, std::memory_order_release);
            meter.record(header.sequence, sum, header.sum);
        }
    };
    return {"limit", produce, consume};
}

}  // namespace bench
