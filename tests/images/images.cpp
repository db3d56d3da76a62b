// Crash images: a process goes through its work one instruction at a time; wherever that changes
// the ring's memory, the memory is copied, and others take over from the copy.
//
//   images [--boundaries N] [--images N] [--seed N] [--only 1|2|3|4]     N: floors, of all together

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>

#include "parts.hpp"

using namespace rollring;
using namespace rollring::test;

namespace {

const SelfRoles roles = {
    {"--step-producer", stepped_producer_role},
    {"--step-consumer", stepped_consumer_role},
    {"--step-trainer", stepped_trainer_role},
    {"--step-reader", stepped_reader_role},
};

int run_all(const std::vector<std::string>& arguments) {
    // Looking up names within a step would be most of it.
    // NOLINTNEXTLINE(concurrency-mt-unsafe): there is no other thread yet
    setenv("LD_BIND_NOW", "1", 1);
    const std::uint64_t boundaries = option(arguments, "--boundaries", 300'000);
    const std::uint64_t images = option(arguments, "--images", 1);
    const std::uint64_t only = option(arguments, "--only", 0);
    const std::uint64_t seed =
        option(arguments, "--seed", static_cast<std::uint64_t>(monotonic_ns()));
    fmt::print("images --seed {} --boundaries {}\n", seed, boundaries);
    static_cast<void>(std::fflush(stdout));
    struct Part {
        Stepped (*run)(std::uint64_t seed, std::uint64_t boundaries);
        std::uint64_t percent;
    };
    Stepped sum;
    const auto walk = [&](std::uint64_t round, std::uint64_t wanted) {
        std::uint64_t number = 0;
        // A reader changes memory so seldom that its part comes beside the others.
        for (const Part& part : {Part{step_producer, 35}, Part{step_consumer, 30},
                                 Part{step_trainer, 35}, Part{step_reader, 60}}) {
            number++;
            if (only != 0 && only != number) continue;
            const Stepped one = part.run(seed + 4 * round + number, wanted * part.percent / 100);
            sum.boundaries += one.boundaries;
            sum.images += one.images;
            sum.contexts += one.contexts;
            static_cast<void>(std::fflush(stdout));
        }
    };
    walk(0, boundaries);
    // How many of the instructions change memory is chance: a few more make up for bad luck, and
    // not for a ring that has become quiet.
    constexpr std::uint64_t more = 5;  // rounds, of a tenth
    for (std::uint64_t round = 1; round <= more && only == 0 && sum.images < images; round++) {
        walk(round, boundaries / 10);
    }
    fmt::print("boundaries={} images={} contexts={} leftovers={}\n", sum.boundaries, sum.images,
               sum.contexts, leftovers());
    require(only != 0 || sum.boundaries >= boundaries, "only {} boundaries", sum.boundaries);
    require(only != 0 || sum.images >= images, "only {} images", sum.images);
    require(leftovers() == 0, "{} leftovers", leftovers());
    return 0;
}

}  // namespace

int main(int argc, char** argv) {
    return run_self(argc, argv, roles, run_all);
}
