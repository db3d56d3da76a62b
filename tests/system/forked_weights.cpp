// The two ends of the weight channel in forked children, at each step of a version.

#include <csignal>

#include "forked.hpp"
#include "rollring/relay.hpp"
#include "rollring/weights.hpp"

namespace rollring::test {
namespace {

struct Model {
    std::vector<float> memory = std::vector<float>(64, 3.F);
    std::vector<WeightTensor> list{
        {.name = "q", .dtype = dtype_f32, .shape = {64}, .data = memory.data()}};
};

void try_publisher(Publisher& publisher, Transaction& open) {
    const auto now = Deadline::now();
    std::vector<float> q(64);
    try_in_child({
        {"Transaction::put_all", [&] { return refused_as_forked(open.put_all(now)); }},
        {"Transaction::put", [&] { return refused_as_forked(open.put("q", q.data(), now)); }},
        {"RelayTransaction::lend_part",
         [&] { return refused_as_forked(RelayTransaction::lend_part(open, now)); }},
        {"RelayTransaction::part_written",
         [&] { return refused_as_forked(RelayTransaction::part_written(open)); }},
        {"Transaction::publish", [&] { return refused_as_forked(open.publish()); }},
        {"Transaction::wait_staged", [&] { return refused_as_forked(open.wait_staged(now)); }},
        {"Transaction::decide", [&] { return refused_as_forked(open.decide(now)); }},
        {"Transaction::commit", [&] { return refused_as_forked(open.commit(now)); }},
        {"Transaction::version", tells([&] { return open.version(); })},
        {"Transaction::abort", inert([&] { open.abort(); })},
        {"Publisher::wait_subscribers",
         [&] { return refused_as_forked(publisher.wait_subscribers(1, patience())); }},
        {"Publisher::wait_live",
         [&] { return refused_as_forked(publisher.wait_live(1, patience())); }},
        {"Publisher::begin", [&] { return refused_as_forked(publisher.begin(9)); }},
        {"Publisher::begin_again", [&] { return refused_as_forked(publisher.begin_again()); }},
        {"Publisher::resume", [&] { return refused_as_forked(publisher.resume(9)); }},
        {"Publisher::resend", [&] { return refused_as_forked(publisher.resend(now)); }},
        {"Publisher::expel", [&] { return refused_as_forked(publisher.expel("e")); }},
        {"Publisher::behind", tells([&] { return publisher.behind(); })},
        {"Publisher::interrupt", inert([&] { publisher.interrupt(); })},
        {"Publisher::committed_version", tells([&] { return publisher.committed_version(); })},
        {"Publisher::payload_bytes", tells([&] { return publisher.payload_bytes(); })},
        {"Publisher::parts", tells([&] { return publisher.parts(); })},
        {"Publisher::slots", tells([&] { return publisher.slots(); })},
        {"Publisher::memory", tells([&] { return publisher.memory(); })},
        {"Publisher::why_not_direct", tells([&] { return publisher.why_not_direct(); })},
        {"Publisher::handles_passed", tells([&] { return publisher.handles_passed(); })},
    });
}

// Takes the version over, with a forked child that tries to do so at each step.
void try_subscriber(Subscriber& subscriber) {
    const auto now = Deadline::now();
    try_in_child({
        {"Subscriber::next", [&] { return refused_as_forked(subscriber.next(patience())); }},
        {"Subscriber::check_memory",
         [&] { return refused_as_forked(subscriber.check_memory({})); }},
        {"Subscriber::rollback", [&] { return refused_as_forked(subscriber.rollback()); }},
        {"Subscriber::delta", tells([&] { return subscriber.delta().version; })},
        {"Subscriber::refuse", inert([&] { subscriber.refuse("by a child"); })},
        {"Subscriber::interrupt", inert([&] { subscriber.interrupt(); })},
        {"Subscriber::live_version", tells([&] { return subscriber.live_version(); })},
        {"Subscriber::state", tells([&] { return subscriber.state(); })},
        {"Subscriber::problem", tells([&] { return subscriber.problem(); })},
        {"Subscriber::tensors", tells([&] { return subscriber.tensors(); })},
        {"Subscriber::publisher_id", tells([&] { return subscriber.publisher_id(); })},
        {"RelaySubscriber::part_bytes",
         tells([&] { return RelaySubscriber::part_bytes(subscriber); })},
        {"Subscriber::memory", tells([&] { return subscriber.memory(); })},
        {"Subscriber::imports", tells([&] { return subscriber.imports(); })},
        {"Subscriber::staging_bytes", tells([&] { return subscriber.staging_bytes(); })},
        {"Subscriber::why_not_staged", tells([&] { return subscriber.why_not_staged(); })},
    });
    auto update = opened(subscriber.next(patience()), "an update");
    const Calls steps{
        {"Update::parts", tells([&] { return update.parts(); })},
        {"Update::part", [&] { return refused_as_forked(update.part(0, now)); }},
        {"Update::done_reading", [&] { return refused_as_forked(update.done_reading(0)); }},
        {"Update::load", [&] { return refused_as_forked(update.load(now)); }},
        {"Update::stage", [&] { return refused_as_forked(update.stage(now)); }},
        {"Update::wait_committed", [&] { return refused_as_forked(update.wait_committed(now)); }},
        {"Update::adopt", [&] { return refused_as_forked(update.adopt(now)); }},
        {"Update::reject", inert([&] { update.reject("by a child"); })},
    };
    try_in_child(steps);
    require(update.load(patience()).has_value(), "load");
    try_in_child(steps);
    require(update.stage(patience()).has_value(), "stage");
    try_in_child(steps);
    require(update.adopt(patience()).has_value(), "adopt");
}

}  // namespace

void try_weights() {
    const ScratchRing ring("forked", {.lanes = 2, .lane_bytes = 64 << 10});
    Model trainer;
    auto publisher = opened(Publisher::create(ring.name(), trainer.list), "publisher");
    int began[2];
    require(pipe(began) == 0, "pipe");
    const pid_t engine = start_child([&] {
        Model model;
        model.memory.assign(64, 0.F);
        auto subscriber = opened(
            Subscriber::attach(ring.name(), model.list, {.name = "e"}, patience()), "attach");
        char byte = 0;
        require(read(began[0], &byte, 1) == 1, "the version is published");
        try_subscriber(subscriber);
        require(model.memory == trainer.memory, "the version is the trainer's");
        require(read(began[0], &byte, 1) == 1, "it was seen to be live");
        return 0;
    });
    require(publisher.wait_subscribers(1, patience()).has_value(), "an engine");
    auto open = opened(publisher.begin(1), "begin");
    try_publisher(publisher, open);
    require(open.put_all(patience()).has_value(), "put");
    require(open.publish().has_value(), "publish");
    try_publisher(publisher, open);
    require(write(began[1], "x", 1) == 1, "tell the engine");
    require(open.commit(patience()).has_value(), "commit");
    require(publisher.wait_live(1, patience()).has_value(), "live");
    require(write(began[1], "x", 1) == 1, "tell the engine");
    require(collect(engine) == 0, "no step of an update is a forked child's");
    // `called` of this process lacks the calls that the engine's process has made.
    for (const char* method : {"Subscriber::next",
                               "Subscriber::check_memory",
                               "Subscriber::refuse",
                               "Subscriber::interrupt",
                               "Subscriber::live_version",
                               "Subscriber::state",
                               "Subscriber::problem",
                               "Subscriber::tensors",
                               "Subscriber::publisher_id",
                               "RelaySubscriber::part_bytes",
                               "Subscriber::memory",
                               "Subscriber::imports",
                               "Subscriber::staging_bytes",
                               "Subscriber::why_not_staged",
                               "Subscriber::rollback",
                               "Subscriber::delta",
                               "Update::wait_committed",
                               "Update::parts",
                               "Update::part",
                               "Update::done_reading",
                               "Update::load",
                               "Update::stage",
                               "Update::adopt",
                               "Update::reject"}) {
        called.insert(std::string("rollring::") + method);
    }
}

}  // namespace rollring::test
