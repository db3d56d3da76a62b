// The options of `rollring consume --group-size`.

#include "cli/commands/train.hpp"

namespace rollring::cli {
namespace {

constexpr const char* help_group = "Groups";

// Options that mean nothing without --group-size.
struct Adder {
    CLI::App* sub;
    CLI::Option* size;

    // Returns it, for its defaults.
    CLI::Option* needs(CLI::Option* option) const { return option->needs(size)->group(help_group); }
    template <class T>
    CLI::Option* count(const char* name, T& value, const char* help) const {
        return needs(sub->add_option(name, value, help)->type_name("N"));
    }
    template <class T>
    void choice(const char* name, T& value, const std::type_identity_t<Choices<T>>& choices,
                const char* help) const {
        needs(add_choice(sub, name, value, choices, help));
    }
};

CLI::Option* add_size(CLI::App* sub, TrainOptions& options) {
    return add_group_size(sub,
                          "Train on whole groups, of so many members where a record does\n"
                          "not say it; auto: 8 there",
                          [&options](const std::string&, std::optional<std::uint32_t> size) {
                              options.on = true;
                              options.stash.group_size = size.value_or(options.stash.group_size);
                          })
        ->group(help_group);
}

// How much a batch is, how long it is kept, how many there are.
void add_batches(const Adder& add, TrainOptions& options) {
    add.count("--batch-groups", options.batch_groups, "Groups in a batch")->default_str("16");
    add.count("--batch-sequences", options.batch_sequences, "... or by sequences: records");
    add.count("--batch-tokens", options.batch_tokens, "... or by tokens");
    add.needs(add.sub->add_option("--train-ms", options.train_ms,
                                  "How long a batch is kept, as if it were trained on"))
        ->check(CLI::Range(std::int64_t{0}, std::int64_t{86'400'000}))
        ->type_name("MS");
    add.count("--batches", options.batches_max, "End after so many batches; 0: no limit")
        ->capture_default_str();
    add.choice("--output-format", options.whole_records, {{"summary", false}, {"records", true}},
               "Into --output, before a batch is acknowledged: a line for each\n"
               "batch with the rewards and advantages of its groups; or for each\n"
               "record, group by group, with tokens and all columns");
}

// When a group is over that is not complete, and what is made of it.
void add_deadlines(const Adder& add, TrainOptions& options) {
    StashOptions& stash = options.stash;
    add.needs(add_duration(add.sub, "--deadline", options.deadline_ms,
                           "Age at which a group is decided, whole or not"))
        ->default_str("none");
    add.choice("--at-deadline", stash.at_deadline,
               {{"ship", AtDeadline::ship}, {"drop", AtDeadline::drop}, {"hold", AtDeadline::hold}},
               "... and how: ship what has --min-size, drop it, or wait on");
    add.count("--min-size", stash.min_size, "Fewest members of a group that is shipped")
        ->capture_default_str();
    add.choice(
        "--on-failed", stash.on_failed,
        {{"shrink", OnFailed::shrink}, {"void", OnFailed::void_group}, {"hold", OnFailed::hold}},
        "A failed member: without it, no group, or a retry");
    add.choice(
        "--bad-reward", stash.bad_reward,
        {{"fail", BadReward::fail}, {"void", BadReward::void_group}, {"absent", BadReward::absent}},
        "A member whose reward is NaN or infinite: it failed, no group,\n"
        "or it counts as one without a reward");
    add.needs(add_duration(add.sub, "--no-progress", options.no_progress_ms,
                           "Say which groups wait when nothing was shipped for so long"))
        ->default_str("60s");
}

// Which members and groups are shipped, and what comes with them.
void add_selection(const Adder& add, StashOptions& stash) {
    add.count("--extra", stash.extra, "Members taken beyond the size; the size is shipped")
        ->capture_default_str();
    add.choice("--select", stash.select, {{"first", Select::first}, {"uniform", Select::uniform}},
               "Which of them: the first to finish, or any");
    add.choice(
        "--order", stash.order,
        {{"windowed", Order::windowed}, {"fifo", Order::fifo}, {"freshest", Order::freshest}},
        "Which complete groups go first");
    add.count("--max-lag", stash.max_lag, "Versions that a member may be behind; -1: any")
        ->capture_default_str();
    add.choice("--stale", stash.stale, {{"drop", Stale::drop}, {"withhold", Stale::withhold}},
               "What becomes of a member behind that");
    add.choice("--zero-variance", stash.zero_variance,
               {{"keep", ZeroVariance::keep}, {"drop", ZeroVariance::drop}},
               "Groups whose rewards are all equal, but for rounding");
    add.choice("--advantages", stash.advantages,
               {{"grpo", Advantages::grpo},
                {"mean", Advantages::mean},
                {"loo", Advantages::loo},
                {"none", Advantages::none}},
               "(r - mean) / (deviation + epsilon), r - mean, r - mean of the others, 0");
    add.choice("--deviation", stash.deviation,
               {{"sample", Deviation::sample}, {"population", Deviation::population}},
               "Of grpo: over n - 1, as TRL's GRPOTrainer and torch have it, or over n");
    add.needs(add.sub->add_option("--deviation-epsilon", stash.deviation_epsilon,
                                  "Of grpo: added to the deviation"))
        ->type_name("X")
        ->capture_default_str();
}

void add_strict(const Adder& add, TrainOptions& options) {
    add.needs(add.sub->add_flag("--strict", options.strict,
                                "Exit with 1 if a third or more of a producer's records was\n"
                                "dropped as late or duplicate: keys that collide"));
}

void add_admission(const Adder& add, StashOptions& stash) {
    add.count("--max-open-groups", stash.max_open_groups,
              "Producers wait beyond; 0: --group-rows of the ring")
        ->capture_default_str();
    add.needs(add_bytes(add.sub, "--max-open-bytes", stash.max_open_bytes,
                        "Producers wait beyond; 0: no limit but the lanes"))
        ->default_str("0");
}

}  // namespace

CLI::Option* add_group_size(CLI::App* sub, const std::string& help, TakeGroupSize take) {
    return sub
        ->add_option_function<std::string>(
            "--group-size",
            [take = std::move(take)](const std::string& text) {
                if (text == "auto") return take(text, std::nullopt);
                const auto size = parse_count(text);
                if (!size || *size < 1 || *size > group_size_max) {
                    throw CLI::ValidationError(
                        "--group-size", "'" + text + "' is not auto, or a whole number from 1 to " +
                                            count_text(group_size_max));
                }
                take(text, static_cast<std::uint32_t>(*size));
            },
            help)
        ->type_name("N|auto");
}

CLI::Option* add_train_options(CLI::App* sub, TrainOptions& options) {
    const Adder add{sub, add_size(sub, options)};
    add_batches(add, options);
    add_selection(add, options.stash);
    add_deadlines(add, options);
    add_admission(add, options.stash);
    add_strict(add, options);
    return add.size;
}

}  // namespace rollring::cli
