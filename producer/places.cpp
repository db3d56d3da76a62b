// Places of groups: taken in advance, returned, and passed on.

#include "producer_impl.hpp"
#include "rollring/relay.hpp"

namespace rollring {

Push Producer::open_group(std::string_view instance_id, std::uint64_t visit, Deadline deadline,
                          const GroupPlan& plan) {
    Impl& impl = *impl_;
    if (!impl.usable()) return impl.refuse_closed();
    if (impl.check_name() != Push::ok) return Push::closed;
    impl.wish(0, 0);
    if (!impl.admission->active()) return Push::ok;
    const std::uint64_t bytes = impl.declare(plan);
    const Push got =
        impl.admit(GroupKey::of(instance_id, visit), {plan.group_size, bytes}, deadline, true);
    if (got == Push::ok) impl.wish(0, 0);
    return got;
}

bool Producer::may_send(std::string_view instance_id, std::uint64_t visit, const GroupPlan& plan) {
    Impl& impl = *impl_;
    if (!impl.usable() || !impl.admission->active()) return impl.usable();
    const std::uint64_t bytes = impl.declare(plan);
    return impl.admission->ask(GroupKey::of(instance_id, visit), {plan.group_size, bytes},
                               impl.owner()) == Admission::Answer::go;
}

bool Producer::cancel_group(std::string_view instance_id, std::uint64_t visit) {
    return cancel_group(GroupKey::of(instance_id, visit));
}

bool Producer::cancel_group(const GroupKey& key) {
    Impl& impl = *impl_;
    if (!impl.usable()) return false;
    impl.wish(0, 0);
    if (!impl.admission->cancel(key, impl.owner())) return false;
    impl.ring_all_lanes();
    return true;
}

std::uint64_t RelayProducer::ring_id(const Producer& producer) {
    return producer.impl_->map.ring_id();
}

bool RelayProducer::holds_place(const Producer& producer, const GroupKey& key) {
    return producer.impl_->admission->holds(key);
}

void RelayProducer::inherit_place(Producer& producer, const GroupKey& key, const GroupPlan& plan) {
    Producer::Impl& impl = *producer.impl_;
    if (!impl.usable() || !impl.admission->active()) return;
    const std::uint64_t bytes = impl.declare(plan);
    impl.admission->inherit(key, {plan.group_size, bytes}, impl.owner());
}

bool RelayProducer::take_spare_place(Producer& producer, const GroupKey& stand_in,
                                     const GroupPlan& plan) {
    Producer::Impl& impl = *producer.impl_;
    if (!impl.usable()) return false;
    const std::uint64_t bytes = impl.declare(plan);
    return impl.admission->take_spare(stand_in, {plan.group_size, bytes}, impl.owner());
}

bool RelayProducer::pass_place(Producer& producer, const GroupKey& stand_in, const GroupKey& key) {
    Producer::Impl& impl = *producer.impl_;
    return impl.usable() && impl.admission->pass(stand_in, key);
}

RelayProducer::Places RelayProducer::places(const Producer& producer) {
    const Producer::Impl& impl = *producer.impl_;
    if (!impl.usable() || !impl.admission->active()) return Places::not_asked_for;
    return impl.admission->has_plenty() ? Places::plenty : Places::scarce;
}

void RelayProducer::lose_record(Producer& producer) {
    Producer::Impl& impl = *producer.impl_;
    if (impl.usable()) impl.sequence++;
}

}  // namespace rollring
