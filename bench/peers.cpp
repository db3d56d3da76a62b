// Question: what do others move in the same run, doing the identical work?

#include <fmt/format.h>
#include <sys/socket.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <boost/interprocess/ipc/message_queue.hpp>  // tidy-ok: a peer, not a part of rollring
#include <memory>
#include <optional>

#include "workload.hpp"

namespace bench {
namespace {

struct Options {
    Common common;
    std::uint32_t n_tokens = 2048;
    std::string queue_bytes = "4MiB";
};

struct Peer {
    std::string name;
    std::function<Measured(const Plan&, const Cpus&)> run;
};

void write_header(std::byte* to, std::uint64_t sequence, const Slice& slice) {
    const FlatHeader header{sequence, slice.sum, slice.token_ids.size()};
    std::memcpy(to, &header, sizeof header);
}

void check(Meter& meter, const Flat& flat, const std::byte* from, std::uint32_t n_tokens) {
    FlatHeader header;
    std::memcpy(&header, from, sizeof header);
    meter.record(header.sequence, flat.sum(from, n_tokens), header.sum);
}

// No transport at all: one process gathers a record and reads it back.
Transport memcpy_transport(std::uint32_t n_tokens) {
    const auto consume = [flat = Flat::of(n_tokens)](Board& board, const Plan& plan) {
        const Source source(plan.n_tokens);
        std::vector<std::byte> scratch(flat.bytes + 64);
        Meter meter(board, plan);
        board.meet();
        for (std::uint64_t i = 0; !meter.done(); i++) {
            write_header(scratch.data(), i, source[i]);
            flat.write(scratch.data(), source[i]);
            check(meter, flat, scratch.data(), plan.n_tokens);
        }
    };
    return {"memcpy, one process", [](Board& board, const Plan&) { board.meet(); }, consume};
}

// A byte stream: the record is gathered into a scratch buffer, written, and read back whole.
Transport stream_transport(const std::string& name, int write_end, int read_end) {
    const auto produce = [write_end](Board& board, const Plan& plan) {
        const Source source(plan.n_tokens);
        const Flat flat = Flat::of(plan.n_tokens);
        std::vector<std::byte> scratch(flat.bytes);
        board.meet();
        for (std::uint64_t i = 0; i < plan.total(); i++) {
            write_header(scratch.data(), i, source[i]);
            flat.write(scratch.data(), source[i]);
            for (std::size_t done = 0; done < scratch.size();) {
                const ssize_t n = write(write_end, scratch.data() + done, scratch.size() - done);
                if (n <= 0) board.give_up("write failed");
                done += static_cast<std::size_t>(n);
            }
        }
    };
    const auto consume = [read_end](Board& board, const Plan& plan) {
        const Flat flat = Flat::of(plan.n_tokens);
        std::vector<std::byte> scratch(flat.bytes);
        Meter meter(board, plan);
        board.meet();
        while (!meter.done()) {
            for (std::size_t done = 0; done < scratch.size();) {
                const ssize_t n = read(read_end, scratch.data() + done, scratch.size() - done);
                if (n <= 0) board.give_up("read failed");
                done += static_cast<std::size_t>(n);
            }
            check(meter, flat, scratch.data(), plan.n_tokens);
        }
    };
    return {name, produce, consume};
}

Measured run_stream(bool pipe_instead, std::uint64_t queue_bytes, const Plan& plan,
                    const Cpus& cpus) {
    int ends[2];  // read, write
    const int made = pipe_instead ? pipe(ends) : socketpair(AF_UNIX, SOCK_STREAM, 0, ends);
    if (made != 0) fail("no socket or pipe");
    const int bytes = static_cast<int>(queue_bytes);
    for (const int end : ends) {  // best effort: the system has a maximum
        if (pipe_instead) break;
        setsockopt(end, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes);
        setsockopt(end, SOL_SOCKET, SO_RCVBUF, &bytes, sizeof bytes);
    }
    const auto measured = measure(
        stream_transport(pipe_instead ? "pipe" : "UNIX stream", ends[1], ends[0]), plan, cpus);
    close(ends[0]);
    close(ends[1]);
    return measured;
}

Measured run_boost(std::uint64_t queue_bytes, const Plan& plan, const Cpus& cpus) {
    using boost::interprocess::message_queue;  // tidy-ok: a peer
    const std::string name = fmt::format("bench-boost-{}", getpid());
    const std::uint64_t bytes = Flat::of(plan.n_tokens).bytes;
    message_queue::remove(name.c_str());
    message_queue queue(boost::interprocess::create_only, name.c_str(),
                        std::max<std::uint64_t>(2, queue_bytes / bytes), bytes);
    const auto produce = [&](Board& board, const Plan& work) {
        const Source source(work.n_tokens);
        const Flat flat = Flat::of(work.n_tokens);
        std::vector<std::byte> scratch(flat.bytes);
        board.meet();
        for (std::uint64_t i = 0; i < work.total(); i++) {
            write_header(scratch.data(), i, source[i]);
            flat.write(scratch.data(), source[i]);
            queue.send(scratch.data(), scratch.size(), 0);
        }
    };
    const auto consume = [&](Board& board, const Plan& work) {
        const Flat flat = Flat::of(work.n_tokens);
        std::vector<std::byte> scratch(flat.bytes);
        Meter meter(board, work);
        board.meet();
        while (!meter.done()) {
            message_queue::size_type got = 0;
            unsigned priority = 0;
            queue.receive(scratch.data(), scratch.size(), got, priority);
            check(meter, flat, scratch.data(), work.n_tokens);
        }
    };
    const auto measured = measure({"Boost message_queue", produce, consume}, plan, cpus);
    message_queue::remove(name.c_str());
    return measured;
}

std::vector<Peer> peers(const Options& options) {
    const std::uint64_t queue_bytes = parse_bytes(options.queue_bytes);
    RingTransport ring;
    ring.soft_bytes = queue_bytes;
    const auto bare = std::make_shared<BareHandoff>(options.n_tokens, queue_bytes);
    return {
        {"rollring",
         [=](const Plan& plan, const Cpus& cpus) { return measure_ring(ring, plan, cpus); }},
        {"limit", [=](const Plan& plan,
                      const Cpus& cpus) { return measure(bare->transport(), plan, cpus); }},
        {"memcpy, one process",
         [](const Plan& plan, const Cpus& cpus) {
             return measure(memcpy_transport(plan.n_tokens), plan, cpus);
         }},
        {"UNIX stream socket",
         [=](const Plan& plan, const Cpus& cpus) {
             return run_stream(false, queue_bytes, plan, cpus);
         }},
        {"pipe", [=](const Plan& plan,
                     const Cpus& cpus) { return run_stream(true, queue_bytes, plan, cpus); }},
        {"Boost message_queue",
         [=](const Plan& plan, const Cpus& cpus) { return run_boost(queue_bytes, plan, cpus); }},
    };
}

void run(const Options& options) {
    const Cpus cpus = options.common.choose_cpus();
    const auto all = peers(options);
    std::vector<Plan> plans(all.size());
    std::vector<std::vector<double>> rates(all.size());
    std::vector<std::vector<double>> shares(all.size());
    std::vector<double> line;
    {
        Progress progress(all.size() * (options.common.repeat + 1));
        for (std::size_t i = 0; i < all.size(); i++) {  // each runs for about as long
            progress.step("calibrating " + all[i].name);
            plans[i] = {.n_tokens = options.n_tokens, .records = 2000, .warmup = 500};
            const double rate = all[i].run(plans[i], cpus).tokens_per_s / options.n_tokens;
            plans[i].records = static_cast<std::uint64_t>(rate * options.common.seconds) + 100;
        }
        for (int round = 0; round < options.common.repeat; round++) {
            for (std::size_t i = 0; i < all.size() && !interrupted(); i++) {
                progress.step(all[i].name);
                const Measured measured = all[i].run(plans[i], cpus);
                rates[i].push_back(measured.tokens_per_s);
                shares[i].push_back(rates[0].back() / measured.tokens_per_s);
                line.push_back(measured.line_ns);
            }
        }
    }
    Json out = {{"question", "peers"},
                {"machine", machine(cpus)},
                {"tokens", options.n_tokens},
                {"line_ns", Spread::of(line).json()}};
    std::string table;
    for (std::size_t i = 0; i < all.size(); i++) {
        const Spread rate = Spread::of(rates[i]);
        const Spread share = Spread::of(shares[i]);
        out["rows"].push_back({{"name", all[i].name},
                               {"tokens_per_s", rate.json()},
                               {"rollring_times", share.json()}});
        table += fmt::format("{:<22} {:>8.0f} {:>6.1f}   {:.2f} [{:.2f}-{:.2f}]\n", all[i].name,
                             rate.median / 1e6, rate.median * token_bytes / 1e9, share.median,
                             share.low, share.high);
    }
    if (options.common.json) {
        fmt::print("{}\n", out.dump(2));
        return;
    }
    fmt::print(
        "{}\n{} tokens a record, queues of {}; {} alternating rounds; cache line {:.0f} ns\n"
        "{:<22} {:>8} {:>6}   rollring is so many times faster\n{}",
        machine_line(cpus), options.n_tokens, options.queue_bytes, options.common.repeat,
        Spread::of(line).median, "", "Mtok/s", "GB/s", table);
}

}  // namespace

void add_peers(CLI::App& app) {
    auto options = std::make_shared<Options>();
    CLI::App* sub = app.add_subcommand("peers", "the identical work over other transports");
    options->common.add_to(*sub);
    sub->add_option("--tokens", options->n_tokens, "tokens per record")
        ->capture_default_str()
        ->check(CLI::Range(1, 1 << 22));
    sub->add_option("--queue-bytes", options->queue_bytes, "room in the queues that have a choice")
        ->capture_default_str();
    sub->callback([options] { run(*options); });
}

}  // namespace bench
