#pragma once
// The ring's overflow file, mapped behind the memory of the spill, so that the spill stays one
// lane. From begin() on, every byte of the spill lies in the file, permanently: begin() is the end
// of its memory in the geometry or, if /dev/shm became full before that, the end of the memory that
// the spill had by then.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "overflow_file.hpp"
#include "ring_map.hpp"

namespace rollring {

class Overflow {
  public:
    // Empty if the ring has no overflow file. An unusable file is an error if records may lie in
    // it; otherwise the spill works without it, and problem() has the reason.
    static Result<std::optional<Overflow>> open(const RingMap& map);

    [[nodiscard]] bool usable() const { return file_.has_value(); }
    [[nodiscard]] const std::string& problem() const { return problem_; }
    [[nodiscard]] const std::string& path() const { return path_; }
    // The offset in the spill at which the file begins.
    [[nodiscard]] std::uint64_t begin() const { return begin_; }

    // Maps the file behind the memory of the spill, whose data stays mapped at `data` as long as
    // this object lives.
    Result<void> lay_under(std::byte* data, bool writable);
    // /dev/shm is full: the file begins at `bytes`, and nothing was ever written behind that. After
    // an error the spill works without the file.
    Result<void> begin_at(std::uint64_t bytes, ReaderControl& control);
    // Reserves the part of this range that lies in the file.
    [[nodiscard]] Result<void> reserve(std::uint64_t from, std::uint64_t to) const;
    // The spill works without the file from now on; never called once records lie there.
    void forgo(std::string why);

  private:
    struct Place {
        std::byte* data;
        bool writable;
    };
    Overflow(const RingMap& map, std::uint64_t begin);
    [[nodiscard]] Result<void> lay(const Place& place) const;

    std::string path_;
    std::uint64_t capacity_bytes_;  // of the spill
    std::uint64_t begin_;
    std::optional<OverflowFile> file_;
    std::vector<Place> places_;
    std::string problem_;
};

}  // namespace rollring
