#pragma once
// Open addressing: one cache miss per look-up, where a node-based map has three. Erasure moves
// entries back (Knuth 6.4, algorithm R), so it leaves no marks. The table grows by doubling and
// never shrinks.

#include <cstddef>
#include <cstdint>
#include <vector>

namespace rollring {

// Entry: 16 bytes, so that none spans two cache lines; empty by default; has is_empty() and home(),
// whose low bits are its preferred index.
template <class Entry>
class ProbeTable {
  public:
    static_assert(sizeof(Entry) == 16);

    ProbeTable() : entries_(64) {}

    // The first entry of this home for which `is_it` holds, or nullptr.
    template <class IsIt>
    [[nodiscard]] const Entry* find(std::uint32_t home, IsIt is_it) const {
        for (std::size_t at = home & mask();; at = next(at)) {
            const Entry& entry = entries_[at];
            if (entry.is_empty()) return nullptr;
            if (is_it(entry)) return &entry;
        }
    }

    void insert(const Entry& entry) {
        if (count_ * 2 >= entries_.size()) grow();
        place(entry);
        count_++;
    }
    // `found`: a result of find().
    void erase(const Entry* found) {
        auto hole = static_cast<std::size_t>(found - entries_.data());
        for (std::size_t at = next(hole); !entries_[at].is_empty(); at = next(at)) {
            const std::size_t wants = entries_[at].home() & mask();
            if (((at - wants) & mask()) < ((at - hole) & mask())) continue;
            entries_[hole] = entries_[at];
            hole = at;
        }
        entries_[hole] = Entry{};
        count_--;
    }
    [[nodiscard]] std::size_t size() const { return count_; }

  private:
    [[nodiscard]] std::size_t mask() const { return entries_.size() - 1; }
    [[nodiscard]] std::size_t next(std::size_t at) const { return (at + 1) & mask(); }
    void place(const Entry& entry) {
        std::size_t at = entry.home() & mask();
        while (!entries_[at].is_empty()) at = next(at);
        entries_[at] = entry;
    }
    void grow() {
        std::vector<Entry> old(entries_.size() * 2);
        old.swap(entries_);
        for (const Entry& entry : old) {
            if (!entry.is_empty()) place(entry);
        }
    }

    std::vector<Entry> entries_;
    std::size_t count_ = 0;
};

}  // namespace rollring
