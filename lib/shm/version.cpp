#include "rollring/version.hpp"

#include "layout.hpp"

namespace rollring {

std::string_view version() {
    return ROLLRING_VERSION;
}

std::uint32_t layout_version() {
    return abi_version;
}

}  // namespace rollring
