#pragma once
// Where the spill goes on when its memory is used up: the ring's overflow file, mapped behind that
// memory, so that the spill stays one lane. Its memory ends where the geometry says or, if /dev/shm
// had no more, where it had none: from begin() on every byte lies in the file, for good.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "overflow_file.hpp"
#include "ring_map.hpp"

namespace rollring {

class Overflow {
  public:
    // Nothing if the ring has none. A file that cannot be used is an error if records may lie in
    // it; the spill works without it otherwise, and problem() says why.
    static Result<std::optional<Overflow>> open(const RingMap& map);

    [[nodiscard]] bool usable() const { return file_.has_value(); }
    [[nodiscard]] const std::string& problem() const { return problem_; }
    [[nodiscard]] const std::string& path() const { return path_; }
    // Offset in the spill.
    [[nodiscard]] std::uint64_t begin() const { return begin_; }

    // Puts the file behind the memory of the spill, whose data is mapped at `data` for as long as
    // this lives.
    Result<void> lay_under(std::byte* data, bool writable);
    // /dev/shm has no more: nothing was ever written from `bytes` on. After an error it does
    // without.
    Result<void> begin_at(std::uint64_t bytes, ReaderControl& control);
    // Of that part of the spill, what lies in the file.
    [[nodiscard]] Result<void> reserve(std::uint64_t from, std::uint64_t to) const;
    // The spill works without it; not once records lie there.
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
