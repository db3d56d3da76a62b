// The limits of memory cgroups, versions 1 and 2, at each level from this process's group up to the
// mounted root. The lowest one applies.

#include <algorithm>
#include <charconv>
#include <fstream>
#include <optional>
#include <sstream>

#include "bounds.hpp"

namespace rollring::detail {
namespace {

// A mounted hierarchy: its folder, and the group that is the mount's root.
struct Mount {
    std::string root;
    std::string folder;
};

struct Version {
    const char* limit;
    const char* used;
};
constexpr Version version_1{"memory.limit_in_bytes", "memory.usage_in_bytes"};
constexpr Version version_2{"memory.max", "memory.current"};
// Version 1 expresses "no limit" as the largest number of pages.
constexpr std::uint64_t no_limit = std::uint64_t{1} << 60;

std::optional<std::uint64_t> number_in(const std::string& path) {
    std::string text;
    if (!(std::ifstream(path) >> text)) return std::nullopt;
    std::uint64_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
    return value;
}

// Pages of files that the kernel reclaims before it kills: they count as used. Pages of shared
// memory are not among them.
std::uint64_t reclaimable(const std::string& folder) {
    std::ifstream stat(folder + "/memory.stat");
    std::string name;
    std::uint64_t value = 0;
    std::uint64_t sum = 0;
    std::uint64_t sum_of_all = 0;  // version 1 lists the hierarchy's beside the group's own
    while (stat >> name >> value) {
        if (name == "inactive_file" || name == "active_file") sum += value;
        if (name == "total_inactive_file" || name == "total_active_file") sum_of_all += value;
    }
    return sum_of_all != 0 ? sum_of_all : sum;
}

bool names_memory(const std::string& controllers) {
    return ("," + controllers + ",").find(",memory,") != std::string::npos;
}

// The mount of the hierarchy of this type; for version 1, the one with the memory controller.
std::optional<Mount> mount_of(const std::string& proc, std::string_view type) {
    std::ifstream file(proc + "/mountinfo");
    for (std::string line; std::getline(file, line);) {
        std::istringstream fields(line);
        std::string skipped;
        Mount mount;
        fields >> skipped >> skipped >> skipped >> mount.root >> mount.folder;
        while (fields >> skipped && skipped != "-") {
        }
        std::string found;
        std::string options;
        fields >> found >> skipped >> options;
        if (found == type && (type == "cgroup2" || names_memory(options))) return mount;
    }
    return std::nullopt;
}

void add_levels(const Mount& mount, std::string path, const Version& version,
                std::vector<MemoryBound>& bounds) {
    // In a container without a cgroup namespace the path is the host's, and only our own part is
    // mounted.
    if (mount.root != "/")
        path = path.starts_with(mount.root) ? path.substr(mount.root.size()) : "";
    while (path.ends_with('/')) path.pop_back();
    for (;;) {
        const std::string folder = mount.folder + path;
        const auto limit = number_in(folder + "/" + version.limit);
        const auto used = number_in(folder + "/" + version.used);
        if (limit && used && *limit < no_limit) {
            const std::uint64_t kept = *used - std::min(*used, reclaimable(folder));
            bounds.push_back({MemoryBound::Kind::cgroup, folder + "/" + version.limit,
                              *limit - std::min(*limit, kept), *limit,
                              "give the container or the job more memory"});
        }
        if (path.empty()) return;
        path.resize(path.rfind('/'));
    }
}

}  // namespace

std::vector<MemoryBound> cgroup_bounds(const std::string& proc) {
    std::vector<MemoryBound> bounds;
    std::ifstream groups(proc + "/cgroup");
    for (std::string line; std::getline(groups, line);) {  // "4:memory:/path", "0::/path"
        const std::size_t first = line.find(':');
        const std::size_t second = first == std::string::npos ? first : line.find(':', first + 1);
        if (second == std::string::npos) continue;
        const std::string controllers = line.substr(first + 1, second - first - 1);
        const bool unified = controllers.empty();
        if (!unified && !names_memory(controllers)) continue;
        const auto mount = mount_of(proc, unified ? "cgroup2" : "cgroup");
        if (!mount) continue;
        add_levels(*mount, line.substr(second + 1), unified ? version_2 : version_1, bounds);
    }
    return bounds;
}

}  // namespace rollring::detail
