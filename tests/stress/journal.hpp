#pragma once
// The words that processes write down for the oracle: one pipe for all of them. An entry is one
// write of at most PIPE_BUF bytes, so it is there whole or not at all, with any process killed; and
// since all share the pipe, a cause precedes its effects.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "rollring/trajectory.hpp"

namespace rollring::test {

enum class Kind : std::uint32_t {
    opened,      // a producer: a = its lane
    begun,       // Begun: about to push this record
    pushed,      // the record begun last was taken
    waiting,     // a call returned without success by its deadline: still alive; a producer: a =
                 // Waits, b = bytes
    refused,     // a call that may be refused was: a = Errc
    closing,     // a producer: closed its lane, ends by itself
    resumed,     // a trainer: a = last acknowledged step that it found
    acking,      // Acking, Shipped and Piece: about to acknowledge
    acked,       // that was acknowledged: a = step
    event,       // a trainer was told of a producer: a = Event::Kind, b = lane << 32 | life
    dropped,     // a trainer dropped records: a = DropReason, b = how many
    account,     // a trainer, at its end: a = records accepted, b = records shipped
    committing,  // a publisher: a = version
    committed,
    aborted,  // it gave the version up
    live,     // a subscriber: a = version (-1: poisoned), b = 1 if every byte of it was right
    failure,  // Head, then why this process gives up
};

// The aim of a producer's wait: room for a record of a group that is open, or to open one.
enum class Waits : std::uint32_t { none, for_room, for_place };

struct Head {
    std::uint32_t bytes;
    Kind kind;
    std::uint64_t life;  // of the process, unique in a run
    std::int64_t at_ns;
};
struct Word {
    Head head;
    std::int64_t a;
    std::int64_t b;
};
struct Begun {
    Head head;
    std::uint64_t visit;
    std::uint64_t digest;
    std::uint32_t repetition;
    std::uint32_t attempt;
    std::uint16_t subsequence;
    std::uint16_t subsequences;
    std::uint16_t size;
    std::uint16_t failed;
};
// One group of a batch, and one record of it, as the trainer sees them.
struct Shipped {
    GroupKey key;
    std::uint64_t life;  // named by its prompt
    std::uint64_t visit;
    std::uint32_t size;
    std::uint32_t pieces;
};
struct Piece {
    GroupKey key;  // from its own prompt and visit
    std::uint64_t digest;
    std::int64_t version;
    std::uint32_t repetition;
    std::uint32_t attempt;
    std::uint32_t subsequence;
    std::uint32_t tokens;
};
struct Acking {
    Head head;
    std::int64_t step;
    std::uint32_t groups;  // so many Shipped follow
    std::uint32_t pieces;  // and then so many Piece, group by group
};

class Journal {
  public:
    Journal(int pipe, std::uint64_t life) : pipe_(pipe), life_(life) {}
    void say(Kind kind, std::int64_t a = 0, std::int64_t b = 0);
    void begin(Begun entry);
    void acking(std::int64_t step, std::span<const Shipped> groups, std::span<const Piece> pieces);
    void fail(std::string_view why);
    [[nodiscard]] std::uint64_t life() const { return life_; }

  private:
    void put(const void* data, std::size_t bytes);
    int pipe_;
    std::uint64_t life_;
    std::vector<std::byte> buffer_;
};

// The age at which an incomplete group is dropped: its producer was killed, and another one might
// still send the missing member.
constexpr std::int64_t group_deadline_ns = 2'000'000'000;
// After that, while trainers are at work. Most of them live too short to read all that there is.
constexpr std::int64_t deadline_margin_ns = 2'000'000'000;

// Of the run's ring.
constexpr std::uint64_t stress_lane_bytes = 128 << 10;
constexpr std::uint64_t stress_spill_bytes = 8 << 20;
constexpr std::uint64_t token_bytes = 8;  // of a record's, with its logprob

// The orders of processes, in memory that all share.
struct Board {
    std::atomic<std::uint32_t> producers_end;  // finish open groups and close
    std::atomic<std::uint32_t> trainer_ends;   // all producers have gone: take the rest
    std::atomic<std::uint32_t> weights_end;
    // Records up to a lane's capacity, groups up to the room that there is for them.
    std::atomic<std::uint32_t> heavy;
};

// The arguments of a process of the run besides its journal.
struct Part {
    std::string_view ring;
    std::uint64_t seed = 0;
    std::string_view plant;  // a lie that this process is to tell, to see that it is found
    Board* board = nullptr;
};

// The bytes that the trainer is to train on, as one number. Not the library's own digest.
std::uint64_t content_digest(const Meta& meta, std::span<const std::int32_t> tokens,
                             std::span<const float> logprobs);

std::string prompt_of(std::uint64_t life);
std::uint64_t life_of(std::string_view prompt);  // 0: no producer's

int producer_part(const Part& part, Journal& journal);
int hostile_part(const Part& part, Journal& journal);
int trainer_part(const Part& part, Journal& journal);
int publisher_part(const Part& part, Journal& journal);
int subscriber_part(const Part& part, Journal& journal, std::uint32_t index);

}  // namespace rollring::test
