#pragma once
// "Did you mean": the word that was probably mistyped.

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace rollring::cli {

// The word with the fewest inserted, deleted, replaced or swapped letters between it and `word`;
// empty if even that one differs too much, by default in more than two letters.
std::string nearest(std::string_view word, const std::vector<std::string>& words,
                    std::size_t most = 2);

}  // namespace rollring::cli
