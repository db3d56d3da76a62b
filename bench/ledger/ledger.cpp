// Question: what does a ledger cost, compared with a ring without one, and with the disk alone?

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ledger/disk.hpp"
#include "ledger/pushes.hpp"
#include "ledger/restores.hpp"
#include "ledger/stores.hpp"
#include "ledger/training.hpp"
#include "questions.hpp"

namespace bench {
namespace {

constexpr std::uint64_t large_chunk = std::uint64_t{16} << 20;
constexpr std::uint64_t peer_bytes = std::uint64_t{256} << 20;
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
    void append_to(Json& report) const;

  private:
    void measure_rates();
    void measure_pushes();
    void measure_restores();
    void measure_peers();
    [[nodiscard]] bool wants(const char* part) const {
        return std::ranges::find(options_->parts, part) != options_->parts.end();
    }
    [[nodiscard]] Training with(const std::string& durable) const;
    [[nodiscard]] std::uint64_t records_of(std::uint64_t bytes) const {
        return whole_batches(without_, bytes / plan_.record_bytes());
    }
    [[nodiscard]] std::uint64_t records_a_commit() const {
        const double bytes = latest_.write_bytes() / static_cast<double>(plan_.record_bytes());
        return static_cast<std::uint64_t>(std::max(1L, std::lround(bytes)));
    }
    Trained run(const std::string& durable);
    // `removes`: files as old as those that a ledger removes.
    double disk(std::uint64_t chunk_bytes, bool removes = false);

