#include <rollring/weights.hpp>

#include <iostream>

int main() {
    std::vector<std::uint16_t> q(4096 * 64);
    std::vector<float> bias(64);
    const std::vector<rollring::WeightTensor> mine{
        {.name = "q", .dtype = rollring::dtype_bf16, .shape = {4096, 64}, .data = q.data()},
        {.name = "bias", .dtype = rollring::dtype_f32, .shape = {64}, .data = bias.data()}};
    const auto deadline = rollring::Deadline::after_ms(30'000);
    auto subscriber = rollring::Subscriber::attach("quickstart", mine, {}, deadline);
    if (!subscriber) {
        std::cerr << subscriber.error().to_string() << '\n';
        return 1;
    }
    auto update = subscriber->next(deadline);  // pause generation here
    if (!update || !update->load(deadline) || !update->stage(deadline)) return 1;
    if (const auto adopted = update->adopt(deadline); !adopted) {
        std::cerr << adopted.error().to_string() << '\n';  // and the state of the engine
        return 1;
    }
    std::cout << "serves version " << subscriber->live_version() << ", bias " << bias[0] << '\n';
}
