#pragma once
// A node with workers: they take prompts in groups, each member by a free worker, and push their
// records into the node's ring, from where a forwarder ships them. With several rings each has its
// forwarder.

#include <cstdint>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "demand.hpp"
#include "events.hpp"
#include "receiver.hpp"
#include "rollouts.hpp"

namespace bench::scale {

// Groups and members that are to be done again, and the state that all nodes share.
struct Fleet {
    const Settings* settings;
    Events* events;
    Rollouts* rollouts;
    std::vector<std::unique_ptr<Receiver>> receivers;
    std::deque<std::uint32_t> groups_again;
    std::deque<std::uint32_t> rollouts_again;
};

// Ships one node's records to one receiver.
class Forwarder {
  public:
    Forwarder(Fleet& fleet, std::uint32_t node, std::uint32_t ring, Server& link)
        : fleet_(&fleet), node_(node), ring_(ring), link_(&link) {}

    void add(std::uint32_t rollout);
    void arrived(const Parcel& parcel);
    // Whether its worker goes on without a call, within places that the node has in advance.
    bool take_spare(std::uint32_t rollout);
    // The spare places that it has from now on.
    void note(const Spare& spare);
    // Its record has arrived.
    void release(std::uint32_t rollout);
    void die() { dead_ = true; }

    Server process;

  private:
    void look();
    [[nodiscard]] bool may_collect() const;
    [[nodiscard]] double linger_us() const;
    void collect();
    void ship(std::unique_ptr<Parcel> made);
    void send(Parcel& parcel);
    std::uint32_t want();
    void watch_spare();
    void give_back();

    Fleet* fleet_;
    std::uint32_t node_;
    std::uint32_t ring_;
    Server* link_;
    std::deque<std::uint32_t> waiting_;
    std::uint64_t waiting_bytes_ = 0;
    std::deque<std::unique_ptr<Parcel>> parcels_;  // some have arrived
    std::uint32_t flying_ = 0;                     // parcels that have not
    std::uint64_t flying_bytes_ = 0;
    std::uint64_t turn_ = 0;  // of collecting: a wait for more is over with it
    Demand demand_;
    Spare spare_;
    std::uint32_t wanted_ = 0;  // as the receiver was told last
    std::uint32_t bound_ = 0;   // of taken_, for another one
    std::uint32_t taken_ = 0;   // places in advance that rollouts here use
    bool watches_ = false;
    bool gives_back_ = false;
    bool lingers_ = false;
    bool collecting_ = false;
    bool dead_ = false;
};

struct WorkerTimes {
    std::int64_t works_ns = 0;  // that workers have generated, added up
    std::int64_t place_ns = 0;  // waited for work: for a place, as a rule
    std::int64_t room_ns = 0;   // waited in a push

    WorkerTimes operator-(const WorkerTimes& other) const {
        return {works_ns - other.works_ns, place_ns - other.place_ns, room_ns - other.room_ns};
    }
};

class Node {
  public:
    Node(Fleet& fleet, std::uint32_t number);
    Node(const Node&) = delete;
    Node& operator=(const Node&) = delete;

    // Also when there may be something to do again.
    void look();
    // A parcel of it is in the trainer's ring, and it was told.
    void arrived(const Parcel& parcel);
    void die();
    [[nodiscard]] bool alive() const { return alive_; }
    [[nodiscard]] WorkerTimes times() const;
    // In its ring, records under way included: those lie in the object store as well.
    [[nodiscard]] std::uint64_t bytes_most() const { return bytes_most_; }
    [[nodiscard]] Forwarder& forwarder(std::uint32_t ring) { return *forwarders_[ring]; }
    void forget();

    Server link;

  private:
    enum class State : std::uint8_t { idle, works, asks, blocked };
    struct Worker {
        State state = State::idle;
        std::int64_t since_ns = clock_begin_ns;
        std::uint64_t lane_bytes = 0;  // in its lane of the node's ring
        std::uint32_t blocked = 0;     // the rollout that waits for room there
    };

    void begin(std::uint32_t worker);
    void open_groups();
    void opened(std::uint32_t group);
    void finished(std::uint32_t worker, std::uint32_t rollout);
    void push(std::uint32_t worker, std::uint32_t rollout);
    void set(Worker& worker, State state);
    void count(const Worker& worker, WorkerTimes& times) const;

    Fleet* fleet_;
    std::uint32_t number_;
    std::vector<Worker> workers_;
    std::vector<std::uint32_t> idle_;
    std::deque<std::uint32_t> tasks_;
    std::vector<std::unique_ptr<Forwarder>> forwarders_;
    std::uint32_t opening_ = 0;
    std::uint64_t bytes_ = 0;
    std::uint64_t bytes_most_ = 0;
    WorkerTimes times_;
    bool alive_ = true;
};

}  // namespace bench::scale
