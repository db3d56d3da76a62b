#pragma once
// StashAccount in its page of the ring: its words in their memory layout. The last words of the
// page describe the latest batch.

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "layout.hpp"
#include "rollring/stash.hpp"

namespace rollring {

using AccountWords = std::array<std::uint64_t, 43>;
static_assert(sizeof(StashAccount) == sizeof(AccountWords) &&
              std::has_unique_object_representations_v<StashAccount> &&
              offsetof(StashAccount, shipped) == 16 && offsetof(StashAccount, held) == 32 &&
              offsetof(StashAccount, leased) == 48 && offsetof(StashAccount, dropped) == 64 &&
              offsetof(StashAccount, groups_opened) == 288 &&
              offsetof(StashAccount, bad_rewards) == 336);
inline constexpr std::size_t latest_batch_at = 59;
static_assert(sizeof(AccountWords) <= latest_batch_at * sizeof(std::uint64_t));

inline void store_account(StashPage& page, const StashAccount& account) {
    const auto words = std::bit_cast<AccountWords>(account);
    for (std::size_t i = 0; i < words.size(); i++) poke(page.words[i], words[i]);
}

inline StashAccount load_account(const StashPage& page) {
    AccountWords words{};
    for (std::size_t i = 0; i < words.size(); i++) words[i] = peek(page.words[i]);
    return std::bit_cast<StashAccount>(words);
}

inline void store_latest_batch(StashPage& page, const LatestBatch& batch) {
    auto* const words = &page.words[latest_batch_at];
    poke(words[0], batch.sequences);
    poke(words[1], batch.tokens);
    poke(words[2], batch.rewarded);
    poke(words[3], std::bit_cast<std::uint64_t>(batch.mean_reward));
}

inline LatestBatch load_latest_batch(const StashPage& page) {
    const auto* const words = &page.words[latest_batch_at];
    return {peek(words[0]), peek(words[1]), peek(words[2]), std::bit_cast<double>(peek(words[3]))};
}

}  // namespace rollring
