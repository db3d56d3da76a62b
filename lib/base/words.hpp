#pragma once
// Words of memory that several processes map: each is read and written as a whole, by these
// functions.

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>

namespace rollring {

static_assert(std::endian::native == std::endian::little);
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);
static_assert(sizeof(std::atomic<std::uint64_t>) == 8 && sizeof(std::atomic<std::uint32_t>) == 4);

// Copies a T out of memory that another process may be changing: each word is read exactly once.
template <class T>
[[nodiscard]] T load_once(const void* from) {
    static_assert(std::is_trivially_copyable_v<T> && sizeof(T) % 8 == 0);
    auto* source = const_cast<std::uint64_t*>(static_cast<const std::uint64_t*>(from));
    T copy;
    auto* to = reinterpret_cast<std::byte*>(&copy);
    // Each word is stored to its destination at once: wide loads from words that were stored one by
    // one stall the CPU, and this happens several times per record.
#pragma GCC unroll 32
    for (std::size_t i = 0; i < sizeof(T) / 8; i++) {
        const auto word = std::atomic_ref<std::uint64_t>(source[i]).load(std::memory_order_relaxed);
        std::memcpy(to + i * 8, &word, 8);
    }
    return copy;
}

// Words with one writer: counters and facts about which nothing is decided need no order.
template <class T>
T peek(const std::atomic<T>& word) {
    return word.load(std::memory_order_relaxed);
}
template <class T>
void poke(std::atomic<T>& word, T value) {
    word.store(value, std::memory_order_relaxed);
}
template <class T>
void add(std::atomic<T>& word, T amount) {
    poke(word, peek(word) + amount);
}
// Stores a word that shows all earlier writes; and reads one.
template <class T>
void store_release(std::atomic<T>& word, T value) {
    word.store(value, std::memory_order_release);
}
template <class T>
T observe(const std::atomic<T>& word) {
    return word.load(std::memory_order_acquire);
}

// The longest beginning of a text that fits into this many bytes, in whole UTF-8 characters.
inline std::string_view cut_text(std::string_view text, std::size_t bytes) {
    if (text.size() <= bytes) return text;
    while (bytes > 0 && (static_cast<unsigned char>(text[bytes]) & 0xC0U) == 0x80) bytes--;
    return text.substr(0, bytes);
}

// Whether the text has no control characters.
inline bool is_plain(std::string_view text) {
    return std::ranges::all_of(
        text, [](char c) { return static_cast<unsigned char>(c) >= 0x20 && c != 0x7f; });
}

// Text of a fixed size, as words: a reader sees a torn text at worst, never bytes beyond it.
template <std::size_t bytes>
struct SharedText {
    static_assert(bytes % 8 == 0);
    std::atomic<std::uint64_t> words[bytes / 8];

    // Stores as much of the text as fits.
    void store(std::string_view text) {
        std::array<char, bytes> raw{};
        cut_text(text, bytes).copy(raw.data(), bytes);
        for (std::size_t i = 0; i < bytes / 8; i++) {
            std::uint64_t word;
            std::memcpy(&word, raw.data() + i * 8, 8);
            poke(words[i], word);
        }
    }
    [[nodiscard]] std::string load() const {
        std::array<char, bytes + 1> raw{};
        for (std::size_t i = 0; i < bytes / 8; i++) {
            const std::uint64_t word = peek(words[i]);
            std::memcpy(raw.data() + i * 8, &word, 8);
        }
        return raw.data();
    }
};

}  // namespace rollring
