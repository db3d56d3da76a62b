#include "restored_map.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <iterator>
#include <optional>
#include <string>
#include <system_error>

#include "disk.hpp"
#include "file_names.hpp"
#include "ledger_layout.hpp"
#include "xxh3.hpp"

namespace rollring::ledger {
namespace {

std::filesystem::path path_of(const std::filesystem::path& directory, std::uint64_t ring_id) {
    return directory / fmt::format("{:016x}{}", ring_id, restored_ending);
}

std::uint64_t checksum_of(const RestoredHead& head, std::span<const std::uint64_t> numbers) {
    return XXH3_64bits_withSeed(numbers.data(), numbers.size_bytes(),
                                XXH3_64bits(&head, offsetof(RestoredHead, checksum)));
}

std::optional<RestoredMap> read_map(const std::filesystem::path& path) {
    std::ifstream file(path, std::ios::binary);
    const std::string bytes{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
    RestoredHead head{};
    if (bytes.size() < sizeof head) return std::nullopt;
    std::memcpy(&head, bytes.data(), sizeof head);
    const std::size_t rest = bytes.size() - sizeof head;
    if (head.magic != restored_magic || rest % sizeof(std::uint64_t) != 0 ||
        head.count != rest / sizeof(std::uint64_t)) {
        return std::nullopt;
    }
    RestoredMap map{.ring_id = head.ring_id, .lane = head.lane, .epoch = head.epoch};
    map.numbers.resize(head.count);
    if (head.count != 0) std::memcpy(map.numbers.data(), bytes.data() + sizeof head, rest);
    if (checksum_of(head, map.numbers) != head.checksum) return std::nullopt;
    return map;
}

}  // namespace

Result<void> write_map(const std::filesystem::path& directory, const RestoredMap& map) {
    RestoredHead head{.magic = restored_magic,
                      .ring_id = map.ring_id,
                      .lane = map.lane,
                      .epoch = map.epoch,
                      .count = map.numbers.size(),
                      .checksum = 0};
    head.checksum = checksum_of(head, map.numbers);
    const auto path = path_of(directory, map.ring_id);
    std::string bytes(reinterpret_cast<const char*>(&head), sizeof head);
    bytes.append(reinterpret_cast<const char*>(map.numbers.data()),
                 map.numbers.size() * sizeof(std::uint64_t));
    if (const int error = disk().note(path, bytes); error != 0) {
        return recording::file_failed(error, "cannot write", path);
    }
    return {};
}

Result<std::vector<RestoredMap>> read_maps(const std::filesystem::path& directory) {
    std::vector<RestoredMap> maps;
    std::error_code wrong;
    std::filesystem::directory_iterator at(directory, wrong);
    while (!wrong && at != std::filesystem::directory_iterator()) {
        if (at->path().extension() == restored_ending) {
            if (auto map = read_map(at->path())) maps.push_back(std::move(*map));
        }
        at.increment(wrong);
    }
    if (wrong) return recording::file_failed(wrong.value(), "cannot read", directory);
    return maps;
}

void name_all(const RestoredMap& map, Contents& found) {
    Book& book = found.book;
    for (std::uint64_t i = 0; i < map.numbers.size(); i++) {
        if (!found.knows(map.numbers[i])) {
            book.use(map.numbers[i]);
            continue;
        }
        book.name({map.ring_id, map.lane, map.epoch, i}, map.numbers[i]);
    }
}

void remove_old_maps(const std::filesystem::path& directory, std::span<const RestoredMap> maps,
                     const Book& book, std::uint64_t ring_id) {
    for (const RestoredMap& map : maps) {
        const bool needed =
            map.ring_id == ring_id || std::ranges::any_of(map.numbers, [&](std::uint64_t number) {
                return book.record(number) != nullptr;
            });
        std::error_code ignored;  // it only takes space
        if (!needed) std::filesystem::remove(path_of(directory, map.ring_id), ignored);
    }
}

}  // namespace rollring::ledger
