// gpu_test: doctest over the GPU back ends, or (--role NAME) the other process of one of its tests.
#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>
#include <fmt/core.h>

#include <string>
#include <string_view>

#include "peer.hpp"
#include "rollring/weight_tensor.hpp"

int main(int argc, char** argv) {
    if (argc == 3 && std::string_view(argv[1]) == "--role") {
        return rollring::test::run_role(argv[2]);
    }
    if (const std::string why = rollring::why_no_gpu(); !why.empty()) {
        fmt::print("skipped: {}\n", why);
        return 77;
    }
    return doctest::Context(argc, argv).run();
}
