#pragma once
// The one word of a request: its state and its worker. Every change is a compare-and-swap of the
// whole word, so that exactly one of the processes that want the same change succeeds.
//
//   free -> waiting          the board posts
//   waiting -> taken         a worker takes it
//   taken -> free            that worker is done
//   taken -> waiting         that worker returns it, or a process that sees the worker's death
//   taken -> given_up        the same, if it was begun too often
//   waiting, given_up -> free   the board withdraws it, or has reported it as given up
//   taken -> taken, withdrawn   the board withdraws it: it becomes free when its worker lets go

#include <cstdint>

namespace rollring::requests {

enum class State : std::uint64_t { free = 0, waiting = 1, taken = 2, given_up = 3 };

// The maximum number of attempts: the word has five bits for it.
inline constexpr std::uint32_t attempts_most = 31;

struct Word {
    State state = State::free;
    bool withdrawn = false;
    std::uint32_t attempt = 0;
    std::uint32_t seat = 0;    // of the worker that has taken it
    std::uint32_t serial = 0;  // of the request, modulo 2^32

    [[nodiscard]] constexpr std::uint64_t packed() const {
        return static_cast<std::uint64_t>(state) | std::uint64_t{withdrawn} << 3 |
               std::uint64_t{attempt} << 4 | std::uint64_t{seat} << 16 |
               std::uint64_t{serial} << 32;
    }
    static constexpr Word of(std::uint64_t packed) {
        Word word;
        word.state = static_cast<State>(packed & 7);
        word.withdrawn = (packed >> 3 & 1) != 0;
        word.attempt = packed >> 4 & attempts_most;
        word.seat = packed >> 16 & 0xffff;
        word.serial = static_cast<std::uint32_t>(packed >> 32);
        return word;
    }

    // The word after its worker has lost the request without finishing it.
    [[nodiscard]] constexpr Word let_go(std::uint32_t attempts) const {
        if (withdrawn) return {};
        const bool last = attempt + 1 >= attempts;
        return {last ? State::given_up : State::waiting, false,
                attempt < attempts_most ? attempt + 1 : attempt, 0, serial};
    }
};
static_assert(Word::of(Word{State::taken, true, 31, 0xffff, 0x12345678}.packed()).packed() ==
              Word{State::taken, true, 31, 0xffff, 0x12345678}.packed());

// Serials are compared as positions on a circle.
constexpr bool older(std::uint32_t serial, std::uint32_t than) {
    return static_cast<std::int32_t>(serial - than) < 0;
}

// A request's number: its serial, and its entry's index in the low bits.
inline constexpr std::uint32_t place_bits = 16;

constexpr std::uint64_t number_of(std::uint64_t serial, std::uint32_t place) {
    return serial << place_bits | place;
}
constexpr std::uint32_t place_of(std::uint64_t number) {
    return number & ((1U << place_bits) - 1);
}
constexpr std::uint32_t serial_of(std::uint64_t number) {
    return static_cast<std::uint32_t>(number >> place_bits);
}

}  // namespace rollring::requests
