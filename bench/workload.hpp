#pragma once
// The identical work for every transport: records of token_ids i32, logprobs f32 and loss_mask u8
// gathered from private rotating arrays, read in full at the other end and checked.

#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "bench.hpp"

namespace bench {

inline constexpr std::uint32_t token_bytes = 9;
inline constexpr std::uint32_t source_tokens = 262'144;  // 2.36 MB, as rollouts leave a sampler

// Sum of the 64-bit words; the tail is padded with zeroes. Reads every byte, and as fast as the
// machine can: the slower the reading, the better any transport would look.
std::uint64_t sum_words(const void* bytes, std::uint64_t count);

// Routed experts of a MoE model, u16[n_tokens, layers, k], as router replay carries them: with them
// a trajectory of 131,072 tokens is 129 MB long.
struct Experts {
    std::uint32_t layers = 0;  // 0: none
    std::uint32_t k = 0;

    [[nodiscard]] std::uint64_t token_bytes() const { return std::uint64_t{2} * layers * k; }
};

struct Plan {
    std::uint32_t n_tokens = 2048;
    Experts experts = {};
    std::uint64_t records = 0;  // timed ones
    std::uint64_t warmup = 0;   // records before the clock starts
    std::uint32_t batch = 1;    // records made visible together, where the transport can

    [[nodiscard]] std::uint64_t total() const { return warmup + records; }
    [[nodiscard]] std::uint64_t record_bytes() const {
        return n_tokens * (token_bytes + experts.token_bytes());
    }
};

// One record of the source and the sum that travels with it.
struct Slice {
    std::span<const std::int32_t> token_ids;
    std::span<const float> logprobs;
    std::span<const std::uint8_t> loss_mask;
    std::span<const std::uint16_t> experts;  // empty: none
    std::uint64_t sum;
};

class Source {
  public:
    explicit Source(std::uint32_t n_tokens, const Experts& experts = {});
    // The record of a sequence number: the arrays rotate.
    [[nodiscard]] const Slice& operator[](std::uint64_t sequence) const {
        return slices_[sequence % slices_.size()];
    }

  private:
    std::vector<std::int32_t> token_ids_;
    std::vector<float> logprobs_;
    std::vector<std::uint8_t> loss_mask_;
    std::vector<std::uint16_t> experts_;
    std::vector<Slice> slices_;
};

// Where the columns of a record lie in a flat buffer behind its first line: as in a ring's record.
struct Flat {
    static constexpr std::uint64_t header_bytes = 64;
    std::uint64_t logprobs_at;
    std::uint64_t loss_mask_at;
    std::uint64_t experts_at;
    std::uint64_t expert_bytes;
    std::uint64_t bytes;  // header and columns, a multiple of 64

    static Flat of(std::uint32_t n_tokens, const Experts& experts = {});
    // The gather that every transport does: a copy for each column.
    void write(std::byte* to, const Slice& from) const;
    [[nodiscard]] std::uint64_t sum(const std::byte* from, std::uint32_t n_tokens) const;
};

// First line of a flat record.
struct FlatHeader {
    std::uint64_t sequence;
    std::uint64_t sum;
    std::uint64_t n_tokens;
};

// The consumer's book: checks each record, takes the time of the timed ones.
class Meter {
  public:
    Meter(Board& board, const Plan& plan) : board_(&board), plan_(plan) {}

    void record(std::uint64_t sequence, std::uint64_t sum_read, std::uint64_t sum_sent) {
        if (sequence != next_) [[unlikely]]
            board_->give_up("a record is out of sequence");
        if (sum_read != sum_sent) [[unlikely]]
            board_->give_up("a record's sum differs from the sum that was sent");
        // After the last record to warm up: where records come in batches, the first timed batch is
        // fetched within the timed part.
        if (++next_ == plan_.warmup) began_ns_ = now_ns();
        if (next_ == plan_.total()) board_->figures[0] = now_ns() - began_ns_;
    }
    [[nodiscard]] bool done() const { return next_ == plan_.total(); }

  private:
    Board* board_;
    Plan plan_;
    std::uint64_t next_ = 0;
    std::int64_t began_ns_ = now_ns();
};

// A way to move records: both sides run in their own process.
struct Transport {
    std::string name;
    std::function<void(Board&, const Plan&)> produce;
    std::function<void(Board&, const Plan&)> consume;
};

struct Measured {
    double tokens_per_s = 0;
    double line_ns = 0;  // just before the run
    std::array<std::int64_t, 8> figures{};
};

// One run. Stops the program if a record was wrong.
Measured measure(const Transport& transport, const Plan& plan, const Cpus& cpus);

// The number of records that takes about `seconds`, found with a short run.
std::uint64_t calibrate(const Transport& transport, Plan plan, const Cpus& cpus, double seconds);

// The limit: fixed buffers in a shared mapping, one flag each, nothing else.
class BareHandoff {
  public:
    BareHandoff(std::uint32_t n_tokens, std::uint64_t working_bytes, const Experts& experts = {});
    [[nodiscard]] Transport transport() const;

    // Whether write() and receive() of that record would not spin.
    [[nodiscard]] bool is_free(std::uint64_t sequence) const;
    [[nodiscard]] bool is_there(std::uint64_t sequence) const;
    // Its halves, for questions of their own; they spin. All flags go down before a run begins,
    // whatever the one before left.
    void reset() const;
    void write(std::uint64_t sequence, const Slice& slice) const;
    void commit(std::uint64_t sequence) const;
    struct Received {
        FlatHeader header;
        std::uint64_t sum;
    };
    [[nodiscard]] Received receive(std::uint64_t sequence) const;

  private:
    // The flag shares its line with the header: one line fewer to move than with a line of its own.
    struct Buffer {
        std::atomic<std::uint64_t> flag;  // 0 free, else sequence + 1
        FlatHeader header;
    };
    static_assert(sizeof(Buffer) <= Flat::header_bytes);
    [[nodiscard]] std::byte* at(std::uint64_t sequence) const {
        return memory_->data() + sequence % buffers_ * flat_.bytes;
    }
    [[nodiscard]] Buffer& buffer(std::uint64_t sequence) const {
        return *reinterpret_cast<Buffer*>(at(sequence));
    }

    std::uint32_t n_tokens_;
    Flat flat_;
    std::uint64_t buffers_;
    std::shared_ptr<SharedBytes> memory_;
};

}  // namespace bench
