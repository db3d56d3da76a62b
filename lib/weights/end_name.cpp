#include "end_name.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "words.hpp"

namespace rollring::weights {
namespace {

// U+D800 to U+DFFF, written out: no UTF-8, so that others could not print the name.
bool has_half_pair(std::string_view text) {
    return std::ranges::adjacent_find(text, [](unsigned char first, unsigned char second) {
               return first == 0xed && second >= 0xa0;
           }) != text.end();
}

}  // namespace

Result<void> check_end_name(std::string_view what, std::string_view name) {
    const bool fits = !name.empty() && name.size() <= end_name_bytes_max;
    if (fits && is_plain(name) && !has_half_pair(name)) return {};
    return refused(Errc::invalid_argument,
                   fmt::format("the name of a {} has 1 to {} bytes of UTF-8 without control "
                               "characters; '{}' has {} bytes",
                               what, end_name_bytes_max, name, name.size()));
}

}  // namespace rollring::weights
