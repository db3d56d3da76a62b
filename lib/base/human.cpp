#include "human.hpp"

#include <fmt/core.h>
#include <pwd.h>

#include <array>
#include <cmath>

namespace rollring {

std::string human_bytes(std::uint64_t bytes) {
    constexpr std::array units{"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    auto value = static_cast<double>(bytes);
    std::size_t unit = 0;
    for (; value >= 1024 && unit + 1 < units.size(); unit++) value /= 1024;
    return fmt::format("{:.{}f} {}", value, value == std::floor(value) ? 0 : 1, units[unit]);
}

std::string human_count(std::uint64_t count) {
    std::string text = std::to_string(count);
    for (std::size_t at = text.size(); at > 3; at -= 3) text.insert(at - 3, 1, ',');
    return text;
}

std::string counted(std::uint64_t count, std::string_view noun) {
    const bool hisses = noun.ends_with("ch") || noun.ends_with("s") || noun.ends_with("x");
    const char* const ending = count == 1 ? "" : hisses ? "es" : "s";
    return fmt::format("{} {}{}", human_count(count), noun, ending);
}

std::string user_text(uid_t uid) {
    std::array<char, 4096> memory{};
    passwd entry{};
    passwd* found = nullptr;
    const int error = getpwuid_r(uid, &entry, memory.data(), memory.size(), &found);
    if (error != 0 || found == nullptr) return fmt::format("uid {}", uid);
    return fmt::format("{} (uid {})", found->pw_name, uid);
}

}  // namespace rollring
