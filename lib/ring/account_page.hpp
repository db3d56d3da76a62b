#pragma once
// The stash's account in its page of the ring: the words of the struct, as they stand there.

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "layout.hpp"
#include "rollring/stash_options.hpp"

namespace rollring {

using AccountWords = std::array<std::uint64_t, 43>;
static_assert(sizeof(StashAccount) == sizeof(AccountWords) &&
              std::has_unique_object_representations_v<StashAccount> &&
              offsetof(StashAccount, shipped) == 16 && offsetof(StashAccount, held) == 32 &&
              offsetof(StashAccount, leased) == 48 && offsetof(StashAccount, dropped) == 64 &&
              offsetof(StashAccount, groups_opened) == 288 &&
              offsetof(StashAccount, bad_rewards) == 336);
static_assert(sizeof(AccountWords) <= sizeof(StashPage::words));

inline void store_account(StashPage& page, const StashAccount& account) {
    const auto words = std::bit_cast<AccountWords>(account);
    for (std::size_t i = 0; i < words.size(); i++) poke(page.words[i], words[i]);
}

inline StashAccount load_account(const StashPage& page) {
    AccountWords words{};
    for (std::size_t i = 0; i < words.size(); i++) words[i] = peek(page.words[i]);
    return std::bit_cast<StashAccount>(words);
}

}  // namespace rollring
