#pragma once
// One run of a ring whose trainer takes groups, reads every byte and acknowledges, with a ledger or
// without.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "ring/records.hpp"
#include "rollring/ring.hpp"
#include "workload.hpp"

namespace bench {

// A checkpoint comes after this share of the ledger's bound.
inline constexpr std::uint64_t checkpoints_of_bound = 4;

struct Training {
    std::uint64_t lane_bytes = 0;
    std::uint32_t batch_groups = 1;
    std::uint64_t ledger_bytes = 0;
    std::filesystem::path directory;           // of the question
    std::optional<rollring::Durable> durable;  // none: the ring has no ledger
};

inline constexpr std::uint32_t training_group = 8;

// A batch is a trainer's step: as many tokens, whatever the length of a record.
std::uint32_t groups_of_batch(std::uint64_t batch_tokens, std::uint32_t n_tokens);
std::uint64_t whole_batches(const Training& training, std::uint64_t records);

struct Trained {
    double tokens_per_s = 0;
    // Of the trainer's process, while the clock ran.
    double written_bytes = 0;
    double writes = 0;
    double seconds = 0;

    [[nodiscard]] double written_per_s() const { return written_bytes / seconds; }
    [[nodiscard]] double write_bytes() const { return writes > 0 ? written_bytes / writes : 0; }
};
// All zeros: interrupted.
Trained train(const Training& training, const Plan& plan, const Cpus& cpus);

// Its parts, for questions of their own.
rollring::RingOptions ring_of(const Training& training, const std::filesystem::path& ledger);
void send_member(Sender& sender, const Source& source, std::uint64_t sequence);
void send_groups(const std::string& ring, Board& board, const Plan& plan);
void take_groups(const Training& training, const std::string& ring, Board& board, const Plan& plan);

}  // namespace bench
