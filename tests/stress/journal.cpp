#include "journal.hpp"

#include <fmt/core.h>
#include <unistd.h>

#include <bit>
#include <charconv>
#include <climits>
#include <cstring>

#include "support/load.hpp"

namespace rollring::test {

void Journal::put(const void* data, std::size_t bytes) {
    require(bytes <= PIPE_BUF, "an entry of {} bytes", bytes);
    const ssize_t put = ::write(pipe_, data, bytes);
    if (put < 0 && errno == EPIPE) _exit(9);  // the driver is gone
    require(put == static_cast<ssize_t>(bytes), "journal: {} of {} bytes, errno {}", put, bytes,
            errno);
}

void Journal::say(Kind kind, std::int64_t a, std::int64_t b) {
    const Word word{{sizeof(Word), kind, life_, monotonic_ns()}, a, b};
    put(&word, sizeof word);
}

void Journal::begin(Begun entry) {
    entry.head = {sizeof entry, Kind::begun, life_, monotonic_ns()};
    put(&entry, sizeof entry);
}

void Journal::acking(std::int64_t step, std::span<const Shipped> groups,
                     std::span<const Piece> pieces) {
    const std::size_t bytes = sizeof(Acking) + groups.size_bytes() + pieces.size_bytes();
    const Acking entry{
        {static_cast<std::uint32_t>(bytes), Kind::acking, life_, monotonic_ns()},
        step,
        static_cast<std::uint32_t>(groups.size()),
        static_cast<std::uint32_t>(pieces.size()),
    };
    buffer_.resize(bytes);
    std::byte* const at = buffer_.data();
    std::memcpy(at, &entry, sizeof entry);
    if (!groups.empty()) std::memcpy(at + sizeof entry, groups.data(), groups.size_bytes());
    if (!pieces.empty()) {
        std::memcpy(at + sizeof entry + groups.size_bytes(), pieces.data(), pieces.size_bytes());
    }
    put(buffer_.data(), buffer_.size());
}

void Journal::fail(std::string_view why) {
    why = why.substr(0, 1500);
    const Head head{static_cast<std::uint32_t>(sizeof(Head) + why.size()), Kind::failure, life_,
                    monotonic_ns()};
    buffer_.resize(head.bytes);
    std::memcpy(buffer_.data(), &head, sizeof head);
    std::memcpy(buffer_.data() + sizeof head, why.data(), why.size());
    put(buffer_.data(), buffer_.size());
}

std::uint64_t content_digest(const Meta& meta, std::span<const std::int32_t> tokens,
                             std::span<const float> logprobs) {
    std::uint64_t sum = mix(meta.visit ^ std::uint64_t{meta.group_size} << 48);
    const auto add = [&](std::uint64_t word) {
        sum = (std::rotl(sum, 23) ^ word) * 0x9e3779b97f4a7c15;
    };
    add(std::uint64_t{meta.repetition_id.value_or(0)} << 32 | meta.attempt);
    add(std::uint64_t{meta.subsequence_index} << 32 | static_cast<std::uint64_t>(meta.status));
    add(std::bit_cast<std::uint64_t>(meta.reward.value_or(-1)));
    add(tokens.size() << 32 | logprobs.size());
    for (const std::int32_t token : tokens) add(static_cast<std::uint32_t>(token));
    for (const float value : logprobs) add(std::bit_cast<std::uint32_t>(value));
    return mix(sum);
}

std::string prompt_of(std::uint64_t life) {
    return fmt::format("prompt-{}", life);
}

std::uint64_t life_of(std::string_view prompt) {
    constexpr std::string_view mark = "prompt-";
    std::uint64_t life = 0;
    if (!prompt.starts_with(mark)) return 0;
    prompt.remove_prefix(mark.size());
    const auto [end, error] = std::from_chars(prompt.data(), prompt.data() + prompt.size(), life);
    return error == std::errc{} && end == prompt.data() + prompt.size() ? life : 0;
}

}  // namespace rollring::test
