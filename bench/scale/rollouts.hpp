#pragma once
// Every rollout of a run, by number, with its state: the model's own account, against which the
// real stash is checked.

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "settings.hpp"

namespace bench::scale {

enum class Place : std::uint8_t {
    waiting,   // for a worker
    worker,    // is generated, or waits to be pushed
    node,      // in its node's ring, or under way
    receiver,  // on the trainer's node
    ring,      // in the trainer's ring
    trained,
    lost,  // with its node, and not begun again
    count,
};

struct Rollout {
    std::uint32_t tokens;
    std::uint32_t node = 0;
    std::uint16_t worker = 0;
    Place place = Place::waiting;
    bool in_advance = false;  // sent within a place that its node had in advance
};

struct Group {
    static constexpr std::uint32_t nobody = ~0U;
    std::uint32_t node = nobody;    // whose workers it was given to first
    std::uint32_t holder = nobody;  // the node whose lane has its place, until a record is sent
    std::uint32_t sent = 0;         // members that are in the trainer's ring, or were
    std::uint32_t trained = 0;
    bool hit = false;  // members of it were lost

    [[nodiscard]] bool has_place() const { return sent > 0 || holder != nobody; }
};

class Rollouts {
  public:
    using Number = std::uint32_t;

    explicit Rollouts(const Settings& settings) : settings_(&settings), random_(settings.seed) {}

    // All of its members wait. Returns its number.
    Number new_group() {
        for (std::uint32_t i = 0; i < settings_->group_size; i++) {
            rollouts_.push_back({draw_tokens()});
            places_[0]++;
        }
        groups_.emplace_back();
        return static_cast<Number>(groups_.size() - 1);
    }

    [[nodiscard]] Rollout& operator[](Number number) { return rollouts_[number]; }
    [[nodiscard]] Group& group(Number number) { return groups_[number]; }
    [[nodiscard]] std::size_t groups() const { return groups_.size(); }
    [[nodiscard]] Number first_of(Number group) const { return group * settings_->group_size; }
    [[nodiscard]] Number group_of(Number rollout) const { return rollout / settings_->group_size; }
    // As a worker chooses among several rings: all of a group goes to one.
    [[nodiscard]] std::uint32_t ring_of(Number group) const {
        return static_cast<std::uint32_t>((group * 0x9e3779b97f4a7c15ULL >> 32) % settings_->rings);
    }
    [[nodiscard]] std::uint64_t bytes(Number rollout) const {
        return settings_->bytes_of(rollouts_[rollout].tokens);
    }

    void move(Number number, Place to) {
        Rollout& rollout = rollouts_[number];
        places_[static_cast<std::size_t>(rollout.place)]--;
        places_[static_cast<std::size_t>(to)]++;
        rollout.place = to;
    }
    [[nodiscard]] std::uint64_t in(Place place) const {
        return places_[static_cast<std::size_t>(place)];
    }

  private:
    // Box and Muller: std::lognormal_distribution is another one in every library.
    std::uint32_t draw_tokens() {
        const double u = 1.0 - uniform();
        const double normal = std::sqrt(-2.0 * std::log(u)) * std::cos(2.0 * M_PI * uniform());
        const double tokens = settings_->length_median * std::exp(settings_->length_sigma * normal);
        return static_cast<std::uint32_t>(
            std::clamp(tokens, 16.0, static_cast<double>(settings_->length_most)));
    }
    double uniform() { return static_cast<double>(random_() >> 11) * 0x1p-53; }

    const Settings* settings_;
    std::mt19937_64 random_;
    std::vector<Rollout> rollouts_;
    std::vector<Group> groups_;
    std::array<std::uint64_t, static_cast<std::size_t>(Place::count)> places_{};
};

}  // namespace bench::scale
