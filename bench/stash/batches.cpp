// Question: from several producers to packed arrays of a trainer, in C++ and in Python: what does
// the interpreter cost?

#include <fmt/core.h>

#include <array>
#include <atomic>
#include <string>
#include <vector>

#include "questions.hpp"
#include "ring/records.hpp"
#include "rollring/gather.hpp"
#include "rollring/stash.hpp"
#include "script.hpp"

namespace bench {
namespace {

using Flag = std::atomic<std::uint32_t>;

constexpr std::uint32_t batch_members = 8;

// All members of a group at once, as an environment sends them.
void send_groups(const std::string& ring, Board& board, Flag& stop, std::uint32_t n_tokens) {
    auto producer = must(board, rollring::Producer::open(ring, {.name = "bench"}));
    const Source source(n_tokens);
    for (std::uint64_t group = 0; stop.load() == 0; group++) {
        const std::string name = fmt::format("{}/{}", getpid(), group);
        for (std::uint32_t member = 0; member < batch_members; member++) {
            rollring::Draft draft(name);
            draft.meta.repetition_id = member;
            draft.meta.reward = member;
            fill(draft, source[group * batch_members + member]);
            rollring::Push push = rollring::Push::timed_out;
            while (push == rollring::Push::timed_out && stop.load() == 0) {
                push = producer.push_later(draft, rollring::Deadline::after_ms(200));
            }
            if (stop.load() != 0) return;
            if (push != rollring::Push::ok) board.give_up("push: " + producer.problem());
        }
        producer.flush();
    }
}

// Arrays that a trainer keeps from step to step.
class Packed {
  public:
    std::uint64_t take(const rollring::Batch& batch, const rollring::Schema& schema) {
        const auto tokens = static_cast<std::uint64_t>(batch.cu_seqlens().back());
        std::vector<rollring::GatherColumn> columns;
        for (std::size_t i = 0; i < wanted.size(); i++) {
            const std::uint64_t bytes = tokens * schema.columns()[wanted[i]].dtype.bytes();
            if (arrays_[i].size() < bytes) arrays_[i].resize(bytes);
            columns.push_back({.column = wanted[i], .to = std::span(arrays_[i]).first(bytes)});
        }
        const auto gathered = rollring::gather(batch, schema, columns, rollring::Layout{});
        if (!gathered) fail("batches: " + gathered.error().to_string());
        return tokens;
    }

  private:
    static constexpr std::array wanted = {static_cast<std::uint16_t>(rollring::Std::token_ids),
                                          static_cast<std::uint16_t>(rollring::Std::logprobs),
                                          static_cast<std::uint16_t>(rollring::Std::loss_mask)};
    std::array<std::vector<std::byte>, wanted.size()> arrays_;
};

void train(const BatchesQuestion& options, const std::string& ring, Board& board, Flag& stop) {
    auto stash = must(board, rollring::Stash::open(
                                 ring, {.group_size = batch_members,
                                        .batch = rollring::BatchTarget::groups(options.groups)}));
    Packed packed;
    rollring::Batch batch;
    const auto length_ns = static_cast<std::int64_t>(options.common.seconds * 1e9);
    std::int64_t first_ns = 0;  // of the first batch; a third of the time warms up
    std::int64_t began_ns = 0;
    std::int64_t tokens = 0;
    for (std::int64_t step = 0;; step++) {
        if (stash->next(batch, rollring::Deadline::after_ms(30'000)) !=
            rollring::NextBatch::batch) {
            board.give_up("no batch within 30 s");
        }
        tokens += static_cast<std::int64_t>(packed.take(batch, stash->schema()));
        must(board, batch.ack(step));
        const std::int64_t now = now_ns();
        if (first_ns == 0) first_ns = now;
        if (began_ns == 0 && now - first_ns >= length_ns / 3) {
            began_ns = now;
            tokens = 0;
        }
        if (began_ns != 0 && now - began_ns >= length_ns) {
            board.figures[0] = now - began_ns;
            board.figures[1] = tokens;
            break;
        }
    }
    stop.store(1);
}

double measure_in_cpp(const BatchesQuestion& options, const std::string& ring,
                      std::uint32_t n_tokens, std::uint32_t producers) {
    const SharedBytes memory(sizeof(Board) + 64);
    Board& board = *memory.at<Board>();
    Flag& stop = *memory.at<Flag>(sizeof(Board));
    std::vector<Task> tasks = {{any_cpu, [&](Board& all) { train(options, ring, all, stop); }}};
    for (std::uint32_t i = 0; i < producers; i++) {
        tasks.push_back({any_cpu, [&](Board& all) { send_groups(ring, all, stop, n_tokens); }});
    }
    const std::string problem = run_all(tasks, false, board);
    if (problem == "interrupted") return 0;
    if (!problem.empty()) fail("batches: " + problem);
    return static_cast<double>(board.figures[1]) * 1e9 / static_cast<double>(board.figures[0]);
}

Json measure_in_python(const BatchesQuestion& options, const std::string& ring,
                       std::uint32_t n_tokens, std::uint32_t producers) {
    const Turn turn;
    const ScriptOutput output = run_script(fmt::format(
        "'{}' '{}' {} --tokens {} --producers {} --groups {} --seconds {}", options.python,
        options.script, ring, n_tokens, producers, options.groups, options.common.seconds));
    if (!interrupted() && (output.status != 0 || !output.last().contains("tokens_per_s"))) {
        fail(fmt::format("batches: {} ended with status {}: see its message", options.script,
                         output.status));
    }
    return output.last();
}

Json measure(const BatchesQuestion& options, std::uint32_t n_tokens, std::uint32_t producers,
             Progress& progress) {
    Figures figures;
    for (int round = 0; round < options.common.repeat && !interrupted(); round++) {
        const ScratchRing ring({.lanes = producers});
        progress.step(fmt::format("{} producers, {} tokens, C++", producers, n_tokens));
        const double in_cpp = measure_in_cpp(options, ring.name(), n_tokens, producers);
        if (interrupted()) break;
        progress.step(fmt::format("{} producers, {} tokens, Python", producers, n_tokens));
        const Json found = measure_in_python(options, ring.name(), n_tokens, producers);
        if (interrupted()) break;
        const auto in_python = found["tokens_per_s"].get<double>();
        figures.add("cpp_tokens_per_s", in_cpp);
        figures.add("python_tokens_per_s", in_python);
        figures.add("python_of_cpp", in_python / in_cpp);
        for (const char* call : {"next_us", "packed_us", "ack_us"}) {
            figures.add(call, found[call].get<double>());
        }
    }
    Json row = {{"tokens", n_tokens}, {"producers", producers}};
    if (!figures.empty()) figures.append_to(row);
    return row;
}

}  // namespace

void run(const BatchesQuestion& options) {
    Json out = {{"question", "batches"},
                {"machine", machine(options.common.choose_cpus())},
                {"groups", options.groups},
                {"members", batch_members}};
    {
        Progress progress(2 * options.tokens.size() * options.producers.size() *
                          static_cast<std::size_t>(options.common.repeat));
        for (const std::uint32_t producers : options.producers) {
            for (const std::uint32_t n_tokens : options.tokens) {
                out["rows"].push_back(measure(options, n_tokens, producers, progress));
            }
        }
    }
    print_report(out, options.common.json);
}

}  // namespace bench
