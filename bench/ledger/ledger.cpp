// Question: what does a ledger cost, compared with a ring without one, and with the disk alone?

#include <fmt/core.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <utility>

#include "ledger/disk.hpp"
#include "ledger/training.hpp"
#include "questions.hpp"

namespace bench {
namespace {

constexpr std::uint64_t large_chunk = std::uint64_t{16} << 20;
// As a ledger makes its files.
constexpr std::uint64_t file_bytes = std::uint64_t{256} << 20;

rollring::Durable durable_of(const std::string& name) {
    using rollring::Durable;
    for (const Durable one : {Durable::none, Durable::group, Durable::record}) {
        if (rollring::name(one) == name) return one;
    }
    fail(fmt::format("--durable {}: none, group or record", name));
}

// Processes are not pinned unless the CPUs are named: a ledger has a thread of its own.
Cpus cpus_of(const Common& common) {
    if (!common.cpus.empty()) return common.choose_cpus();
    return {any_cpu, any_cpu, common.choose_cpus().realtime};
}

// A length, and the runs of its rounds.
class Length {
  public:
    Length(const LedgerQuestion& options, std::uint32_t n_tokens, Progress& progress);
    void measure_round();
    [[nodiscard]] Json row() const;

  private:
    Trained run(const std::string& durable);
    double disk(std::uint64_t chunk_bytes);

    const LedgerQuestion* options_;
    Cpus cpus_;
    Progress* progress_;
    Training without_;
    Plan plan_;
    Trained latest_;  // with a ledger: the work of the disk alone
    Figures figures_;
};

// A lap of the lane comes first, so that nothing is touched for the first time while the clock
// runs.
Length::Length(const LedgerQuestion& options, std::uint32_t n_tokens, Progress& progress)
    : options_(&options),
      cpus_(cpus_of(options.common)),
      progress_(&progress),
      without_{.lane_bytes = parse_bytes(options.lane_bytes),
               .batch_groups = groups_of_batch(options.batch_tokens, n_tokens),
               .ledger_bytes = parse_bytes(options.ledger_bytes),
               .directory = options.directory,
               .durable = {}},
      plan_{.n_tokens = n_tokens} {
    const std::uint64_t lap = without_.lane_bytes / plan_.record_bytes();
    plan_.warmup = whole_batches(without_, lap);
    plan_.records = whole_batches(without_, 2 * lap);
    const double rate = run(options.durable.front()).tokens_per_s / n_tokens;
    plan_.records =
        whole_batches(without_, static_cast<std::uint64_t>(rate * options.common.seconds));
}

Trained Length::run(const std::string& durable) {
    if (interrupted()) return {};
    progress_->step(
        fmt::format("{}, {} tokens", durable.empty() ? "no ledger" : durable, plan_.n_tokens));
    Training training = without_;
    if (!durable.empty()) training.durable = durable_of(durable);
    const Trained trained = train(training, plan_, cpus_);
    if (!durable.empty()) latest_ = trained;
    return trained;
}

double Length::disk(std::uint64_t chunk_bytes) {
    if (interrupted()) return 0;
    progress_->step("the disk alone");
    return write_rate(options_->directory,
                      {.bytes = static_cast<std::uint64_t>(latest_.written_bytes),
                       .chunk_bytes = chunk_bytes,
                       .file_bytes = file_bytes,
                       .realtime = cpus_.realtime});
}

// The disk's rate is that of before and after, as it differs from one second to the next.
void Length::measure_round() {
    const double plain = run("").tokens_per_s;
    Figures found;
    for (const std::string& durable : options_->durable) {
        const auto write_bytes = static_cast<std::uint64_t>(latest_.write_bytes());
        const double before = disk(write_bytes);
        const Trained trained = run(durable);
        const double after = disk(write_bytes);
        if (interrupted()) return;
        const double alone = (before + after) / 2;
        found.add(durable + "_tokens_per_s", trained.tokens_per_s);
        found.add(durable + "_of_without", trained.tokens_per_s);
        found.add(durable + "_of_disk", trained.written_per_s() / alone);
        found.add(durable + "_write_kib", trained.write_bytes() / 1024);
        found.add(durable + "_disk_gb_per_s", alone / 1e9);
    }
    const double large = disk(large_chunk);
    const double again = run("").tokens_per_s;
    if (interrupted()) return;
    figures_.add("without_tokens_per_s", plain);
    figures_.add("without_again", again / plain);
    for (const auto& [name, values] : found.all()) {
        const bool is_share = name.ends_with("_of_without");
        figures_.add(name, is_share ? 2 * values[0] / (plain + again) : values[0]);
    }
    figures_.add("disk_16mib_gb_per_s", large / 1e9);
    figures_.add("line_ns", line_ns(options_->common.choose_cpus()));
}

Json Length::row() const {
    Json row = {{"tokens", plan_.n_tokens},
                {"batch_groups", without_.batch_groups},
                {"records", plan_.records}};
    figures_.append_to(row);
    return row;
}

}  // namespace

void run(const LedgerQuestion& options) {
    std::error_code wrong;
    std::filesystem::create_directories(options.directory, wrong);
    const std::string file_system = file_system_of(options.directory);
    Json out = {{"question", "ledger"},
                {"machine", machine(cpus_of(options.common))},
                {"file_system", file_system},
                {"lane_bytes", options.lane_bytes},
                {"ledger_bytes", options.ledger_bytes},
                {"batch_tokens", options.batch_tokens}};
    {
        const std::size_t runs = (3 + 3 * options.durable.size()) * options.common.repeat + 1;
        Progress progress(runs * options.tokens.size());
        for (const std::uint32_t n_tokens : options.tokens) {
            Length length(options, n_tokens, progress);
            for (int round = 0; round < options.common.repeat && !interrupted(); round++) {
                length.measure_round();
            }
            out["rows"].push_back(length.row());
        }
    }
    print_report(out, options.common.json);
}

}  // namespace bench
