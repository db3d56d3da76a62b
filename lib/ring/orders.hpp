#pragma once
// The environment of the lane core. The core is a template over a Platform, so that the explorer in
// tests/model runs the very same code on simulated atomics, and so that a mutant with one weaker
// order is a type.

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "doorbell.hpp"
#include "layout.hpp"
#include "prefetch.hpp"

namespace rollring {

// Every memory order of the lane, by use. The pairs are named; nothing relies on x86.
struct Orders {
    // Dekker pair with bell_waiting: either the producer sees that the consumer waits, or the
    // consumer sees the tail. Also the release that makes the frame and payload visible.
    static constexpr auto store_tail = std::memory_order_seq_cst;
    static constexpr auto read_tail = std::memory_order_seq_cst;
    // The same in the other direction: the head frees memory, so it is a release of the consumer's
    // reads.
    static constexpr auto store_head = std::memory_order_seq_cst;
    static constexpr auto read_head = std::memory_order_seq_cst;
    static constexpr auto bell_waiting = std::memory_order_seq_cst;
    // Only the consumer reads these back, after its own death. Only the order of the stores
    // matters, as the compiler keeps it: a killed process has made a prefix of them.
    static constexpr auto store_cursor = std::memory_order_release;
    static constexpr auto store_bits = std::memory_order_release;
    static constexpr auto store_journal = std::memory_order_release;
    static constexpr auto recover = std::memory_order_acquire;
};

// The real thing: std::atomic on shared memory, 64 released-bits a word.
struct NativePlatform {
    template <class T>
    using Atomic = std::atomic<T>;
    using Order = Orders;
    static constexpr std::uint64_t bits_per_word = 64;

    // Frames lie in the lane's data; a read copies the 64 bytes once and no more (docs/design.md,
    // P7).
    struct Frames {
        std::byte* data = nullptr;

        void write(std::uint64_t offset, const Frame& frame) const {
            // Field by field, so that the frame is never composed in memory and copied from there.
            Frame& to = *reinterpret_cast<Frame*>(data + offset);
            to.magic = frame.magic;
            to.kind = frame.kind;
            to.reserved0 = frame.reserved0;
            to.bytes = frame.bytes;
            to.position = frame.position;
            to.sequence = frame.sequence;
            to.epoch = frame.epoch;
            to.lane = frame.lane;
            to.payload_bytes = frame.payload_bytes;
            to.committed_ns = frame.committed_ns;
            to.groups_opened = frame.groups_opened;
            to.lines_claimed = frame.lines_claimed;
        }
        [[nodiscard]] Frame read(std::uint64_t offset) const {
            return load_once<Frame>(data + offset);
        }
        // Fetches bytes that are read soon, but not more than a short record has.
        void prefetch(std::uint64_t offset, std::uint64_t bytes) const {
            const std::uint64_t most = std::min(bytes, 16 * line_bytes);
            for (std::uint64_t i = 0; i < most; i += line_bytes) {
                prefetch_to_read(data + offset + i);
            }
        }
    };

    struct JournalEntries {
        JournalEntry* entries = nullptr;

        void write(std::uint64_t index, const JournalEntry& entry) const {
            std::memcpy(entries + index, &entry, sizeof entry);
        }
        [[nodiscard]] JournalEntry read(std::uint64_t index) const {
            return load_once<JournalEntry>(entries + index);
        }
    };
};

}  // namespace rollring
