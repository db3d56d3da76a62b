#include "cli/terminal/nearest.hpp"

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <utility>

namespace rollring::cli {
namespace {

// Optimal string alignment: Levenshtein's distance, with a swap of two neighbours counted once.
std::size_t distance(std::string_view one, std::string_view other) {
    std::vector<std::size_t> before(other.size() + 1);
    std::vector<std::size_t> above(other.size() + 1);
    std::vector<std::size_t> row(other.size() + 1);
    std::iota(above.begin(), above.end(), std::size_t{0});
    for (std::size_t i = 1; i <= one.size(); i++) {
        row[0] = i;
        for (std::size_t j = 1; j <= other.size(); j++) {
            const std::size_t changed = one[i - 1] == other[j - 1] ? 0 : 1;
            row[j] = std::min({above[j] + 1, row[j - 1] + 1, above[j - 1] + changed});
            const bool swapped =
                i > 1 && j > 1 && one[i - 1] == other[j - 2] && one[i - 2] == other[j - 1];
            if (swapped) row[j] = std::min(row[j], before[j - 2] + 1);
        }
        std::swap(before, above);
        std::swap(above, row);
    }
    return above.back();
}

}  // namespace

std::string nearest(std::string_view word, const std::vector<std::string>& words,
                    std::size_t most) {
    std::string found;
    std::size_t least = std::min(most + 1, word.size() / 2 + 1);
    for (const std::string& one : words) {
        const std::size_t far = distance(word, one);
        if (far >= least) continue;
        least = far;
        found = one;
    }
    return found;
}

}  // namespace rollring::cli
