#include <rollring/weights.hpp>

#include <iostream>

int main() {
    std::vector<float> q(4096 * 64), bias(64);
    const std::vector<rollring::WeightTensor> tensors{
        {.name = "q",
         .dtype = rollring::dtype_f32,
         .shape = {4096, 64},
         .data = q.data(),
         .published_dtype = rollring::dtype_bf16},  // cast while it is packed
        {.name = "bias", .dtype = rollring::dtype_f32, .shape = {64}, .data = bias.data()}};
    auto publisher = rollring::Publisher::create("quickstart", tensors);
    if (!publisher) {
        std::cerr << publisher.error().to_string() << '\n';
        return 1;
    }
    const auto deadline = rollring::Deadline::after_ms(30'000);
    if (!publisher->wait_subscribers(1, deadline)) return 1;
    bias[0] = 42;
    auto version = publisher->begin(1);
    if (!version || !version->put_all(deadline) || !version->publish()) return 1;
    const auto report = version->commit(deadline);  // on all engines, or on none
    if (!report) {
        std::cerr << report.error().to_string() << '\n';
        return 1;
    }
    std::cout << "committed version 1, " << report->payload_bytes << " bytes\n";
}
