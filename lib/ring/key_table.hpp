#pragma once
// A hash table of group keys in shared memory: one writer, any number of readers in other
// processes. It holds one 64-bit word per key, so a reader can be wrong in two harmless ways: two
// keys can share a word (2^-64), and a key can be missed for the moment in which another is being
// erased. Linear probing, erasure by moving back (Knuth 6.4, algorithm R): no tombstones. Every
// loop goes around once at most, even if another process has overwritten the table.

#include <atomic>
#include <cstdint>

#include "layout.hpp"
#include "rollring/trajectory.hpp"

namespace rollring {

class KeyTable {
  public:
    // `count` is a power of two, and at least twice the largest number of keys.
    KeyTable(std::atomic<std::uint64_t>* words, std::uint64_t count)
        : words_(words), mask_(count - 1) {}

    void insert(const GroupKey& key) {
        const std::uint64_t word = word_of(key);
        for (std::uint64_t i = 0; i <= mask_; i++) {
            std::atomic<std::uint64_t>& at = words_[(word + i) & mask_];
            if (peek(at) != 0) continue;
            store_release(at, word);
            return;
        }
    }

    void erase(const GroupKey& key) {
        const std::uint64_t word = word_of(key);
        std::uint64_t hole = word & mask_;
        for (std::uint64_t i = 0; peek(words_[hole]) != word; i++) {
            if (i > mask_ || peek(words_[hole]) == 0) return;
            hole = (hole + 1) & mask_;
        }
        const std::uint64_t start = hole;
        for (std::uint64_t i = 1; i <= mask_; i++) {
            const std::uint64_t at = (start + i) & mask_;
            const std::uint64_t found = peek(words_[at]);
            if (found == 0) break;
            if (((at - found) & mask_) < ((at - hole) & mask_)) continue;
            store_release(words_[hole], found);
            hole = at;
        }
        store_release(words_[hole], std::uint64_t{0});
    }

    // Bounded for any contents of the memory.
    [[nodiscard]] bool holds(const GroupKey& key) const {
        const std::uint64_t word = word_of(key);
        for (std::uint64_t i = 0; i <= mask_; i++) {
            const std::uint64_t found = observe(words_[(word + i) & mask_]);
            if (found == word) return true;
            if (found == 0) return false;
        }
        return false;
    }

  private:
    static std::uint64_t word_of(const GroupKey& key) {
        const std::uint64_t word = key.low ^ (key.high << 32 | key.high >> 32);
        return word != 0 ? word : 1;
    }

    std::atomic<std::uint64_t>* words_;
    std::uint64_t mask_;
};

}  // namespace rollring
