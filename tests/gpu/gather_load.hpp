#pragma once
// A ring with batches to be gathered, for rates.

#include <fmt/core.h>

#include <algorithm>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "rollring/producer.hpp"
#include "rollring/ring.hpp"
#include "rollring/stash.hpp"

namespace rollring::test {

// Batches of `bytes` bytes each, of records of `tokens` tokens, each with ids and logprobs.
class Load {
  public:
    Load(std::uint32_t tokens, std::uint64_t bytes, std::size_t count = 1)
        : members_(members_of(bytes / (std::uint64_t{8} * tokens))),
          groups_(static_cast<std::uint32_t>(std::max<std::uint64_t>(
              lanes, bytes / (std::uint64_t{8} * tokens * members_) / lanes * lanes))) {
        static_cast<void>(remove_ring(name, true));
        const std::uint64_t record = std::uint64_t{8} * tokens + 1024;
        made(create_ring(
            name, {.lanes = lanes,
                   .lane_bytes = count * groups_ / lanes * members_ * record + (64 << 20),
                   .journal_records = 1 << 20,
                   .spill_bytes = std::uint64_t{2} * groups_ * members_ * record + (64 << 20)}));
        for (std::uint32_t lane = 0; lane < lanes; lane++) {
            producers_.push_back(made(Producer::open(name)));
        }
        std::vector<std::int32_t> ids(tokens);
        std::vector<float> values(tokens);
        for (std::uint32_t i = 0; i < tokens; i++) {
            ids[i] = static_cast<std::int32_t>(i * 2654435761U >> 12);
            values[i] = -static_cast<float>(i % 977) / 64;
        }
        stash_ = made(Stash::open(name, {.group_size = members_,
                                         .batch = BatchTarget::groups(groups_),
                                         .max_open_groups = 2 * groups_ + 64}));
        batches.resize(count);
        for (std::size_t i = 0; i < count; i++) fill(batches[i], i, ids, values);
    }
    Load(const Load&) = delete;
    ~Load() {
        for (Batch& batch : batches) batch.nack();
        stash_.reset();
        producers_.clear();
        static_cast<void>(remove_ring(name, true));
    }
    [[nodiscard]] const Schema& schema() const { return stash_->schema(); }
    // Of one of them: they are alike.
    [[nodiscard]] std::uint64_t tokens() const {
        return static_cast<std::uint64_t>(batches[0].cu_seqlens().back());
    }
    std::vector<Batch> batches;
    static constexpr std::uint32_t lanes = 4;

  private:
    // Some thousands of groups at most: a ring has no room for many more that are open.
    static std::uint32_t members_of(std::uint64_t sequences) {
        return static_cast<std::uint32_t>(std::clamp<std::uint64_t>(sequences / 2048, 16, 1024));
    }
    template <class T>
    static T made(Result<T> result) {
        if (!result) throw std::runtime_error(result.error().to_string());
        if constexpr (!std::is_void_v<T>) return std::move(*result);
    }
    void fill(Batch& batch, std::size_t number, std::vector<std::int32_t>& ids,
              const std::vector<float>& values) {
        for (std::uint32_t group = 0; group < groups_; group++) {
            const std::string prompt = fmt::format("b{}p{}", number, group);
            for (std::uint32_t member = 0; member < members_; member++) {
                ids[0] = static_cast<std::int32_t>(group * members_ + member);
                Draft draft(prompt);
                draft.meta.repetition_id = member;
                draft.meta.group_size = members_;
                draft.set(Std::token_ids, ids).set(Std::logprobs, values);
                push(producers_[group % lanes], draft, batch);
            }
        }
        for (int i = 0; i < 1000 && batch.groups().size() < groups_; i++) {
            static_cast<void>(stash_->next(batch, Deadline::after_ms(100)));
        }
        if (batch.groups().size() < groups_) {
            throw std::runtime_error(fmt::format("a batch of {} groups came, not of {}",
                                                 batch.groups().size(), groups_));
        }
    }
    void push(Producer& producer, const Draft& draft, Batch& batch) {
        while (producer.push(draft, Deadline::after_ms(100)) != Push::ok) {
            // Its records must be read before a producer may open more groups. A batch that is cut
            // early goes back.
            static_cast<void>(stash_->next(batch, Deadline::now()));
            batch.nack();
        }
    }
    static constexpr const char* name = "gather-rate";
    std::uint32_t members_;
    std::uint32_t groups_;
    std::vector<Producer> producers_;
    std::unique_ptr<Stash> stash_;
};

}  // namespace rollring::test
