// Question: how fast do a batch's columns come into packed arrays of the host, against memcpy of as
// many bytes by as many threads?

#include <fmt/core.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "questions.hpp"
#include "ring/records.hpp"
#include "rollring/gather.hpp"
#include "rollring/stash.hpp"

namespace bench {
namespace {

using rollring::GatherColumn;

constexpr std::uint32_t lanes_filled = 4;
constexpr std::uint32_t members = 16;
constexpr std::uint64_t room = std::uint64_t{64} << 20;  // beside the records
constexpr std::uint64_t bytes_a_token = 8;               // of ids and logprobs

template <class T>
T need(rollring::Result<T> result) {
    if (!result) fail("gather: " + result.error().to_string());
    if constexpr (!std::is_void_v<T>) return std::move(*result);
}

// A leased batch whose ids and logprobs have `bytes` bytes.
class Leased {
  public:
    Leased(std::uint32_t n_tokens, std::uint64_t bytes)
        : groups_(static_cast<std::uint32_t>(
              std::max<std::uint64_t>(1, bytes / bytes_a_token / n_tokens / members))),
          ring_(ring_for(n_tokens)) {
        stash_ = need(
            rollring::Stash::open(ring_.name(), {.group_size = members,
                                                 .batch = rollring::BatchTarget::groups(groups_),
                                                 .max_open_groups = 2 * groups_ + 64,
                                                 .advantages = rollring::Advantages::none}));
        const std::jthread sending([&] { send(n_tokens); });
        if (stash_->next(batch_, rollring::Deadline::after_ms(60'000)) !=
            rollring::NextBatch::batch) {
            fail("gather: no batch within a minute");
        }
    }
    Leased(const Leased&) = delete;
    Leased& operator=(const Leased&) = delete;
    ~Leased() { batch_.nack(); }

    [[nodiscard]] const rollring::Batch& batch() const { return batch_; }
    [[nodiscard]] const rollring::Schema& schema() const { return stash_->schema(); }

  private:
    [[nodiscard]] rollring::RingOptions ring_for(std::uint32_t n_tokens) const {
        const std::uint64_t bytes =
            std::uint64_t{groups_} * members * (token_bytes * std::uint64_t{n_tokens} + 1024);
        return {.lanes = lanes_filled,
                .lane_bytes = bytes / lanes_filled + room,
                .journal_records = 1 << 20,
                .spill_bytes = 2 * bytes + room};
    }
    void send(std::uint32_t n_tokens) {
        const Source source(n_tokens);
        std::vector<rollring::Producer> producers;
        producers.reserve(lanes_filled);
        for (std::uint32_t lane = 0; lane < lanes_filled; lane++) {
            producers.push_back(need(rollring::Producer::open(ring_.name())));
        }
        for (std::uint32_t i = 0; i < groups_ * members; i++) {
            const std::string prompt = fmt::format("p{}", i / members);
            rollring::Draft draft(prompt);
            draft.meta.repetition_id = i % members;
            fill(draft, source[i]);
            rollring::Producer& producer = producers[i / members % lanes_filled];
            if (producer.push(draft, rollring::Deadline::after_ms(10'000)) != rollring::Push::ok) {
                fail("gather: a record was not sent: " + producer.problem());
            }
        }
    }

    std::uint32_t groups_;
    ScratchRing ring_;
    std::unique_ptr<rollring::Stash> stash_;
    rollring::Batch batch_;
};

class Arrays {
  public:
    explicit Arrays(const Leased& leased) : leased_(&leased) {
        for (const rollring::Std column : {rollring::Std::token_ids, rollring::Std::logprobs}) {
            GatherColumn wanted{.column = static_cast<std::uint16_t>(column)};
            const auto shape = need(rollring::gathered_shape(leased.batch(), leased.schema(),
                                                             wanted, rollring::Layout{}));
            auto& array = arrays_.emplace_back(shape.elements() * shape.dtype.bytes());
            wanted.to = array;
            columns_.push_back(wanted);
        }
    }
    void gather(std::uint32_t threads) {
        need(rollring::gather(leased_->batch(), leased_->schema(), columns_, rollring::Layout{},
                              threads));
    }
    [[nodiscard]] std::uint64_t bytes() const { return arrays_[0].size() + arrays_[1].size(); }
    void check() const {
        std::uint64_t at = 0;
        for (const rollring::Sequence& one : leased_->batch().sequences()) {
            const auto ids = std::as_bytes(one.view.token_ids());
            const auto logprobs = std::as_bytes(one.view.logprobs());
            if (std::memcmp(&arrays_[0][at], ids.data(), ids.size()) != 0 ||
                std::memcmp(&arrays_[1][at], logprobs.data(), logprobs.size()) != 0) {
                fail("gather: an array differs from the records");
            }
            at += ids.size();
        }
    }

  private:
    const Leased* leased_;
    std::vector<std::vector<std::byte>> arrays_;
    std::vector<GatherColumn> columns_;
};

// Equal shares of one block, by threads that end with the call, as those of gather do.
void copy_plainly(const std::vector<std::byte>& from, std::vector<std::byte>& to,
                  std::uint32_t threads) {
    const std::uint64_t share = (from.size() / threads + 63) / 64 * 64;
    const auto work = [&](std::uint64_t begin) {
        if (begin >= from.size()) return;
        std::memcpy(&to[begin], &from[begin], std::min(share, from.size() - begin));
    };
    std::vector<std::jthread> helpers;
    for (std::uint32_t i = 1; i < threads; i++) helpers.emplace_back(work, i * share);
    work(0);
}

// Bytes a second of calls that take `seconds` together.
template <class Call>
double rate(double seconds, std::uint64_t bytes, const Call& call) {
    const std::int64_t began_ns = now_ns();
    const auto end_ns = began_ns + static_cast<std::int64_t>(seconds * 1e9);
    std::uint64_t calls = 0;
    std::int64_t now = began_ns;
    for (; calls == 0 || now < end_ns; now = now_ns()) {
        call();
        calls++;
    }
    return static_cast<double>(calls * bytes) * 1e9 / static_cast<double>(now - began_ns);
}

Json measure_length(const GatherQuestion& options, std::uint32_t n_tokens, Progress& progress) {
    const Leased leased(n_tokens, parse_bytes(options.bytes));
    Arrays arrays(leased);
    const std::vector<std::byte> from(arrays.bytes(), std::byte{1});
    std::vector<std::byte> to(from.size());
    Json rows = Json::array();
    for (const std::uint32_t threads : options.threads) {
        Figures figures;
        for (int round = -1; round < options.common.repeat && !interrupted(); round++) {
            progress.step(fmt::format("{} tokens, {} threads", n_tokens, threads));
            const double gathered =
                rate(options.common.seconds, arrays.bytes(), [&] { arrays.gather(threads); });
            const double copied = rate(options.common.seconds, arrays.bytes(),
                                       [&] { copy_plainly(from, to, threads); });
            if (round < 0) continue;  // the first has touched the pages
            figures.add("gb_per_s", gathered / 1e9);
            figures.add("memcpy_gb_per_s", copied / 1e9);
            figures.add("of_memcpy", gathered / copied);
        }
        arrays.check();
        Json row = {{"tokens", n_tokens}, {"threads", threads}};
        if (!figures.empty()) figures.append_to(row);
        rows.push_back(std::move(row));
    }
    return rows;
}

}  // namespace

void run(const GatherQuestion& options) {
    const Turn turn;
    const Cpus cpus = options.common.choose_cpus();
    Json out = {{"question", "gather"}, {"machine", machine(cpus)}, {"bytes", options.bytes}};
    {
        Progress progress(options.tokens.size() * options.threads.size() *
                          (static_cast<std::size_t>(options.common.repeat) + 1));
        for (const std::uint32_t n_tokens : options.tokens) {
            for (auto& row : measure_length(options, n_tokens, progress)) {
                out["rows"].push_back(std::move(row));
            }
        }
    }
    print_report(out, options.common.json);
}

}  // namespace bench
