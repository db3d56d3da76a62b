#pragma once
// The state of an Atropos server, without the contents of groups: the trainer, the environments,
// the order of the waiting groups, and the choice of the next batch. No JSON, no ring, no clock,
// one thread at a time. The rules are those of atroposlib 0.4.0 (`atroposlib.api`), except for the
// differences listed in docs/atropos.md.

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace rollring::cli {

// A trainer's registration.
struct AtroposTrainer {
    std::string wandb_group;
    std::string wandb_project;
    std::int64_t batch_size = -1;  // sequences
    std::int64_t max_token_len = -1;
    std::string checkpoint_dir;
    std::int64_t save_checkpoint_interval = 0;
    std::int64_t starting_step = 0;
    std::int64_t num_steps = -1;
};

struct AtroposEnv {
    std::int64_t max_token_length = 0;
    std::string desired_name;
    std::string real_name = {};  // desired_name with a suffix, as wandb shows it
    double weight = 1;
    std::int64_t group_size = 1;
    std::optional<double> min_batch_allocation = {};  // share of a batch
    bool connected = true;
};

// A group that waits for its batch.
struct AtroposEntry {
    std::uint64_t id;  // unique, in order of arrival
    std::optional<std::int64_t> env_id;
    std::uint32_t size;  // sequences
};

struct AtroposEnvStatus {
    std::int64_t queue_size;  // groups of this size that it could be given
    std::int64_t self_queue_size;
    double unallocated_fraction;
    std::int64_t max_group_size;
    double env_weight;
};

class AtroposBook {
  public:
    // The first registration is valid until a reset.
    void enter_trainer(const AtroposTrainer& trainer);
    [[nodiscard]] const std::optional<AtroposTrainer>& trainer() const { return trainer_; }
    // The trainer has asked for a batch: environments may start.
    void start() { started_ = true; }
    [[nodiscard]] bool started() const { return started_; }

    // Returns its number, from 0 on.
    std::int64_t enter_env(AtroposEnv env);
    void enter_env_again(AtroposEnv env) { envs_.push_back(std::move(env)); }  // named already
    [[nodiscard]] std::span<const AtroposEnv> envs() const { return envs_; }
    bool disconnect(std::int64_t env_id);  // false: there is no such environment

    // Adds a group. If its size differs from the announced one, it is buffered: returns the
    // sequences in the buffer.
    std::optional<std::uint64_t> enter(const AtroposEntry& entry);
    // A batch of exactly batch_size sequences, from the oldest groups that make one; empty if none
    // do.
    [[nodiscard]] std::vector<AtroposEntry> take_batch();
    [[nodiscard]] bool has_batch() const;
    void put_back(std::span<const AtroposEntry> batch);
    [[nodiscard]] std::int64_t step() const { return step_; }
    void set_step(std::int64_t step) { step_ = step; }

    [[nodiscard]] std::size_t waiting() const { return queue_.size(); }
    [[nodiscard]] std::uint64_t waiting_sequences() const;  // buffers included
    // Throws std::out_of_range if there is no such environment.
    [[nodiscard]] AtroposEnvStatus status_of(std::int64_t env_id);

  private:
    void queue(const AtroposEntry& entry);    // sorted by id
    using Choice = std::vector<std::size_t>;  // indices into the queue
    [[nodiscard]] Choice choose() const;
    [[nodiscard]] bool choose_minimums(Choice& chosen, std::int64_t& left) const;
    [[nodiscard]] bool known(std::optional<std::int64_t> env_id) const {
        return env_id && *env_id >= 0 && static_cast<std::size_t>(*env_id) < envs_.size();
    }

    std::optional<AtroposTrainer> trainer_;
    bool started_ = false;
    std::int64_t step_ = 0;
    std::vector<AtroposEnv> envs_;
    std::deque<AtroposEntry> queue_;  // by id
    // By environment: groups of another size than announced, until some make up one of that size.
    std::map<std::int64_t, std::deque<AtroposEntry>> buffers_;
};

}  // namespace rollring::cli
