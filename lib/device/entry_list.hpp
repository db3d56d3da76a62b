#pragma once
// Records of bytes, in the order in which they were appended, within bounded memory.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace rollring::device {

class EntryList {
  public:
    struct Point {
        std::size_t block = 0;
        std::uint64_t offset = 0;
    };

    // Forgets all records, and frees memory beyond `bytes_kept`; from now on `bytes_max` is the
    // bound.
    void clear(std::uint64_t bytes_max, std::uint64_t bytes_kept);
    // Memory for a record, aligned to 8 bytes; null if the bound, or the machine, has no more.
    std::byte* append(std::uint64_t bytes);
    // Of the last call of append that had no memory: the machine has none.
    [[nodiscard]] bool lacks_memory() const { return lacks_memory_; }
    [[nodiscard]] Point end() const;
    // Forgets the records from here on.
    void cut(Point at);
    // Calls visit(record) for each record in a range; it returns the bytes of the record.
    template <class Visit>
    void visit(Point from, Point to, const Visit& visit);
    [[nodiscard]] std::uint64_t used() const { return used_; }

  private:
    struct Block {
        std::unique_ptr<std::byte[]> memory;
        std::uint64_t bytes = 0;
        std::uint64_t used = 0;
    };
    [[nodiscard]] bool add_block(std::uint64_t bytes);

    std::vector<Block> blocks_;
    std::size_t current_ = 0;
    std::uint64_t bytes_max_ = 0;
    std::uint64_t allocated_ = 0;
    std::uint64_t used_ = 0;
    bool lacks_memory_ = false;
};

template <class Visit>
void EntryList::visit(Point from, Point to, const Visit& visit) {
    for (std::size_t i = from.block; i <= to.block && i < blocks_.size(); i++) {
        std::uint64_t at = i == from.block ? from.offset : 0;
        const std::uint64_t end = i == to.block ? to.offset : blocks_[i].used;
        while (at < end) at += visit(blocks_[i].memory.get() + at);
    }
}

}  // namespace rollring::device
