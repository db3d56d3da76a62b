#pragma once
// Rollouts to park, and the checks that one that was taken is the same.

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "ledgers.hpp"
#include "rollring/extras/parked.hpp"

namespace rollring::test {

// Member `number` of a group, in the middle of its generation.
class Partial {
  public:
    explicit Partial(std::uint32_t number, std::size_t tokens = 40)
        : number_(number), state_(std::string(number % 5, 's') + std::to_string(number)) {
        for (std::size_t i = 0; i < tokens; i++) {
            ids_.push_back(static_cast<std::int32_t>(std::size_t{number} * 1000 + i));
            logprobs_.push_back(-0.25F * static_cast<float>(i));
            mask_.push_back(i < 3 ? 0 : 1);
        }
        runs_ = {3, number, 20, number + 1};
    }
    [[nodiscard]] Draft draft() const {
        Draft draft("gsm8k/17");
        draft.meta.visit = 3;
        draft.meta.repetition_id = number_;
        draft.meta.group_size = 4;
        draft.meta.source_id = number_ % 2;
        draft.meta.n_prompt = 3;
        draft.set(Std::token_ids, ids_);
        draft.set(Std::logprobs, logprobs_);
        draft.set(Std::loss_mask, mask_);
        draft.add({.column = static_cast<std::uint16_t>(Std::policy_version),
                   .dtype = dtype_i64,
                   .shape = {2, 2, 0, 0},
                   .dims = 2,
                   .data = runs_.data()});
        return draft;
    }
    [[nodiscard]] std::span<const std::byte> state() const {
        return std::as_bytes(std::span(state_));
    }
    void check(const TrajectoryView& record, std::span<const std::byte> state) const {
        CHECK(record.instance_id() == "gsm8k/17");
        CHECK(record.meta().visit == 3);
        CHECK(record.meta().repetition_id == number_);
        CHECK(record.meta().group_size == 4);
        CHECK(record.meta().n_prompt == 3);
        CHECK(record.meta().policy_version_min == number_);
        CHECK(record.meta().policy_version_max == number_ + 1);
        CHECK(record.columns().size() == 5);
        CHECK(std::ranges::equal(record.token_ids(), ids_));
        CHECK(std::ranges::equal(record.logprobs(), logprobs_));
        CHECK(std::ranges::equal(record.loss_mask(), mask_));
        CHECK(std::ranges::equal(record.values<std::int64_t>(Std::policy_version), runs_));
        CHECK(std::ranges::equal(state, this->state()));
    }

  private:
    std::uint32_t number_;
    std::string state_;
    std::vector<std::int32_t> ids_;
    std::vector<float> logprobs_;
    std::vector<std::uint8_t> mask_;
    std::vector<std::int64_t> runs_;
};

inline Parking open_parking(const std::string& ring) {
    auto opened = Parking::open(ring);
    REQUIRE_MESSAGE(opened.has_value(), (opened ? "" : opened.error().to_string()));
    return std::move(*opened);
}

inline void park(Parking& parking, std::uint32_t number) {
    const Partial partial(number);
    const auto parked = parking.park(partial.draft(), partial.state());
    REQUIRE_MESSAGE(parked.has_value(), (parked ? "" : parked.error().to_string()));
}

inline std::optional<ParkedRollout> take(Parking& parking, const Parking::Accept& accept = {}) {
    auto taken = parking.take(accept);
    REQUIRE_MESSAGE(taken.has_value(), (taken ? "" : taken.error().to_string()));
    if (*taken)
        Partial((*taken)->record().meta().repetition_id)
            .check((*taken)->record(), (*taken)->state());
    return std::move(*taken);
}

inline ParkedList listed(const std::filesystem::path& directory) {
    auto list = list_parked(directory);
    REQUIRE_MESSAGE(list.has_value(), (list ? "" : list.error().to_string()));
    return std::move(*list);
}

// All files of the folder, whatever their names are.
inline std::vector<std::filesystem::path> all_parked_files(const std::filesystem::path& directory) {
    std::vector<std::filesystem::path> all;
    std::error_code none;
    for (const auto& one : std::filesystem::directory_iterator(directory / "parked", none)) {
        all.push_back(one.path());
    }
    std::ranges::sort(all);
    return all;
}

}  // namespace rollring::test