    const LedgerQuestion* options_;
    Cpus cpus_;
    Progress* progress_;
    Training without_;
    Plan plan_;
    Trained latest_;  // with a ledger: the work of the disk alone
    Figures figures_;
    Figures pushes_;
    Figures restores_;
    std::vector<std::pair<StorePeer, Figures>> peers_;
    std::unique_ptr<ScratchFolder> filled_;  // with a ledger to restore
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

Training Length::with(const std::string& durable) const {
    Training training = without_;
    if (!durable.empty()) training.durable = durable_of(durable);
    return training;
}

Trained Length::run(const std::string& durable) {
    if (interrupted()) return {};
    progress_->step(
        fmt::format("{}, {} tokens", durable.empty() ? "no ledger" : durable, plan_.n_tokens));
    const Trained trained = train(with(durable), plan_, cpus_);
    if (!durable.empty()) latest_ = trained;
    return trained;
}

double Length::disk(std::uint64_t chunk_bytes, bool removes) {
    if (interrupted()) return 0;
    progress_->step("the disk alone");
    return write_rate(options_->directory,
                      {.bytes = static_cast<std::uint64_t>(latest_.written_bytes),
                       .chunk_bytes = chunk_bytes,
                       .file_bytes = file_bytes,
                       .kept_bytes = removes ? without_.ledger_bytes / checkpoints_of_bound : 0,
                       .realtime = cpus_.realtime});
}

void Length::measure_round() {
    if (wants("rates")) measure_rates();
    if (wants("pushes")) measure_pushes();
    if (wants("restores")) measure_restores();
    if (wants("peers")) measure_peers();
}

// The disk's rate is that of before and after, as it differs from one second to the next.
void Length::measure_rates() {
    const double plain = run("").tokens_per_s;
    Figures found;
    for (const std::string& durable : options_->durable) {
        const auto write_bytes = static_cast<std::uint64_t>(latest_.write_bytes());
        const double before = disk(write_bytes);
        const Trained trained = run(durable);
        const double after = disk(write_bytes);
        const double bounded = disk(write_bytes, true);
        if (interrupted()) return;
        const double alone = (before + after) / 2;
        found.add(durable + "_tokens_per_s", trained.tokens_per_s);
        found.add(durable + "_of_without", trained.tokens_per_s);
        found.add(durable + "_of_disk", trained.written_per_s() / alone);
        found.add(durable + "_of_bounded_disk", trained.written_per_s() / bounded);
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

void Length::measure_pushes() {
    const double rate = options_->paced_load * disk(large_chunk);
    if (interrupted()) return;
    const double gap_ns = static_cast<double>(plan_.record_bytes()) / rate * 1e9;
    Plan plan = plan_;
    plan.records = whole_batches(
        without_, static_cast<std::uint64_t>(options_->common.seconds * 1e9 / gap_ns));
    const auto pushes = [&](const std::string& durable) {
        progress_->step(fmt::format("pushes, {} tokens", plan.n_tokens));
        return interrupted()
                   ? Pushes{}
                   : time_pushes(with(durable), plan, static_cast<std::int64_t>(gap_ns), cpus_);
    };
    const Pushes before = pushes("");
    const Pushes group = pushes("group");
    const Pushes after = pushes("");
    if (interrupted()) return;
    const auto add = [&](const std::string& name, double Pushes::* which) {
        pushes_.add(name + "_without_us", before.*which / 1000);
        pushes_.add(name + "_group_us", group.*which / 1000);
        pushes_.add(name + "_of_without", 2 * group.*which / (before.*which + after.*which));
        pushes_.add(name + "_without_again", after.*which / before.*which);
    };
    pushes_.add("gb_per_s", rate / 1e9);
    add("p50", &Pushes::p50_ns);
    add("p99", &Pushes::p99_ns);
}

void Length::measure_restores() {
    // So few that no checkpoint comes.
    const std::uint64_t bytes = without_.ledger_bytes / 16 * 3;
    const Plan plan{.n_tokens = plan_.n_tokens, .records = records_of(bytes)};
    if (filled_ == nullptr) {
        progress_->step(fmt::format("a ledger to restore, {} tokens", plan.n_tokens));
        filled_ = std::make_unique<ScratchFolder>(without_.directory, "filled");
        fill_ledger(with("group"), plan, filled_->path() / "ledger", cpus_);
    }
    const std::filesystem::path ledger = filled_->path() / "ledger";
    const auto files = files_of_ledger(ledger);
    progress_->step("its files alone");
    const double before = read_rate(files, cpus_.realtime);
    progress_->step("restore");
    const Restored restored = interrupted() ? Restored{} : restore(without_, ledger, plan, cpus_);
    progress_->step("its files again");
    const double after = interrupted() ? 0 : read_rate(files, cpus_.realtime);
    if (interrupted()) return;
    const double rate = static_cast<double>(plan.records * plan.record_bytes()) / restored.seconds;
    restores_.add("gb_per_s", rate / 1e9);
    restores_.add("disk_gb_per_s", (before + after) / 2e9);
    restores_.add("of_disk", 2 * rate / (before + after));
    restores_.add("disk_again", after / before);
    restores_.add("begin_share", restored.begin_seconds / restored.seconds);
}

void Length::measure_peers() {
    if (peers_.empty()) {
        for (StorePeer& peer : store_peers()) peers_.emplace_back(std::move(peer), Figures());
    }
    const double mine = run("group").tokens_per_s;
    const StoreWork work{.n_tokens = plan_.n_tokens,
                         .records = records_of(peer_bytes),
                         .records_a_commit = records_a_commit(),
                         .realtime = cpus_.realtime};
    for (auto& [peer, figures] : peers_) {
        progress_->step(peer.name);
        if (!peer.missing.empty() || interrupted()) continue;
        const double rate = store_rate(peer, options_->directory, work);
        if (interrupted()) return;
        figures.add("records_a_commit", static_cast<double>(work.records_a_commit));
        figures.add("tokens_per_s", rate);
        figures.add("ledger_times", mine / rate);
    }
}

void Length::append_to(Json& report) const {
    const auto add = [&](const char* part, const Figures& figures) {
        if (figures.empty()) return;
        Json row = {{"tokens", plan_.n_tokens}};
        figures.append_to(row);
        report[part].push_back(std::move(row));
    };
    add("rates", figures_);
    add("pushes", pushes_);
    add("restores", restores_);
    for (const auto& [peer, figures] : peers_) {
        Json row = {{"key", peer.key}, {"name", peer.name}, {"tokens", plan_.n_tokens}};
        if (figures.empty()) row["why"] = peer.missing.empty() ? "interrupted" : peer.missing;
        figures.append_to(row);
        report[figures.empty() ? "skipped" : "peers"].push_back(std::move(row));
    }
}

std::size_t runs_of(const LedgerQuestion& options) {
    std::size_t runs = 0;
    for (const std::string& part : options.parts) {
        if (part == "rates") runs += 3 + 4 * options.durable.size();
        if (part == "pushes") runs += 4;
        if (part == "restores") runs += 3;
        if (part == "peers") runs += 1 + store_peers().size();
    }
    return runs * options.common.repeat + 1;
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
        Progress progress(runs_of(options) * options.tokens.size());
        for (const std::uint32_t n_tokens : options.tokens) {
            Length length(options, n_tokens, progress);
            for (int round = 0; round < options.common.repeat && !interrupted(); round++) {
                length.measure_round();
            }
            length.append_to(out);
        }
    }
    print_report(out, options.common.json);
}

}  // namespace bench
