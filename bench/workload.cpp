#include "workload.hpp"

#include <fmt/core.h>
#include <sys/prctl.h>

#include <algorithm>
#include <memory>
#include <random>

#include "rounding.hpp"

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

namespace {

std::uint64_t sum_slice(const Slice& slice) {
    return sum_words(slice.token_ids.data(), slice.token_ids.size_bytes()) +
           sum_words(slice.logprobs.data(), slice.logprobs.size_bytes()) +
           sum_words(slice.loss_mask.data(), slice.loss_mask.size_bytes()) +
           sum_words(slice.experts.data(), slice.experts.size_bytes());
}

}  // namespace

Source::Source(std::uint32_t n_tokens, const Experts& experts) {
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
    // A quarter of a gigabyte for two long records: words of a cheaper generator.
    const std::size_t row = std::size_t{experts.layers} * experts.k;
    experts_.resize(tokens * row);
    for (std::size_t i = 0; i < experts_.size(); i++) {
        experts_[i] = static_cast<std::uint16_t>(i * 0x9e3779b1 >> 13 & 0xff);
    }
    for (std::uint32_t i = 0; i < slices; i++) {
        const std::size_t from = std::size_t{i} * n_tokens;
        Slice slice{{token_ids_.data() + from, n_tokens},
                    {logprobs_.data() + from, n_tokens},
                    {loss_mask_.data() + from, n_tokens},
                    {experts_.data() + from * row, n_tokens * row},
                    0};
        slice.sum = sum_slice(slice);
        slices_.push_back(slice);
    }
}

Flat Flat::of(std::uint32_t n_tokens, const Experts& experts) {
    const auto lines = [](std::uint64_t bytes) { return round_up(bytes, 64); };
    const std::uint64_t words = lines(std::uint64_t{n_tokens} * 4);
    const std::uint64_t expert_bytes = n_tokens * experts.token_bytes();
    const std::uint64_t experts_at = header_bytes + 2 * words + lines(n_tokens);
    return {header_bytes + words, header_bytes + 2 * words, experts_at, expert_bytes,
            experts_at + lines(expert_bytes)};
}

void Flat::write(std::byte* to, const Slice& from) const {
    std::memcpy(to + header_bytes, from.token_ids.data(), from.token_ids.size_bytes());
    std::memcpy(to + logprobs_at, from.logprobs.data(), from.logprobs.size_bytes());
    std::memcpy(to + loss_mask_at, from.loss_mask.data(), from.loss_mask.size_bytes());
    if (expert_bytes != 0) std::memcpy(to + experts_at, from.experts.data(), expert_bytes);
}

std::uint64_t Flat::sum(const std::byte* from, std::uint32_t n_tokens) const {
    const std::uint64_t words = std::uint64_t{n_tokens} * 4;
    const std::uint64_t sum = sum_words(from + header_bytes, words) +
                              sum_words(from + logprobs_at, words) +
                              sum_words(from + loss_mask_at, n_tokens);
    return expert_bytes == 0 ? sum : sum + sum_words(from + experts_at, expert_bytes);
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

BareHandoff::BareHandoff(std::uint32_t n_tokens, std::uint64_t working_bytes,
                         const Experts& experts)
    : n_tokens_(n_tokens),
      flat_(Flat::of(n_tokens, experts)),
      buffers_(std::max<std::uint64_t>(2, working_bytes / flat_.bytes)),
      memory_(std::make_shared<SharedBytes>(buffers_ * flat_.bytes)) {}

void BareHandoff::reset() const {
    for (std::uint64_t i = 0; i < buffers_; i++) buffer(i).flag.store(0, std::memory_order_relaxed);
}

bool BareHandoff::is_free(std::uint64_t sequence) const {
    return buffer(sequence).flag.load(std::memory_order_acquire) == 0;
}

bool BareHandoff::is_there(std::uint64_t sequence) const {
    return buffer(sequence).flag.load(std::memory_order_acquire) == sequence + 1;
}

void BareHandoff::write(std::uint64_t sequence, const Slice& slice) const {
    while (!is_free(sequence)) relax();
    flat_.write(at(sequence), slice);
    buffer(sequence).header = {sequence, slice.sum, n_tokens_};
}

void BareHandoff::commit(std::uint64_t sequence) const {
    buffer(sequence).flag.store(sequence + 1, std::memory_order_release);
}

BareHandoff::Received BareHandoff::receive(std::uint64_t sequence) const {
    while (!is_there(sequence)) relax();
    const FlatHeader header = buffer(sequence).header;
    const std::uint64_t sum = flat_.sum(at(sequence), static_cast<std::uint32_t>(header.n_tokens));
    buffer(sequence).flag.store(0, std::memory_order_release);
    return {header, sum};
}

Transport BareHandoff::transport() const {
    const auto produce = [bare = *this](Board& board, const Plan& plan) {
        const Source source(plan.n_tokens, plan.experts);
        bare.reset();
        board.meet();
        for (std::uint64_t i = 0; i < plan.total(); i++) {
            bare.write(i, source[i]);
            bare.commit(i);
        }
    };
    const auto consume = [bare = *this](Board& board, const Plan& plan) {
        Meter meter(board, plan);
        board.meet();
        for (std::uint64_t i = 0; !meter.done(); i++) {
            const Received received = bare.receive(i);
            meter.record(received.header.sequence, received.sum, received.header.sum);
        }
    };
    return {"limit", produce, consume};
}

}  // namespace bench
