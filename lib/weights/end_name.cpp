#include "end_name.hpp"

#include <fmt/format.h>

#include "words.hpp"

namespace rollring::weights {

Result<void> check_end_name(std::string_view what, std::string_view name) {
    if (!name.empty() && name.size() <= end_name_bytes_max && is_plain(name)) return {};
    return refused(Errc::invalid_argument,
                   fmt::format("the name of a {} has 1 to {} bytes without control characters; "
                               "'{}' has {} bytes",
                               what, end_name_bytes_max, name, name.size()));
}

}  // namespace rollring::weights
