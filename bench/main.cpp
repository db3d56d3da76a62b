// rollring-bench: one subcommand per question. Every figure stands beside the cache-line time.

#include <CLI/CLI.hpp>

#include "bench.hpp"

int main(int argc, char** argv) {
    CLI::App app("Measures rollring against the limits of this machine and against its peers");
    app.require_subcommand(1);
    bench::catch_interrupts();
    bench::add_throughput(app);
    bench::add_softwrap(app);
    bench::add_latency(app);
    bench::add_stash(app);
    bench::add_peers(app);
    bench::add_scaling(app);
    bench::add_weights(app);
    bench::add_plot(app);
    CLI11_PARSE(app, argc, argv);
    return bench::interrupted() ? 130 : 0;
}
