#pragma once
// Rings whose spill goes on in a file of a folder of their own, and the records that fill it.

#include <doctest/doctest.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <thread>

#include "support/pairs.hpp"

namespace rollring::test {

namespace fs = std::filesystem;

inline constexpr std::uint64_t record_bytes = 120 * kib;
inline constexpr StashOptions pairs_of_any_order{
    .group_size = 2, .batch = BatchTarget::groups(1), .max_open_groups = 0};

// Gone with this object.
class Folder {
  public:
    Folder() {
        std::string pattern = (fs::temp_directory_path() / "rollring-test-XXXXXX").string();
        REQUIRE(mkdtemp(pattern.data()) != nullptr);
        path_ = pattern;
    }
    Folder(const Folder&) = delete;
    Folder& operator=(const Folder&) = delete;
    ~Folder() { fs::remove_all(path_); }
    [[nodiscard]] const std::string& path() const { return path_; }
    [[nodiscard]] std::size_t files() const {
        return static_cast<std::size_t>(std::distance(fs::directory_iterator(path_), {}));
    }

  private:
    std::string path_;
};

inline RingOptions options_in(const std::string& folder) {
    RingOptions options{.lanes = 2, .lane_bytes = 256 * kib, .spill_bytes = 256 * kib};
    options.overflow_dir = folder;
    if (!folder.empty()) options.overflow_bytes = 32 * mib;
    return options;
}

inline std::string group_name(int group) {
    return "g" + std::to_string(group);
}

// First members, none of which can be completed meanwhile.
inline void open_groups(Producer& producer, Stash& stash, int from, int to) {
    std::atomic<bool> done{false};
    std::thread rollouts([&] {
        for (int group = from; group < to; group++) {
            CHECK(send_bytes(producer, group_name(group), 0, record_bytes, patience()) == Push::ok);
        }
        done = true;
    });
    for (bool more = true; more;) {
        more = !done;
        Batch none;
        CHECK(stash.next(none, Deadline::after_ms(5)) == NextBatch::timed_out);
    }
    rollouts.join();
}

inline RingStat stat_of(const TestRing& ring) {
    auto stat = stat_ring(ring.name());
    REQUIRE(stat.has_value());
    return std::move(*stat);
}

}  // namespace rollring::test
